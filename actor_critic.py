"""Actor-critic, in one file: with TD errors, with Q, or with the advantage.

A policy π(a|s), the actor, gives the probability of action a in state s, and plays. A critic
learns how much reward r is still to come. Every few steps both learn: the critic to make its errors
δ_t smaller, the actor to make a_t more likely if its weight ψ_t is positive, and less if negative.

    L = -E[log π(a_t|s_t) ψ_t] + ½ E[δ_t²] - c_e E[H(π(·|s_t))]

    --critic q          ψ_t = Q(s_t, a_t)           δ_t = r_t + γ Q(s_{t+1}, a_{t+1}) - Q(s_t, a_t)
    --critic advantage  ψ_t = Q(s_t, a_t) - V(s_t)  δ_t of both Q and V
    --critic td         ψ_t = δ_t                   δ_t = r_t + γ V(s_{t+1}) - V(s_t)

Q(s, a) estimates the return, the sum of rewards discounted by γ, from s with a as the first action.
With it as weight the gradient is that of the expected return ([1] Sec. 13.2). V(s) is the mean of
Q(s, a) over the actions: to subtract it changes nothing on average, as it does not depend on a, and
takes away noise ([1] Sec. 13.4). What is left is the advantage, which the TD error estimates with V
alone ([1] Sec. 13.5). The error of Q is that of SARSA ([1] Eq. 6.7): a_{t+1} is what π plays in
s_{t+1}. The entropy H is large where π is undecided. No gradient flows through ψ_t, which each
update shifts and scales to mean 0 and variance 1, nor through the critics' targets r_t + ....

`python actor_critic.py` solves its task, an average score of 475, in some 17,000 steps.

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd edition
"""

import os
import signal
import sys
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from dataclasses import dataclass, field, fields

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical
from torch.optim.adam import adam


def setting(default, help, choices=None, least=0, most=np.inf):
    """A field of Config: its default, a few words for --help, and what values it may have."""
    return field(default=default, metadata=dict(help=help, choices=choices, least=least, most=most))


@dataclass(init=False)
class Config:
    """Every setting of a run. The command line is made from it: num_envs becomes --num-envs."""
    env_id: str = setting("CartPole-v1", "gymnasium environment with Discrete actions")
    total_steps: int = setting(100_000, "environment steps to train for")
    num_envs: int = setting(4, "N, environments played side by side", least=1)
    num_steps: int = setting(8, "T, steps of each environment per update", least=2)
    learning_rate: float = setting(5e-3, "step size of Adam at first; it falls linearly to 0")
    reward_scale: float = setting(0.05, "learn from the rewards times this number")
    gamma: float = setting(0.995, "discount of future rewards", most=1)
    critic: str = setting("td", "td, q or advantage: what weighs actions", ("td", "q", "advantage"))
    entropy_coef: float = setting(0.01, "weight of the entropy bonus")
    max_grad_norm: float = setting(1.0, "a longer gradient is shortened to this; inf: never")
    hidden_layers: int = setting(1, "hidden layers of each network")
    hidden_size: int = setting(64, "units of each hidden layer", least=1)
    activation: str = setting("tanh", "tanh or relu, between the layers", ("tanh", "relu"))
    seed: int = setting(0, "same seed, machine and versions: same scores")
    device: str = setting("cpu", "where torch computes: cpu or cuda")
    save: str = setting("", "file to keep the run in, on the way, at the end and on Ctrl-C")
    load: str = setting("", "file that --save wrote, to go on from with its settings")
    render: bool = setting(False, "at the end play an episode in a window")
    video: str = setting("", "new folder to film an episode into at the end")

    def __init__(self, **given):
        """A setting that is not given is that of the checkpoint to load, or else the default."""
        path = given.get("load")
        try:  # no code in the file is run
            old = torch.load(path, map_location="cpu", weights_only=True)["config"] if path else {}
        except Exception as error:  # a foreign file can fail in any way
            reason = getattr(error, "strerror", 0) or "not a file that --save wrote"
            raise ValueError(f"--load {path}: {reason}") from None
        settings = old | {"save": "", "render": False, "video": "", "device": "cpu"} | given
        for spec in fields(self):
            value, kind = settings.pop(spec.name, spec.default), spec.type
            _, words, lo, hi = spec.metadata.values()
            if not (value in words if words else kind is str or lo <= kind(value) == value <= hi):
                raise ValueError(f"--{spec.name.replace('_', '-')} {value}: must be "
                                 f"{words or f'{kind.__name__} from {lo} to {hi}'}")
            setattr(self, spec.name, kind(value))  # numpy's numbers become Python's
        if settings:
            raise ValueError(f"{', '.join(settings)}: not a setting of this script")


def mlp(sizes, activation, output_gain):
    """A network (..., sizes[0]) -> (..., sizes[-1]) of linear layers, with tanh or relu between."""
    layers, gains = [], [2**0.5] * (len(sizes) - 2) + [output_gain]
    for size_in, size_out, gain in zip(sizes[:-1], sizes[1:], gains):
        linear = nn.Linear(size_in, size_out)
        nn.init.orthogonal_(linear.weight, gain)  # √2 keeps a signal's size through the layers
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh() if activation == "tanh" else nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # nothing follows the output


class ActorCritic(nn.Module):
    """The policy π(a|s) and the critics V(s) and Q(s, a), sized from the environment's spaces."""
    def __init__(self, envs, config):
        super().__init__()
        obs_dim, n_actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
        # Buffers are saved with the weights. Of all observations: count, sum and sum of squares.
        self.obs_sums = nn.Buffer(torch.zeros(3, obs_dim).double())
        self.obs_unit = nn.Buffer(torch.ones(obs_dim))  # at first obs stays as it is
        sizes = [obs_dim] + [config.hidden_size] * config.hidden_layers
        # A policy output near 0 makes all actions about equally likely at first.
        self.policy = mlp([*sizes, n_actions], config.activation, output_gain=0.01)
        self.v_critic = mlp([*sizes, 1], config.activation, output_gain=1.0)
        self.q_critic = mlp([*sizes, n_actions], config.activation, output_gain=1.0)

    def forward(self, obs):
        """Observations (..., obs_dim), as they come -> π(·|obs), V (...), Q (..., n_actions)."""
        obs = self.normalize(obs)
        pi = Categorical(logits=self.policy(obs), validate_args=False)
        return pi, self.v_critic(obs).squeeze(-1), self.q_critic(obs)

    def normalize(self, obs):
        return (obs / self.obs_unit).clamp(-10, 10)  # a shift by a moving mean would hide drifts

    def update_statistics(self, obs):
        """Takes in observations (B, obs_dim). All those seen so far count alike."""
        self.obs_sums += torch.stack([obs.double() ** k for k in (0, 1, 2)]).sum(1)
        mean, mean_square = self.obs_sums[1:] / self.obs_sums[0]
        self.obs_unit.copy_((mean_square - mean**2).clamp(min=1e-8).sqrt() / 2)

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim), an array -> actions (N,), sampled or the likeliest."""
        if not (np.abs(obs) < 1e38).all():
            raise FloatingPointError("the environment's observation is not finite")
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.obs_unit.device)
        probs = self.policy(self.normalize(obs)).softmax(-1)
        return (probs.argmax(-1) if greedy else probs.multinomial(1).squeeze(-1)).cpu().numpy()


def td_error(reward, value, next_value, terminated, gamma):
    """δ_t = r_t + γ V(s_{t+1}) - V(s_t), with V = 0 in a terminal state. All (T, N). V may be Q."""
    assert reward.shape == value.shape == next_value.shape == terminated.shape
    target = reward + gamma * next_value * ~terminated  # a truncated episode was only interrupted
    return target.detach() - value  # the critic moves to the target, not the target to the critic


def train(config, run=None):
    """Trains an agent. Returns it and its history: (env_step, episode_return) of each episode."""
    envs, agent, env_step, history = run or set_up(config)
    # Each seed and --load plays other episodes. Seeded only here, no episode comes twice.
    seed = int(np.random.SeedSequence([config.seed, 0, env_step]).generate_state(1)[0])
    torch.manual_seed(seed)
    obs, _ = envs.reset(seed=seed)
    done, next_report = np.zeros(config.num_envs, bool), env_step
    try:
        while env_step < config.total_steps:
            learning_rate = config.learning_rate * (1 - env_step / config.total_steps)

            # Collect: play T steps with the current policy.
            rollout, obs_seq = [], [np.float32(obs)]
            for _ in range(config.num_steps):
                action = agent.act(obs)
                obs, reward, terminated, truncated, info = envs.step(action)
                obs_seq.append(np.float32(obs))  # what the step led to
                reward = np.float32(config.reward_scale * reward)  # so that V is about 1 to 10
                valid = ~done  # the step after an episode's end only resets
                rollout.append((action, reward, terminated, valid))
                env_step, done = env_step + config.num_envs, terminated | truncated
                if done.any():
                    history += [(env_step, float(score)) for score in info["episode"]["r"][done]]

            # Estimate: the errors of the critics, and ψ_t, the weight of each log-probability.
            obs_seq, action, reward, terminated, valid = (  # (T+1, N, obs_dim), each other (T, N)
                torch.as_tensor(np.stack(x)).to(config.device) for x in (obs_seq, *zip(*rollout)))
            pi, v, q = agent(obs_seq)  # v (T+1, N), q (T+1, N, n_actions)
            action_seq = torch.cat([action, pi.sample()[-1:]])  # a_T is drawn, but not played
            q = q.gather(-1, action_seq.unsqueeze(-1)).squeeze(-1)  # (T+1, N)
            v_error = td_error(reward, v[:-1], v[1:], terminated, config.gamma)
            q_error = td_error(reward, q[:-1], q[1:], terminated, config.gamma)
            squared_error = ((config.critic != "q") * v_error.square()
                             + (config.critic != "td") * q_error.square())
            psi = {"td": v_error, "q": q[:-1], "advantage": (q - v)[:-1]}[config.critic].detach()
            std, mean = torch.std_mean(psi[valid], correction=0)  # no NaN for B = 1
            psi = (psi[valid] - mean) / (std + 1e-8)  # else Q would praise every action

            # Update: one gradient step, from all but the steps that only reset.
            log_prob, entropy = pi.log_prob(action_seq)[:-1][valid], pi.entropy()[:-1][valid]
            assert log_prob.shape == psi.shape
            loss = -log_prob * psi + 0.5 * squared_error[valid] - config.entropy_coef * entropy
            descend(agent, loss.mean(), learning_rate, config.max_grad_norm)
            agent.update_statistics(obs_seq[:-1][valid])  # only now: π was computed with the old
            if env_step >= min(next_report, config.total_steps):  # twenty times a run
                next_report = env_step + config.total_steps / 20
                save(config, agent, env_step, history)
                print(f"step {env_step:,}  episode {len(history):,}  average score of the last 20 "
                      f"episodes: {np.mean([score for _, score in history[-20:]] or np.nan):.2f}  "
                      f"entropy {entropy.mean():.2g}", flush=True)
    except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
        save(config, agent, env_step, history)
        agent.status = 130  # the exit status of a program that Ctrl-C ended
    return agent, history


# ---- From here on: set-up, gradient step, checkpoints, evaluation and the command line ----
def set_up(config):
    """Environments, agent, env_step and history: of a new run, or as in the checkpoint to load."""
    torch.set_num_threads(1)  # at these sizes more threads only wait for each other
    torch.manual_seed(config.seed)
    envs = make_envs(config.env_id, config.num_envs)
    agent, env_step, history = ActorCritic(envs, config).to(config.device), 0, []
    # The weights are one vector, of which each layer has a part: one operation moves them all.
    agent.parts = list(agent.parameters())
    agent.weights = nn.utils.parameters_to_vector(agent.parts).detach()
    nn.utils.vector_to_parameters(agent.weights, agent.parts)
    agent.adam_mean, agent.adam_square = (nn.Buffer(0 * agent.weights) for _ in range(2))
    agent.adam_steps = nn.Buffer(torch.zeros((), device=config.device))
    if config.load:
        checkpoint = torch.load(config.load, map_location="cpu", weights_only=True)
        agent.load_state_dict(checkpoint["agent"])  # refuses other shapes
        env_step, history = int(checkpoint["env_step"]), list(map(tuple, checkpoint["history"]))
    if config.save:  # Does it work? Only what was loaded may be overwritten.
        open(config.save, "ab" if config.save == config.load else "xb").close()
    save(config, agent, env_step, history)
    agent.screens = [make_envs(config.env_id, 1, mode, config.video) for mode in
                     ["human"] * config.render + ["rgb_array"] * bool(config.video)]
    return envs, agent, env_step, history


def make_envs(env_id, num_envs, render_mode=None, video=""):
    """Copies of an environment that step together and report each finished episode in info."""
    how = {"render_mode": render_mode, "vectorization_mode": "sync"} if render_mode else {}
    envs = gym.make_vec(env_id, num_envs, **how)
    space = envs.single_action_space
    if not isinstance(space, gym.spaces.Discrete) or space.start:
        raise ValueError(f"needs Discrete actions from 0, not {space}; Box: ppo_continuous.py")
    if render_mode == "rgb_array":
        if os.path.exists(video):
            raise FileExistsError(f"--video {video}: exists; choose a new folder")
        envs = gym.wrappers.vector.RecordVideo(envs, video, episode_trigger=lambda episode: True)
    if envs.single_observation_space != gym.spaces.flatten_space(envs.single_observation_space):
        envs = gym.wrappers.vector.FlattenObservation(envs)
    return gym.wrappers.vector.RecordEpisodeStatistics(envs)


def descend(agent, loss, learning_rate, max_grad_norm=np.inf):
    """A step of Adam (arXiv:1412.6980), by torch's function: its class takes a second to import."""
    grad = torch.cat([part.flatten() for part in torch.autograd.grad(loss, agent.parts)])
    norm = float(grad.norm())
    if not np.isfinite(norm * learning_rate):
        raise FloatingPointError("the gradient is not finite; a smaller --learning-rate may help")
    grad *= min(1, max_grad_norm / (norm + 1e-6))
    adam([agent.weights], [grad], [agent.adam_mean], [agent.adam_square], [], [agent.adam_steps],
         lr=learning_rate, beta1=0.9, beta2=0.999, eps=1e-5, fused=True,
         weight_decay=0.0, amsgrad=False, maximize=False)


def save(config, agent, env_step, history):
    """Writes a checkpoint beside the old one, and puts it in its place: it is never half a file."""
    try:
        if config.save:
            torch.save(dict(config=vars(config), agent=agent.state_dict(), env_step=env_step,
                            history=history), config.save + ".unfinished")
            os.replace(config.save + ".unfinished", config.save)
        agent.status = 0
    except (OSError, RuntimeError) as error:  # no reason to lose the run
        agent.status = 1
        print(f"--save {config.save}: step {env_step:,} not saved: {error}", file=sys.stderr)


def evaluate(agent, env_id, episodes=100, greedy=True, seed=0, envs=None):
    """Returns (episodes,) of fresh episodes; 10,000 steps of each if there is no time limit."""
    envs = envs or make_envs(env_id, episodes)
    obs, _ = envs.reset(seed=int(np.random.SeedSequence([seed, 2**32 - 1]).generate_state(1)[0]))
    returns, playing = np.zeros(episodes), np.ones(episodes, bool)
    for _ in range(envs.spec.max_episode_steps or 10_000):
        obs, reward, terminated, truncated, _ = envs.step(agent.act(obs, greedy))
        returns += reward * playing  # of each environment's first episode
        playing &= ~(terminated | truncated)
        if not playing.any():
            break
    envs.close()
    return returns


def main():
    """Trains with the settings of the command line, then evaluates over 100 fresh episodes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM is one more Ctrl-C
    parser = ArgumentParser(usage=SUPPRESS, allow_abbrev=False)
    for spec in fields(Config):
        how = {"action": BooleanOptionalAction} if spec.type is bool else {"type": spec.type}
        parser.add_argument(f"--{spec.name.replace('_', '-')}", default=SUPPRESS, **how,
                            help=f"{spec.metadata['help']} (default: {spec.default!r})")
    try:
        # In a notebook's cell, which is no file, the arguments are the kernel's, not the user's.
        config = Config(**vars(parser.parse_args(None if "__file__" in globals() else [])))
        run = set_up(config)
    except Exception as error:  # as nothing has begun, a setting is wrong
        parser.error(" ".join(str(error).split()))
    try:
        agent, _ = train(config, run)
        for greedy in (True, False):
            score = evaluate(agent, config.env_id, greedy=greedy, seed=config.seed).mean()
            print(f"{'greedy' if greedy else 'sampled'} evaluation: {score:.2f} over 100 episodes")
        for screen in agent.screens:
            evaluate(agent, config.env_id, 1, envs=screen)
    except FloatingPointError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        parser.exit(130)
    if agent.status:
        sys.exit(agent.status)


if __name__ == "__main__":
    main()
