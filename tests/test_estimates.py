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
    """A rollout with random ends of both kinds: reward, value, terminated, done (float64)."""
    T, N = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    end_rate = draw(st.sampled_from([0.0, 0.1, 0.4, 1.0]))
    reward, value = rng.normal(size=(T, N)), rng.normal(size=(T + 1, N))
    terminated, done = rng.random((T, N)) < end_rate, rng.random((T + 1, N)) < end_rate
    done[1:] |= terminated  # what is done and not terminated is truncated
    return [torch.as_tensor(x) for x in (reward, value, terminated, done)]


def gae_by_definition(reward, value, terminated, done, gamma, gae_lambda):
    """Â_t = Σ_l (γλ)^l δ_{t+l}, a sum that stops with the episode."""
    T, N = reward.shape
    advantage = np.zeros((T, N))
    for n in range(N):
        for t in range(T):
            weight = 1.0
            for k in range(t, T):
                successor = 0.0 if terminated[k, n] else float(value[k + 1, n])
                delta = float(reward[k, n]) + gamma * successor - float(value[k, n])
                advantage[t, n] += weight * delta
                if done[k + 1, n]:
                    break
                weight *= gamma * gae_lambda
    return advantage


@pytest.mark.parametrize("name", PPO)
@settings(max_examples=150, deadline=None)
@given(rollout=rollouts(), gamma=unit, gae_lambda=st.one_of(st.sampled_from([0.0, 1.0]), unit))
def test_gae_is_its_definition(name, rollout, gamma, gae_lambda):
    advantage = load(name).compute_gae(*rollout, gamma, gae_lambda)
    assert advantage.shape == rollout[0].shape
    np.testing.assert_allclose(advantage.numpy(), gae_by_definition(*rollout, gamma, gae_lambda), atol=1e-9)


@pytest.mark.parametrize("name", PPO)
def test_gae_of_an_example_computed_by_hand(name):
    """Three rewards of 1, and then the end. V of the last observation counts if it was only truncated."""
    reward, value = torch.ones(3, 1), torch.tensor([[2.0], [2.0], [1.5], [1.6]])
    never, last = torch.zeros(3, 1).bool(), torch.tensor([[False], [False], [True]])
    done = torch.tensor([[False], [False], [False], [True]])

    def gae(terminated, gae_lambda):
        advantage = load(name).compute_gae(reward, value, terminated, done, 0.9, gae_lambda)
        return [round(x, 3) for x in advantage.flatten().tolist()]

    assert gae(last, 0.0) == [0.8, 0.35, -0.5]  # the TD errors
    assert gae(last, 0.5) == [0.856, 0.125, -0.5]
    assert gae(last, 1.0) == [0.71, -0.1, -0.5]
    assert gae(never, 0.0) == [0.8, 0.35, 0.94]


@pytest.mark.parametrize("name", PPO)
@pytest.mark.parametrize("shapes", [[(4, 1), (5, 2), (4, 2), (5, 2)], [(4, 2), (4, 2), (4, 2), (5, 2)],
                                    [(4, 2), (5, 2), (5, 2), (5, 2)], [(4, 2), (5, 2), (4, 2), (4, 2)]])
def test_gae_refuses_shapes_that_do_not_fit(name, shapes):
    reward, value, terminated, done = map(torch.zeros, shapes)
    with pytest.raises(AssertionError):
        load(name).compute_gae(reward, value, terminated.bool(), done.bool(), 0.9, 0.9)


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
    reward, value, terminated, _ = rollout
    expected = np.zeros(reward.shape)
    for t, n in np.ndindex(expected.shape):
        successor = 0.0 if terminated[t, n] else float(value[t + 1, n])
        expected[t, n] = float(reward[t, n]) + gamma * successor - float(value[t, n])
    delta = load("actor_critic").td_error(reward, value[:-1], value[1:], terminated, gamma)
    np.testing.assert_allclose(delta.numpy(), expected, atol=1e-9)


def test_td_error_moves_the_value_and_not_the_target():
    value, next_value = torch.randn(3, 2, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    delta = load("actor_critic").td_error(torch.randn(3, 2), value, next_value, torch.zeros(3, 2).bool(), 0.9)
    delta.sum().backward()
    torch.testing.assert_close(value.grad, -torch.ones(3, 2))
    assert next_value.grad is None


@pytest.mark.parametrize("wrong", range(4))
def test_td_error_refuses_shapes_that_do_not_fit(wrong):
    given = [torch.zeros(3, 1 if i == wrong else 2) for i in range(4)]
    with pytest.raises(AssertionError):
        load("actor_critic").td_error(*given[:3], given[3].bool(), 0.9)
