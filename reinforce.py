# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]  # for uv
# ///
"""REINFORCE, the simplest policy gradient method, in one file.

The policy π(a|s) is a small network. It gives the probability of each action a in a state s. The
code calls a state obs, for observation. The policy plays N episodes. The return G_t is the sum of
the rewards from step t on. In this sum, a reward k steps later is multiplied by γ^k, where the
discount γ is a little below 1. The baseline b_t is the mean of the N returns at step t, where an
episode that is over counts as 0. It estimates the return that was to be expected.

    G_t = r_t + γ G_{t+1}                              return                 [1] Eq. 3.9
    L   = -E[log π(a_t|s_t) · (G_t - b_t)]             loss, with baseline    [1] Eq. 13.11, [2]

E is the mean over all steps of the N episodes. If G_t was above the baseline, L falls as a_t gets
more likely. If G_t was below, L falls as a_t gets less likely. README.md explains each line.

In CartPole, a cart balances a pole. Each step has a reward of 1. An episode ends when the pole
falls, when the cart leaves its track, or after 500 steps. A score is the sum of an episode's
rewards. We call CartPole solved when the last 20 scores average 475. `python reinforce.py` mostly
gets there after 12,000 to 30,000 of 80,000 steps.

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd ed. (our r_t is its R_{t+1})
[2] Williams 1992, Simple statistical gradient-following algorithms, Machine Learning 8
"""

import re
import sys
from argparse import ArgumentParser, BooleanOptionalAction
from contextlib import closing
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import FlattenObservation
from torch import nn, optim
from torch.distributions import Categorical
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence


@dataclass
class Config:
    """The settings of a run. Each is a flag, too: num_episodes is --num-episodes."""
    env_id: str = "CartPole-v1"  # gymnasium environment with Discrete (numbered) actions
    total_steps: int = 80_000  # environment steps to train for
    num_episodes: int = 6  # N, episodes per optimizer step
    learning_rate: float = 1.5e-2  # initial learning rate of Adam, which falls linearly to 0
    max_grad_norm: float = 0.2  # a longer gradient is shortened to this, none if inf
    gamma: float = 0.995  # discount of later rewards
    hidden_size: int = 64  # units of the hidden layer
    seed: int = 0  # the same seed gives the same scores, on the same machine
    eval_episodes: int = 20  # episodes of the evaluation, none if 0

    def __post_init__(self):  # numpy's numbers, as from np.arange, become Python's
        vars(self).update({k: x.item() for k, x in vars(self).items() if isinstance(x, np.generic)})


class ObsScale(nn.Module):
    """Scales each feature of the observations, as networks learn well from numbers of about 1 or 2.

    A scaled feature is 2 · (feature - centre) / rms, within ±10. The centre is the mean of the
    environments' first obs, so a temperature near 293 K comes near 0. It never changes. rms is the
    root mean square of (feature - centre) over all obs included. The 2 was found by trying.
    """
    def __init__(self, first_obs):  # (environments, obs_dim)
        super().__init__()
        self.centre = nn.Buffer(first_obs.mean(0))  # a Buffer is saved with the network
        self.square_sum = nn.Buffer(torch.full_like(self.centre, 1e-8))
        self.count = nn.Buffer(torch.tensor(1e-8))  # as small as square_sum, so rms begins at 1

    def include(self, obs):
        """Includes observations (B, obs_dim) in rms."""
        self.square_sum += (obs - self.centre).square().sum(0)
        self.count += len(obs)

    def forward(self, obs):
        rms = (self.square_sum / self.count).sqrt()
        return (2 * (obs - self.centre) / rms).clamp(-10, 10)  # limits outliers


class Policy(nn.Module):
    """The policy π(a|s): a network with one hidden layer."""
    def __init__(self, first_obs, n_actions, hidden_size):
        super().__init__()
        self.scale = ObsScale(first_obs)
        self.policy = nn.Sequential(
            nn.Linear(first_obs.shape[1], hidden_size),
            nn.Tanh(),
            nn.Linear(hidden_size, n_actions),
        )
        with torch.no_grad():
            self.policy[-1].weight *= 0.01  # so actions are about equally likely at first

    def pi(self, obs):
        """Observations (..., obs_dim) -> the distribution π(·|s) over the actions."""
        logits = self.policy(self.scale(obs))  # (..., n_actions): Categorical takes their softmax
        return Categorical(logits=logits, validate_args=False)  # unchecked, it is faster

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """An observation (obs_dim,) -> an action: sampled, or the most likely one."""
        pi = self.pi(torch.Tensor(obs))  # Tensor makes any numbers float32
        action = pi.mode if greedy else pi.sample()
        return action.item()


def play(agent, env, greedy=False):
    """Plays an episode of T steps. Returns obs (T, obs_dim), action (T,) and reward (T,)."""
    all_obs, all_actions, all_rewards = [], [], []
    obs, _ = env.reset()
    for _ in range(10_000):  # steps at most, as a policy may go in circles forever
        action = agent.act(obs, greedy)
        all_obs.append(torch.Tensor(obs))
        obs, reward, terminated, truncated, _ = env.step(action)
        all_actions.append(action)
        all_rewards.append(float(reward))
        if terminated or truncated:  # the episode is over
            break
    return torch.stack(all_obs), torch.tensor(all_actions), torch.tensor(all_rewards)


def compute_returns(reward, gamma):
    """The returns G_t (T,) of an episode with rewards (T,), computed backwards in time."""
    return_ = reward.clone()  # the last return is the last reward
    for t in reversed(range(len(reward) - 1)):
        return_[t] += gamma * return_[t + 1]
    return return_


def subtract_baseline(returns):
    """The differences G_t - b_t of N episodes. returns and differences are lists of N tensors."""
    baseline = pad_sequence(returns).mean(1)  # over N returns, padded with 0 to (longest T, N)
    return [return_ - baseline[:len(return_)] for return_ in returns]


def reinforce_loss(pi, action, difference):
    """The loss L of all B steps. difference (B,) is G_t - b_t."""
    log_prob = pi.log_prob(action)
    assert log_prob.shape == difference.shape  # other shapes would broadcast
    return -(log_prob * difference).mean()


def update(agent, optimizer, episodes, config):
    """Takes one optimizer step. Returns the entropy, which is high while π is undecided."""
    obs = torch.cat([obs for obs, _, _ in episodes])  # (B, obs_dim), one episode after another
    action = torch.cat([action for _, action, _ in episodes])  # (B,)
    returns = [compute_returns(reward, config.gamma) for _, _, reward in episodes]
    difference = torch.cat(subtract_baseline(returns))  # (B,)
    agent.scale.include(obs)  # so even update 1 has scaled obs
    pi = agent.pi(obs)
    loss = reinforce_loss(pi, action, difference)
    agent.zero_grad()
    loss.backward()
    clip_grad_norm_(agent.parameters(), config.max_grad_norm, error_if_nonfinite=True)
    optimizer.step()
    return pi.entropy().mean()


def train(config):
    """Trains an agent. Returns it and its history: (env_step, score) of each finished episode.

    env_step is that of the episode's end. Ctrl-C ends training, even within an episode or update.
    """
    assert config.num_episodes > 1, "a single episode would be its own baseline"
    with closing(make_env(config.env_id)) as env:
        torch.manual_seed(config.seed)
        # Only this reset is seeded. evaluate, below, takes the seed 1000 * seed + 500.
        obs, _ = env.reset(seed=1000 * config.seed)
        first_obs = torch.Tensor(obs)[None]  # (1, obs_dim), for ObsScale, as play resets again
        agent = Policy(first_obs, env.action_space.n, config.hidden_size)
        optimizer = optim.Adam(agent.parameters(), config.learning_rate)
        env_step = next_report = 0
        history = []
        try:
            while env_step < config.total_steps:
                remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
                optimizer.param_groups[0]["lr"] = config.learning_rate * remaining

                episodes = [play(agent, env) for _ in range(config.num_episodes)]
                for _, _, reward in episodes:
                    env_step += len(reward)
                    history.append((env_step, reward.sum().item()))
                entropy = update(agent, optimizer, episodes, config)

                if env_step >= min(next_report, config.total_steps):  # at the end, too
                    next_report = env_step + config.total_steps / 20
                    report(config, env_step, history, entropy)
        except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
            print(f"stopped at step {env_step:,}")
    return agent, history


# ---- From here on: the environment, reports, evaluation and the command line ----


def make_env(env_id, **options):
    """The environment, with flat observations."""
    env = FlattenObservation(gym.make(env_id, **options))
    space = env.action_space
    numbered = isinstance(space, gym.spaces.Discrete) and space.start == 0
    assert numbered, f"actions must be Discrete from 0, and not {space}"
    return env


def report(config, env_step, history, entropy):
    """Prints a line, at most 21 times a run."""
    average = np.mean([score for _, score in history[-20:]])
    print(f"step {env_step:,} of {config.total_steps:,}  episode {len(history):,}  average score "
          f"of the last 20 episodes: {average:.6g}  entropy {entropy:.2g}", flush=True)


def evaluate(agent, env, episodes, seed=0):
    """Returns the scores (episodes,) of greedy episodes."""
    env.reset(seed=1000 * seed + 500)  # a fresh run has other seeds
    rewards = [play(agent, env, greedy=True)[2] for _ in range(episodes)]
    return np.array([reward.sum().item() for reward in rewards])


def read_flags():
    """Returns the Config that the command line describes."""
    source = open(__file__, encoding="utf-8").read().replace("%", "%%")  # argparse shows %% as %
    comments = dict(re.findall(r"(\w+): \w+ = .*  # (.*)", source))  # of the settings, as help
    parser = ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    for field in fields(Config):
        kind = dict(action=BooleanOptionalAction) if field.type is bool else dict(type=field.type)
        parser.add_argument(f"--{field.name.replace('_', '-')}", default=field.default, **kind,
                            help=f"{comments.get(field.name, '')} (default: {field.default!r})")
    return Config(**vars(parser.parse_args()))


def main():
    """Trains an agent with the settings of the command line, and evaluates it."""
    torch.set_num_threads(1)  # networks this small are computed faster in a single thread
    in_a_notebook = "kernel_launcher" in sys.argv[0] or "__file__" not in globals()
    config = Config() if in_a_notebook else read_flags()  # a kernel's flags are not ours
    agent, _ = train(config)
    if config.eval_episodes > 0:
        with closing(make_env(config.env_id)) as env:
            scores = evaluate(agent, env, config.eval_episodes, config.seed)
        print(f"greedy evaluation: {scores.mean():.6g} over {len(scores)} episodes")


if __name__ == "__main__":
    main()
