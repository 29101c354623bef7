"""The losses: their gradients where the equations say what these must be."""

import math

import pytest
import torch
from conftest import PPO, load
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


def loss_of(name, ratio, advantage, value=None, return_=None, beta=1.0, **settings):
    """(loss, its parts, log π) for samples of these ratios and advantages, each with log π_old = -3."""
    module = load(name)
    old_log_prob = torch.full_like(ratio, -3.0)
    log_prob = (old_log_prob + ratio.log()).requires_grad_()
    pi, action = policy(name, log_prob)
    value = torch.zeros_like(ratio) if value is None else value
    return_ = torch.zeros_like(ratio) if return_ is None else return_
    config = module.Config(**{"entropy_coef": 0.0} | settings)
    loss, parts = module.ppo_loss(pi, value, action, old_log_prob, advantage, return_, beta, config)
    return loss, parts, log_prob


def gradient_of(name, ratio, advantage, **settings):
    loss, _, log_prob = loss_of(name, ratio, advantage, **settings)
    return torch.autograd.grad(loss, log_prob)[0]


@pytest.mark.parametrize("name", PPO)
def test_clipped_gradient_is_zero_exactly_where_it_must_be(name):
    ratio = torch.tensor([1.3, 1.3, 0.7, 0.7, 1.1, 0.9])
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0, -2.0])
    gradient = gradient_of(name, ratio, advantage)
    # Beyond the clip there is no gain in going further, but the way back is always open.
    assert (gradient == 0).tolist() == [True, False, False, True, False, False]
    moving = gradient != 0
    torch.testing.assert_close(gradient[moving], (-ratio * advantage / 6)[moving])


@pytest.mark.parametrize("name", PPO)
def test_gradient_at_ratio_1_is_the_policy_gradient(name):
    advantage = torch.randn(8)
    torch.testing.assert_close(gradient_of(name, torch.ones(8), advantage), -advantage / 8)


@pytest.mark.parametrize("name", PPO)
def test_without_a_clip_the_gradient_is_the_surrogates_everywhere(name):
    ratio = torch.tensor([1.3, 1.3, 0.7, 0.7, 3.0, 0.1])
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0, -2.0])
    gradient = gradient_of(name, ratio, advantage, clip_eps=float("inf"))
    torch.testing.assert_close(gradient, -ratio * advantage / 6)


@pytest.mark.parametrize("name", PPO)
def test_the_loss_is_the_sum_of_its_terms(name):
    ratio, advantage, value, return_ = torch.rand(6) + 0.5, torch.randn(6), torch.randn(6), torch.randn(6)
    surrogates = [min(r * a, min(max(r, 0.8), 1.2) * a) for r, a in zip(ratio.tolist(), advantage.tolist())]
    error = sum((v - r) ** 2 for v, r in zip(value.tolist(), return_.tolist())) / 6
    if name == "ppo_discrete":  # two actions, the played one of probability ρ / e³
        entropies = [-sum(x * math.log(x) for x in (r / math.e**3, 1 - r / math.e**3)) for r in ratio.tolist()]
    else:  # two normal distributions of width 1
        entropies = [math.log(2 * math.pi * math.e)] * 6
    entropy, kl = sum(entropies) / 6, sum(r - 1 - math.log(r) for r in ratio.tolist()) / 6
    unclipped = sum(r * a for r, a in zip(ratio.tolist(), advantage.tolist())) / 6
    cases = [
        (-sum(surrogates) / 6, dict(clip_eps=0.2, entropy_coef=0.3)),
        (-sum(surrogates) / 6, dict(clip_eps=0.2, entropy_coef=0.3, beta=5.0)),  # β belongs to the penalty alone
        (-unclipped + 2 * kl, dict(objective="penalty", entropy_coef=0.1, beta=2.0)),
        (-unclipped + 2 * kl, dict(objective="penalty", clip_eps=0.01, beta=2.0)),  # as ε belongs to the clip
    ]
    for policy_loss, how in cases:
        loss, parts, _ = loss_of(name, ratio, advantage, value, return_, **how)
        expected = {"policy_loss": policy_loss, "value_loss": error, "entropy": entropy}
        assert {part: x.item() for part, x in parts.items()} == pytest.approx(expected, abs=1e-5)
        bonus = how.get("entropy_coef", 0.0) * entropy
        assert loss.item() == pytest.approx(policy_loss + 0.5 * error - bonus, abs=1e-5)


@pytest.mark.parametrize("objective", ["clip", "penalty"])
@pytest.mark.parametrize("name", PPO)
def test_the_critic_moves_to_the_return(name, objective):
    value, return_ = torch.randn(6, requires_grad=True), torch.randn(6)
    loss, _, _ = loss_of(name, torch.rand(6) + 0.5, torch.randn(6), value, return_, objective=objective)
    torch.testing.assert_close(torch.autograd.grad(loss, value)[0], ((value - return_) / 6).detach())


def test_the_penalty_estimates_the_divergence_and_its_gradient():
    """Over the samples of the old policy, the mean of ρ - 1 - log ρ is KL(π_old‖π), and so is its gradient's."""
    module, old_pi = load("ppo_continuous"), Independent(Normal(torch.zeros(400_000, 2), torch.ones(2)), 1)
    parameters = torch.tensor([[0.3, -0.2], [0.8, 1.1]], requires_grad=True)
    make = lambda: Independent(Normal(parameters[0].expand(400_000, 2), parameters[1]), 1)
    action, zero, config = old_pi.sample(), torch.zeros(400_000), module.Config(objective="penalty")
    estimate, _ = module.ppo_loss(make(), zero, action, old_pi.log_prob(action), zero, zero, 1.0, config)
    exact = kl_divergence(old_pi, make()).mean()
    torch.testing.assert_close(estimate, exact, rtol=0.02, atol=0)
    gradients = [torch.autograd.grad(x, parameters)[0] for x in (estimate, exact)]
    torch.testing.assert_close(*gradients, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("name", PPO)
def test_the_entropy_bonus_raises_the_entropy(name):
    if name == "ppo_discrete":
        parameter = torch.tensor([[3.0, 0.0]], requires_grad=True)
        make, action = lambda: Categorical(logits=parameter), torch.zeros(1, dtype=torch.long)
    else:
        parameter = torch.tensor([[0.5, 0.7]], requires_grad=True)
        make, action = lambda: Independent(Normal(torch.zeros(1, 2), parameter), 1), torch.zeros(1, 2)
    before, zero, module = make().entropy().item(), torch.zeros(1), load(name)
    old, config = make().log_prob(action).detach(), module.Config(entropy_coef=1.0)
    loss, _ = module.ppo_loss(make(), zero, action, old, zero, zero, 1.0, config)
    loss.backward()
    with torch.no_grad():
        parameter -= 0.1 * parameter.grad
    assert make().entropy().item() > before


@pytest.mark.parametrize("name", PPO)
@pytest.mark.parametrize("wrong", ["advantage", "value", "return_"])
def test_shapes_that_would_broadcast_are_refused(name, wrong):
    arguments = {"advantage": torch.zeros(4), "value": torch.zeros(4), "return_": torch.zeros(4)}
    arguments[wrong] = torch.zeros(4, 1)
    with pytest.raises(AssertionError):
        loss_of(name, torch.ones(4), **arguments)
