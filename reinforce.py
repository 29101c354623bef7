"""REINFORCE, the first policy gradient method, in one file.

A policy π(a|s) gives the probability of action a in state s, and plays N whole episodes. Then the
return G_t says how much reward r came after each step t. What counts is whether that was more or
less than in the others: actions that were followed by more become more likely, the others less.

    G_t = r_t + γ G_{t+1}                              return               [1] Eq. 3.9
    L   = -mean log π(a_t|s_t) (G_t - b_t) / σ         REINFORCE, baseline  [1] Eq. 13.11, [2]

γ discounts the future; the baseline b_t is the mean of G_t over the N episodes; σ is the spread of
the differences. The gradient of L estimates that of -E[G_0], up to a factor, with γ^t left out, as
everywhere: late steps then count as much as early ones.

`python reinforce.py` solves its task, an average score of 475, in some 20,000 steps.

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd edition
[2] Williams 1992, Simple statistical gradient-following algorithms, Machine Learning 8
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
    total_steps: int = setting(80_000, "environment steps to train for")
    num_envs: int = setting(6, "N, environments, with an episode of each per update", least=1)
    learning_rate: float = setting(1e-2, "step size of Adam at first; it falls linearly to 0")
    gamma: float = setting(0.995, "discount of future rewards", most=1)
    hidden_size: int = setting(64, "units of the hidden layer", least=1)
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


class Policy(nn.Module):
    """The policy π(a|s): a network, sized from the environment's spaces."""
    def __init__(self, envs, config):
        super().__init__()
        obs_dim, n_actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
        # Buffers are saved with the weights. Of all observations: count, sum and sum of squares.
        self.obs_sums = nn.Buffer(torch.zeros(3, obs_dim).double())
        self.obs_unit = nn.Buffer(torch.ones(obs_dim))  # at first obs stays as it is
        size = config.hidden_size
        self.policy = nn.Sequential(nn.Linear(obs_dim, size), nn.Tanh(), nn.Linear(size, n_actions))
        for layer, gain in (self.policy[0], 2**0.5), (self.policy[2], 0.01):
            nn.init.orthogonal_(layer.weight, gain)  # 0.01: all actions about equally likely
            nn.init.zeros_(layer.bias)

    def forward(self, obs):
        """Observations (..., obs_dim), as they come -> the distribution π(·|obs)."""
        obs = (obs / self.obs_unit).clamp(-10, 10)  # a shift by a moving mean would hide drifts
        return Categorical(logits=self.policy(obs), validate_args=False)

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
        pi = self(torch.as_tensor(obs, dtype=torch.float32, device=self.obs_unit.device))
        return (pi.mode if greedy else pi.sample()).cpu().numpy()


def compute_returns(reward, gamma):
    """Returns G_t = r_t + γ G_{t+1} (T, N) of one episode a column; reward (T, N) is 0 after it."""
    return_ = reward.clone()
    for t in reversed(range(len(reward) - 1)):
        return_[t] += gamma * return_[t + 1]
    return return_


def train(config, run=None):
    """Trains an agent. Returns it and its history: (env_step, episode_return) of each episode."""
    envs, agent, env_step, history = run or set_up(config)
    N = config.num_envs
    # Each seed and --load plays other episodes. Seeded only here, no episode comes twice.
    seed = int(np.random.SeedSequence([config.seed, 0, env_step]).generate_state(1)[0])
    torch.manual_seed(seed)
    envs.reset(seed=seed)
    next_report = env_step
    try:
        while env_step < config.total_steps:
            learning_rate = config.learning_rate * (1 - env_step / config.total_steps)

            # Collect: play one episode in each environment with the current policy.
            obs, _ = envs.reset()
            rollout, playing = [], np.ones(N, bool)
            while playing.any() and len(rollout) < 10_000:  # no episode goes on for ever
                action = agent.act(obs)
                next_obs, reward, terminated, truncated, info = envs.step(action)
                rollout.append((np.float32(obs), action, np.float32(reward * playing), playing))
                ended = playing & (terminated | truncated)
                obs, playing, env_step = next_obs, playing & ~ended, env_step + N
                # Who is done plays on until all are: those steps are counted, but not learned from.
                if ended.any():
                    history += [(env_step, float(score)) for score in info["episode"]["r"][ended]]

            # Estimate: how much better each episode went on than the mean of all N. What the others
            # got does not depend on this one's actions: to subtract it takes away only noise.
            obs_seq, action, reward, valid = (  # each (T, N, ...)
                torch.as_tensor(np.stack(x)).to(config.device) for x in zip(*rollout))
            return_ = compute_returns(reward, config.gamma)  # (T, N)
            baseline = return_.mean(1, keepdim=True) if N > 1 else return_.mean()
            difference = (return_ - baseline)[valid]  # (B,)
            weight = difference / (difference.std(correction=0) + 1e-8)  # of any scale of rewards

            # Update: one gradient step; the next episodes are played by the new policy.
            b_obs = obs_seq[valid]  # (T, N, ...) -> (B, ...)
            pi = agent(b_obs)
            log_prob = pi.log_prob(action[valid])
            assert log_prob.shape == weight.shape
            descend(agent, -(log_prob * weight).mean(), learning_rate)
            agent.update_statistics(b_obs)  # only now: so far all had one scale
            if env_step >= min(next_report, config.total_steps):  # twenty times a run
                next_report = env_step + config.total_steps / 20
                save(config, agent, env_step, history)
                print(f"step {env_step:,}  episode {len(history):,}  average score of the last 20 "
                      f"episodes: {np.mean([score for _, score in history[-20:]] or np.nan):.2f}  "
                      f"entropy {pi.entropy().mean():.2g}", flush=True)
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
    agent, env_step, history = Policy(envs, config).to(config.device), 0, []
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


def descend(agent, loss, learning_rate):
    """A step of Adam (arXiv:1412.6980), by torch's function: its class takes a second to import."""
    grad = torch.cat([part.flatten() for part in torch.autograd.grad(loss, agent.parts)])
    if not np.isfinite(float(grad.norm()) * learning_rate):
        raise FloatingPointError("the gradient is not finite; a smaller --learning-rate may help")
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
