# /// script
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]
# ///
"""Actor-critic with temporal difference (TD) errors, in one file.

The policy π(a|s), or actor, gives the probability of action a in state s, which the code calls obs.
The return is the sum of the rewards r that follow a state. A reward k steps later is multiplied by
γ^k. The critic V(s) is a second network, which learns to predict the return.

Before step t, the critic predicts V(s_t). After the step, r_t is known, and the critic can predict
the rest. The sum r_t + γ V(s_{t+1}) is called the target. The target predicts the same return as
V(s_t), but r_t in it is known and not guessed. So the target is the better prediction, and V(s_t)
is trained towards it. The TD error δ_t is the target minus V(s_t). It tells how much better step t
went than expected.

    δ_t = r_t + γ V(s_{t+1}) - V(s_t)                         TD error             [1] Eq. 6.5
    ψ_t = (δ_t - mean of δ) / standard deviation of δ         weight of an action
    L   = -E[ψ_t log π(a_t|s_t)]                              loss of the policy   [1] Sec. 13.5
          + ½ E[δ_t²]                                         loss of the critic
          - c E[H(π(·|s_t))]                                  entropy bonus        [2]

An episode terminates when nothing can follow, as when the pole has fallen. V(s_{t+1}) then counts
as 0. An episode is truncated when its time is up. V(s_{t+1}) then stands for the rewards that would
have followed.

We minimise L. E is the mean over the steps of one update. The mean of δ and its standard deviation
are taken over the same steps. While V is still wrong, all δ may have the same sign, and would push
all actions the same way. So ψ_t compares a step with the others. An action becomes more likely if
its ψ_t is above 0, and less likely if ψ_t is below 0. The critic learns to make δ_t² small. No
gradient flows through the target. Otherwise the target would also be pulled towards V(s_t). The
entropy H is a measure of how undecided the policy is. Its bonus keeps the policy trying all actions
for longer. c is a small number.

A network learns to predict small numbers best. So rewards are first scaled, as train() explains.

`python actor_critic.py` solves CartPole (average score 475) after about 18,500 of 100,000 steps.

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd ed. (our r_t is its R_{t+1})
[2] Mnih et al. 2016, Asynchronous Methods for Deep Reinforcement Learning, arXiv:1602.01783
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
from gymnasium.wrappers.vector import FlattenObservation, RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical

torch.set_num_threads(1)  # networks this small are computed faster in a single thread


@dataclass
class Config:
    """The settings of a run. Each is a flag, too: num_envs is --num-envs."""
    env_id: str = "CartPole-v1"  # gymnasium environment with Discrete (numbered) actions
    total_steps: int = 100_000  # environment steps to train for
    num_envs: int = 4  # N, environments played side by side
    num_steps: int = 8  # T, steps of each environment per update
    learning_rate: float = 5e-3  # initial learning rate of Adam; it falls linearly to 0
    max_grad_norm: float = 0.7  # a longer gradient is shortened to this, lest it ruin the policy
    gamma: float = 0.995  # discount of later rewards
    entropy_coef: float = 0.01  # c, weight of the entropy bonus
    hidden_size: int = 64  # units of each network's hidden layer
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


def mlp(size_in, hidden_size, size_out):
    """A network (..., size_in) -> (..., size_out) with one hidden layer."""
    return nn.Sequential(
        nn.Linear(size_in, hidden_size),
        nn.Tanh(),
        nn.Linear(hidden_size, size_out),
    )


class ActorCritic(nn.Module):
    """The policy π(a|s) and the critic V(s): two networks without a common layer."""
    def __init__(self, envs, config, first_obs):
        super().__init__()
        obs_dim = first_obs.shape[1]
        n_actions = envs.single_action_space.n  # of each of the N environments
        self.scale = ObsScale(first_obs)
        self.policy = mlp(obs_dim, config.hidden_size, n_actions)
        self.critic = mlp(obs_dim, config.hidden_size, 1)
        with torch.no_grad():
            self.policy[-1].weight *= 0.01  # at first all actions are about equally likely

    def pi(self, obs):
        """Observations (..., obs_dim) -> the distribution π(·|s) over the actions."""
        logits = self.policy(self.scale(obs))  # (..., n_actions): Categorical takes their softmax
        return Categorical(logits=logits)

    def value(self, obs):
        """Observations (..., obs_dim) -> values V(s), of shape (...)."""
        return self.critic(self.scale(obs)).squeeze(-1)

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim) -> actions (N,), a numpy array.

        The actions are sampled, or with greedy they are the most likely ones.
        """
        pi = self.pi(torch.as_tensor(obs).float())
        action = pi.mode if greedy else pi.sample()
        return action.numpy()


class RolloutBuffer:
    """A rollout: T steps of N environments. The first dimension is time.

    obs[t] is what the agent sees before step t, and obs[t + 1] is what it sees afterwards. done[t]
    tells that obs[t] is the last one of an episode. This is what it looks like if an episode
    terminates in step 1, which leads to its last observation, obs[2]:

        t                0                1                2                3
        obs[t]           first episode    first episode    its last obs     second episode
        terminated[t]    False            True             False            False
        done[t]          False            False            True             False

    gymnasium uses step 2 only to reset the environment. It ignores the action and gives no reward,
    so nothing is learned from this step.
    """
    def __init__(self, envs, T):
        N, obs_dim = envs.observation_space.shape  # of all N environments together
        self.obs = torch.zeros(T + 1, N, obs_dim)
        self.done = torch.zeros(T + 1, N).bool()
        self.action = torch.zeros(T, N).long()
        self.reward = torch.zeros(T, N)
        self.terminated = torch.zeros(T, N).bool()
        obs, _ = envs.reset()  # no seed: this continues the random numbers that train() seeded
        self.obs[T] = torch.as_tensor(obs)  # collect() copies row T to row 0 and goes on

    def collect(self, envs, agent, env_step):
        """Plays T steps. Returns (env_step, score) of each episode that ended."""
        T, N = self.reward.shape
        finished = []
        self.obs[0] = self.obs[T]
        self.done[0] = self.done[T]
        for t in range(T):
            action = agent.act(self.obs[t])
            obs, reward, terminated, truncated, info = envs.step(action)
            self.action[t] = torch.as_tensor(action)
            self.reward[t] = torch.as_tensor(reward)
            self.terminated[t] = torch.as_tensor(terminated)
            self.obs[t + 1] = torch.as_tensor(obs)
            self.done[t + 1] = torch.as_tensor(terminated | truncated)
            if "episode" in info:  # make_envs() adds this to a step in which an episode ends
                ended = info["_episode"]  # (N,), True where an episode ended
                scores = info["episode"]["r"]  # (N,), gymnasium calls a score "r"
                ended_at = env_step + (t + 1) * N  # all N environments step together
                finished += [(ended_at, float(score)) for score in scores[ended]]
        return finished


def td_error(reward, value, next_value, terminated, gamma):
    """The error δ_t = r_t + γ V(s_{t+1}) - V(s_t). All tensors are (T, N)."""
    assert reward.shape == value.shape == next_value.shape == terminated.shape
    target = reward + gamma * next_value * ~terminated  # nothing follows a terminal state
    target = target.detach()  # no gradient flows through it
    return target - value


def actor_critic_loss(pi, action, delta, entropy_coef):
    """Returns the loss L and the entropy of B steps. delta is δ_t (B,)."""
    psi = delta.detach()  # ψ is only a weight, and must not train the critic
    # With correction=0, the deviation of a single step is 0, and not nan.
    psi = (psi - psi.mean()) / (psi.std(correction=0) + 1e-8)
    log_prob = pi.log_prob(action)
    assert log_prob.shape == psi.shape
    policy_loss = -(log_prob * psi).mean()
    critic_loss = delta.square().mean()
    entropy = pi.entropy().mean()
    loss = policy_loss + 0.5 * critic_loss - entropy_coef * entropy
    return loss, entropy


def update(agent, optimizer, buffer, reward, config):
    """Takes one optimizer step. reward (T, N) is scaled by train(). Returns the entropy."""
    # For a valid step t, value[t + 1] is of the same episode, even at its end. At a step that only
    # resets, delta means nothing, and is left out below.
    value = agent.value(buffer.obs)  # (T+1, N)
    delta = td_error(reward, value[:-1], value[1:], buffer.terminated, config.gamma)
    valid = ~buffer.done[:-1]  # (T, N): False where a step only resets
    obs = buffer.obs[:-1][valid]  # (B, obs_dim): the B valid steps
    pi = agent.pi(obs)
    loss, entropy = actor_critic_loss(pi, buffer.action[valid], delta[valid], config.entropy_coef)
    agent.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm, error_if_nonfinite=True)
    optimizer.step()
    agent.scale.include(obs)  # only now, as a new scale would change the π that played
    return entropy


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
        agent = ActorCritic(envs, config, first_obs)
        optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate)
        buffer = RolloutBuffer(envs, config.num_steps)
        reward_squares = torch.tensor(1e-8)  # not 0, so that rms is never 0
        reward_count = torch.tensor(0.0)
        history = []
        env_step = 0
        next_report = 0
        try:
            while env_step < config.total_steps:
                remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
                optimizer.param_groups[0]["lr"] = config.learning_rate * remaining

                history += buffer.collect(envs, agent, env_step)
                env_step += config.num_envs * config.num_steps
                # Rewards are divided by 20 times their root mean square so far. On CartPole this
                # makes them 1/20. An early episode has about 20 steps, so its return is about 1.
                # The return of any episode is at most 1/(1-γ) = 200 such rewards, which makes 10.
                reward_squares += buffer.reward.square().sum()  # a reset step has reward 0
                reward_count += (~buffer.done[:-1]).sum()
                rms = (reward_squares / reward_count).sqrt()
                reward = buffer.reward / (20 * rms)
                entropy = update(agent, optimizer, buffer, reward, config)

                if env_step >= next_report or env_step >= config.total_steps:
                    next_report = env_step + config.total_steps / 20
                    report(config, env_step, history, entropy)
        except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
            print(f"stopped at step {env_step:,}")
    return agent, history


# ---- From here on: checks, environments, evaluation and the command line ----


def check(config):
    """Raises ValueError for a setting that cannot work. Turns numpy's numbers into Python's."""
    lowest = dict(num_envs=1, num_steps=2, max_grad_norm=1e-6, hidden_size=1)
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
    """Vector environments, with flat observations and the scores of finished episodes in info."""
    envs = gym.make_vec(env_id, num_envs)
    space = envs.single_action_space
    if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
        envs.close()
        raise gym.error.Error(f"actions must be Discrete from 0 (Box: ppo_continuous.py): {space}")
    envs = FlattenObservation(envs)  # images, dictionaries and tuples, too
    return RecordEpisodeStatistics(envs)


def report(config, env_step, history, entropy):
    """Prints a line, about twenty times a run."""
    scores = [score for _, score in history[-20:]]
    average = f"{np.mean(scores):.6g}" if scores else "no episode yet"
    print(f"step {env_step:,} of {config.total_steps:,}  episode {len(history):,}  average score "
          f"of the last 20 episodes: {average}  entropy {entropy:.2g}", flush=True)


def evaluate(agent, envs, greedy=True, seed=0):
    """Returns the scores (N,) of an episode of at most 10,000 steps in each environment."""
    obs, _ = envs.reset(seed=1000 * seed + 500)  # other episodes than in training
    scores = np.zeros(envs.num_envs)
    playing = np.ones(envs.num_envs, bool)  # False once the episode has ended
    for _ in range(10_000):
        obs, reward, terminated, truncated, _ = envs.step(agent.act(obs, greedy))
        scores += reward * playing
        playing &= ~(terminated | truncated)
        if not playing.any():
            break
    return scores


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
