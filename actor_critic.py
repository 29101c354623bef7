# /// script
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]
# ///
"""Actor-critic with temporal difference (TD) errors, in one file.

The policy π(a|s), or actor, gives the probability of action a in state s, which the code calls obs.
The return is the sum of the rewards r that follow a state. A reward k steps later is multiplied by
γ^k. The critic V(s) learns to predict the return.

Every few steps both learn from the TD error δ_t. It tells how much better step t went than the
critic had predicted. If δ_t is high, action a_t becomes more likely. If it is low, a_t becomes less
likely. The critic learns to make δ_t small.

    δ_t = r_t + γ V(s_{t+1}) - V(s_t)                         TD error             [1] Eq. 6.5
    L   = -E[ψ_t log π(a_t|s_t)]                              loss of the policy   [1] Sec. 13.5
          + ½ E[δ_t²]                                         loss of the critic
          - c E[H(π(·|s_t))]                                  entropy bonus        [2]

V(s_{t+1}) counts as 0 if the episode terminated at step t, but not if only its time was up. No
gradient flows through the target r_t + γ V(s_{t+1}). E is the mean over the steps of an update. The
weight ψ_t is δ_t after normalising: the δ_t of an update get mean 0 and standard deviation 1, and no
gradient flows through them. The entropy H measures how undecided the policy is, and c is its weight.

`python actor_critic.py` solves CartPole (average score 475) after about 18,000 of 100,000 steps.

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd ed. (our r_t is its R_{t+1})
[2] Mnih et al. 2016, Asynchronous Methods for Deep Reinforcement Learning, arXiv:1602.01783
"""

import inspect
import re
import warnings
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers.vector import FlattenObservation, RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical, Distribution

torch.set_num_threads(1)  # networks this small are computed faster in a single thread
Distribution.set_default_validate_args(False)  # unchecked, distributions are faster


@dataclass
class Config:
    """The settings of a run. Each is a flag, too: num_envs is --num-envs."""
    env_id: str = "CartPole-v1"  # gymnasium environment with Discrete actions
    total_steps: int = 100_000  # environment steps to train for
    num_envs: int = 4  # N, environments played side by side
    num_steps: int = 8  # T, steps of each environment per update
    learning_rate: float = 5e-3  # initial learning rate of Adam; it falls linearly to 0
    max_grad_norm: float = 0.7  # clip the gradient to this norm
    gamma: float = 0.995  # discount of later rewards
    entropy_coef: float = 0.01  # c, the weight of the entropy bonus
    hidden_size: int = 64  # units of each network's hidden layer
    seed: int = 0  # the same seed, machine and versions give the same scores
    eval_episodes: int = 100  # episodes of the evaluation, each in its own copy; 0: none


class ObsScale(nn.Module):
    """Scales each feature of the observations, as networks learn best from numbers of about 1 or 2.

    A feature is measured from its centre, which is where the first episodes began. The unit is half
    of its root mean square distance from there.
    """
    def __init__(self, first_obs):
        super().__init__()
        # Buffers are not learned, but state_dict() keeps them with the weights.
        self.centre = nn.Buffer(torch.as_tensor(first_obs).float().mean(0))
        # These two small numbers let the root mean square begin at 1, and keep it above 0.
        self.sum_of_squares = nn.Buffer(torch.full_like(self.centre, 1e-8))
        self.count = nn.Buffer(torch.tensor(1e-8))

    def forward(self, obs):
        """Observations (..., obs_dim) -> scaled ones, limited to ±10."""
        root_mean_square = (self.sum_of_squares / self.count).sqrt()
        return (2 * (obs - self.centre) / root_mean_square).clamp(-10, 10)

    def include(self, obs):
        """Counts B more observations (B, obs_dim) in the root mean square."""
        self.sum_of_squares += (obs - self.centre).square().sum(0)
        self.count += len(obs)


def mlp(size_in, hidden_size, size_out):
    """A network (..., size_in) -> (..., size_out) with one hidden layer."""
    return nn.Sequential(
        nn.Linear(size_in, hidden_size),
        nn.Tanh(),
        nn.Linear(hidden_size, size_out),
    )


class ActorCritic(nn.Module):
    """The policy π(a|s) and the critic V(s): two networks, so that neither disturbs the other."""
    def __init__(self, envs, config, first_obs):
        super().__init__()
        obs_dim = first_obs.shape[1]
        n_actions = envs.single_action_space.n
        self.scale = ObsScale(first_obs)
        self.policy = mlp(obs_dim, config.hidden_size, n_actions)
        self.critic = mlp(obs_dim, config.hidden_size, 1)
        with torch.no_grad():
            self.policy[-1].weight *= 0.01  # at first all actions are about equally likely

    def pi(self, obs):
        """Observations (..., obs_dim) -> the distribution π(·|s) over the actions."""
        logits = self.policy(self.scale(obs))  # (..., n_actions): log π(·|s) up to a constant
        return Categorical(logits=logits)

    def value(self, obs):
        """Observations (..., obs_dim) -> values V(s), of shape (...)."""
        return self.critic(self.scale(obs)).squeeze(-1)

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim) -> actions (N,), an array: sampled, or the most likely ones."""
        pi = self.pi(torch.as_tensor(obs).float())
        action = pi.mode if greedy else pi.sample()
        return action.numpy()


class RolloutBuffer:
    """T steps of N environments. Time comes first: row t is where step t begins.

    gymnasium uses the step after an episode's end only to reset that environment. It ignores the
    action, and the reward is 0. done[t] marks such a step t, and nothing is learned from it.
    """
    def __init__(self, envs, T):
        N, obs_dim = envs.observation_space.shape
        self.obs = torch.zeros(T + 1, N, obs_dim)  # row t + 1 is what step t led to
        self.done = torch.zeros(T + 1, N).bool()
        self.action = torch.zeros(T, N).long()
        self.reward = torch.zeros(T, N)
        self.terminated = torch.zeros(T, N).bool()
        obs, _ = envs.reset()
        self.obs[T] = torch.as_tensor(obs)

    def collect(self, envs, agent, env_step):
        """Plays T steps. Returns (env_step, score) of each episode that ended."""
        T, N = self.reward.shape
        finished = []
        # A rollout begins where the last one ended.
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
            env_step += N
            if "episode" in info:  # "_episode" marks the environments whose episode ended
                for score in info["episode"]["r"][info["_episode"]]:
                    finished.append((env_step, float(score)))
        return finished


def td_error(reward, value, next_value, terminated, gamma):
    """The error δ_t = r_t + γ V(s_{t+1}) - V(s_t). All tensors are (T, N)."""
    assert reward.shape == value.shape == next_value.shape == terminated.shape
    # Nothing follows a terminal state. After a truncation, V still stands for the rest.
    target = reward + gamma * next_value * ~terminated
    return target.detach() - value  # the critic moves to the target, not the target to the critic


def actor_critic_loss(pi, action, delta, entropy_coef):
    """The loss L to minimise, and the entropy, of B steps. delta is δ_t (B,)."""
    # Normalising keeps the policy's loss independent of the rewards' scale.
    psi = delta.detach()
    psi = (psi - psi.mean()) / (psi.std(correction=0) + 1e-8)
    log_prob = pi.log_prob(action)
    assert log_prob.shape == psi.shape  # (B, 1) would broadcast to (B, B)
    policy_loss = -(log_prob * psi).mean()
    critic_loss = delta.square().mean()
    entropy = pi.entropy().mean()
    loss = policy_loss + 0.5 * critic_loss - entropy_coef * entropy
    return loss, entropy


def update(agent, optimizer, buffer, reward, config):
    """Takes one optimizer step on a rollout, with scaled rewards (T, N). Returns the entropy."""
    value = agent.value(buffer.obs)  # (T+1, N)
    delta = td_error(reward, value[:-1], value[1:], buffer.terminated, config.gamma)
    valid = ~buffer.done[:-1]  # (T, N): x[valid] leaves out the steps that only reset
    obs = buffer.obs[:-1][valid]  # (B, obs_dim)
    loss, entropy = actor_critic_loss(
        agent.pi(obs), buffer.action[valid], delta[valid], config.entropy_coef)
    agent.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm, error_if_nonfinite=True)
    optimizer.step()
    agent.scale.include(obs)  # last, as π must still be the policy that played
    return entropy


def train(config):
    """Trains an agent. Returns it and its history: (env_step, score) of each finished episode.

    Ctrl-C ends it early. Raises ValueError (a setting that cannot work), gymnasium.error.Error (an
    environment that cannot be made) or RuntimeError (a gradient that is not finite).
    """
    check(config)
    envs = make_envs(config.env_id, config.num_envs)
    torch.manual_seed(config.seed)
    # Environment i gets seed + i, so the seeds of two runs are 1000 apart. Later resets get none.
    first_obs, _ = envs.reset(seed=1000 * config.seed)
    agent = ActorCritic(envs, config, first_obs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate)
    buffer = RolloutBuffer(envs, config.num_steps)
    sum_of_squares = count = 1e-8  # of the rewards
    env_step = next_report = 0
    history = []
    try:
        while env_step < config.total_steps:
            remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
            optimizer.param_groups[0]["lr"] = config.learning_rate * remaining

            history += buffer.collect(envs, agent, env_step)
            env_step += config.num_envs * config.num_steps
            # V learns small numbers best. So rewards are divided by 20 times their root mean square.
            sum_of_squares += buffer.reward.square().sum()
            count += (~buffer.done[:-1]).sum()  # a step that only resets has no reward
            reward = buffer.reward / (20 * (sum_of_squares / count).sqrt())
            entropy = update(agent, optimizer, buffer, reward, config)

            if env_step >= next_report or env_step >= config.total_steps:
                next_report = env_step + config.total_steps / 20
                report(config, env_step, history, entropy)
    except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
        print(f"stopped at step {env_step:,}")
    finally:
        envs.close()
    return agent, history


# ---- From here on: settings, environments, evaluation and the command line ----


def check(config):
    """Raises ValueError for a setting that cannot work. Turns numpy's numbers into Python's."""
    lowest = dict(num_envs=1, num_steps=2, hidden_size=1)
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
    print(f"step {env_step:,} of {config.total_steps:,}  episode {len(history):,}  average score of "
          f"the last 20 episodes: {average}  entropy {entropy:.2g}", flush=True)


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
        envs = make_envs(config.env_id, config.eval_episodes)
        scores = evaluate(agent, envs, seed=config.seed)
        envs.close()
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
    warnings.simplefilter("ignore", DeprecationWarning)  # gymnasium's would be two more lines
    try:
        make_envs(config.env_id, 1).close()
    except (gym.error.Error, ImportError) as error:
        parser.error(f"--env-id {config.env_id}: {error}")
    return config


if __name__ == "__main__":
    main()
