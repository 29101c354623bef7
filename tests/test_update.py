"""Runs of two updates, against the same runs computed from the equations, a step of one environment at a time.

The slow versions play the same environments with the same random numbers, and take nothing of the scripts but the first
weights. Half of the episodes terminate after 3 steps, and the others are truncated after 5. If any line of a script is
wrong, or two arguments of a call are swapped, the weights differ in the end. All numbers are float64.
"""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import SCRIPTS, config_of, load, weights_of
from torch.distributions import Categorical, Independent, Normal

SETTINGS = dict(gamma=0.9, learning_rate=0.02, max_grad_norm=0.05, seed=3)
ROLLOUTS = SETTINGS | dict(entropy_coef=0.1, total_steps=48)
PASSES = ROLLOUTS | dict(gae_lambda=0.7, clip_eps=0.1, epochs=3)


@pytest.fixture
def task(corridor):
    """task(script) is the id of an environment with both kinds of ends and noisy rewards."""
    torch.set_default_dtype(torch.float64)
    yield lambda name: corridor(name, 5, end=3, odd=True, noise=0.5)
    torch.set_default_dtype(torch.float32)


class Slow:
    """An agent with its optimizer and its statistics, which plays and learns slowly."""

    def __init__(self, name, config, N=1):
        self.name, self.config, self.seen = name, config, []
        torch.manual_seed(config.seed)
        self.envs = [gym.make(config.env_id) for _ in range(N)]
        self.obs = [env.reset(seed=1000 * config.seed + n)[0] for n, env in enumerate(self.envs)]
        first_obs = torch.tensor(np.array(self.obs), dtype=torch.float64)
        sigma = [config.init_log_std] if name == "ppo_continuous" else []
        network = load(name).Policy if name == "reinforce" else load(name).ActorCritic
        self.agent = network(first_obs, 2, config.hidden_size, *sigma)
        self.optimizer = torch.optim.Adam(self.agent.parameters())
        self.centre = first_obs.mean(0).numpy()
        self.returns, self.past = [], np.zeros(N)  # discounted sums of past rewards, which give the scale of rewards
        self.env_step = 0

    def scaled(self, obs):
        seen = np.array(self.seen or [self.centre + 1])  # before anything was seen, rms is 1
        rms = np.sqrt(np.square(seen - self.centre).mean(0))
        return torch.tensor(np.clip(2 * (np.asarray(obs, float) - self.centre) / rms, -10, 10))

    def pi(self, obs):
        output = self.agent.policy(self.scaled(obs))
        if self.name == "ppo_continuous":
            return Independent(Normal(output, self.agent.log_std.exp()), 1)
        return Categorical(logits=output)

    def value(self, obs):
        return self.agent.critic(self.scaled(obs)).squeeze(-1)

    def play_step(self):
        """A step of each environment: (n, obs, action, reward, next_obs, terminated, done)."""
        with torch.no_grad():
            actions = self.pi(np.array(self.obs)).sample().numpy()
        rows = []
        for n, (env, action) in enumerate(zip(self.envs, actions)):
            played = 2 * action.clip(-1, 1) if self.name == "ppo_continuous" else action  # the Box goes from -2 to 2
            next_obs, reward, terminated, truncated, _ = env.step(np.asarray(played, env.action_space.dtype))
            rows.append([n, self.obs[n], action, reward, next_obs, terminated, terminated or truncated])
            self.obs[n] = env.reset()[0] if terminated or truncated else next_obs
        return rows

    def play_rollout(self):
        steps = []
        for _ in range(self.config.num_steps):
            rows = self.play_step()
            for n, _, _, reward, _, terminated, done in rows:  # as gymnasium's NormalizeReward does
                self.past[n] = self.past[n] * self.config.gamma * (not terminated) + reward
                self.returns.append(self.past[n])
                self.past[n] *= not done
            count = len(self.returns) + 1e-4
            mean = sum(self.returns) / count
            variance = (sum((x - mean) ** 2 for x in self.returns) + 1e-4 * (1 + mean**2)) / count
            steps += [[n, obs, action, reward / math.sqrt(variance + 1e-8), *rest] for n, obs, action, reward, *rest in rows]
        self.include(steps)
        return steps

    def include(self, steps):
        self.seen += [np.asarray(obs, float) for _, obs, *_ in steps]

    def descend(self, loss):
        remaining = 1 - self.env_step / self.config.total_steps
        self.optimizer.param_groups[0]["lr"] = self.config.learning_rate * remaining
        self.optimizer.zero_grad()
        loss.backward()
        grads = [weights.grad for weights in self.agent.parameters()]
        norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads))
        assert norm > self.config.max_grad_norm  # so that the clip of the norm matters
        for grad in grads:
            grad *= self.config.max_grad_norm / (norm + 1e-6)
        self.optimizer.step()


def columns(steps):
    n, obs, action, reward, next_obs, terminated, done = map(np.array, zip(*steps))
    return n, obs, torch.tensor(action), reward, next_obs, terminated, done


def normalised(x):
    return (x - x.mean()) / x.std()


def slow_ppo(slow):
    config, clipped = slow.config, 0
    while slow.env_step < config.total_steps:
        steps = slow.play_rollout()
        n, obs, action, reward, next_obs, terminated, done = columns(steps)
        with torch.no_grad():
            old_log_prob, value, next_value = slow.pi(obs).log_prob(action), slow.value(obs), slow.value(next_obs)
        advantage = torch.zeros(len(steps))
        for i in range(len(steps)):
            weight = 1.0
            for k in range(i, len(steps), config.num_envs):  # the later steps of the same environment
                bootstrap = 0.0 if terminated[k] else config.gamma * next_value[k]
                advantage[i] += weight * (reward[k] + bootstrap - value[k])
                weight *= config.gamma * config.gae_lambda
                if done[k]:
                    break
        return_ = advantage + value
        entropy_coef = config.entropy_coef * (1 - slow.env_step / config.total_steps)
        for _ in range(config.epochs):
            order = torch.randperm(len(steps))
            for k in range(config.num_minibatches):
                size = len(steps) // config.num_minibatches
                mb = order[k * size : (k + 1) * size]
                pi, gain = slow.pi(obs[mb]), normalised(advantage[mb])
                ratio = (pi.log_prob(action[mb]) - old_log_prob[mb]).exp()
                low, high = 1 - config.clip_eps, 1 + config.clip_eps
                objective = torch.where(gain > 0, ratio.clamp(max=high), ratio.clamp(min=low)) * gain
                clipped += int(((gain > 0) & (ratio > high) | (gain < 0) & (ratio < low)).sum())
                error = slow.value(obs[mb]) - return_[mb]
                slow.descend((-objective + error**2 / 2 - entropy_coef * pi.entropy()).mean())
        slow.env_step += len(steps)
    assert clipped > 5 and terminated.any() and (done & ~terminated).any()


def slow_actor_critic(slow):
    config = slow.config
    while slow.env_step < config.total_steps:
        steps = slow.play_rollout()
        _, obs, action, reward, next_obs, terminated, done = columns(steps)
        target = torch.tensor(reward) + config.gamma * slow.value(next_obs).detach() * torch.tensor(~terminated)
        delta, pi = target - slow.value(obs), slow.pi(obs)
        psi = normalised(delta.detach())
        slow.descend((-psi * pi.log_prob(action) + delta**2 / 2 - config.entropy_coef * pi.entropy()).mean())
        slow.env_step += len(steps)
    assert terminated.any() and (done & ~terminated).any()


def slow_reinforce(slow):
    config = slow.config
    slow.obs[0], _ = slow.envs[0].reset()  # it is reset once with a seed, and then once for each episode
    while slow.env_step < config.total_steps:
        episodes = []
        for _ in range(config.num_episodes):
            episode = slow.play_step()
            while not episode[-1][-1]:
                episode += slow.play_step()
            episodes.append(episode)
        steps = [step for episode in episodes for step in episode]
        slow.include(steps)
        returns = [[sum(config.gamma**k * step[3] for k, step in enumerate(episode[t:])) for t in range(len(episode))]
                   for episode in episodes]
        difference = torch.tensor([
            return_ - sum(other[t] for other in returns if t < len(other)) / len(returns)
            for of_episode in returns for t, return_ in enumerate(of_episode)])
        _, obs, action, *_ = columns(steps)
        slow.descend(-(slow.pi(obs).log_prob(action) * difference).mean())
        slow.env_step += len(steps)


ALGORITHMS = dict(ppo_discrete=(slow_ppo, PASSES), ppo_continuous=(slow_ppo, PASSES),
                  actor_critic=(slow_actor_critic, ROLLOUTS), reinforce=(slow_reinforce, SETTINGS | dict(total_steps=20)))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_run_is_its_equations(name, task, capsys):
    algorithm, settings = ALGORITHMS[name]
    config = config_of(name, env_id=task(name), **settings)
    slow = Slow(name, config, getattr(config, "num_envs", 1))
    first = weights_of(slow.agent).clone()
    algorithm(slow)
    agent, _ = load(name).train(config)
    assert slow.env_step >= config.total_steps
    assert (weights_of(agent) - first).abs().min() > 1e-6
    torch.testing.assert_close(weights_of(agent), weights_of(slow.agent), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(agent.scale(torch.tensor(slow.centre) + 0.1), slow.scaled(slow.centre + 0.1))
