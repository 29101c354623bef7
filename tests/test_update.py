"""Runs of two updates, against the same runs computed from the equations, a step of one environment at a time.

The slow versions play the same environments with the same random numbers, and take nothing of the scripts but the first
weights. Half of the episodes terminate after 3 steps, and the others are truncated after 5. All numbers are float64.
"""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import SCRIPTS, config_of, load, weights_of
from torch.distributions import Categorical, Independent, Normal

SETTINGS = dict(gamma=0.9, learning_rate=0.02, max_grad_norm=0.05, seed=3)
ROLLOUTS = SETTINGS | dict(entropy_coef=0.1, num_steps=12, total_steps=72)
CRITIC = ROLLOUTS | dict(critic_learning_rate=0.05)
PASSES = ROLLOUTS | dict(gae_lambda=0.7, clip_eps=0.1, epochs=3)


@pytest.fixture
def task(corridor):
    """task(script) is the id of an environment with both kinds of ends and noisy rewards."""
    torch.set_default_dtype(torch.float64)
    yield lambda name: corridor(name, 5, end=3, odd=True, noise=0.5)
    torch.set_default_dtype(torch.float32)


class Slow:
    """An agent with its optimizer and its statistics, which plays and learns slowly."""

    def __init__(self, name, config):
        self.name, self.config, self.seen, self.env_step = name, config, [], 0
        torch.manual_seed(config.seed)
        self.envs = gym.make_vec(config.env_id, getattr(config, "num_envs", 1), vectorization_mode="sync",
                                 vector_kwargs=dict(autoreset_mode=gym.vector.AutoresetMode.SAME_STEP))
        if name != "reinforce":
            self.envs = gym.wrappers.vector.NormalizeReward(self.envs, config.gamma)
        self.obs, _ = self.envs.reset(seed=1000 * config.seed)
        network = load(name).Policy if name == "reinforce" else load(name).ActorCritic
        self.agent = network(torch.Tensor(self.obs), 2, config.hidden_size)
        self.groups = [[weights for part, weights in self.agent.named_parameters() if ("critic" in part) == critic]
                       for critic in (False, True)]
        self.optimizer = torch.optim.Adam([dict(params=group) for group in self.groups if group])
        self.centre = self.obs.mean(0, dtype=float)

    def scaled(self, obs):
        seen = np.array(self.seen or [self.centre + 1])  # before anything was seen, rms is 1
        rms = np.sqrt(np.square(seen - self.centre).mean(0))
        return torch.tensor(np.clip(2 * (obs - self.centre) / rms, -10, 10))

    def pi(self, obs):
        output = self.agent.policy(self.scaled(obs))
        if self.name == "ppo_continuous":
            return Independent(Normal(output, self.agent.log_std.exp()), 1)
        return Categorical(logits=output)

    def value(self, obs):
        return self.agent.critic(self.scaled(obs)).squeeze(-1)

    def play_step(self):
        """A step of each environment: (obs, action, reward, next_obs, terminated, done)."""
        action = self.pi(self.obs).sample().numpy()
        played = 2 * action.clip(-1, 1) if self.name == "ppo_continuous" else action  # the Box goes from -2 to 2
        obs, (self.obs, reward, terminated, truncated, info) = self.obs, self.envs.step(played)
        done = terminated | truncated
        next_obs = [info["final_obs"][n] if done[n] else self.obs[n] for n in range(len(done))]
        return list(zip(obs, action, reward, next_obs, terminated, done))

    def include(self, steps):
        """Includes the observations in their scale. Returns the columns of the steps."""
        obs, action, reward, next_obs, terminated, done = map(np.array, zip(*steps))
        self.seen += list(obs.astype(float))
        return obs, torch.tensor(action), torch.tensor(reward), next_obs, torch.tensor(terminated), torch.tensor(done)

    def play_rollout(self):
        return self.include([step for _ in range(self.config.num_steps) for step in self.play_step()])

    def descend(self, loss):
        critics = getattr(self.config, "critic_learning_rate", self.config.learning_rate)
        for group, rate in zip(self.optimizer.param_groups, (self.config.learning_rate, critics)):
            group["lr"] = rate * (1 - self.env_step / self.config.total_steps)
        self.optimizer.zero_grad()
        loss.backward()
        grads = [weights.grad for weights in self.agent.parameters()]
        norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads))
        assert norm > self.config.max_grad_norm  # so that the clip of the norm matters
        for grad in grads:
            grad *= self.config.max_grad_norm / (norm + 1e-6)
        self.optimizer.step()


def slow_ppo(slow):
    config, clipped = slow.config, 0
    while slow.env_step < config.total_steps:
        obs, action, reward, next_obs, terminated, done = slow.play_rollout()
        with torch.no_grad():
            old_log_prob, value, next_value = slow.pi(obs).log_prob(action), slow.value(obs), slow.value(next_obs)
        advantage = torch.zeros(len(obs))
        for i in range(len(obs)):
            weight = 1.0
            for k in range(i, len(obs), config.num_envs):  # the later steps of the same environment
                bootstrap = 0.0 if terminated[k] else config.gamma * next_value[k]
                advantage[i] += weight * (reward[k] + bootstrap - value[k])
                weight *= config.gamma * config.gae_lambda
                if done[k]:
                    break
        return_ = advantage + value
        for _ in range(config.epochs):
            order = torch.randperm(len(obs))
            for k in range(config.num_minibatches):
                size = len(obs) // config.num_minibatches
                mb = order[k * size : (k + 1) * size]
                pi, gain = slow.pi(obs[mb]), (advantage[mb] - advantage[mb].mean()) / advantage[mb].std()
                ratio = (pi.log_prob(action[mb]) - old_log_prob[mb]).exp()
                low, high = 1 - config.clip_eps, 1 + config.clip_eps
                objective = torch.where(gain > 0, ratio.clamp(max=high), ratio.clamp(min=low)) * gain
                clipped += int(((gain > 0) & (ratio > high) | (gain < 0) & (ratio < low)).sum())
                error = slow.value(obs[mb]) - return_[mb]
                slow.descend((-objective + error**2 / 2 - config.entropy_coef * pi.entropy()).mean())
        slow.env_step += len(obs)
    assert clipped > 5 and terminated.any() and (done & ~terminated).any()


def slow_actor_critic(slow):
    config = slow.config
    while slow.env_step < config.total_steps:
        obs, action, reward, next_obs, terminated, done = slow.play_rollout()
        target = reward + config.gamma * slow.value(next_obs).detach() * ~terminated
        delta, pi = target - slow.value(obs), slow.pi(obs)
        slow.descend((-delta.detach() * pi.log_prob(action) + delta**2 / 2 - config.entropy_coef * pi.entropy()).mean())
        slow.env_step += len(obs)
    assert terminated.any() and (done & ~terminated).any()


def slow_reinforce(slow):
    config = slow.config
    slow.obs, _ = slow.envs.reset()  # it is reset once with a seed, and then once for each episode
    while slow.env_step < config.total_steps:
        episodes = [[]]
        while len(episodes) <= config.num_episodes:
            episodes[-1] += slow.play_step()
            if episodes[-1][-1][-1]:
                episodes.append([])
        obs, action, *_ = slow.include([step for episode in episodes for step in episode])
        rewards = [[step[2] for step in episode] for episode in episodes[:-1]]
        returns = [[sum(config.gamma**k * r for k, r in enumerate(episode[t:])) for t in range(len(episode))]
                   for episode in rewards]
        difference = torch.tensor([return_ - sum(other[t] for other in returns if t < len(other)) / len(returns)
                                   for of_episode in returns for t, return_ in enumerate(of_episode)])
        slow.descend(-(slow.pi(obs).log_prob(action) * difference).mean())
        slow.env_step += len(obs)


ALGORITHMS = dict(ppo_discrete=(slow_ppo, PASSES), ppo_continuous=(slow_ppo, PASSES),
                  actor_critic=(slow_actor_critic, CRITIC), reinforce=(slow_reinforce, SETTINGS | dict(total_steps=20)))


def test_a_run_is_its_equations(script, task, capsys):
    algorithm, settings = ALGORITHMS[script]
    config = config_of(script, env_id=task(script), **settings)
    slow = Slow(script, config)
    first = weights_of(slow.agent).clone()
    # 8 units have 3 · 8 weights, 8 more units 9 · 8, the policy's output 9 · 2, and that of a critic 9. σ has 2.
    assert len(first) == dict(reinforce=24 + 18, ppo_continuous=2 * (24 + 72) + 18 + 9 + 2).get(script, 2 * 24 + 18 + 9)
    algorithm(slow)
    agent, _ = load(script).train(config)
    assert slow.env_step >= config.total_steps
    assert (weights_of(agent) - first).abs().min() > 1e-6
    torch.testing.assert_close(weights_of(agent), weights_of(slow.agent), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(agent.scale(torch.tensor(slow.centre) + 0.1), slow.scaled(slow.centre + 0.1))
