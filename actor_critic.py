# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]  # for uv
# ///
"""Actor-critic with temporal difference (TD) errors, in one file.

The policy π(a|s), or actor, gives the probability of action a in state s. The code calls a state
obs. The critic V(s) predicts the return, which is the sum of the rewards that follow. In this sum,
a reward k steps later is multiplied by γ^k, where γ is a little below 1. After step t, its reward
r_t is known. So the target r_t + γ V(s_{t+1}) is usually a better prediction than V(s_t), which is
trained towards it. The TD error δ_t tells how much better the step went than expected.

    δ_t = r_t + γ V(s_{t+1}) - V(s_t)                         TD error             [1] Eq. 6.5
    L   = -E[δ_t log π(a_t|s_t)]                              loss of the policy   [1] Sec. 13.5
          + ½ E[δ_t²]                                         loss of the critic
          - c E[H(π(·|s_t))]                                  entropy bonus        [2]

E is the mean over the steps of one update, which are T steps of N environments. In the loss of the
policy δ_t counts as a constant, and in that of the critic the target does. If δ_t > 0, L falls as
a_t gets more likely. If δ_t < 0, L falls as a_t gets less likely. If an episode terminates, nothing
follows, and V(s_{t+1}) counts as 0. If its time is up, V(s_{t+1}) stands for what would have
followed. The entropy H is high while the policy is undecided, and its weight c is a setting.
README.md explains each line.

`python actor_critic.py` mostly solves CartPole (score 475) after 14,000 to 26,000 of 60,000 steps.

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd ed. (our r_t is its R_{t+1})
[2] Mnih et al. 2016, Asynchronous Methods for Deep Reinforcement Learning, arXiv:1602.01783
"""

import re
import sys
from argparse import ArgumentParser, BooleanOptionalAction
from contextlib import closing
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FlattenObservation, RecordEpisodeStatistics
from gymnasium.wrappers.vector import NormalizeReward
from torch import nn, optim
from torch.distributions import Categorical
from torch.nn.utils import clip_grad_norm_


@dataclass
class Config:
    """The settings of a run. Each is a flag, too: num_envs is --num-envs."""
    env_id: str = "CartPole-v1"  # gymnasium environment with Discrete (numbered) actions
    total_steps: int = 60_000  # environment steps to train for
    num_envs: int = 8  # N, environments played side by side
    num_steps: int = 4  # T, steps of each environment per update
    learning_rate: float = 2e-3  # initial learning rate of the policy, which falls linearly to 0
    critic_learning_rate: float = 1e-2  # that of the critic, which has to be ahead of the policy
    max_grad_norm: float = 0.5  # a longer gradient is shortened to this, none if inf
    gamma: float = 0.995  # discount of later rewards
    entropy_coef: float = 0.01  # c, weight of the entropy bonus
    hidden_size: int = 32  # units of each network's hidden layer
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


def mlp(size_in, hidden_size, size_out):
    """A network (..., size_in) -> (..., size_out) with one hidden layer."""
    return nn.Sequential(
        nn.Linear(size_in, hidden_size),
        nn.Tanh(),
        nn.Linear(hidden_size, size_out),
    )


class ActorCritic(nn.Module):
    """The policy π(a|s) and the critic V(s): two networks that share no layer."""
    def __init__(self, first_obs, n_actions, hidden_size):
        super().__init__()
        obs_dim = first_obs.shape[1]
        self.scale = ObsScale(first_obs)
        self.policy = mlp(obs_dim, hidden_size, n_actions)
        self.critic = mlp(obs_dim, hidden_size, 1)
        with torch.no_grad():
            self.policy[-1].weight *= 0.01  # so actions are about equally likely at first

    def pi(self, obs):
        """Observations (..., obs_dim) -> the distribution π(·|s) over the actions."""
        logits = self.policy(self.scale(obs))  # (..., n_actions): Categorical takes their softmax
        return Categorical(logits=logits, validate_args=False)  # unchecked, it is faster

    def value(self, obs):
        """Observations (..., obs_dim) -> values V(s), of shape (...)."""
        return self.critic(self.scale(obs)).squeeze(-1)

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim) -> actions (N,): sampled, or the most likely ones."""
        pi = self.pi(torch.Tensor(obs))  # Tensor makes any numbers float32
        action = pi.mode if greedy else pi.sample()
        return action.numpy()


class RolloutBuffer:
    """A rollout: T steps of N environments, as tensors whose first dimensions are (T, N).

    next_obs[t] is what step t led to, also at the end of an episode. There, obs[t + 1] is already
    the first observation of the next episode.
    """
    def __init__(self, T, N, obs_dim):
        self.obs = torch.zeros(T, N, obs_dim)
        self.next_obs = torch.zeros(T, N, obs_dim)
        self.action = torch.zeros(T, N, dtype=torch.long)
        self.reward = torch.zeros(T, N)
        self.terminated = torch.zeros(T, N, dtype=torch.bool)  # nothing follows

    def collect(self, envs, agent, obs):
        """Plays T steps, starting from obs (N, obs_dim).

        Returns the observations to go on from, and the scores of the episodes that ended.
        """
        scores = []
        for t in range(len(self.obs)):
            action = agent.act(obs)
            self.obs[t] = torch.as_tensor(obs)
            self.action[t] = torch.as_tensor(action)
            obs, reward, terminated, truncated, info = envs.step(action)
            self.next_obs[t] = torch.as_tensor(obs)
            self.reward[t] = torch.as_tensor(reward)
            self.terminated[t] = torch.as_tensor(terminated)
            for n in np.flatnonzero(terminated | truncated):  # info tells how these episodes ended
                self.next_obs[t, n] = torch.as_tensor(info["final_obs"][n])
                scores.append(float(info["final_info"]["episode"]["r"][n]))  # of unscaled rewards
        return obs, scores


def td_error(reward, value, next_value, terminated, gamma):
    """The TD errors δ_t. All tensors are (T, N)."""
    assert reward.shape == value.shape == next_value.shape == terminated.shape
    target = reward + gamma * next_value * ~terminated
    return target.detach() - value  # V moves to the target, and not the target to V


def actor_critic_loss(pi, action, delta, entropy_coef):
    """The loss L. All tensors are (T, N)."""
    log_prob = pi.log_prob(action)
    assert log_prob.shape == delta.shape  # other shapes would broadcast
    policy_loss = -(delta.detach() * log_prob).mean()  # this must not train the critic
    critic_loss = delta.square().mean()
    return policy_loss + 0.5 * critic_loss - entropy_coef * pi.entropy().mean()


def update(agent, optimizer, buffer, config):
    """Takes one optimizer step."""
    value = agent.value(buffer.obs)  # (T, N)
    next_value = agent.value(buffer.next_obs)
    delta = td_error(buffer.reward, value, next_value, buffer.terminated, config.gamma)
    pi = agent.pi(buffer.obs)
    loss = actor_critic_loss(pi, buffer.action, delta, config.entropy_coef)
    agent.zero_grad()
    loss.backward()
    clip_grad_norm_(agent.parameters(), config.max_grad_norm, error_if_nonfinite=True)
    optimizer.step()


def train(config):
    """Trains an agent. Returns it and its history: (env_step, score) of each finished episode.

    env_step is that of the rollout's end. Ctrl-C ends training, even within a rollout or an update.
    """
    steps = config.num_envs * config.num_steps
    assert steps > 0, "a rollout needs at least one step"
    envs = make_envs(config.env_id, config.num_envs)
    with closing(NormalizeReward(envs, config.gamma)) as envs:  # so V mostly predicts small numbers
        torch.manual_seed(config.seed)
        obs, _ = envs.reset(seed=1000 * config.seed)  # environment n gets 1000 * seed + n
        agent = ActorCritic(torch.Tensor(obs), envs.single_action_space.n, config.hidden_size)
        optimizer = optim.Adam([{"params": agent.policy.parameters()},
                                {"params": agent.critic.parameters()}])  # rates are set below
        env_step = next_report = 0
        buffer = RolloutBuffer(config.num_steps, config.num_envs, obs.shape[1])
        history = []
        try:
            while env_step < config.total_steps:
                remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
                optimizer.param_groups[0]["lr"] = config.learning_rate * remaining
                optimizer.param_groups[1]["lr"] = config.critic_learning_rate * remaining

                obs, scores = buffer.collect(envs, agent, obs)
                env_step += steps
                history += [(env_step, score) for score in scores]
                agent.scale.include(buffer.obs.flatten(0, 1))  # so even update 1 has scaled obs
                update(agent, optimizer, buffer, config)

                if env_step >= min(next_report, config.total_steps):  # at the end, too
                    next_report = env_step + config.total_steps / 20
                    report(config, env_step, history, agent, buffer)
        except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
            print(f"stopped at step {env_step:,}")
    return agent, history


# ---- From here on: environments, evaluation and the command line ----


def make_envs(env_id, num_envs, **options):
    """N environments with flat observations. The step that ends an episode starts the next."""
    envs = gym.make_vec(env_id, num_envs, vectorization_mode="sync",
                        vector_kwargs=dict(autoreset_mode=AutoresetMode.SAME_STEP),
                        wrappers=[RecordEpisodeStatistics, FlattenObservation], **options)
    space = envs.single_action_space
    numbered = isinstance(space, gym.spaces.Discrete) and space.start == 0
    assert numbered, f"actions must be Discrete from 0, and not {space}"
    return envs


@torch.no_grad()
def report(config, env_step, history, agent, buffer):
    """Prints a line, at most 21 times a run."""
    scores = [score for _, score in history[-20:]]
    average = f"{np.mean(scores):.6g}" if scores else "no episode yet"
    entropy = agent.pi(buffer.obs).entropy().mean()
    print(f"step {env_step:,} of {config.total_steps:,}  episode {len(history):,}  average score "
          f"of the last 20 episodes: {average}  entropy {entropy:.2g}", flush=True)


def evaluate(agent, envs, seed=0):
    """Plays a greedy episode, of at most 10,000 steps, in each environment. Returns scores (N,)."""
    obs, _ = envs.reset(seed=1000 * seed + 500)  # a fresh run has other seeds
    scores = np.zeros(envs.num_envs)
    playing = np.ones(envs.num_envs, bool)  # False once the episode has ended
    for _ in range(10_000):
        obs, reward, terminated, truncated, _ = envs.step(agent.act(obs, greedy=True))
        scores += reward * playing
        playing &= ~(terminated | truncated)
        if not playing.any():
            break
    return scores


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
        with closing(make_envs(config.env_id, config.eval_episodes)) as envs:
            scores = evaluate(agent, envs, seed=config.seed)
        print(f"greedy evaluation: {scores.mean():.6g} over {len(scores)} episodes")


if __name__ == "__main__":
    main()
