"""Returns, baseline, TD errors and GAE against their definitions, written as slow loops."""

import numpy as np
import pytest
import torch
from conftest import PPO, load
from hypothesis import given
from hypothesis import strategies as st

unit = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


@st.composite
def rollouts(draw):
    """reward, value, next_value, terminated, done of a rollout with random ends of both kinds, in float64."""
    T, N = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    end_rate = draw(st.sampled_from([0.0, 0.1, 0.4, 1.0]))
    terminated, truncated = rng.random((2, T, N)) < end_rate
    return [torch.as_tensor(x) for x in (*rng.normal(size=(3, T, N)), terminated, terminated | truncated)]


def slow_gae(reward, value, next_value, terminated, done, gamma, gae_lambda):
    """Â_t = Σ_k (γλ)^k δ_{t+k}, a sum that stops with the episode."""
    T, N = reward.shape
    advantage = np.zeros((T, N))
    for t, n in np.ndindex(T, N):
        for k in range(T - t):
            later = t + k
            bootstrap = 0.0 if terminated[later, n] else gamma * next_value[later, n]
            delta = reward[later, n] + bootstrap - value[later, n]
            advantage[t, n] += (gamma * gae_lambda) ** k * delta
            if done[later, n]:
                break
    return advantage


@given(rollout=rollouts(), gamma=unit, gae_lambda=unit)
def test_gae_is_its_definition(ppo, rollout, gamma, gae_lambda):
    advantage = load(ppo).compute_gae(*rollout, gamma, gae_lambda)
    np.testing.assert_allclose(advantage, slow_gae(*rollout, gamma, gae_lambda), atol=1e-9)


@given(rollout=rollouts(), gamma=unit)
def test_td_errors_are_their_definition(rollout, gamma):
    reward, value, next_value, terminated, _ = rollout
    delta = load("actor_critic").td_error(reward, value, next_value, terminated, gamma)
    expected = slow_gae(reward, value, next_value, terminated, torch.ones_like(terminated), gamma, 0)
    np.testing.assert_allclose(delta, expected, atol=1e-9)


@pytest.mark.parametrize("terminates, gae_lambda, expected", [
    (True, 0.0, [0.8, 0.35, -0.5]),  # the TD errors
    (True, 0.5, [0.856, 0.125, -0.5]),
    (True, 1.0, [0.71, -0.1, -0.5]),  # the return minus V
    (False, 0.0, [0.8, 0.35, 0.94]),  # truncated: V of the last observation counts
])
def test_gae_of_the_readmes_example(ppo, terminates, gae_lambda, expected):
    value, next_value = torch.tensor([[2.0], [2.0], [1.5]]), torch.tensor([[2.0], [1.5], [1.6]])
    done = torch.tensor([[False], [False], [True]])
    advantage = load(ppo).compute_gae(torch.ones(3, 1), value, next_value, done & terminates, done, 0.9, gae_lambda)
    assert advantage.flatten().tolist() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("wrong", range(5))
def test_estimates_refuse_shapes_that_would_broadcast(wrong):
    tensors = [torch.zeros(4, 1 if i == wrong else 2).to(torch.bool if i > 2 else torch.float) for i in range(5)]
    for name in PPO:
        with pytest.raises(AssertionError):
            load(name).compute_gae(*tensors, 0.9, 0.9)
    if wrong < 4:
        with pytest.raises(AssertionError):
            load("actor_critic").td_error(*tensors[:4], 0.9)


@given(lengths=st.lists(st.integers(1, 9), min_size=2, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_the_baseline_is_the_mean_of_the_returns_at_a_step(lengths, seed):
    rng = np.random.default_rng(seed)
    returns = [torch.as_tensor(rng.normal(size=length)) for length in lengths]
    differences = load("reinforce").subtract_baseline(returns)
    for return_, difference in zip(returns, differences, strict=True):
        assert len(difference) == len(return_)
        for t in range(len(return_)):
            baseline = sum(float(other[t]) for other in returns if t < len(other)) / len(returns)
            assert float(difference[t]) == pytest.approx(float(return_[t]) - baseline)
