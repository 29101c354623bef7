"""Returns, TD errors and GAE against their definitions, written as slow loops."""

import numpy as np
import pytest
import torch
from conftest import PPO, load
from hypothesis import given, settings
from hypothesis import strategies as st

unit = st.floats(0, 1)


@st.composite
def rollouts(draw):
    """A rollout with random ends of both kinds: rewards, values, terminated, truncated (float64)."""
    T, N = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    end_rate = draw(st.sampled_from([0.0, 0.1, 0.4, 1.0]))
    rewards, values = rng.normal(size=(T, N)), rng.normal(size=(T + 1, N))
    terminated, truncated = rng.random((T, N)) < end_rate, rng.random((T, N)) < end_rate
    return [torch.as_tensor(x) for x in (rewards, values, terminated, truncated)]


def gae_by_definition(rewards, values, terminated, truncated, gamma, gae_lambda):
    """Â_t = Σ_l (γλ)^l δ_{t+l}, a sum that stops with the episode."""
    T, N = rewards.shape
    advantages = np.zeros((T, N))
    for n in range(N):
        for t in range(T):
            weight = 1.0
            for k in range(t, T):
                successor = 0.0 if terminated[k, n] else float(values[k + 1, n])
                delta = float(rewards[k, n]) + gamma * successor - float(values[k, n])
                advantages[t, n] += weight * delta
                if terminated[k, n] or truncated[k, n]:
                    break
                weight *= gamma * gae_lambda
    return advantages


@pytest.mark.parametrize("name", PPO)
@settings(max_examples=150, deadline=None)
@given(rollout=rollouts(), gamma=unit, gae_lambda=st.one_of(st.sampled_from([0.0, 1.0]), unit))
def test_gae_is_its_definition(name, rollout, gamma, gae_lambda):
    advantages = load(name).compute_gae(*rollout, gamma, gae_lambda)
    assert advantages.shape == rollout[0].shape
    np.testing.assert_allclose(advantages.numpy(), gae_by_definition(*rollout, gamma, gae_lambda), atol=1e-9)


@pytest.mark.parametrize("name", PPO)
@settings(max_examples=50, deadline=None)
@given(rollout=rollouts(), gamma=unit)
def test_gae_of_lambda_0_is_the_td_error(name, rollout, gamma):
    rewards, values, terminated, _ = rollout
    delta = rewards + gamma * values[1:] * (1 - terminated.double()) - values[:-1]
    torch.testing.assert_close(load(name).compute_gae(*rollout, gamma, 0.0), delta)


@pytest.mark.parametrize("name", PPO)
def test_gae_of_lambda_1_is_return_minus_value(name):
    rewards, values = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[10.0], [20.0], [30.0], [40.0]])
    flags = torch.zeros(3, 1, dtype=torch.bool)
    advantages = load(name).compute_gae(rewards, values, flags, flags, 0.5, 1.0)
    expected = [1 + 0.5 * 2 + 0.25 * 3 + 0.125 * 40 - 10, 2 + 0.5 * 3 + 0.25 * 40 - 20, 3 + 0.5 * 40 - 30]
    torch.testing.assert_close(advantages.squeeze(-1), torch.tensor(expected))


@pytest.mark.parametrize("name", PPO)
def test_terminated_and_truncated_are_different_ends(name):
    rewards, values = torch.zeros(2, 1), torch.tensor([[0.0], [1.0], [5.0]])
    no, first = torch.tensor([[False], [False]]), torch.tensor([[True], [False]])
    gae = load(name).compute_gae
    terminated = gae(rewards, values, first, no, 1.0, 1.0)
    truncated = gae(rewards, values, no, first, 1.0, 1.0)
    assert terminated[0, 0] == 0.0  # a terminal state is worth nothing
    assert truncated[0, 0] == 1.0  # an interrupted episode is worth its next state, and nothing behind it
    assert terminated[1, 0] == truncated[1, 0] == 4.0


@pytest.mark.parametrize("name", PPO)
def test_gae_refuses_shapes_that_do_not_fit(name):
    flags = torch.zeros(4, 2, dtype=torch.bool)
    with pytest.raises(AssertionError):
        load(name).compute_gae(torch.randn(4, 2), torch.randn(4, 2), flags, flags, 0.9, 0.9)
    with pytest.raises(AssertionError):
        load(name).compute_gae(torch.randn(4, 1), torch.randn(5, 2), flags, flags, 0.9, 0.9)


@settings(max_examples=150, deadline=None)
@given(T=st.integers(1, 9), N=st.integers(1, 4), seed=st.integers(0, 2**32 - 1), gamma=unit)
def test_returns_are_their_definition(T, N, seed, gamma):
    """Of one episode in each column, after whose end the rewards are 0."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, T + 1, N)
    reward = rng.normal(size=(T, N)).astype(np.float32) * (np.arange(T)[:, None] < lengths)
    expected = np.zeros((T, N))
    for n in range(N):
        for t in range(lengths[n]):
            for k in range(t, lengths[n]):
                expected[t, n] += gamma ** (k - t) * float(reward[k, n])
    return_ = load("reinforce").compute_returns(torch.as_tensor(reward), gamma)
    assert return_.shape == (T, N)
    np.testing.assert_allclose(return_.numpy(), expected, atol=1e-4)


@settings(max_examples=150, deadline=None)
@given(rollout=rollouts(), gamma=unit)
def test_td_error_is_its_definition(rollout, gamma):
    rewards, values, terminated, truncated = rollout
    T, N = rewards.shape
    expected = np.zeros((T, N))
    for t in range(T):
        for n in range(N):
            successor = 0.0 if terminated[t, n] else float(values[t + 1, n])
            expected[t, n] = float(rewards[t, n]) + gamma * successor - float(values[t, n])
    delta = load("actor_critic").td_error(rewards, values[:-1], values[1:], terminated, gamma)
    np.testing.assert_allclose(delta.numpy(), expected, atol=1e-9)


def test_td_error_moves_the_value_and_not_the_target():
    values, next_values = torch.randn(3, 2, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    never = torch.zeros(3, 2, dtype=torch.bool)
    delta = load("actor_critic").td_error(torch.randn(3, 2), values, next_values, never, 0.9)
    delta.sum().backward()
    torch.testing.assert_close(values.grad, -torch.ones(3, 2))
    assert next_values.grad is None
