"""Whole runs of a few updates, against the same runs computed slowly from the equations.

A script trains where episodes are short and end in both ways. Three things are recorded from outside:
what the environments answered, which actions were played and how the minibatches were shuffled. From
these and the first weights everything else follows. It is computed here once more, in float64, a step
of one environment at a time and without a line of the scripts: how the observations are scaled, the
advantages, the losses, the clipped gradients, Adam. In the end all weights have to agree, and so do
the numbers that were printed on the way.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, field

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import PPO, SCRIPTS, edited, load, marked

BETA_1, BETA_2, ADAM_EPS = 0.9, 0.999, 1e-5


# ---- What is recorded while a script trains ----


class Recorder(gym.vector.VectorWrapper):
    """Environments that keep what they were told and what they answered."""

    def __init__(self, env):
        super().__init__(env)
        self.steps, self.resets = [], []  # a reset: how many steps came before, its seed, its observations

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        self.resets.append((len(self.steps), seed, obs.copy()))
        return obs, info

    def step(self, actions):
        told = np.array(actions)
        answer = super().step(actions)
        self.steps.append((told, *(np.array(x) for x in answer[:4])))
        return answer


@dataclass
class Recording:
    """All that was seen of a run from outside."""

    config: object = None
    envs: Recorder = None
    first_weights: dict = None
    agent: object = None
    history: list = None
    printed: str = ""
    checkpoint: dict = None  # the last one, of PPO
    acts: list = field(default_factory=list)  # of each step: observations, actions, their log-probability
    orders: list = field(default_factory=list)  # of each epoch: a permutation of the steps
    draws: list = field(default_factory=list)  # of each actor-critic update: actions for every row


def record(module, monkeypatch, capsys, offset=None, **settings):
    """Trains with the script and returns everything the slow computation needs."""
    name, kept = module.__name__.removesuffix("_edited"), Recording()
    network = module.Policy if name == "reinforce" else module.ActorCritic
    start, act, randperm = network.__init__, network.act, torch.randperm
    sample = torch.distributions.Categorical.sample

    def kept_start(agent, *args):
        start(agent, *args)
        assert kept.first_weights is None
        kept.first_weights = {key: x.detach().double().clone() for key, x in agent.named_parameters()}

    def kept_act(agent, obs, greedy=False):
        action = act(agent, obs, greedy)
        with torch.no_grad():
            log_prob = agent.pi(torch.tensor(obs)).log_prob(torch.tensor(action))
        kept.acts.append((obs.copy(), action.copy(), log_prob.numpy()))
        return action

    def kept_order(*args, **kwargs):
        kept.orders.append(randperm(*args, **kwargs))
        return kept.orders[-1].clone()

    def kept_draw(pi, *args):
        drawn = sample(pi, *args)
        if drawn.ndim == 2:  # not (N,), which is an act
            kept.draws.append(drawn.clone())
        return drawn

    monkeypatch.setattr(network, "__init__", kept_start)
    monkeypatch.setattr(network, "act", kept_act)
    monkeypatch.setattr(torch, "randperm", kept_order)
    monkeypatch.setattr(torch.distributions.Categorical, "sample", kept_draw)
    kept.config = module.Config(env_id=marked(name), **settings)
    envs = gym.make_vec(marked(name), kept.config.num_envs)
    if offset is not None:
        envs = gym.wrappers.vector.TransformObservation(envs, lambda obs: obs + np.float32(offset))
    kept.envs = Recorder(envs)
    capsys.readouterr()
    kept.agent, kept.history = module.train(kept.config, kept.envs)
    kept.printed = capsys.readouterr().out
    if name in PPO:
        kept.checkpoint = torch.load(kept.config.save, weights_only=True)
    return kept


# ---- The parts of the algorithms, in slow motion ----


@dataclass
class Step:
    """One step of one environment that an agent learns from."""

    t: int
    n: int
    obs: np.ndarray
    action: object
    log_prob: float  # by the policy that played it
    reward: float  # as the agent learns from it
    next_obs: np.ndarray
    terminated: bool


class Choice:
    """A distribution over a few actions."""

    def __init__(self, logits):
        self.log_probs = [logit - torch.logsumexp(logits, 0) for logit in logits]

    def log_prob(self, action):
        return self.log_probs[int(action)]

    def entropy(self):
        return -sum(log_p.exp() * log_p for log_p in self.log_probs)


class Gaussian:
    """Independent normal distributions, one for each coordinate of the action."""

    def __init__(self, means, log_stds):
        self.means, self.log_stds = means, log_stds

    def log_prob(self, action):
        return sum(
            -(((float(x) - mean) / log_std.exp()) ** 2) / 2 - log_std - math.log(2 * math.pi) / 2
            for x, mean, log_std in zip(action, self.means, self.log_stds)
        )

    def entropy(self):
        return sum(log_std + math.log(2 * math.pi * math.e) / 2 for log_std in self.log_stds)


class SlowAgent:
    """The weights, the observations seen so far and the memory of Adam."""

    def __init__(self, recording):
        self.config, self.weights, self.seen = recording.config, {}, []
        self.spread = getattr(self.config, "obs_std", 2)  # the standard deviation that observations are scaled to
        self.shifts = None  # of each feature, once something has been seen
        self.events = Counter()  # how often what the tests are about happened
        self.gaussian = "log_std" in recording.first_weights
        self.mean, self.square, self.updates, self.beta = {}, {}, 0, 1.0
        for name, weight in recording.first_weights.items():
            self.weights[name] = weight.clone().requires_grad_()
            self.mean[name], self.square[name] = torch.zeros_like(weight), torch.zeros_like(weight)

    def moments(self, j):
        """Mean and standard deviation of feature j, over all observations seen so far."""
        column = [old[j] for old in self.seen]
        mean = sum(column) / len(column)
        return mean, math.sqrt(max(sum((x - mean) ** 2 for x in column) / len(column), 1e-8))

    def look(self, obs):
        """An observation as the networks see it: shifted, scaled and clipped at 10.

        Until something has been seen it is not scaled.
        """
        x = []
        for j, number in enumerate(obs.tolist()):
            if self.seen:
                number = (number - self.shifts[j]) * self.spread / self.moments(j)[1]
            if abs(number) > 10:
                self.events["observation clipped"] += 1
                number = math.copysign(10, number)
            x.append(number)
        return torch.tensor(x, dtype=torch.float64)

    def network(self, name, obs):
        """The output of a network: linear layers, with the activation after each but the last."""
        x, bend = self.look(obs), torch.relu if getattr(self.config, "activation", "tanh") == "relu" else torch.tanh
        layers = [key.removesuffix(".weight") for key in self.weights if key.startswith(name) and "weight" in key]
        for layer in layers:
            x = self.weights[f"{layer}.weight"] @ x + self.weights[f"{layer}.bias"]
            x = x if layer == layers[-1] else bend(x)
        return x

    def policy(self, obs):
        out = self.network("policy", obs)
        return Gaussian(out, self.weights["log_std"]) if self.gaussian else Choice(out)

    def old_policy(self, obs):
        """The same, for good: later it neither follows the weights nor lets a gradient through."""
        out = self.network("policy", obs).detach()
        return Gaussian(out, self.weights["log_std"].detach()) if self.gaussian else Choice(out)

    def value(self, obs, critic="critic", action=0):
        """A critic's output, as a plain number."""
        return self.network(critic, obs)[int(action)].item()

    def descend(self, loss, learning_rate, longest):
        """A step of Adam along the gradient, which is shortened first if it is too long."""
        grads = torch.autograd.grad(loss, list(self.weights.values()), allow_unused=True)
        grads = [torch.zeros_like(w) if g is None else g for g, w in zip(grads, self.weights.values())]
        length = math.sqrt(sum(float((g**2).sum()) for g in grads))
        self.events["gradient shortened" if length > longest else "gradient left"] += 1
        self.updates += 1
        for name, g in zip(self.weights, grads):
            g = g * longest / length if length > longest else g
            self.mean[name] = BETA_1 * self.mean[name] + (1 - BETA_1) * g
            self.square[name] = BETA_2 * self.square[name] + (1 - BETA_2) * g**2
            mean = self.mean[name] / (1 - BETA_1**self.updates)
            square = self.square[name] / (1 - BETA_2**self.updates)
            weight = self.weights[name] - learning_rate * mean / (square.sqrt() + ADAM_EPS)
            self.weights[name] = weight.detach().requires_grad_()

    def learn_observations(self, steps):
        """Adds them to those seen. The first ones decide for good which features are shifted, and how far.

        It is those whose mean is more than 2 standard deviations from 0: they are moved to 2, or from beyond 10 to 0.
        """
        self.seen += [step.obs.tolist() for step in steps]
        if self.shifts is None:
            self.shifts = []
            for j in range(3):
                mean, deviation = self.moments(j)
                if abs(mean) > 10 * deviation:
                    shift, event = mean, "centred"
                elif abs(mean) > 2 * deviation:
                    shift, event = mean - math.copysign(2 * deviation, mean), "moved"
                else:
                    shift, event = 0.0, "not centred"
                self.shifts.append(float(np.float32(shift)))  # kept in single precision
                self.events[event] += 1


def rewards_to_learn_from(recording):
    """Row t holds those of step t: scaled, and divided by the spread of discounted returns if asked for."""
    config, N = recording.config, recording.envs.num_envs
    total, over, mean, variance, count, rows = [0.0] * N, [False] * N, 0.0, 1.0, 1e-4, []
    for _, _, reward, terminated, truncated in recording.envs.steps:
        if getattr(config, "normalize_reward", False):
            playing = [n for n in range(N) if not over[n]]
            for n in playing:  # gymnasium's NormalizeReward forgets the past at a terminal step
                total[n] = total[n] * config.gamma * (not terminated[n]) + reward[n]
            news = [total[n] for n in playing]
            if news:
                new_mean = (count * mean + sum(news)) / (count + len(news))
                old_part = count * (variance + (mean - new_mean) ** 2)
                variance = (old_part + sum((x - new_mean) ** 2 for x in news)) / (count + len(news))
                mean, count = new_mean, count + len(news)
            over = [bool(terminated[n] or truncated[n]) for n in range(N)]
        rows.append([getattr(config, "reward_scale", 1) * r / math.sqrt(variance + 1e-8) for r in reward.tolist()])
    return rows


def pieces_of_episodes(recording, agent, first, last, obs):
    """The steps from the first to the last, cut wherever an episode ends, for each environment in turn.

    The step after such an end only resets the environment, whatever action it is given: it is left out.
    """
    envs, rewards, pieces = recording.envs, rewards_to_learn_from(recording), []
    just_reset = {position for position, _, _ in envs.resets}
    for n in range(envs.num_envs):
        piece = []
        for t in range(first, last):
            _, next_obs, _, terminated, truncated = envs.steps[t]
            now = obs[n] if t == first else envs.steps[t - 1][1][n]
            act_obs, action, log_prob = recording.acts[t]
            np.testing.assert_array_equal(act_obs[n], now)
            if t not in just_reset and (envs.steps[t - 1][3][n] or envs.steps[t - 1][4][n]):
                agent.events["reset step left out"] += 1
                continue
            ends = terminated[n] or truncated[n]
            agent.events["terminated" if terminated[n] else "truncated" if truncated[n] else "goes on"] += 1
            agent.events["last row goes on"] += t == last - 1 and not ends
            piece.append(Step(t, n, now, action[n], log_prob[n], rewards[t][n], next_obs[n], bool(terminated[n])))
            if ends:
                pieces.append(piece)
                piece = []
        pieces += [piece] if piece else []
    return pieces


def in_order(pieces):
    """The steps of all pieces, by time first and then by environment: as the minibatches number them."""
    return sorted((step for piece in pieces for step in piece), key=lambda step: (step.t, step.n))


def rollouts(recording, agent):
    """The pieces of each rollout of T steps, and the learning rate while they are learned from."""
    config, (_, _, obs) = recording.config, recording.envs.resets[0]
    for first in range(0, len(recording.envs.steps), config.num_steps):
        last = first + config.num_steps
        learning_rate = config.learning_rate * (1 - first * config.num_envs / config.total_steps)
        yield pieces_of_episodes(recording, agent, first, last, obs), learning_rate
        obs = recording.envs.steps[last - 1][1]


def standardized(numbers):
    mean = sum(numbers) / len(numbers)
    spread = math.sqrt(sum((x - mean) ** 2 for x in numbers) / len(numbers))
    return [(x - mean) / (spread + 1e-8) for x in numbers]


def mean_of(numbers):
    return float(torch.as_tensor(sum(numbers)).detach()) / len(numbers)


def variance_of(numbers):
    return mean_of([(x - mean_of(numbers)) ** 2 for x in numbers])


def scores(recording):
    """(env_step, score) of each finished episode; every step of every environment is counted."""
    envs, totals, over, found = recording.envs, {}, set(), []
    starts = [position for position, seed, _ in envs.resets if seed is None]
    for t, (_, _, reward, terminated, truncated) in enumerate(envs.steps):
        if t in starts:  # REINFORCE starts all episodes together, and counts one of each environment
            totals, over = {}, set()
        for n in range(envs.num_envs):
            if n in over:
                over -= set() if starts else {n}
                continue
            totals[n] = totals.get(n, 0.0) + float(reward[n])
            if terminated[n] or truncated[n]:
                over.add(n)
                found.append(((t + 1) * envs.num_envs, totals.pop(n)))
    return found


# ---- The algorithms, in slow motion: each yields the agent after every update ----


def slow_ppo(recording, agent):
    config = recording.config
    for pieces, learning_rate in rollouts(recording, agent):
        advantages, returns = {}, {}
        for piece in pieces:
            deltas = []
            for step in piece:
                next_value = 0.0 if step.terminated else agent.value(step.next_obs)
                deltas.append(step.reward + config.gamma * next_value - agent.value(step.obs))
            for i, step in enumerate(piece):
                weights = [(config.gamma * config.gae_lambda) ** k for k in range(len(piece) - i)]
                advantages[step.t, step.n] = sum(w * delta for w, delta in zip(weights, deltas[i:]))
                returns[step.t, step.n] = advantages[step.t, step.n] + agent.value(step.obs)

        steps = in_order(pieces)
        old = [agent.old_policy(step.obs) for step in steps]
        for step, pi in zip(steps, old):  # the policy before the update is the one that played
            np.testing.assert_allclose(step.log_prob, pi.log_prob(step.action), rtol=1e-4, atol=1e-4)

        for _ in range(config.epochs):
            order = recording.orders.pop(0).tolist()
            assert sorted(order) == list(range(len(steps)))
            for k in range(config.num_minibatches):  # as many as asked for, and of two sizes at most
                size = len(steps) // config.num_minibatches + (k < len(steps) % config.num_minibatches)
                minibatch, order = order[:size], order[size:]
                agent.events["a minibatch is smaller"] += k > 0 and size < last_size
                last_size = size
                mb_advantages = standardized([advantages[steps[i].t, steps[i].n] for i in minibatch])
                gains, errors, entropies = [], [], []
                for i, advantage in zip(minibatch, mb_advantages):
                    pi, value = agent.policy(steps[i].obs), agent.network("critic", steps[i].obs)[0]
                    ratio = (pi.log_prob(steps[i].action) - old[i].log_prob(steps[i].action)).exp()
                    if config.objective == "penalty":
                        gain = ratio * advantage - agent.beta * (ratio - 1 - ratio.log())
                    elif advantage > 0 and ratio > 1 + config.clip_eps:
                        gain = torch.tensor((1 + config.clip_eps) * advantage)
                        agent.events["clipped above"] += 1
                    elif advantage < 0 and ratio < 1 - config.clip_eps:
                        gain = torch.tensor((1 - config.clip_eps) * advantage)
                        agent.events["clipped below"] += 1
                    else:
                        gain = ratio * advantage
                        agent.events["far, but not clipped"] += abs(ratio.item() - 1) > config.clip_eps
                    gains.append(gain)
                    errors.append((value - returns[steps[i].t, steps[i].n]) ** 2)
                    entropies.append(pi.entropy())
                losses = [-g + e / 2 - config.entropy_coef * h for g, e, h in zip(gains, errors, entropies)]
                agent.descend(sum(losses) / size, learning_rate, config.max_grad_norm)
            assert not order

        kl, far = 0.0, 0  # each step's ratio - 1 - log ratio: its mean estimates how far π has moved
        for step, pi in zip(steps, old):
            log_ratio = (agent.old_policy(step.obs).log_prob(step.action) - pi.log_prob(step.action)).item()
            kl += (math.exp(log_ratio) - 1 - log_ratio) / len(steps)
            far += abs(math.exp(log_ratio) - 1) > config.clip_eps
        target = config.target_kl * learning_rate / config.learning_rate
        if config.objective == "penalty" and kl > target * 1.5:
            agent.beta *= 2
            agent.events["β doubled"] += 1
        elif config.objective == "penalty" and kl < target / 1.5:
            agent.events["β halved" if agent.beta > 1 else "β stays"] += 1
            agent.beta = max(agent.beta / 2, 1)
        learned = [returns[step.t, step.n] for step in steps]
        missed = [advantages[step.t, step.n] for step in steps]  # what the old critic's value was short of
        agent.learn_observations(steps)
        yield {
            "policy_loss": -mean_of(gains),  # of the last minibatch
            "value_loss": mean_of(errors),
            "entropy": mean_of(entropies),
            "kl": kl,
            "beta": agent.beta,
            "clipped_fraction": far / len(steps),
            "explained_variance": 1 - variance_of(missed) / variance_of(learned),
        }


def slow_reinforce(recording, agent):
    config, envs = recording.config, recording.envs
    starts = [(position, obs) for position, seed, obs in envs.resets if seed is None]
    ends = [position for position, _ in starts[1:]] + [len(envs.steps)]
    for (first, obs), last in zip(starts, ends):
        learning_rate = config.learning_rate * (1 - first * config.num_envs / config.total_steps)
        pieces = pieces_of_episodes(recording, agent, first, last, obs)
        episodes = [next(piece for piece in pieces if piece[0].n == n) for n in range(config.num_envs)]
        returns = {}
        for episode in episodes:
            for i, step in enumerate(episode):
                returns[step.t, step.n] = sum(config.gamma**k * later.reward for k, later in enumerate(episode[i:]))

        differences = []
        for step in (steps := in_order(episodes)):
            if config.num_envs > 1:  # the baseline: who is done gets no more rewards
                compared = [returns.get((step.t, n), 0.0) for n in range(config.num_envs)]
            else:
                compared = list(returns.values())
            differences.append(returns[step.t, step.n] - sum(compared) / len(compared))
        mean = sum(differences) / len(differences)
        spread = math.sqrt(sum((x - mean) ** 2 for x in differences) / len(differences)) + 1e-8
        policies = [agent.policy(step.obs) for step in steps]
        log_probs = [pi.log_prob(step.action) for pi, step in zip(policies, steps)]
        for step, log_prob in zip(steps, log_probs):
            np.testing.assert_allclose(step.log_prob, log_prob.detach(), rtol=1e-4, atol=1e-4)
        loss = -sum(log_prob * x / spread for log_prob, x in zip(log_probs, differences)) / len(steps)
        agent.descend(loss, learning_rate, math.inf)
        agent.learn_observations(steps)
        yield {"entropy": mean_of([pi.entropy() for pi in policies])}


def slow_actor_critic(recording, agent):
    config = recording.config
    for pieces, learning_rate in rollouts(recording, agent):
        drawn, steps, errors, weights = recording.draws.pop(0), in_order(pieces), [], []
        for step in steps:
            t = step.t % config.num_steps
            # What π plays in the next observation. After the last step it is drawn, but not played.
            next_action = drawn[-1][step.n] if t == config.num_steps - 1 else recording.acts[step.t + 1][1][step.n]
            next_v, next_q = 0.0, 0.0  # after a terminal step nothing is still to come
            if not step.terminated:
                next_v = agent.value(step.next_obs, "v_critic")
                next_q = agent.value(step.next_obs, "q_critic", next_action)
            v = agent.network("v_critic", step.obs)[0]
            q = agent.network("q_critic", step.obs)[int(step.action)]
            v_error = step.reward + config.gamma * next_v - v
            q_error = step.reward + config.gamma * next_q - q
            weights.append({"td": v_error, "q": q, "advantage": q - v}[config.critic].item())
            errors.append({"td": v_error**2, "q": q_error**2, "advantage": v_error**2 + q_error**2}[config.critic])
        weights = standardized(weights)
        gains, entropies = [], []
        for step, weight in zip(steps, weights):
            pi = agent.policy(step.obs)
            np.testing.assert_allclose(step.log_prob, pi.log_prob(step.action).detach(), rtol=1e-4, atol=1e-4)
            gains.append(pi.log_prob(step.action) * weight)
            entropies.append(pi.entropy())
        losses = [-g + e / 2 - config.entropy_coef * h for g, e, h in zip(gains, errors, entropies)]
        agent.descend(sum(losses) / len(losses), learning_rate, config.max_grad_norm)
        agent.learn_observations(steps)
        yield {"policy_loss": -mean_of(gains), "critic_loss": mean_of(errors), "entropy": mean_of(entropies)}


# ---- The comparison ----


def differs(agent, weights):
    """The names of all weights that are not as they have to be.

    The scripts compute in float32. Where a gradient is hardly longer than Adam's ε, the rounding of it shows:
    one step of 0.02 can then be wrong by 0.0001. A bug moves the weights by far more.
    """
    trained = dict(agent.named_parameters())
    assert set(trained) == set(weights)
    return [
        name
        for name, weight in weights.items()
        if not np.allclose(trained[name].detach(), weight.detach(), rtol=1e-4, atol=1e-4)
    ]


def compare(algorithm, recording):
    """Computes the run slowly and asserts that all is the same.

    Returns what happened, and how often, and the numbers that a user can see after each update.
    """
    slow, trained, updates = SlowAgent(recording), recording.agent, []
    for metrics in algorithm(recording, slow):
        updates.append((metrics, dict(slow.weights)))
    assert not recording.orders and not recording.draws
    assert not differs(trained, slow.weights)
    # The comparison would notice if one update were left out, or all of them.
    for weights in [recording.first_weights, *[weights for _, weights in updates[:-1]]]:
        assert any(name.startswith("policy") for name in differs(trained, weights))
    assert trained.scale.count == len(slow.seen)
    np.testing.assert_allclose(trained.scale.sum, [sum(old[j] for old in slow.seen) for j in range(3)])
    np.testing.assert_allclose(trained.scale.sum_of_squares, [sum(old[j] ** 2 for old in slow.seen) for j in range(3)])
    np.testing.assert_allclose(trained.scale.shift, slow.shifts, rtol=1e-6)
    np.testing.assert_allclose(trained.scale.divisor, [slow.moments(j)[1] / slow.spread for j in range(3)], rtol=1e-6)

    expected = scores(recording)
    assert [step for step, _ in recording.history] == [step for step, _ in expected]
    np.testing.assert_allclose([x for _, x in recording.history], [x for _, x in expected], rtol=1e-4, atol=1e-5)
    seeds = [seed for _, seed, _ in recording.envs.resets]
    assert seeds[0] is not None and not any(seeds[1:])  # with a seed twice, all episodes would come twice
    if recording.checkpoint:
        assert recording.checkpoint["beta"] == slow.beta
        memory = recording.checkpoint["optimizer"]
        assert memory["steps"] == slow.updates
        for name in ("mean", "square"):
            numbers = torch.cat([x.flatten() for x in getattr(slow, name).values()])
            np.testing.assert_allclose(memory[name], numbers, rtol=1e-3, atol=1e-6)

    ends = [last for _, last in spans(recording)]
    seen = []
    for end, (metrics, _) in zip(ends, updates, strict=True):
        past = [score for step, score in expected if step <= end]
        average = sum(past[-20:]) / len(past[-20:]) if past else math.nan
        seen.append((end, metrics | {"episode": len(past), "average_score": average}))
    compare_printed(recording.printed, seen)
    return slow.events, seen


def spans(recording):
    """(first, last) environment step of each update."""
    config, N, steps = recording.config, recording.envs.num_envs, len(recording.envs.steps)
    if hasattr(config, "num_steps"):
        firsts = list(range(0, steps, config.num_steps))
    else:
        firsts = [position for position, seed, _ in recording.envs.resets if seed is None]
    return [(first * N, last * N) for first, last in zip(firsts, [*firsts[1:], steps])]


def rounded(number, form):
    """The number as it may be printed: the scripts compute in float32, so that the last digit may be one off."""
    return {form.format(number * (1 + error) + 1e-6 * error) for error in (-1e-3, 0.0, 1e-3)}


def compare_printed(printed, seen):
    """Every line that a user read has the numbers of an update, and as many lines as a run of this length has."""
    pattern = (
        r"step ([\d,]+)  episode ([\d,]+)  average score of the last 20 episodes: (\S+)"
        r"(?:  kl (\S+))?  entropy (\S+)"
    )
    lines = [line for line in printed.splitlines() if line.startswith("step ")]
    assert len(lines) == len(seen) <= 20  # in a run as short as these, every update has one
    for line, (end, metrics) in zip(lines, seen):
        step, episode, average, kl, entropy = re.fullmatch(pattern, line).groups()
        assert (step, episode) == (f"{end:,}", f"{metrics['episode']:,}")
        assert average in rounded(metrics["average_score"], "{:.2f}")
        assert entropy in rounded(metrics["entropy"], "{:.2g}")
        assert (kl is None) == ("kl" not in metrics) and (kl is None or kl in rounded(metrics["kl"], "{:.2g}"))


SIZES = dict(num_envs=3, hidden_size=5, gamma=0.9, learning_rate=0.02)
ROLLOUTS = SIZES | dict(hidden_layers=2, num_steps=7, total_steps=63, reward_scale=0.5, entropy_coef=0.1)  # three
PASSES = ROLLOUTS | dict(epochs=3, num_minibatches=4, gae_lambda=0.7, clip_eps=0.1)
ENDS = {"terminated", "truncated", "goes on", "last row goes on", "reset step left out"}
CLIPS = {"clipped above", "clipped below", "far, but not clipped"}
PPO_CASES = {
    "clip": (dict(activation="relu", max_grad_norm=1.0), CLIPS | {"gradient shortened", "gradient left"}),
    "penalty": (
        dict(objective="penalty", target_kl=0.016, max_grad_norm=1.0, total_steps=105), {"β doubled", "β halved"}
    ),
    "normalized rewards": (dict(normalize_reward=True, max_grad_norm=0.1, obs_std=3), CLIPS | {"gradient shortened"}),
    "plain": (dict(max_grad_norm=math.inf, entropy_coef=0.0), CLIPS | {"gradient left"}),
    # relu, because tanh is so flat in -10, where the clip puts these at first, that float32 knows its slope badly.
    "far from 0": (dict(offset=[-40, 0, 7], activation="relu", max_grad_norm=1.0), CLIPS | {"centred", "not centred"}),
}
SLOW = {name: slow_ppo for name in PPO} | {"reinforce": slow_reinforce, "actor_critic": slow_actor_critic}


@pytest.mark.parametrize("case", PPO_CASES)
@pytest.mark.parametrize("name", PPO)
def test_ppo_is_its_equations(name, case, monkeypatch, capsys, tmp_path):
    settings, wanted = PPO_CASES[case]
    recording = record(load(name), monkeypatch, capsys, **PASSES | settings, save=str(tmp_path / "run.pt"))
    assert recording.printed.startswith(f"{marked(name)} with ")
    if name == "ppo_continuous":  # it learns from actions as they were drawn; played are those in the range
        low, high = np.array([-2.0, 0.0]), np.array([2.0, 10.0])
        for (_, action, _), (told, *_) in zip(recording.acts, recording.envs.steps, strict=True):
            np.testing.assert_allclose(told, np.clip(low + (high - low) * (action + 1) / 2, low, high), atol=1e-5)
    events, _ = compare(slow_ppo, recording)
    # Without these the agreement would say little.
    assert ENDS | wanted | {"observation clipped", "a minibatch is smaller"} <= set(+events)


@pytest.mark.parametrize("offset", [None, [-40, 0, 7]])
@pytest.mark.parametrize("num_envs", [3, 1])
def test_reinforce_is_its_equations(num_envs, offset, monkeypatch, capsys):
    settings = SIZES | dict(num_envs=num_envs, total_steps=20 * num_envs, offset=offset)
    events, _ = compare(slow_reinforce, record(load("reinforce"), monkeypatch, capsys, **settings))
    assert {"terminated", "truncated", "goes on"} <= set(+events)
    assert num_envs == 1 or "reset step left out" in +events
    assert events["centred"] >= (2 if offset else 0)


@pytest.mark.parametrize("critic, offset", [("td", None), ("q", None), ("advantage", None), ("td", [-40, 0, 7])])
def test_actor_critic_is_its_equations(critic, offset, monkeypatch, capsys):
    settings = ROLLOUTS | dict(critic=critic, max_grad_norm=0.4, offset=offset)
    events, _ = compare(slow_actor_critic, record(load("actor_critic"), monkeypatch, capsys, **settings))
    assert ENDS | {"gradient shortened"} <= set(+events)
    assert events["centred"] >= (2 if offset else 0)


@pytest.mark.parametrize("name, objective", [(name, "clip") for name in SCRIPTS] + [(name, "penalty") for name in PPO])
def test_the_dictionary_of_metrics_has_the_numbers_of_the_run(name, objective, monkeypatch, capsys, tmp_path):
    """One line is added to the script's text, as a user would add `wandb.log(metrics, env_step)`."""
    print_line = '                print(f"step {env_step:,}  episode'
    module = edited(name, (print_line, "                seen.append((env_step, metrics))\n" + print_line))
    module.seen = []
    settings = {"reinforce": SIZES | dict(total_steps=60), "actor_critic": ROLLOUTS}.get(name)
    settings = settings or PASSES | dict(objective=objective, target_kl=1e-4, save=str(tmp_path / "run.pt"))
    _, expected = compare(SLOW[name], record(module, monkeypatch, capsys, **settings))
    for (step, metrics), (end, wanted) in zip(module.seen, expected, strict=True):
        assert step == end
        if name in PPO:
            assert metrics.pop("steps_per_second") > 0
        assert all(type(number) in (int, float) for number in metrics.values())
        assert metrics == pytest.approx(wanted, rel=2e-3, abs=2e-5, nan_ok=True)
    assert objective == "clip" or module.seen[-1][1]["beta"] > 1
