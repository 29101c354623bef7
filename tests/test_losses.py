"""The losses: their gradients where the equations say what these must be, and the numbers beside them."""

import math

import numpy as np
import pytest
import torch
from conftest import PPO, SCRIPTS, load, reacting_agent, untouched
from torch.distributions import Categorical, Independent, Normal, kl_divergence


def policy(name, log_prob):
    """A policy that gives one action of each of B states the log-probability asked for, and that action (B,)."""
    if name == "ppo_discrete":  # two actions: the first one counts
        other = (1 - log_prob.exp()).log()
        return Categorical(logits=torch.stack([log_prob, other], -1)), torch.zeros(len(log_prob), dtype=torch.long)
    # A Gaussian of two dimensions and width 1: the mean's distance gives the log-probability.
    distance = (2 * (-1.8378770664093453 - log_prob)).sqrt()
    mean = torch.stack([distance, torch.zeros_like(distance)], -1)
    return Independent(Normal(mean, torch.ones_like(mean)), 1), torch.zeros(len(log_prob), 2)


def loss_of(name, ratio, advantage, value=None, return_=None, clip_eps=0.2, entropy_coef=0.0):
    """((loss, KL, entropy), log π) for samples of these ratios and advantages, each with log π_old = -3."""
    old_log_prob = torch.full_like(ratio, -3.0)
    log_prob = (old_log_prob + ratio.log()).requires_grad_()
    pi, action = policy(name, log_prob)
    value, return_ = (torch.zeros_like(ratio) if x is None else x for x in (value, return_))
    loss = load(name).ppo_loss(pi, value, action, old_log_prob, advantage, return_, clip_eps, entropy_coef)
    return loss, log_prob


def gradient_of(name, ratio, advantage, **settings):
    (loss, _, _), log_prob = loss_of(name, ratio, advantage, **settings)
    return torch.autograd.grad(loss, log_prob)[0]


@pytest.mark.parametrize("name", PPO)
def test_clipped_gradient_is_zero_exactly_where_it_must_be(name):
    ratio = torch.tensor([1.3, 1.3, 0.7, 0.7, 1.1, 0.9, 0.1, 3.0])
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0, -2.0, 2.0, -2.0])
    # Beyond the clip there is no gain in going further, but the way back is always open.
    for clip_eps, stopped in [(0.2, [0, 3]), (0.35, []), (0.05, [0, 3, 4, 5]), (math.inf, [])]:
        gradient = gradient_of(name, ratio, advantage, clip_eps=clip_eps)
        assert (gradient == 0).nonzero().flatten().tolist() == stopped
        torch.testing.assert_close(gradient, -ratio * advantage / 8 * (gradient != 0))


@pytest.mark.parametrize("name", PPO)
def test_the_loss_is_the_sum_of_its_terms(name):
    ratio, advantage, value, return_ = torch.rand(6) + 0.5, torch.randn(6), torch.randn(6), torch.randn(6)
    error = sum((v - r) ** 2 for v, r in zip(value.tolist(), return_.tolist())) / 6
    if name == "ppo_discrete":  # two actions, the played one of probability ρ / e³
        entropies = [-sum(x * math.log(x) for x in (r / math.e**3, 1 - r / math.e**3)) for r in ratio.tolist()]
    else:  # two normal distributions of width 1
        entropies = [math.log(2 * math.pi * math.e)] * 6
    entropy, kl = sum(entropies) / 6, sum(r - 1 - math.log(r) for r in ratio.tolist()) / 6
    for eps, coefficient in [(0.2, 0.3), (0.05, 0.0), (math.inf, 1.0)]:
        gains = [min(r * a, min(max(r, 1 - eps), 1 + eps) * a) for r, a in zip(ratio.tolist(), advantage.tolist())]
        numbers, _ = loss_of(name, ratio, advantage, value, return_, clip_eps=eps, entropy_coef=coefficient)
        loss = -sum(gains) / 6 + 0.5 * error - coefficient * entropy
        assert [x.item() for x in numbers] == pytest.approx([loss, kl, entropy], abs=1e-5)


@pytest.mark.parametrize("name", PPO)
def test_the_kl_leads_from_the_old_policy_to_the_new_one(name):
    """Over the samples of the old policy, the mean of ρ - 1 - log ρ is KL(π_old‖π), and not KL(π‖π_old)."""
    zero, module = torch.zeros(100_000), load(name)
    if name == "ppo_discrete":
        old, new = (Categorical(logits=torch.tensor(x).expand(len(zero), 2)) for x in ([0.0, 0.0], [2.0, 0.0]))
    else:
        old, new = (Independent(Normal(torch.full((len(zero), 2), x), 1.0 + x), 1) for x in (0.0, 0.3))
    action = old.sample()
    _, kl, entropy = module.ppo_loss(new, zero, action, old.log_prob(action), zero, zero, 0.2, 0.0)
    torch.testing.assert_close(kl, kl_divergence(old, new).mean(), rtol=0.02, atol=0)
    torch.testing.assert_close(entropy, new.entropy().mean())


@pytest.mark.parametrize("name", PPO)
@pytest.mark.parametrize("wrong", ["advantage", "value", "return_"])
def test_shapes_that_would_broadcast_are_refused(name, wrong):
    arguments = {"advantage": torch.zeros(4), wrong: torch.zeros(4, 1)}
    with pytest.raises(AssertionError):
        loss_of(name, torch.ones(4), **arguments)


def spread(numbers):
    mean = sum(numbers) / len(numbers)
    return math.sqrt(sum((x - mean) ** 2 for x in numbers) / len(numbers))


def gradient_by_weight(pi, action, weights):
    """The gradient, in the logits, of minus the mean of weight · log π(a|s)."""
    onehot = torch.nn.functional.one_hot(action, pi.probs.shape[1])
    return (-(onehot - pi.probs) * torch.tensor(weights)[:, None] / len(weights)).detach()


def test_the_actor_critic_weighs_with_normalised_td_errors():
    """No gradient flows through these, and the critic moves by the square of the plain ones alone."""
    logits, delta = torch.randn(6, 3, requires_grad=True), torch.tensor([5.0, 1, 1, 7, -30, 2], requires_grad=True)
    pi, action, numbers = Categorical(logits=logits), torch.randint(3, (6,)), delta.tolist()
    weights = [(x - sum(numbers) / 6) / spread(numbers) for x in numbers]
    loss, _ = load("actor_critic").actor_critic_loss(pi, action, delta, 0.0)
    of_logits, of_delta = torch.autograd.grad(loss, [logits, delta])
    torch.testing.assert_close(of_logits, gradient_by_weight(pi, action, weights))
    torch.testing.assert_close(of_delta, (delta / 6).detach())


def test_reinforce_weighs_by_the_distance_from_each_steps_mean():
    """Three environments, of which the third plays a step less, and so has nothing to collect in the last one."""
    return_, valid = torch.randn(4, 3), torch.ones(4, 3).bool()
    valid[3, 2], return_[3, 2] = False, 0.0
    logits, action, rows = torch.randn(11, 3, requires_grad=True), torch.randint(3, (11,)), return_.tolist()
    distances = [rows[t][n] - sum(rows[t]) / 3 for t in range(4) for n in range(3) if valid[t, n]]
    pi = Categorical(logits=logits)
    loss = load("reinforce").reinforce_loss(pi, action, return_, valid)
    expected = gradient_by_weight(pi, action, [x / spread(distances) for x in distances])
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], expected)


def test_where_nothing_went_better_no_action_becomes_likelier():
    logits, valid = torch.randn(6, 3, requires_grad=True), torch.ones(3, 2).bool()
    pi, action = Categorical(logits=logits), torch.zeros(6).long()
    first, _ = load("actor_critic").actor_critic_loss(pi, action, torch.ones(6), 0.0)
    second = load("reinforce").reinforce_loss(pi, action, torch.ones(3, 2), valid)
    assert first == 0.5 and second == 0  # 0.5: the critic was wrong by 1


def test_other_losses_refuse_shapes_that_would_broadcast():
    pi, action = Categorical(logits=torch.randn(4, 3)), torch.zeros(4).long()
    with pytest.raises(AssertionError):
        load("actor_critic").actor_critic_loss(pi, action, torch.randn(4, 1), 0.0)
    with pytest.raises(AssertionError):
        load("reinforce").reinforce_loss(pi, action.unsqueeze(-1), torch.randn(2, 2), torch.ones(2, 2).bool())


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("name", SCRIPTS)
def test_actions_depend_on_the_observations_and_not_on_their_type(name, greedy):
    *_, agent = reacting_agent(name)
    whole, found = np.random.randint(-9, 9, (50, 3)), []
    for obs in (whole.astype(np.float32), whole.astype(np.float64), whole, torch.as_tensor(whole).float()):
        torch.manual_seed(1)
        found.append(agent.act(obs, greedy))
        assert found[-1].shape == ((50, 2) if name == "ppo_continuous" else (50,))
        np.testing.assert_array_equal(found[-1], found[0])
    assert len(np.unique(found[0])) > 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_functions_leave_what_they_are_given_as_it_is(name):
    module, config, envs, agent = reacting_agent(name)
    network, optimizer, obs = type(agent), torch.optim.Adam(agent.parameters()), torch.randn(7, 3)
    untouched(type(agent.scale).forward, agent.scale, obs)
    untouched(network.act, agent, obs)
    pi = untouched(network.pi, agent, obs)
    action, numbers = pi.sample(), [torch.randn(7) for _ in range(4)]
    if name == "reinforce":
        episodes = module.play(agent, envs)
        return_ = untouched(module.compute_returns, episodes[2], 0.9)
        valid = episodes[3]
        pi = agent.pi(episodes[0][valid])
        untouched(module.reinforce_loss, pi, episodes[1][valid], return_, valid)
        untouched(lambda episodes: module.update(agent, optimizer, episodes, config), episodes)
        return
    buffer = module.RolloutBuffer(envs, 8)
    buffer.collect(envs, agent, 0)
    value, reward = untouched(network.value, agent, buffer.obs), torch.randn(8, 3)
    if name == "actor_critic":
        untouched(module.td_error, reward, value[:-1], value[1:], buffer.terminated, 0.9)
        untouched(module.actor_critic_loss, pi, action, numbers[0], 0.1)
        untouched(lambda *given: module.update(agent, optimizer, *given, config), buffer, reward)
        return
    untouched(module.compute_gae, reward, value, buffer.terminated, buffer.done, 0.9, 0.9)
    untouched(module.ppo_loss, pi, numbers[0], action, *numbers[1:], 0.2, 0.1)
    batch = untouched(module.make_batch, buffer, agent, config)
    untouched(lambda batch: module.update(agent, optimizer, batch, 0.1, config), batch)
