# /// script
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]
# ///
"""REINFORCE, the simplest policy gradient method, in one file.

The policy π(a|s), a small network, gives the probability of each action a in state s (obs in the
code). It plays N episodes to their ends. The return G_t is the sum of the rewards r from step t on,
where a reward k steps later is multiplied by γ^k (γ ≤ 1). Actions whose return exceeds the mean of
the N returns at the same step become more likely, the others less likely.

    G_t = r_t + γ G_{t+1}                              return                 [1] Eq. 3.9
    L   = -E[log π(a_t|s_t) · (G_t - b_t)/d]           REINFORCE, baseline    [1] Eq. 13.11, [2]

L is the loss to minimise, and E the mean over all steps of the N episodes. The baseline b_t is the
mean of the N returns at step t, where an episode that is over counts as 0, and d the standard
deviation of all G_t - b_t. In theory the term of step t is also multiplied by γ^t. Nearly everyone
leaves that out, as it makes late steps count for little. An episode that a time limit cuts off
counts as ended: the rewards that would have followed count as 0.

`python reinforce.py` solves CartPole (the last 20 scores average 475; a score is an episode's sum
of rewards) after about 22,000 of 80,000 steps.

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd ed. (our r_t is its R_{t+1})
[2] Williams 1992, Simple statistical gradient-following algorithms, Machine Learning 8
"""

import inspect
import re
from argparse import SUPPRESS, ArgumentParser
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers.vector import FlattenObservation
from torch import nn
from torch.distributions import Categorical

torch.set_num_threads(1)  # networks this small are computed faster in a single thread


@dataclass
class Config:
    """The settings of a run. Each is a flag, explained by its comment: num_envs is --num-envs."""
    env_id: str = "CartPole-v1"  # gymnasium environment with Discrete actions
    total_steps: int = 80_000  # environment steps to train for
    num_envs: int = 6  # N, environments; each plays one episode per update
    learning_rate: float = 1e-2  # initial learning rate of Adam; it falls linearly to 0
    gamma: float = 0.995  # discount of later rewards
    hidden_size: int = 64  # units of the hidden layer
    seed: int = 0  # the same seed, machine and versions give the same scores
    eval_episodes: int = 100  # episodes of the evaluation after training; 0: none


class ObsScale(nn.Module):
    """Scales each feature to a root mean square of 2. Those far from 0 become nearly constant."""
    def __init__(self, obs_dim):
        super().__init__()
        # Buffers are not learned, but belong to state_dict(), as the weights do.
        self.count = nn.Buffer(torch.zeros(1))
        self.mean_square = nn.Buffer(torch.ones(obs_dim))

    def forward(self, obs):
        """Observations (..., obs_dim) -> scaled ones, limited to ±10."""
        return (2 * obs / (self.mean_square + 1e-8).sqrt()).clamp(-10, 10)

    def update(self, obs):
        """Includes B more observations (B, obs_dim) in the mean."""
        self.count += len(obs)
        self.mean_square += (obs.square().mean(0) - self.mean_square) * len(obs) / self.count


class Policy(nn.Module):
    """The policy π(a|s): a network with one hidden layer, sized from the environment's spaces."""
    def __init__(self, envs, config):
        super().__init__()
        obs_dim = envs.single_observation_space.shape[0]
        self.scale = ObsScale(obs_dim)
        hidden = nn.Linear(obs_dim, config.hidden_size)
        output = nn.Linear(config.hidden_size, envs.single_action_space.n)
        # The small gain of the output layer makes all actions about equally likely at first.
        for layer, gain in [(hidden, 2**0.5), (output, 0.01)]:
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        self.policy = nn.Sequential(hidden, nn.Tanh(), output)

    def pi(self, obs):
        """Observations (..., obs_dim) -> the distribution π(·|s) over the actions."""
        return Categorical(logits=self.policy(self.scale(obs)))

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim), an array -> actions (N,), sampled or the most likely ones."""
        pi = self.pi(torch.as_tensor(obs).float())
        return (pi.mode if greedy else pi.sample()).numpy()


def play(agent, envs, greedy=False):
    """Plays one episode, of at most 10,000 steps, in each of the N environments.

    Returns obs (T, N, obs_dim), action, reward and valid (T, N), where T is the length of the
    longest episode. An environment whose episode is over plays on: reward is 0, valid is False.
    """
    rows = []  # of obs, action, reward and valid, a row for each step
    playing = np.ones(envs.num_envs, bool)
    obs, _ = envs.reset()
    while playing.any() and len(rows) < 10_000:
        obs = obs.astype(np.float32)  # a copy: some environments overwrite theirs
        action = agent.act(obs, greedy)
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        rows.append((obs, action, np.float32(reward * playing), playing))
        playing = playing & ~(terminated | truncated)  # a new array, as rows keep the old one
        obs = next_obs
    return [torch.as_tensor(np.stack(column)) for column in zip(*rows)]


def compute_returns(reward, gamma):
    """Returns G_t = r_t + γ G_{t+1} (T, N); rewards (T, N) have to be 0 after an episode's end."""
    return_ = reward.clone()
    for t in reversed(range(len(reward) - 1)):
        return_[t] = reward[t] + gamma * return_[t + 1]
    return return_


def train(config):
    """Trains an agent. Returns it and its history: (env_step, score) of each finished episode.

    Ctrl-C ends it early. Raises ValueError (a setting that cannot work), gymnasium.error.Error (an
    environment that cannot be made) or FloatingPointError (a loss that is not finite).
    """
    check(config)
    envs = make_envs(config.env_id, config.num_envs)
    torch.manual_seed(config.seed)
    agent = Policy(envs, config)
    optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5)
    # Environment i may get seed + i, so the seeds of runs are 1000 apart.
    envs.reset(seed=1000 * config.seed)  # seeded only here: later resets draw new starts
    env_step = next_report = 0
    history = []
    try:
        while env_step < config.total_steps:
            remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
            optimizer.param_groups[0]["lr"] = config.learning_rate * remaining

            # Collect: play N episodes with the current policy.
            obs, action, reward, valid = play(agent, envs)
            ends = env_step + config.num_envs * valid.sum(0)  # (N,): the environments step together
            history += sorted(zip(ends.tolist(), reward.sum(0).tolist()))
            env_step += valid.numel()  # steps after an episode's end count, too

            # Estimate: compare each return with the baseline, the mean of the N returns at the same
            # step. On average this keeps the direction of the gradient, and it reduces the noise.
            return_ = compute_returns(reward, config.gamma)  # (T, N)
            baseline = return_.mean(1, keepdim=True)  # (T, 1)
            difference = (return_ - baseline)[valid]  # (B,): valid marks the B steps to learn from
            # Dividing by the standard deviation makes the update independent of the rewards' scale.
            weight = difference / (difference.std(correction=0) + 1e-8)

            # Update: compute the probabilities again, now with gradients; one optimizer step.
            pi = agent.pi(obs[valid])  # (B, obs_dim) -> B distributions
            log_prob = pi.log_prob(action[valid])
            assert log_prob.shape == weight.shape  # (B,): (B, 1) would broadcast to (B, B)
            loss = -(log_prob * weight).mean()
            if not loss.isfinite():
                raise FloatingPointError("the loss is not finite: are the rewards too large?")
            agent.zero_grad()
            loss.backward()
            optimizer.step()
            agent.scale.update(obs[valid])  # not before: π above must be the policy that played

            # Report at most twenty times a run, and at its end.
            if env_step >= next_report or env_step >= config.total_steps:
                next_report = env_step + config.total_steps / 20
                average = np.mean([score for _, score in history[-20:]])
                entropy = pi.entropy().mean()
                print(f"step {env_step:,}  episode {len(history):,}  average score of the last 20 "
                      f"episodes: {average:.2f}  entropy {entropy:.2g}", flush=True)
    except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
        print(f"stopped at step {env_step:,}")
    return agent, history


# ---- From here on: settings, environments, evaluation and the command line ----


def check(config):
    """Raises ValueError for a setting that cannot work. Turns numpy's numbers into Python's."""
    lowest = dict(num_envs=2, hidden_size=1)  # the baseline needs an episode to compare with
    for spec in fields(config):
        if spec.type in (int, float):
            value = spec.type(getattr(config, spec.name))
            low = lowest.get(spec.name, 0)
            high = 1 if spec.name == "gamma" else 1_000_000_000
            if not low <= value <= high:
                raise ValueError(
                    f"--{spec.name.replace('_', '-')} {value}: must be from {low} to {high}")
            setattr(config, spec.name, value)


def make_envs(env_id, num_envs):
    """Vector environments, which step together, with flat observations."""
    envs = gym.make_vec(env_id, num_envs)
    space = envs.single_action_space
    if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
        raise gym.error.Error(f"actions must be Discrete from 0 (Box: ppo_continuous.py): {space}")
    return FlattenObservation(envs)  # images, dictionaries and tuples, too


def evaluate(agent, envs, greedy=True, seed=0):
    """Plays one episode in each of the N environments. Returns their scores (N,)."""
    envs.reset(seed=1000 * seed + 500)  # so that play's reset draws other episodes than in training
    _, _, reward, _ = play(agent, envs, greedy)
    return reward.sum(0).numpy()


def main():
    """Trains an agent with the settings of the command line, and evaluates it."""
    in_a_notebook = "__file__" not in globals()  # there, sys.argv belongs to the kernel
    source = "" if in_a_notebook else inspect.getsource(Config)
    comments = dict(re.findall(r"(\w+): .*# (.*)", source))  # the help of each flag
    parser = ArgumentParser(usage=SUPPRESS, allow_abbrev=False)
    for spec in fields(Config):
        flag = f"--{spec.name.replace('_', '-')}"
        text = f"{comments.get(spec.name)} (default: {spec.default!r})".replace("%", "%%")
        parser.add_argument(flag, type=spec.type, default=spec.default, help=text)
    config = Config(**vars(parser.parse_args([] if in_a_notebook else None)))
    try:
        check(config)
    except ValueError as error:
        parser.error(error)
    gym.logger.min_level = 40  # only errors: a mistake costs one line, without warnings
    try:
        make_envs(config.env_id, 1)  # a trial, as in train a mistake would cost a traceback
    except (gym.error.Error, ImportError) as error:
        parser.error(f"--env-id {config.env_id}: {error}")
    agent, _ = train(config)
    if config.eval_episodes:
        scores = evaluate(agent, make_envs(config.env_id, config.eval_episodes), seed=config.seed)
        print(f"greedy evaluation: {scores.mean():.2f} over {len(scores)} episodes")


if __name__ == "__main__":
    main()
