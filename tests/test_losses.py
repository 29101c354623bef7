"""KL and entropy, shapes, policies and their actions, and the scale of observations."""

import re

import numpy as np
import pytest
import torch
from conftest import PPO, SCRIPTS, config_of, load
from torch.distributions import Categorical, Independent, Normal, kl_divergence


@pytest.mark.parametrize("epochs", [1, 30])
def test_the_printed_kl_and_entropy_are_those_of_the_distributions(ppo, epochs, corridor, monkeypatch, capsys):
    """Of the whole rollout, from the policy before the first epoch to that after the last optimizer step, also if it is the only one."""
    module, old, observations = load(ppo), [], []

    def make_batch(buffer, agent, config, f=module.make_batch):
        observations.append(buffer.obs.clone()), old.append(agent.pi(buffer.obs))
        return f(buffer, agent, config)

    monkeypatch.setattr(module, "make_batch", make_batch)
    agent, _ = module.train(config_of(ppo, env_id=corridor(ppo, noise=1.0), num_steps=4000, num_minibatches=1,
                                      epochs=epochs, learning_rate=0.02, total_steps=12_000))
    new = agent.pi(observations[0])
    expected = kl_divergence(old[0], new).mean().item(), new.entropy().mean().item()
    printed = re.search(r"kl (\S+)  entropy (\S+)", capsys.readouterr().out).groups()
    assert [float(x) for x in printed] == pytest.approx(expected, rel=0.2) and expected[0] > 1e-4


def test_every_ratio_is_1_at_a_rollouts_first_optimizer_step(ppo, monkeypatch):
    """So π_old is the policy right before it. The scale of observations moves after playing, and must not matter."""
    module, first, ratios = load(ppo), [], []

    def noted_loss(pi, value, action, old_log_prob, *rest, f=module.ppo_loss):
        ratios.append((pi.log_prob(action) - old_log_prob).exp())
        return f(pi, value, action, old_log_prob, *rest)

    monkeypatch.setattr(module, "ppo_loss", noted_loss)
    monkeypatch.setattr(module, "update", lambda *a, f=module.update: (first.append(len(ratios)), f(*a)))
    module.train(module.Config(total_steps=10 * module.Config.num_envs * module.Config.num_steps))
    assert len(first) == 10 and all(ratios[i].eq(1).all() and ratios[i + 1].ne(1).any() for i in first)


@pytest.mark.parametrize("wrong", range(4))
def test_losses_refuse_shapes_that_would_broadcast(wrong):
    numbered = Categorical(logits=torch.zeros(4, 3)), torch.zeros(4).long()
    vector = Independent(Normal(torch.zeros(4, 1), 1.0), 1), torch.zeros(4, 1)
    value, old_log_prob, advantage, return_ = (torch.zeros(4, 1) if i == wrong else torch.zeros(4) for i in range(4))
    for name, (pi, action) in zip(PPO, (numbered, vector)):
        with pytest.raises(AssertionError):
            load(name).ppo_loss(pi, value, action, old_log_prob, advantage, return_, 0.2, 0.0)
    for loss, *rest in (load("actor_critic").actor_critic_loss, 0.0), (load("reinforce").reinforce_loss,):
        with pytest.raises(AssertionError):
            loss(*numbered, torch.zeros(4, 1), *rest)


def test_greedy_actions_are_the_most_likely_ones_and_others_are_drawn(script):
    """Of a policy that at first hardly depends on the state, and here has other weights then."""
    module, first_obs, obs = load(script), torch.randn(5, 4), np.random.randn(4)
    agent = (module.Policy if script == "reinforce" else module.ActorCritic)(first_obs, 2, 8)
    assert agent.policy(first_obs).std(0).max() < 0.01
    for weights in agent.policy.parameters():
        torch.nn.init.normal_(weights)
    greedy = agent.act(obs, greedy=True)
    drawn = np.array([agent.act(obs) for _ in range(4000)])
    with torch.no_grad():
        pi = agent.pi(torch.Tensor(obs))
    if script == "ppo_continuous":
        np.testing.assert_allclose(greedy, pi.mean)
        np.testing.assert_allclose(drawn.std(0), 2**-0.5, rtol=0.1)
        np.testing.assert_allclose(drawn.mean(0), pi.mean, atol=0.05)
    else:
        assert greedy == pi.probs.argmax()
        np.testing.assert_allclose(np.bincount(drawn, minlength=2) / 4000, pi.probs, atol=0.04)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("offset", [0.0, 293.15, -5000.0])
def test_observations_are_scaled_whatever_their_zero_and_their_unit(script, offset, unit):
    """Against the definition, in the units of the feature; two batches are included one after the other."""
    features = (np.random.randn(600, 3) * [1, 0.5, 3] + offset) * unit
    obs = torch.tensor(features, dtype=torch.float32)
    scale = load(script).ObsScale(obs[:10])
    scale.include(obs[:200])
    scale.include(obs[200:])
    centre = obs[:10].double().mean(0)
    rms = (obs.double() - centre).square().mean(0).sqrt()
    expected = (2 * (obs.double() - centre) / rms).clamp(-10, 10)
    torch.testing.assert_close(scale(obs).double(), expected, rtol=1e-2, atol=1e-2)


def test_a_feature_that_never_changes_is_0_and_an_outlier_is_clipped(script):
    obs = torch.tensor([[7.0, 1.0]] * 10)
    scale = load(script).ObsScale(obs[:2])
    scale.include(obs)
    assert scale(obs).eq(0).all() and scale(obs + torch.tensor([1e3, -1e3])).tolist() == [[10, -10]] * 10
