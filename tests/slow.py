"""The algorithms of the scripts in slow motion, computed from the equations.

From what the environments answered, the actions that were drawn, the order of the minibatches and the first weights,
everything is computed once more, in float64, a step of one environment at a time and without a line of the scripts.
"""

import math
from collections import Counter, namedtuple

import numpy as np
import pytest
import torch
from conftest import activation_of, parse_line

BETA_1, BETA_2, ADAM_EPS = 0.9, 0.999, 1e-8

# ---- The parts of the algorithms, in slow motion ----


# One step of one environment: log_prob is by the policy that played it, reward is what the agent learns from.
Step = namedtuple("Step", "t n obs action log_prob reward next_obs terminated")


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
        self.recording, self.config, self.weights = recording, recording.config, {}
        self.rewards, self.returns = rewards_to_learn_from(recording)
        self.centre = recording.envs.resets[0][2].mean(0)  # where the first episodes began, in float32
        self.sums, self.count = [1e-8] * 3, 1e-8
        self.events = Counter()  # how often what the tests are about happened
        self.mean, self.square, self.updates = {}, {}, 0
        for name, weight in recording.first_weights.items():
            self.weights[name] = weight.clone().requires_grad_()
            self.mean[name], self.square[name] = torch.zeros_like(weight), torch.zeros_like(weight)

    def look(self, obs):
        """An observation as the networks see it: from the centre, in half root mean squares, clipped at 10."""
        x = []
        for number, centre, total in zip(obs.tolist(), self.centre.tolist(), self.sums, strict=True):
            number = 2 * (number - centre) / math.sqrt(total / self.count)
            if abs(number) > 10:
                self.events["observation clipped"] += 1
                number = math.copysign(10, number)
            x.append(number)
        return torch.tensor(x, dtype=torch.float64)

    def network(self, name, obs):
        """The output of a network: linear layers, with the activation after each but the last."""
        x, bend = self.look(obs), activation_of(self.config)
        layers = [key.removesuffix(".weight") for key in self.weights if key.startswith(name) and "weight" in key]
        for layer in layers:
            x = self.weights[f"{layer}.weight"] @ x + self.weights[f"{layer}.bias"]
            x = x if layer == layers[-1] else bend(x)
        return x

    def policy(self, obs):
        out = self.network("policy", obs)
        return Gaussian(out, self.weights["log_std"]) if "log_std" in self.weights else Choice(out)

    def value(self, obs):
        """The critic's output, as a plain number."""
        return self.network("critic", obs)[0].item()

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
        """Counts them in the root mean square, which starts as if a little had been seen at a distance of 1."""
        for j, centre in enumerate(self.centre.tolist()):
            self.sums[j] += sum((float(step.obs[j]) - centre) ** 2 for step in steps)
        self.count += len(steps)


def rewards_to_learn_from(recording):
    """Row t holds those of step t; in PPO also the statistics of the returns that they were divided by.

    These discounted sums of the past rewards forget the past at a terminal step. Their mean and variance
    start as if 0.0001 returns of mean 0 and variance 1 had been seen before. The actor-critic divides by 20
    root mean squares of all rewards up to the update, in which steps that only reset do not count.
    """
    config, N = recording.config, recording.envs.num_envs
    if recording.name == "reinforce":
        return [reward.tolist() for _, _, reward, _, _ in recording.envs.steps], None
    if recording.name == "actor_critic":
        return rewards_by_root_mean_square(recording), None
    total, over, returns, rows = [0.0] * N, [False] * N, [], []
    for _, _, reward, terminated, truncated in recording.envs.steps:
        for n in range(N):
            if not over[n]:
                total[n] = total[n] * config.gamma * (not terminated[n]) + reward[n]
                returns.append(total[n])
            over[n] = not over[n] and bool(terminated[n] or truncated[n])
        count = len(returns) + 1e-4
        mean = sum(returns) / count
        variance = (sum((x - mean) ** 2 for x in returns) + 1e-4 * (1 + mean**2)) / count
        rows.append([r / math.sqrt(variance + 1e-8) for r in reward.tolist()])
    return rows, {"mean": mean, "var": variance, "count": count}


def rewards_by_root_mean_square(recording):
    over, squares, rows, size = [False] * recording.envs.num_envs, [], [], recording.config.num_steps
    for first in range(0, len(recording.envs.steps), size):
        steps = recording.envs.steps[first : first + size]
        for _, _, reward, terminated, truncated in steps:
            squares += [float(r) ** 2 for r, is_reset in zip(reward, over) if not is_reset]
            over = (terminated | truncated).tolist()
        unit = 20 * math.sqrt(sum(squares) / len(squares))
        rows += [[float(r) / unit for r in reward] for _, _, reward, _, _ in steps]
    return rows


def pieces_of_episodes(agent, first, last):
    """The steps from the first to the last, cut wherever an episode ends, for each environment in turn.

    The step after such an end only resets the environment, whatever action it is given: it is left out.
    """
    envs, pieces = agent.recording.envs, []
    just_reset = {position: obs for position, _, obs in envs.resets}
    for n in range(envs.num_envs):
        piece = []
        for t in range(first, last):
            _, next_obs, _, terminated, truncated = envs.steps[t]
            now = just_reset[t][n] if t in just_reset else envs.steps[t - 1][1][n]
            act_obs, action, log_prob = agent.recording.acts[t]
            np.testing.assert_array_equal(act_obs[n], now)
            if t not in just_reset and (envs.steps[t - 1][3][n] or envs.steps[t - 1][4][n]):
                agent.events["reset step left out"] += 1
                agent.events["reset step in the first row"] += t == first
                continue
            ends, reward = terminated[n] or truncated[n], agent.rewards[t][n]
            agent.events["terminated" if terminated[n] else "truncated" if truncated[n] else "goes on"] += 1
            agent.events["both at once"] += bool(terminated[n] and truncated[n])
            agent.events["last row goes on"] += t == last - 1 and not ends
            piece.append(Step(t, n, now, action[n], log_prob[n], reward, next_obs[n], bool(terminated[n])))
            if ends:
                pieces.append(piece)
                piece = []
        pieces += [piece] if piece else []
    return pieces


def updates(agent):
    """Of each update: the pieces it learns from, the learning rate and the steps of each environment up to then."""
    config, envs, end = agent.config, agent.recording.envs, len(agent.recording.envs.steps)
    if agent.recording.name == "reinforce":  # it resets before each update
        firsts = [position for position, seed, _ in envs.resets if seed is None]
    else:
        firsts = list(range(0, end, config.num_steps))
    for first, last in zip(firsts, [*firsts[1:], end]):
        learning_rate = config.learning_rate * (1 - first * config.num_envs / config.total_steps)
        yield pieces_of_episodes(agent, first, last), learning_rate, last


def spread_of(numbers):
    mean = sum(numbers) / len(numbers)
    return math.sqrt(sum((x - mean) ** 2 for x in numbers) / len(numbers)) + 1e-8


def standardized(numbers):
    return [(x - sum(numbers) / len(numbers)) / spread_of(numbers) for x in numbers]


def mean_of(numbers):
    return float(torch.as_tensor(sum(numbers)).detach()) / len(numbers)


def steps_and_policies(agent, pieces):
    """The steps by time first and then by environment, as the minibatches number them, and who played them."""
    steps = sorted((step for piece in pieces for step in piece), key=lambda step: (step.t, step.n))
    policies = [agent.policy(step.obs) for step in steps]
    for step, pi in zip(steps, policies):  # the policy before the update is the one that played
        np.testing.assert_allclose(step.log_prob, pi.log_prob(step.action).detach(), rtol=1e-4, atol=1e-4)
    return steps, policies


def scores(recording):
    """(env_step, score) of each finished episode; every step of every environment is counted."""
    envs, totals, over, found = recording.envs, {}, set(), []
    for t, (_, _, reward, terminated, truncated) in enumerate(envs.steps):
        for n in range(envs.num_envs):
            if n in over:
                over.remove(n)
                continue
            totals[n] = totals.get(n, 0.0) + float(reward[n])
            if terminated[n] or truncated[n]:
                over.add(n)
                found.append(((t + 1) * envs.num_envs, totals.pop(n)))
    return found


def scores_of_first_episodes(recording):
    """The same for REINFORCE, which counts one episode of each environment, all when the longest has ended."""
    envs, found = recording.envs, []
    starts = [position for position, seed, _ in envs.resets if seed is None]
    for first, last in zip(starts, [*starts[1:], len(envs.steps)]):
        for n in range(envs.num_envs):
            total = 0.0
            for _, _, reward, terminated, truncated in envs.steps[first:last]:
                total += float(reward[n])
                if terminated[n] or truncated[n]:
                    break
            found.append((last * envs.num_envs, total))
    return found


# ---- The algorithms, in slow motion: each yields, after every update, how many steps it saw and what is printed ----


def slow_ppo(agent):
    config = agent.config
    for pieces, learning_rate, end in updates(agent):
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

        steps, policies = steps_and_policies(agent, pieces)
        old = [pi.log_prob(step.action).item() for pi, step in zip(policies, steps)]
        remaining = learning_rate / config.learning_rate
        entropy_coef = config.entropy_coef * (2 * remaining - 1)  # in the end a penalty
        for _ in range(config.epochs):
            order = agent.recording.orders.pop(0).tolist()
            assert sorted(order) == list(range(len(steps)))
            last_size = 0
            for k in range(config.num_minibatches):  # as many as asked for, and of two sizes at most
                size = len(steps) // config.num_minibatches + (k < len(steps) % config.num_minibatches)
                minibatch, order = order[:size], order[size:]
                agent.events["a minibatch is smaller"] += size < last_size
                last_size = size
                mb_advantages = standardized([advantages[steps[i].t, steps[i].n] for i in minibatch])
                losses, entropies, divergences = [], [], []
                for i, advantage in zip(minibatch, mb_advantages):
                    step, pi = steps[i], agent.policy(steps[i].obs)
                    ratio = (pi.log_prob(step.action) - old[i]).exp()
                    gain = ratio * advantage
                    if advantage > 0 and ratio > 1 + config.clip_eps:
                        gain = (1 + config.clip_eps) * advantage
                        agent.events["clipped above"] += 1
                    elif advantage < 0 and ratio < 1 - config.clip_eps:
                        gain = (1 - config.clip_eps) * advantage
                        agent.events["clipped below"] += 1
                    elif abs(ratio.item() - 1) > config.clip_eps:
                        agent.events["far, but not clipped"] += 1
                    error = agent.network("critic", step.obs)[0] - returns[step.t, step.n]
                    losses.append(-gain + error**2 / 2 - entropy_coef * pi.entropy())
                    entropies.append(pi.entropy())
                    divergences.append(ratio - 1 - ratio.log())
                agent.descend(sum(losses) / size, learning_rate, config.max_grad_norm)
            assert not order
        agent.learn_observations(steps)
        yield end, {"kl": mean_of(divergences), "entropy": mean_of(entropies)}  # of the last minibatch


def slow_reinforce(agent):
    config = agent.config
    for pieces, learning_rate, end in updates(agent):
        episodes = [next(piece for piece in pieces if piece[0].n == n) for n in range(config.num_envs)]
        assert end - episodes[0][0].t == max(map(len, episodes))  # it ends as soon as all have ended
        returns = {}
        for episode in episodes:
            for i, step in enumerate(episode):
                returns[step.t, step.n] = sum(config.gamma**k * later.reward for k, later in enumerate(episode[i:]))

        differences, (steps, policies) = [], steps_and_policies(agent, episodes)
        for step in steps:  # the baseline: who is done gets no more rewards
            compared = [returns.get((step.t, n), 0.0) for n in range(config.num_envs)]
            differences.append(returns[step.t, step.n] - sum(compared) / len(compared))
        gains = [pi.log_prob(step.action) * x for pi, step, x in zip(policies, steps, differences)]
        agent.descend(-sum(gains) / spread_of(differences) / len(gains), learning_rate, config.max_grad_norm)
        agent.learn_observations(steps)
        yield end, {"entropy": mean_of([pi.entropy() for pi in policies])}


def slow_actor_critic(agent):
    config = agent.config
    for pieces, learning_rate, end in updates(agent):
        deltas, (steps, policies) = [], steps_and_policies(agent, pieces)
        for step in steps:
            next_value = 0.0 if step.terminated else agent.value(step.next_obs)
            deltas.append(step.reward + config.gamma * next_value - agent.network("critic", step.obs)[0])
        weights = standardized([delta.item() for delta in deltas])
        entropies = [pi.entropy() for pi in policies]
        gains = [pi.log_prob(step.action) * x for pi, step, x in zip(policies, steps, weights)]
        losses = [-g + d**2 / 2 - config.entropy_coef * h for g, d, h in zip(gains, deltas, entropies)]
        agent.descend(sum(losses) / len(losses), learning_rate, config.max_grad_norm)
        agent.learn_observations(steps)
        yield end, {"entropy": mean_of(entropies)}


# ---- The comparison ----


def differs(agent, weights):
    """The names of all weights that are not as they have to be.

    The scripts compute in float32. Where a gradient is hardly longer than Adam's ε, the rounding of it shows:
    one step of 0.02 can then be wrong by 0.0001. A bug moves the weights by far more.
    """
    trained = dict(agent.named_parameters())
    assert set(trained) == set(weights)
    close = {key: np.allclose(trained[key].detach(), x.detach(), rtol=1e-4, atol=1e-4) for key, x in weights.items()}
    return [name for name in weights if not close[name]]


def compare(algorithm, recording):
    """Computes the run slowly, asserts that all is the same and returns the names of what happened."""
    slow, trained, weights, seen = SlowAgent(recording), recording.agent, [recording.first_weights], []
    expected = (scores_of_first_episodes if recording.name == "reinforce" else scores)(recording)
    for end, metrics in algorithm(slow):
        weights.append(dict(slow.weights))
        seen.append((end * recording.config.num_envs, metrics))
    assert not recording.orders
    assert seen[-2][0] < recording.config.total_steps <= seen[-1][0]
    assert not differs(trained, weights.pop())
    for earlier in weights:  # the comparison would notice if one update were left out, or all of them
        assert any(name.startswith("policy") for name in differs(trained, earlier))
    rms = [math.sqrt(total / slow.count) for total in slow.sums]
    scale = {"centre": slow.centre, "sum_of_squares": slow.sums, "count": slow.count, "rms": rms}
    assert set(trained.scale.state_dict()) == set(scale)
    for key, numbers in trained.scale.state_dict().items():
        np.testing.assert_allclose(numbers, scale[key], rtol=1e-5)

    assert [step for step, _ in recording.history] == [step for step, _ in expected]
    np.testing.assert_allclose([x for _, x in recording.history], [x for _, x in expected], rtol=1e-4, atol=1e-5)
    seeds = [seed for _, seed, _ in recording.envs.resets]
    assert seeds[0] is not None  # with a seed twice, all episodes would come twice
    assert len(seeds) > 1 and set(seeds[1:]) == {None}
    if recording.checkpoint:
        assert recording.checkpoint["history"] == recording.history
        assert recording.checkpoint["env_step"] == seen[-1][0]
        assert recording.checkpoint["returns"] == pytest.approx(slow.returns, rel=1e-5, abs=1e-6)
        memory = recording.checkpoint["optimizer"]["state"]
        for i, name in enumerate(slow.weights):
            assert memory[i]["step"] == slow.updates
            np.testing.assert_allclose(memory[i]["exp_avg"], slow.mean[name], rtol=1e-3, atol=1e-6)
            np.testing.assert_allclose(memory[i]["exp_avg_sq"], slow.square[name], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(recording.entropies, [metrics["entropy"] for _, metrics in seen], rtol=1e-4)
    compare_printed(recording.printed, seen, expected, recording.config.total_steps)
    slow.events["more than 20 episodes"] = len(expected) > 20
    return set(+slow.events)


def rounded(number, form):
    """The number as it may be printed: the scripts compute in float32, so that the last digit may be one off."""
    return {form.format(number * (1 + error) + 1e-6 * error) for error in (-1e-3, 0.0, 1e-3)}


def compare_printed(printed, seen, history, total_steps):
    """Every line that a user read has the numbers of an update, and as many lines as a run of this length has."""
    lines = [parse_line(line) for line in printed.splitlines()]
    assert len(lines) == len(seen) <= 20  # in a run as short as these, every update has one
    for line, (end, metrics) in zip(lines, seen):
        past = [score for step, score in history if step <= end]
        assert line[:3] == (end, total_steps, len(past))
        assert line.average == (pytest.approx(np.mean(past[-20:]), rel=1e-4, abs=1e-5) if past else None)
        assert f"{line.entropy:.2g}" in rounded(metrics["entropy"], "{:.2g}")
        assert (line.kl is None) == ("kl" not in metrics)
        if line.kl is not None:
            assert f"{line.kl:.2g}" in rounded(metrics["kl"], "{:.2g}")
