"""The losses: their gradients where the equations say what these must be."""

from types import SimpleNamespace

import pytest
import torch
from conftest import PPO, load
from torch.distributions import Categorical, Independent, Normal, kl_divergence

COEFS = (0.2, None, 0.0)  # ε, no clip of V, c_v


def ppo_gradient(name, ratio, advantage, coefs=COEFS):
    """The gradient of the loss with respect to log π(a|s), for samples of these ratios and advantages."""
    old_log_prob = torch.full_like(ratio, -1.0)
    log_prob = (old_log_prob + ratio.log()).requires_grad_()
    zeros = torch.zeros_like(ratio)
    load(name).ppo_loss(log_prob, old_log_prob, advantage, zeros, zeros, zeros, *coefs).backward()
    return log_prob.grad


@pytest.mark.parametrize("name", PPO)
def test_clipped_gradient_is_zero_exactly_where_it_must_be(name):
    ratio = torch.tensor([1.3, 1.3, 0.7, 0.7, 1.1, 0.9])
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0, -2.0])
    gradient = ppo_gradient(name, ratio, advantage)
    # Beyond the clip there is no gain in going further, but the way back is always open.
    assert (gradient == 0).tolist() == [True, False, False, True, False, False]
    moving = gradient != 0
    torch.testing.assert_close(gradient[moving], (-ratio * advantage / 6)[moving])


@pytest.mark.parametrize("name", PPO)
def test_gradient_at_ratio_1_is_the_policy_gradient(name):
    advantage = torch.randn(8)
    torch.testing.assert_close(ppo_gradient(name, torch.ones(8), advantage), -advantage / 8)


@pytest.mark.parametrize("name", PPO)
def test_loss_is_the_sum_of_its_terms(name):
    ratio, advantage = torch.rand(6) + 0.5, torch.randn(6)
    value, return_ = torch.randn(6), torch.randn(6)
    surrogate = sum(
        min(float(r) * float(a), min(max(float(r), 0.8), 1.2) * float(a)) for r, a in zip(ratio, advantage)
    )
    expected = -surrogate / 6 + 0.7 * float(((value - return_) ** 2).mean())
    loss = load(name).ppo_loss(ratio.log(), torch.zeros(6), advantage, value, torch.randn(6), return_, 0.2, None, 0.7)
    assert float(loss) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", PPO)
def test_without_a_clip_the_gradient_is_the_surrogates_everywhere(name):
    ratio = torch.tensor([1.3, 1.3, 0.7, 0.7, 3.0, 0.1])
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0, 2.0, -2.0])
    torch.testing.assert_close(ppo_gradient(name, ratio, advantage, (None, None, 0.0)), -ratio * advantage / 6)


@pytest.mark.parametrize("name", PPO)
def test_the_clip_of_the_value_is_its_definition_and_can_be_off(name):
    """V may gain nothing by going further than value_clip from V_old; the way back is always open."""
    value = torch.tensor([1.5, 1.5, 1.1, -1.5, 1.5]).requires_grad_()
    old, return_, zeros = torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0]), torch.tensor([3.0, 0.0, 3.0, -3.0, 1.3]), torch.zeros(5)
    for clip, expected in ((None, (value - return_).tolist()), (0.2, [0.0, 1.5, -1.9, 0.0, 0.2])):
        value.grad = None
        loss = load(name).ppo_loss(zeros, zeros, zeros, value, old, return_, 0.2, clip, 0.5)
        errors = (value - return_).tolist()
        if clip:
            near = [min(max(v, o - clip), o + clip) for v, o in zip(value.tolist(), old.tolist())]
            errors = [max(e, v - g, key=abs) for e, v, g in zip(errors, near, return_.tolist())]
        assert loss.item() == pytest.approx(0.5 * sum(error**2 for error in errors) / 5)
        loss.backward()
        torch.testing.assert_close(value.grad * 5, torch.tensor(expected))


def test_categorical_kl():
    old, new = torch.randn(5, 7, 4), torch.randn(5, 7, 4)
    kl = load("ppo_discrete").kl_of(old, new)
    torch.testing.assert_close(kl, kl_divergence(Categorical(logits=old), Categorical(logits=new)))
    assert (load("ppo_discrete").kl_of(old, old + 3.0).abs() < 1e-6).all()  # logits of the same policy


def test_gaussian_kl():
    old_mean, mean, old_log_std, log_std = torch.randn(5, 7, 3), torch.randn(5, 7, 3), torch.randn(3), torch.randn(3)
    module = load("ppo_continuous")
    old, new = (Independent(Normal(m, s.exp()), 1) for m, s in ((old_mean, old_log_std), (mean, log_std)))
    torch.testing.assert_close(module.kl_of(old_mean, old_log_std, mean, log_std), kl_divergence(old, new))
    assert not module.kl_of(mean, log_std, mean, log_std).any()


@pytest.mark.parametrize("name", PPO)
def test_beta_follows_the_kl(name):
    """Doubled from 1.5 times the target on, halved from 1/1.5 of it down, else left."""
    adapt = load(name).adapt_beta
    for kl, factor in ((0.03, 2), (0.0151, 2), (0.015, 2), (0.0149, 1), (0.01, 1), (0.0067, 1), (0.0066, 0.5), (0.0, 0.5)):
        assert adapt(3.0, kl, 0.01) == 3.0 * factor, kl
    assert adapt(3.0, 3.0, 2.0) == 6.0 and adapt(3.0, 2.0, 3.0) == 1.5  # the thresholds themselves


@pytest.mark.parametrize("name", PPO)
def test_shapes_that_would_broadcast_are_refused(name):
    column, row = torch.zeros(4, 1), torch.zeros(4)
    for position in range(6):
        arguments = [column if i == position else row for i in range(6)]
        with pytest.raises(AssertionError):
            load(name).ppo_loss(*arguments, *COEFS)


@pytest.mark.parametrize("name", ["ppo_discrete", "actor_critic"])
def test_categorical_log_prob_and_entropy(name):
    logits, action = torch.randn(5, 7, 4), torch.randint(4, (5, 7))
    log_prob, entropy = load(name).log_prob_of(action, logits), load(name).entropy_of(logits)
    torch.testing.assert_close(log_prob, Categorical(logits=logits).log_prob(action))
    torch.testing.assert_close(entropy, Categorical(logits=logits).entropy())


def test_gaussian_log_prob_and_entropy_sum_over_the_action():
    mean, log_std, action = torch.randn(5, 7, 3), torch.randn(3), torch.randn(5, 7, 3)
    module = load("ppo_continuous")
    log_prob, entropy = module.log_prob_of(action, mean, log_std), module.entropy_of(log_std)
    gaussian = Independent(Normal(mean, log_std.exp()), 1)
    assert log_prob.shape == (5, 7)
    torch.testing.assert_close(log_prob, gaussian.log_prob(action))
    torch.testing.assert_close(entropy.expand(5, 7), gaussian.entropy())


def test_the_entropy_bonus_raises_the_entropy():
    module = load("actor_critic")
    logits, zero = torch.tensor([[3.0, 0.0]], requires_grad=True), torch.zeros(1)
    entropy = module.entropy_of(logits)
    config = SimpleNamespace(value_coef=0.0, entropy_coef=1.0)
    module.actor_critic_loss(zero, zero, zero, entropy, config).backward()
    assert module.entropy_of(logits - 0.1 * logits.grad) > entropy


def test_reinforce_gradient_is_the_policy_gradient():
    logits, action, return_ = torch.randn(6, 3, requires_grad=True), torch.randint(3, (6,)), torch.randn(6)
    load("reinforce").reinforce_loss(logits, action, return_).backward()
    # ∇_logits log π(a) = onehot(a) - π
    one_hot = torch.nn.functional.one_hot(action, 3)
    expected = -return_.unsqueeze(-1) * (one_hot - logits.detach().softmax(-1)) / 6
    torch.testing.assert_close(logits.grad, expected)


def test_actor_critic_weights_log_probs_and_trains_the_critic_apart():
    log_prob, delta = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    config = SimpleNamespace(value_coef=0.5, entropy_coef=0.0)
    load("actor_critic").actor_critic_loss(log_prob, delta, delta.square(), torch.zeros(5), config).backward()
    torch.testing.assert_close(log_prob.grad, -delta.detach() / 5)
    torch.testing.assert_close(delta.grad, 0.5 * 2 * delta.detach() / 5)  # nothing by way of the weight
