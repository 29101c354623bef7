"""PPO (Proximal Policy Optimization) for continuous actions, in one file.

A policy π(a|s), the actor, plays N copies of an environment for T steps. It is a Gaussian: a
network gives the mean of action a in state s, and its width σ is learned, too. A critic V(s) learns
how much reward r is still to come after s. The advantage Â_t says how much better a_t turned out
than the critic expected, and PPO makes actions with a positive one more likely, in several passes
over the same steps. The clip removes any gain from making an action more than 1+ε, or less than
1-ε times as likely as π_old, which played it.

    δ_t = r_t + γ V(s_{t+1}) - V(s_t)                         TD error            [1] Eq. 12
    Â_t = δ_t + γλ Â_{t+1}                                    GAE                 [1] Eq. 11, [2]
    ρ_t = π(a_t|s_t) / π_old(a_t|s_t)                         probability ratio   [1] Sec. 3
    L   = -E[min(ρ_t Â_t, clip(ρ_t, 1-ε, 1+ε) Â_t)]           clipped surrogate   [1] Eq. 7
          + ½ E[(V(s_t) - G_t)²] - c_e E[H(π(·|s_t))]         critic, entropy     [1] Eq. 9

γ discounts the future; λ trusts the critic at 0 and the rewards at 1; G_t = Â_t + V_old(s_t)
estimates the return, the discounted sum of rewards; the entropy H is large where π is undecided.
With --objective penalty the first term is -E[ρ_t Â_t - β KL(π_old‖π)] instead ([1] Eq. 8): the
divergence KL tells how far π has moved from π_old, and its weight β adapts to it.

`python ppo_continuous.py` solves its task, an average score of -200, in some 17,000 steps.

[1] Schulman et al. 2017, Proximal Policy Optimization Algorithms, arXiv:1707.06347
[2] Schulman et al. 2016, Generalized Advantage Estimation, arXiv:1506.02438, Eq. 16
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
from torch.distributions import Independent, Normal
from torch.optim.adam import adam


def setting(default, help, choices=None, least=0, most=np.inf):
    """A field of Config: its default, a few words for --help, and what values it may have."""
    return field(default=default, metadata=dict(help=help, choices=choices, least=least, most=most))


@dataclass(init=False)
class Config:
    """Every setting of a run. The command line is made from it: num_envs becomes --num-envs."""
    env_id: str = setting("Pendulum-v1", "gymnasium environment with bounded Box actions")
    total_steps: int = setting(99_000, "environment steps to train for")
    num_envs: int = setting(5, "N, environments played side by side", least=1)
    num_steps: int = setting(200, "T, steps of each environment per rollout", least=2)
    epochs: int = setting(10, "passes over each rollout", least=1)
    num_minibatches: int = setting(8, "parts of a rollout, with a gradient step for each", least=1)
    learning_rate: float = setting(1e-3, "step size of Adam at first; it falls linearly to 0")
    obs_std: float = setting(2.0, "scale observations to this standard deviation", most=10)
    reward_scale: float = setting(0.05, "learn from the rewards times this number")
    normalize_reward: bool = setting(False, "divide rewards by the spread of discounted returns")
    gamma: float = setting(0.98, "discount of future rewards", most=1)
    gae_lambda: float = setting(0.9, "0 trusts the critic, 1 the rewards", most=1)
    objective: str = setting("clip", "clip or penalty, to hold updates back", ("clip", "penalty"))
    clip_eps: float = setting(0.2, "clip of the probability ratio; inf: no clip")
    target_kl: float = setting(0.03, "KL per update that the penalty aims at first; it falls to 0")
    entropy_coef: float = setting(0.0, "weight of the entropy bonus")
    max_grad_norm: float = setting(1.0, "a longer gradient is shortened to this; inf: never")
    init_log_std: float = setting(0.5, "log of the policy's deviation at first", least=-np.inf)
    hidden_layers: int = setting(2, "hidden layers of each network")
    hidden_size: int = setting(128, "units of each hidden layer", least=1)
    activation: str = setting("relu", "tanh or relu, between the layers", ("tanh", "relu"))
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
    """The policy π(a|s) and the critic V(s): two networks, sized from the environment's spaces."""
    def __init__(self, envs, config):
        super().__init__()
        obs_dim, space = envs.single_observation_space.shape[0], envs.single_action_space
        # Buffers are saved with the weights. Of all observations: count, sum and sum of squares.
        self.obs_sums = nn.Buffer(torch.zeros(3, obs_dim).double())
        self.obs_unit = nn.Buffer(torch.ones(obs_dim))  # at first obs stays as it is
        self.beta = nn.Buffer(torch.ones(()))  # β of the KL penalty
        self.log_std = nn.Parameter(torch.full((int(np.prod(space.shape)),), config.init_log_std))
        sizes = [obs_dim] + [config.hidden_size] * config.hidden_layers
        # A policy output near 0 makes the mean action the middle of the range at first.
        self.policy = mlp([*sizes, len(self.log_std)], config.activation, output_gain=0.01)
        self.critic = mlp([*sizes, 1], config.activation, output_gain=1.0)

    def forward(self, obs):
        """Observations (..., obs_dim), as they come -> the distribution π(·|obs), V(obs) (...)."""
        obs = self.normalize(obs)
        pi = Independent(Normal(self.policy(obs), self.log_std.exp(), False), 1, False)
        return pi, self.critic(obs).squeeze(-1)

    def normalize(self, obs):
        return (obs / self.obs_unit).clamp(-10, 10)  # a shift by a moving mean would hide drifts

    def update_statistics(self, obs, obs_std):
        """Takes in observations (B, obs_dim): all seen so far, scaled, have deviation obs_std."""
        sums = torch.stack([obs.double() ** k for k in (0, 1, 2)]).sum(1)
        all_reduce(sums)  # over the processes of torchrun, if there are several
        self.obs_sums += sums
        mean, mean_square = self.obs_sums[1:] / self.obs_sums[0]
        self.obs_unit.copy_((mean_square - mean**2).clamp(min=1e-8).sqrt() / obs_std)

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim), an array -> actions (N, action_dim), sampled or the mean."""
        if not (np.abs(obs) < 1e38).all():
            raise FloatingPointError("the environment's observation is not finite")
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.obs_unit.device)
        mean = self.policy(self.normalize(obs))
        noise = 0 if greedy else self.log_std.exp() * torch.randn_like(mean)
        return (mean + noise).cpu().numpy()


class RolloutBuffer:
    """T steps of N environments. Time comes first: row t holds step t of all environments."""
    def __init__(self, T, N, obs_dim, action_dim):
        self.obs = np.zeros((T + 1, N, obs_dim), np.float32)  # row t + 1 is what step t led to
        self.action = np.zeros((T, N, action_dim), np.float32)  # as sampled, not clipped
        self.reward = np.zeros((T, N), np.float32)
        self.terminated, self.truncated, self.valid = np.zeros((3, T, N), bool)


def compute_gae(reward, value, terminated, truncated, gamma, gae_lambda):
    """Generalized advantage estimates Â (T, N), from the last step to the first ([1] Eq. 11)."""
    # value is (T+1, N): value[t+1] belongs to what step t led to, even where an episode ended.
    assert reward.shape == terminated.shape == truncated.shape == value[1:].shape
    # A terminal state promises nothing. A truncated episode was only interrupted: bootstrap.
    delta = reward + gamma * value[1:] * ~terminated - value[:-1]
    goes_on = ~(terminated | truncated)  # the row after an end belongs to another episode
    advantage = torch.zeros_like(value)  # row T, behind the last step, stays 0
    for t in reversed(range(len(reward))):
        advantage[t] = delta[t] + gamma * gae_lambda * (goes_on[t] * advantage[t + 1])
    return advantage[:-1]


def ppo_loss(pi, value, action, old_log_prob, advantage, return_, beta, config):
    """The loss L to minimise, over a minibatch of B steps; all tensors (B,)."""
    log_ratio = pi.log_prob(action) - old_log_prob
    assert log_ratio.shape == value.shape == advantage.shape == return_.shape
    ratio = log_ratio.exp()
    surrogate = torch.min(
        ratio * advantage, ratio.clamp(1 - config.clip_eps, 1 + config.clip_eps) * advantage)
    if config.objective == "penalty":
        surrogate = ratio * advantage - beta * (ratio - 1 - log_ratio)  # on average the KL
    return 0.5 * nn.functional.mse_loss(value, return_) - surrogate.mean() - (
        config.entropy_coef * pi.entropy().mean() if config.entropy_coef > 0 else 0)


def train(config, run=None):
    """Trains an agent. Returns it and its history: (env_step, episode_return) of each episode."""
    envs, agent, env_step, history = run or set_up(config)
    T, N, gamma, gae_lambda = config.num_steps, config.num_envs, config.gamma, config.gae_lambda
    buffer = RolloutBuffer(T, N, envs.single_observation_space.shape[0], len(agent.log_std))
    # Each seed, process and --load plays other episodes; seeded only here, no episode comes twice.
    seed = int(np.random.SeedSequence([config.seed, RANK, env_step]).generate_state(1)[0])
    torch.manual_seed(seed)
    obs, _ = envs.reset(seed=seed)
    done, next_report = np.zeros(N, bool), env_step
    try:
        while env_step < config.total_steps:
            left = 1 - env_step / config.total_steps  # learning rate and target KL fall with it
            # Collect: play T steps with the current policy.
            buffer.obs[0] = obs
            for t in range(T):
                action = agent.act(obs)
                obs, reward, terminated, truncated, info = envs.step(action)
                buffer.action[t], buffer.obs[t + 1] = action, obs
                buffer.reward[t] = config.reward_scale * reward  # so that V is about 1 to 10
                buffer.terminated[t], buffer.truncated[t] = terminated, truncated
                buffer.valid[t] = ~done  # the step after an episode's end only resets
                env_step, done = env_step + N * PROCESSES, terminated | truncated
                if done.any():
                    history += [(env_step, float(score)) for score in info["episode"]["r"][done]]

            # Estimate: once per rollout, so that the targets stand still while the networks learn.
            arrays = (torch.as_tensor(x, device=config.device) for x in vars(buffer).values())
            obs_seq, action, reward, terminated, truncated, valid = arrays
            with torch.no_grad():
                _, value = agent(obs_seq)  # (T+1, N)
                advantage = compute_gae(reward, value, terminated, truncated, gamma, gae_lambda)
                rollout = obs_seq[:-1], action, advantage, advantage + value[:-1]  # (T, N, ...)
                b_obs, b_action, b_advantage, b_return = (x[valid] for x in rollout)  # (B, ...)
                b_old_log_prob = agent(b_obs)[0].log_prob(b_action)

            # Update: several passes over the rollout, in shuffled minibatches.
            for _ in range(config.epochs):
                for mb in torch.randperm(len(b_obs)).chunk(config.num_minibatches):
                    std, mean = torch.std_mean(b_advantage[mb], correction=0)  # no NaN for B = 1
                    mb_advantage = (b_advantage[mb] - mean) / (std + 1e-8)
                    pi, value = agent(b_obs[mb])
                    loss = ppo_loss(pi, value, b_action[mb], b_old_log_prob[mb], mb_advantage,
                                    b_return[mb], agent.beta, config)
                    descend(agent, loss, config.learning_rate * left, config.max_grad_norm)
            pi, _ = agent(b_obs)
            log_ratio = pi.log_prob(b_action) - b_old_log_prob
            kl = (log_ratio.exp() - 1 - log_ratio).mean().detach() / PROCESSES  # ≈ KL(π_old‖π)
            all_reduce(kl)
            agent.beta.mul_(2 if kl > 1.5 * config.target_kl * left else  # as in [1] Sec. 4
                            0.5 if kl < config.target_kl * left / 1.5 else 1).clamp_(1, 1e4)
            agent.update_statistics(b_obs, config.obs_std)  # only now: so far all had one scale
            if env_step >= min(next_report, config.total_steps):  # twenty times a run
                next_report = env_step + config.total_steps / 20
                save(config, agent, env_step, history)
                print(f"step {env_step:,}  episode {len(history):,}  average score of the last 20 "
                      f"episodes: {np.mean([score for _, score in history[-20:]] or np.nan):.2f}  "
                      f"kl {kl:.2g}  entropy {pi.entropy().mean():.2g}", flush=True)
    except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
        save(config, agent, env_step, history)
        agent.status = 130  # the exit status of a program that Ctrl-C ended
    return agent, history


# ---- From here on: set-up, gradient step, checkpoints, evaluation and the command line ----
RANK, PROCESSES = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # torchrun
all_reduce = torch.distributed.all_reduce if PROCESSES > 1 else lambda tensor: None  # sums


def set_up(config):
    """Environments, agent, env_step and history: of a new run, or as in the checkpoint to load."""
    torch.set_num_threads(1)  # at these sizes more threads only wait for each other
    torch.manual_seed(config.seed)
    envs = make_envs(config.env_id, config.num_envs)
    agent, env_step, history = ActorCritic(envs, config).to(config.device), 0, []
    if config.normalize_reward:
        envs = gym.wrappers.vector.NormalizeReward(envs, config.gamma)
    agent.reward_stats = vars(envs.return_rms) if config.normalize_reward else {}
    # The weights are one vector, of which each layer has a part: one operation moves them all.
    agent.parts = list(agent.parameters())
    agent.weights = nn.utils.parameters_to_vector(agent.parts).detach()
    nn.utils.vector_to_parameters(agent.weights, agent.parts)
    agent.adam_mean, agent.adam_square = (nn.Buffer(0 * agent.weights) for _ in range(2))
    agent.adam_steps = nn.Buffer(torch.zeros((), device=config.device))
    if config.load:
        checkpoint = torch.load(config.load, map_location="cpu", weights_only=True)
        agent.load_state_dict(checkpoint["agent"])  # refuses other shapes
        agent.reward_stats.update(checkpoint["reward_stats"])
        env_step, history = int(checkpoint["env_step"]), list(map(tuple, checkpoint["history"]))
    if config.save and RANK == 0:  # Does it work? Only what was loaded may be overwritten.
        open(config.save, "ab" if config.save == config.load else "xb").close()
    save(config, agent, env_step, history)
    agent.screens = [make_envs(config.env_id, 1, mode, config.video) for mode in
                     ["human"] * config.render + ["rgb_array"] * bool(config.video) if RANK == 0]
    return envs, agent, env_step, history


def make_envs(env_id, num_envs, render_mode=None, video=""):
    """Copies of an environment that step together and report each finished episode in info."""
    how = {"render_mode": render_mode, "vectorization_mode": "sync"} if render_mode else {}
    envs = gym.make_vec(env_id, num_envs, **how)
    space = envs.single_action_space
    if not (isinstance(space, gym.spaces.Box) and space.is_bounded()):
        raise ValueError(f"needs bounded Box actions, not {space}; Discrete: ppo_discrete.py")
    # Actions from -1 to 1 fill the range. The clip comes last: rounding shall not leave the range.
    envs = gym.wrappers.vector.TransformAction(envs, lambda a: np.clip(space.low + (
        space.high - space.low) * (a.reshape(len(a), *space.shape) + 1) / 2, space.low, space.high))
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
    all_reduce(grad)
    norm = float(grad.norm()) / PROCESSES
    if not np.isfinite(norm * learning_rate):
        raise FloatingPointError("the gradient is not finite; a smaller --learning-rate may help")
    grad *= min(1, max_grad_norm / (norm + 1e-6)) / PROCESSES
    adam([agent.weights], [grad], [agent.adam_mean], [agent.adam_square], [], [agent.adam_steps],
         lr=learning_rate, beta1=0.9, beta2=0.999, eps=1e-5, fused=True,
         weight_decay=0.0, amsgrad=False, maximize=False)


def save(config, agent, env_step, history):
    """Writes a checkpoint beside the old one, and puts it in its place: it is never half a file."""
    try:
        if config.save and RANK == 0:
            stats = {name: float(x) for name, x in agent.reward_stats.items()}
            torch.save(dict(config=vars(config), agent=agent.state_dict(), env_step=env_step,
                            history=history, reward_stats=stats), config.save + ".unfinished")
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
    if PROCESSES > 1:
        torch.distributed.init_process_group("gloo")
        sys.stdout = sys.stdout if RANK == 0 else open(os.devnull, "w")
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
