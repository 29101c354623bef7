"""The loss of PPO: its gradients where the equations say what these must be, and the numbers beside it."""

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
def test_gradient_at_ratio_1_is_the_policy_gradient(name):
    advantage = torch.randn(8)
    torch.testing.assert_close(gradient_of(name, torch.ones(8), advantage), -advantage / 8)


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
def test_the_critic_moves_to_the_return(name):
    value, return_ = torch.randn(6, requires_grad=True), torch.randn(6)
    (loss, _, _), _ = loss_of(name, torch.rand(6) + 0.5, torch.randn(6), value, return_)
    torch.testing.assert_close(torch.autograd.grad(loss, value)[0], ((value - return_) / 6).detach())


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
def test_the_entropy_bonus_raises_the_entropy(name):
    zero, module, parameter = torch.zeros(1), load(name), torch.tensor([[0.5, 1.7]], requires_grad=True)
    if name == "ppo_discrete":
        pi, action = Categorical(logits=parameter), torch.zeros(1, dtype=torch.long)
    else:
        pi, action = Independent(Normal(torch.zeros(1, 2), parameter), 1), torch.zeros(1, 2)
    old = pi.log_prob(action).detach()
    loss, _, _ = module.ppo_loss(pi, zero, action, old, zero, zero, 0.2, 0.5)
    up, down = (torch.autograd.grad(x, parameter, retain_graph=True)[0] for x in (pi.entropy().sum(), loss))
    assert up.abs().min() > 0.1
    torch.testing.assert_close(down, -0.5 * up)


@pytest.mark.parametrize("name", PPO)
@pytest.mark.parametrize("wrong", ["advantage", "value", "return_"])
def test_shapes_that_would_broadcast_are_refused(name, wrong):
    arguments = {"advantage": torch.zeros(4), wrong: torch.zeros(4, 1)}
    with pytest.raises(AssertionError):
        loss_of(name, torch.ones(4), **arguments)
