# /// script
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]
# ///
"""REINFORCE, the simplest policy gradient method, in one file.

The policy π(a|s) is a small network. It gives the probability of each action a in state s. The code
calls the state obs, which is short for observation. The policy plays N episodes. The return G_t is
the sum of the rewards r from step t on. A reward k steps later is multiplied by γ^k, with γ ≤ 1.

Each return is compared with a baseline b_t, which is the mean of the N returns at step t. In this
mean, an episode that is over counts as 0, because it has no reward left to collect. Without a
baseline, positive returns would push up every action played, good or bad. d is the standard
deviation of all differences G_t - b_t. Dividing by d makes the size of the rewards irrelevant.

    G_t = r_t + γ G_{t+1}                              return                 [1] Eq. 3.9
    L   = -E[log π(a_t|s_t) · (G_t - b_t)/d]           loss, with baseline    [1] Eq. 13.11, [2]

We minimise L. E is the mean over all steps of the N episodes. Where G_t is above b_t, L falls when
π(a_t|s_t) rises, so action a_t becomes more likely. Where G_t is below b_t, a_t becomes less
likely.

In CartPole, a cart balances a pole. Each step has a reward of 1. An episode terminates when the
pole falls. It is truncated when its time is up, which is after 500 steps. A truncated episode would
have earned more, but this script ignores that.

`python reinforce.py` solves CartPole after about 19,000 of 80,000 steps. A score is the sum of an
episode's rewards. CartPole is solved when the last 20 scores average 475.

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd ed. (our r_t is its R_{t+1})
[2] Williams 1992, Simple statistical gradient-following algorithms, Machine Learning 8
"""

import inspect
import re
import warnings
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from contextlib import closing
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
    """The settings of a run. Each is a flag, too: num_envs is --num-envs."""
    env_id: str = "CartPole-v1"  # gymnasium environment with Discrete (numbered) actions
    total_steps: int = 80_000  # environment steps to train for
    num_envs: int = 6  # N, environments; each plays one episode per update
    learning_rate: float = 1.5e-2  # initial learning rate of Adam; it falls linearly to 0
    max_grad_norm: float = 0.2  # a longer gradient is shortened to this, lest it ruin the policy
    gamma: float = 0.995  # discount of later rewards
    hidden_size: int = 64  # units of the hidden layer
    seed: int = 0  # the same seed, machine and versions give the same scores
    eval_episodes: int = 100  # episodes to evaluate, each in an environment of its own; 0: none


class ObsScale(nn.Module):
    """Scales each feature of the observations, as networks learn best from numbers of about 1 or 2.

    A scaled feature is 2 · (feature - centre) / rms. The 2 was found by trying. The centre is the
    mean of the N observations at the first reset. The centre never moves, as that would shift the
    inputs that a network has learned from. rms is the root mean square of feature - centre so far.
    rms does change, but soon hardly at all.
    """
    def __init__(self, first_obs):
        super().__init__()
        # A Buffer is saved with the network, but the optimizer does not change it.
        self.centre = nn.Buffer(torch.as_tensor(first_obs).float().mean(0))
        self.rms = nn.Buffer(torch.ones_like(self.centre))  # until the first include()
        self.sum_of_squares = nn.Buffer(torch.full_like(self.centre, 1e-8))  # so rms is never 0
        self.count = nn.Buffer(torch.tensor(0.0))

    def forward(self, obs):
        """Observations (..., obs_dim) -> scaled ones, clipped at ±10, as outliers do harm."""
        return (2 * (obs - self.centre) / self.rms).clamp(-10, 10)

    def include(self, obs):
        """Includes more observations (any number, obs_dim) in rms."""
        self.sum_of_squares += (obs - self.centre).square().sum(0)
        self.count += len(obs)
        self.rms = (self.sum_of_squares / self.count).sqrt()  # nn.Module keeps rms a Buffer


class Policy(nn.Module):
    """The policy π(a|s): a network with one hidden layer."""
    def __init__(self, envs, config, first_obs):
        super().__init__()
        n_actions = envs.single_action_space.n  # of each of the N environments
        self.scale = ObsScale(first_obs)
        self.policy = nn.Sequential(
            nn.Linear(first_obs.shape[1], config.hidden_size),
            nn.Tanh(),
            nn.Linear(config.hidden_size, n_actions),
        )
        with torch.no_grad():
            self.policy[-1].weight *= 0.01  # at first all actions are about equally likely

    def pi(self, obs):
        """Observations (..., obs_dim) -> the distribution π(·|s) over the actions."""
        logits = self.policy(self.scale(obs))  # (..., n_actions): Categorical takes their softmax
        return Categorical(logits=logits)

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim) -> actions (N,), a numpy array.

        The actions are sampled, or with greedy they are the most likely ones.
        """
        pi = self.pi(torch.as_tensor(obs).float())
        action = pi.mode if greedy else pi.sample()
        return action.numpy()


def play(agent, envs, greedy=False):
    """Plays an episode in each of the N environments. Episodes without an end stop at step 10,000.

    Returns obs (T, N, obs_dim), action, reward and valid (T, N), where T is the length of the
    longest episode. gymnasium resets an environment when its episode is over. So until the longest
    episode is over, the others play new ones. These extra steps are ignored. valid is False there,
    and reward is 0.
    """
    all_obs, all_actions, all_rewards, all_valid = [], [], [], []
    playing = torch.ones(envs.num_envs).bool()
    obs, _ = envs.reset()  # no seed: this continues the random numbers that train() seeded
    while playing.any() and len(all_obs) < 10_000:
        action = agent.act(obs, greedy)
        all_obs.append(torch.tensor(obs).float())  # a copy: envs.step() may reuse the array
        obs, reward, terminated, truncated, _ = envs.step(action)
        all_actions.append(torch.tensor(action))
        all_rewards.append(torch.tensor(reward).float() * playing)
        all_valid.append(playing)
        ended = torch.tensor(terminated | truncated)
        playing = playing & ~ended  # a new tensor, as all_valid keeps the old one
    return [torch.stack(rows) for rows in (all_obs, all_actions, all_rewards, all_valid)]


def compute_returns(reward, gamma):
    """The returns G_t (T, N) of rewards (T, N), which have to be 0 after an episode's end."""
    return_ = reward.clone()  # nothing follows the last row
    for t in reversed(range(len(reward) - 1)):
        return_[t] = reward[t] + gamma * return_[t + 1]
    return return_


def reinforce_loss(pi, action, return_, valid):
    """The loss L. pi and action hold the B valid steps. return_ and valid are (T, N)."""
    baseline = return_.mean(1, keepdim=True)  # (T, 1)
    difference = (return_ - baseline)[valid]  # (B,)
    weight = difference / (difference.std(correction=0) + 1e-8)  # 1e-8: there is no division by 0
    log_prob = pi.log_prob(action)  # (B,)
    assert log_prob.shape == weight.shape
    return -(log_prob * weight).mean()


def update(agent, optimizer, episodes, config):
    """Takes one optimizer step. Returns the entropy, a measure of how undecided the policy is."""
    obs, action, reward, valid = episodes
    obs = obs[valid]  # (B, obs_dim): the B valid steps
    action = action[valid]  # (B,)
    return_ = compute_returns(reward, config.gamma)  # (T, N)
    pi = agent.pi(obs)  # the π that played, now with gradients
    loss = reinforce_loss(pi, action, return_, valid)
    agent.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm, error_if_nonfinite=True)
    optimizer.step()
    agent.scale.include(obs)  # only now, as a new scale would change the π that played
    return pi.entropy().mean()


def train(config):
    """Trains an agent. Returns it and its history: (env_step, score) of each finished episode.

    Ctrl-C ends it early. Raises ValueError (a setting that cannot work), gymnasium.error.Error (an
    environment that cannot be made) or RuntimeError (a gradient that is not finite).
    """
    check(config)
    with closing(make_envs(config.env_id, config.num_envs)) as envs:
        torch.manual_seed(config.seed)
        # The environments get the seeds 1000 * seed, 1000 * seed + 1 and so on, so that runs with
        # different seeds share none. These first observations are only for ObsScale.
        first_obs, _ = envs.reset(seed=1000 * config.seed)
        agent = Policy(envs, config, first_obs)
        optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate)
        history = []
        env_step = 0
        next_report = 0
        try:
            while env_step < config.total_steps:
                remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
                optimizer.param_groups[0]["lr"] = config.learning_rate * remaining

                episodes = play(agent, envs)
                _, _, reward, _ = episodes
                env_step += reward.numel()  # T * N: the ignored steps were played, too
                # All N episodes get the step at which the longest has ended.
                history += [(env_step, score) for score in reward.sum(0).tolist()]
                entropy = update(agent, optimizer, episodes, config)

                if env_step >= next_report or env_step >= config.total_steps:
                    next_report = env_step + config.total_steps / 20
                    report(config, env_step, history, entropy)
        except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
            print(f"stopped at step {env_step:,}")
    return agent, history


# ---- From here on: checks, environments, evaluation and the command line ----


def check(config):
    """Raises ValueError for a setting that cannot work. Turns numpy's numbers into Python's."""
    # With one environment, the baseline would have no other episode to compare with.
    lowest = dict(num_envs=2, max_grad_norm=1e-6, hidden_size=1)
    highest = dict(gamma=1)
    for field in fields(config):
        value = field.type(getattr(config, field.name))
        setattr(config, field.name, value)
        low = lowest.get(field.name, 0)
        high = highest.get(field.name, 1_000_000_000)
        if field.type in (int, float) and not low <= value <= high:
            flag = field.name.replace("_", "-")
            raise ValueError(f"--{flag} {value}: must be from {low} to {high}")


def make_envs(env_id, num_envs):
    """Vector environments, which step together, with flat observations."""
    envs = gym.make_vec(env_id, num_envs)
    space = envs.single_action_space
    if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
        envs.close()
        raise gym.error.Error(f"actions must be Discrete from 0 (Box: ppo_continuous.py): {space}")
    return FlattenObservation(envs)  # images, dictionaries and tuples, too


def report(config, env_step, history, entropy):
    """Prints a line, about twenty times a run."""
    scores = [score for _, score in history[-20:]]
    print(f"step {env_step:,} of {config.total_steps:,}  episode {len(history):,}  average score "
          f"of the last 20 episodes: {np.mean(scores):.6g}  entropy {entropy:.2g}", flush=True)


def evaluate(agent, envs, greedy=True, seed=0):
    """Plays one episode in each of the N environments. Returns their scores (N,)."""
    envs.reset(seed=1000 * seed + 500)  # play() gets other episodes than in training
    _, _, reward, _ = play(agent, envs, greedy)
    return reward.sum(0).numpy()


def main():
    """Trains an agent with the settings of the command line, and evaluates it."""
    in_a_notebook = "__file__" not in globals()
    config = Config() if in_a_notebook else read_flags()
    agent, _ = train(config)
    if config.eval_episodes:
        print(f"evaluating in {config.eval_episodes} environments", flush=True)
        with closing(make_envs(config.env_id, config.eval_episodes)) as envs:
            scores = evaluate(agent, envs, seed=config.seed)
        print(f"greedy evaluation: {scores.mean():.6g} over {len(scores)} episodes")


def read_flags():
    """Returns the settings of the command line. A mistake costs one line and exit status 2."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], usage=SUPPRESS, allow_abbrev=False)
    comments = dict(re.findall(r"(\w+): .*# (.*)", inspect.getsource(Config)))  # by setting
    for field in fields(Config):
        kind = dict(action=BooleanOptionalAction) if field.type is bool else dict(type=field.type)
        text = f"{comments.get(field.name)} (default: {field.default!r})".replace("%", "%%")
        flag = field.name.replace("_", "-")
        parser.add_argument(f"--{flag}", default=field.default, help=text, **kind)
    config = Config(**vars(parser.parse_args()))
    try:
        check(config)
    except ValueError as error:
        parser.error(error)
    warnings.simplefilter("ignore", DeprecationWarning)  # lest warnings stand above an error
    try:
        make_envs(config.env_id, 1).close()
    except (gym.error.Error, ImportError) as error:
        parser.error(f"--env-id {config.env_id}: {error}")
    return config


if __name__ == "__main__":
    main()
