"""REINFORCE, the first policy gradient method, in one file.

A policy π(a|s) gives the probability of action a in state s, and plays whole episodes. Then the
return G_t says how much reward r came after each step t, and each action a_t is made more or less
likely in proportion to it. Returns are standardised first: what counts is whether an action was
followed by more or by less than the average.

    G_t = r_t + γ G_{t+1}                                     return               [1] Eq. 3.9
    L   = - mean_t log π(a_t|s_t) (G_t - mean(G)) / std(G)    REINFORCE, baseline  [1] Eq. 13.11, [2]

γ discounts the future. The gradient of L is, up to sign and scale, an estimate of that of E[G_0].

Run:  python reinforce.py        (--help lists every setting)
See:  the average score of 20 episodes passes 475 after about 29,000 steps, in seconds; at the end the
      greedy policy scores 500.0 (median of 20 seeds, one of which ended at 230)

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd edition
[2] Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement
    learning, Machine Learning 8
"""

import argparse
import math
import numbers
import sys
import time
from dataclasses import dataclass, field, fields

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn


def setting(default, help, low=None, high=None):
    """A field of Config: its default, a few words of help, its least and greatest value."""
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass
class Config:
    """Every setting of a run. The command line is made from it: num_envs becomes --num-envs."""

    env_id: str = setting("CartPole-v1", "gymnasium environment with Discrete actions")
    total_steps: int = setting(80_000, "environment steps to train for", 1, 10**12)
    num_envs: int = setting(6, "N, environments side by side, one episode of each per update", 1, 10**5)
    learning_rate: float = setting(1e-2, "step size of Adam", 1e-8, 1.0)
    anneal_lr: bool = setting(True, "let the learning rate fall linearly to 0")
    gamma: float = setting(0.99, "γ, discount of future rewards", 0.0, 1.0)
    normalize_obs: bool = setting(True, "shift and scale observations to mean 0, variance 1")
    hidden_layers: int = setting(1, "hidden layers of the network", 0, 100)
    hidden_size: int = setting(64, "units of each hidden layer", 1, 10**5)
    seed: int = setting(0, "same seed, machine and versions: same scores", 0, 2**31 - 1)
    device: str = setting("cpu", "where torch computes: cpu, cuda or mps")

    def __post_init__(self):
        check_settings(self)


def mlp(sizes, output_gain):
    """A network (..., sizes[0]) -> (..., sizes[-1]) with tanh between its linear layers."""
    layers = []
    for size_in, size_out in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(size_in, size_out), nn.Tanh()]
        nn.init.zeros_(layers[-2].bias)
        nn.init.orthogonal_(layers[-2].weight, math.sqrt(2))  # √2 keeps a signal's size through tanh
    nn.init.orthogonal_(layers[-2].weight, output_gain)
    return nn.Sequential(*layers[:-1])  # no tanh after the output


class Policy(nn.Module):
    """The policy π(a|s): a network, sized from the environment's spaces."""

    def __init__(self, envs, config):
        super().__init__()
        self.device = torch.device(config.device)
        obs_dim, action_space = envs.single_observation_space.shape[0], envs.single_action_space
        if not isinstance(action_space, gym.spaces.Discrete):
            raise UsageError(
                f"--env-id {config.env_id}: this script needs Discrete actions, not {action_space}; "
                "for Box actions use ppo_continuous.py"
            )
        self.first_action = int(action_space.start)  # Discrete actions may count from another number than 0
        # Used for its running mean and variance of the observations, which are saved with the weights.
        self.obs_norm = nn.BatchNorm1d(obs_dim, affine=False, momentum=None)
        sizes = [obs_dim] + [config.hidden_size] * config.hidden_layers
        # A policy output near 0 makes all actions about equally likely at first.
        self.policy = mlp([*sizes, int(action_space.n)], output_gain=0.01)
        self.to(self.device)

    def normalize(self, obs):
        """obs (..., obs_dim), each number shifted and scaled to mean 0 and variance 1."""
        return (obs - self.obs_norm.running_mean) / (self.obs_norm.running_var + 1e-5).sqrt()

    def update_obs_stats(self, obs):
        """Takes a batch (B, obs_dim) into the running mean and variance."""
        if len(obs) > 1:  # one observation has no variance
            self.obs_norm(obs)

    def forward(self, obs):
        """obs (..., obs_dim) -> logits of π(·|obs) (..., n_actions)."""
        return self.policy(self.normalize(obs))

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """obs, an array (N, obs_dim) -> actions (N,): sampled from π, or the likeliest."""
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.device)
        logits = self(obs)
        if greedy:
            return logits.argmax(-1)
        return torch.multinomial(logits.softmax(-1), num_samples=1).squeeze(-1)

    def to_env(self, action):
        """Actions (N,) as an array that the environment understands."""
        return action.cpu().numpy() + self.first_action


class RolloutBuffer:
    """T steps of N environments. Time comes first: row t holds step t of all environments."""

    def __init__(self, T, N, obs_dim):
        self.obs = np.zeros((T + 1, N, obs_dim), np.float32)  # row t + 1 is what step t led to
        self.action = np.zeros((T, N), np.int64)
        self.reward = np.zeros((T, N), np.float32)
        self.terminated = np.zeros((T, N), bool)
        self.truncated = np.zeros((T, N), bool)
        self.valid = np.zeros((T, N), bool)  # False after the end of the environment's episode

    def add(self, t, action, next_obs, reward, terminated, truncated, valid):
        self.action[t], self.obs[t + 1], self.reward[t] = action, next_obs, reward
        self.terminated[t], self.truncated[t], self.valid[t] = terminated, truncated, valid

    def tensors(self, device):
        """obs (T+1, N, obs_dim); action, reward, terminated, truncated and valid, each (T, N)."""
        return (torch.as_tensor(array, device=device) for array in vars(self).values())


def compute_returns(rewards, terminated, truncated, gamma):
    """Monte-Carlo returns G_t = r_t + γ G_{t+1} up to the end of each episode. All (T, N)."""
    assert rewards.shape == terminated.shape == truncated.shape
    goes_on = ~(terminated.bool() | truncated.bool())
    returns = torch.zeros_like(rewards)
    return_ = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        return_ = rewards[t] + gamma * (goes_on[t] * return_)
        returns[t] = return_
    return returns


def reinforce_loss(logits, action, return_):
    """The loss L to minimise, averaged over steps: logits (B, n_actions), action and return_ (B,)."""
    assert action.shape == return_.shape
    log_prob = logits.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)  # log π(a|s)
    return -(log_prob * return_).mean()


def train(config):
    """Trains an agent; returns it and its history, (env_step, episode_return) for each episode.

    env_step counts the steps of all environments. Raises UsageError for a setting that cannot work.
    """
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)  # at these sizes more threads only wait for each other
    N = config.num_envs
    envs = make_envs(config.env_id, N)
    if not envs.spec.max_episode_steps:
        raise UsageError(f"--env-id {config.env_id}: REINFORCE needs a time limit, to learn from whole episodes")
    agent = Policy(envs, config)
    optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
    buffer = RolloutBuffer(envs.spec.max_episode_steps, N, envs.single_observation_space.shape[0])
    history, env_step, progress = [], 0, Progress(config.total_steps)

    while env_step < config.total_steps:
        if config.anneal_lr:
            optimizer.param_groups[0]["lr"] = config.learning_rate * (1 - env_step / config.total_steps)

        # Collect: play one episode in each environment with the current policy.
        obs, _ = envs.reset(seed=config.seed if env_step == 0 else None)
        buffer.obs[0] = obs
        t, done, playing = 0, np.zeros(N, bool), np.ones(N, bool)
        while playing.any():
            action = agent.act(obs)
            obs, reward, terminated, truncated, info = envs.step(agent.to_env(action))
            # An environment that is done plays on while others are not: those steps teach nothing.
            buffer.add(t, action.cpu(), obs, reward, terminated, truncated, valid=playing)
            env_step += int((~done).sum())  # the step after an episode's end only resets: it does not count
            done = terminated | truncated
            playing &= ~done
            t += 1
            if done.any():
                history += [(env_step, float(score)) for score in info["episode"]["r"][done]]

        # Estimate: how well each action was followed up, compared with the average of all these steps.
        obs_seq, action, reward, terminated, truncated, valid = (x[:t] for x in buffer.tensors(agent.device))
        return_ = compute_returns(reward, terminated, truncated, config.gamma)[valid]
        # The mean is a baseline: it hardly changes the expected gradient, and takes away much of its noise.
        # The spread makes the step's size independent of the rewards' scale. (correction=0: a single
        # step has no spread, and gets 0 instead of NaN.)
        return_ = (return_ - return_.mean()) / (return_.std(correction=0) + 1e-8)

        # Update: one gradient step; the next episodes are played by the new policy.
        loss = reinforce_loss(agent(obs_seq[valid]), action[valid], return_)
        if not loss.isfinite():
            raise UsageError(f"--learning-rate {config.learning_rate}: training diverged; lower it")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if config.normalize_obs:  # only now: the update saw what the policy saw
            agent.update_obs_stats(obs_seq[valid])
        progress.show(env_step, history)
    envs.close()
    return agent, history


# ---- From here on the four scripts are the same: checks, evaluation and the command line ----


class UsageError(ValueError):
    """A setting that cannot work. Its message names the setting and says what would work."""


def check_settings(config):
    """Raises UsageError for a setting of the wrong type, out of range, or not on this machine."""
    for spec in fields(config):
        value, low, high = getattr(config, spec.name), spec.metadata["low"], spec.metadata["high"]
        flag = f"--{spec.name.replace('_', '-')} {value}"
        kind = {int: numbers.Integral, float: numbers.Real}.get(spec.type, spec.type)
        if not isinstance(value, kind):
            raise UsageError(f"{flag}: must be of type {spec.type.__name__}")
        if low is not None and not low <= value <= high:  # NaN is in no range
            raise UsageError(f"{flag}: must be between {low} and {high}")
    try:
        torch.zeros(1, device=config.device).item()
    except (RuntimeError, AssertionError):
        raise UsageError(f"--device {config.device}: not on this machine; use cpu") from None


class RefuseNaN(gym.vector.VectorWrapper):
    """Stops a run whose environment returns NaN or infinity, before anything is learned from it."""

    def reset(self, **options):
        obs, info = self.env.reset(**options)
        return self.finite(obs), info

    def step(self, actions):
        obs, reward, *rest = self.env.step(actions)
        return self.finite(obs), self.finite(reward), *rest

    def finite(self, numbers):
        if not np.isfinite(numbers).all():
            raise UsageError("--env-id: the environment returned NaN or infinity, not finite numbers")
        return numbers


def make_envs(env_id, num_envs):
    """Copies of an environment that step together and report each finished episode in info."""
    try:
        envs = gym.make_vec(env_id, num_envs=num_envs)
    except (gym.error.Error, ImportError) as error:
        raise UsageError(f"--env-id {env_id}: {str(error).splitlines()[0]}") from None
    obs_space = envs.single_observation_space
    if not (isinstance(obs_space, gym.spaces.Box) and len(obs_space.shape) == 1):
        raise UsageError(f"--env-id {env_id}: all four scripts need a flat Box observation, not {obs_space}")
    assert envs.metadata["autoreset_mode"] == gym.vector.AutoresetMode.NEXT_STEP
    return RefuseNaN(RecordEpisodeStatistics(envs))


class Progress:
    """Prints a line whenever another twentieth of the run is done."""

    def __init__(self, total_steps):
        self.total_steps, self.lines, self.start = total_steps, 0, time.perf_counter()

    def show(self, env_step, history):
        if env_step * 20 < self.total_steps * (self.lines + 1):
            return
        self.lines = env_step * 20 // self.total_steps
        scores = [score for _, score in history[-20:]]
        average = f"{np.mean(scores):.1f}" if scores else "none yet"
        speed = env_step / (time.perf_counter() - self.start)
        print(
            f"{min(5 * self.lines, 100):3d}%  step {env_step:,}  episode {len(history):,}  "
            f"average score of the last 20 episodes: {average}  ({speed:,.0f} steps/s)",
            flush=True,
        )


def evaluate(agent, env_id, episodes=100, greedy=True, seed=1_000_000):
    """The returns (episodes,) of fresh episodes, played with the likeliest actions or sampled ones."""
    envs = make_envs(env_id, episodes)
    obs, _ = envs.reset(seed=seed)
    returns, playing = np.zeros(episodes), np.ones(episodes, bool)
    while playing.any():  # each environment's first episode counts: all of them, long or short
        obs, reward, terminated, truncated, _ = envs.step(agent.to_env(agent.act(obs, greedy)))
        returns += reward * playing
        playing &= ~(terminated | truncated)
    envs.close()
    return returns


def main():
    """Trains with the settings of the command line, then evaluates over 100 fresh episodes."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage=argparse.SUPPRESS,  # so that a mistake costs one line
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=40, width=120),
    )
    for spec in fields(Config):
        how = {"type": spec.type, "metavar": spec.type.__name__.upper()}
        if spec.type is bool:
            how = {"action": argparse.BooleanOptionalAction}  # --anneal-lr and --no-anneal-lr
        text = f"{spec.metadata['help']} (default: {spec.default})"
        parser.add_argument(f"--{spec.name.replace('_', '-')}", default=spec.default, help=text, **how)
    # The arguments of a notebook are its kernel's, not the user's.
    settings = vars(parser.parse_args([] if "ipykernel" in sys.modules else None))
    try:
        config = Config(**settings)
        agent, _ = train(config)
        for greedy in (True, False):
            returns = evaluate(agent, config.env_id, greedy=greedy, seed=1_000_000 + 100 * config.seed)
            kind = "greedy" if greedy else "sampled"
            print(f"{kind} evaluation: {returns.mean():.1f} ± {returns.std():.1f} over {len(returns)} fresh episodes")
    except UsageError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        parser.exit(130, "stopped\n")  # the status of a program that Ctrl-C ended


if __name__ == "__main__":
    main()
