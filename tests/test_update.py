"""Whole runs of a few updates, against the same runs computed slowly from the equations.

A script trains where episodes are short and end in both ways. Three things are recorded from outside:
what the environments answered, which actions were drawn and how the minibatches were shuffled. From
these and the first weights everything else follows. It is computed here once more, in float64, a step
of one environment at a time and without a line of the scripts: how the observations and the rewards
are scaled, the advantages, the losses, the clipped gradients, Adam. In the end all weights have to
agree, and so do the statistics, the checkpoint and the numbers that were printed on the way.
"""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import PPO, load, marked, network_of, spy
from slow import compare, slow_actor_critic, slow_ppo, slow_reinforce

NEAR, FAR = (0, 0, 0), (-5000, 5, 300)  # what is added to all observations


# ---- What is recorded while a script trains ----


def spread_out(obs):
    """Observations (N, 3) whose second feature begins elsewhere in each environment, and goes far from there."""
    first = np.arange(len(obs), dtype=np.float32)
    return np.stack([obs[:, 0], 3 * obs[:, 1] + first / 2, obs[:, 2]], 1)


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


@pytest.fixture
def record(monkeypatch, capsys, wrap):
    """record(name) trains with the script and returns all that was seen of it from outside."""

    def run(name, offset=NEAR, **settings):
        module = load(name)
        config = module.Config(env_id=marked(name), **settings)
        network = network_of(name)
        act, randperm = network.act, torch.randperm
        first_weights = {}
        acts = []  # of each step: observations, actions, their log-probability
        orders = []  # of each epoch: a permutation of the steps
        entropies = []  # of each update, before it is rounded

        def kept_act(agent, obs, greedy=False):
            if not acts:
                first_weights.update((key, x.detach().double().clone()) for key, x in agent.named_parameters())
            action = act(agent, obs, greedy)
            with torch.no_grad():
                log_prob = agent.pi(torch.as_tensor(obs)).log_prob(torch.as_tensor(action))
            acts.append((torch.as_tensor(obs).clone().numpy(), action.copy(), log_prob.numpy()))
            return action

        def kept_order(*args, **kwargs):
            orders.append(randperm(*args, **kwargs))
            return orders[-1].clone()

        monkeypatch.setattr(network, "act", kept_act)
        monkeypatch.setattr(torch, "randperm", kept_order)
        spy(monkeypatch, module, "report", lambda _, *given: entropies.append(given[-1].item()))
        wrapper = gym.wrappers.vector.TransformObservation
        made = wrap(lambda envs: Recorder(wrapper(envs, lambda obs: spread_out(obs) + np.float32(offset))))
        agent, history = module.train(config)
        printed, (envs,) = capsys.readouterr().out, made
        return SimpleNamespace(
            name=name, config=config, first_weights=first_weights, agent=agent, history=history, printed=printed,
            checkpoint=torch.load(config.save, weights_only=True) if "save" in settings else None,
            envs=envs, offset=offset, acts=acts, orders=orders, entropies=entropies,
        )

    return run


SIZES = dict(num_envs=3, hidden_size=5, gamma=0.9, learning_rate=0.02)
ROLLOUTS = SIZES | dict(num_steps=8, total_steps=69, entropy_coef=0.1)  # three rollouts of 24
PASSES = ROLLOUTS | dict(epochs=3, num_minibatches=4, gae_lambda=0.7, clip_eps=0.1)
ENDS = {"terminated", "truncated", "both at once", "goes on",
        "last row goes on", "reset step left out", "reset step in the first row"}
CLIPS = {"clipped above", "clipped below", "far, but not clipped"}
PPO_CASES = {  # settings, and what must happen
    "clip": (dict(max_grad_norm=1.0), CLIPS),
    "short": (dict(max_grad_norm=0.1), CLIPS | {"gradient shortened"}),
    "long": (dict(max_grad_norm=1e9, num_envs=5, total_steps=140), CLIPS | {"gradient left", "more than 20 episodes"}),
    "far from 0": (dict(max_grad_norm=1.0, offset=FAR, seed=1), set()),
}


@pytest.mark.parametrize("case", PPO_CASES)
@pytest.mark.parametrize("name", PPO)
def test_ppo_is_its_equations(name, case, record, tmp_path):
    settings, wanted = PPO_CASES[case]
    if name == "ppo_continuous":
        settings = settings | {"activation": "tanh" if case == "short" else "relu"}
    recording = record(name, **PASSES | settings, save=str(tmp_path / "run.pt"))
    if name == "ppo_continuous":  # it learns from actions as they were drawn; played are those in the range
        low, high = np.array([[-2.0, 0.0], [2.0, 10.0]])
        for (_, action, _), (told, *_) in zip(recording.acts, recording.envs.steps, strict=True):
            np.testing.assert_allclose(told, np.clip(low + (high - low) * (action + 1) / 2, low, high), atol=1e-5)
    # Without these events the agreement would say little.
    assert ENDS | wanted | {"observation clipped", "a minibatch is smaller"} <= compare(slow_ppo, recording)


@pytest.mark.parametrize("offset", [NEAR, FAR])
def test_reinforce_is_its_equations(offset, record):
    events = compare(slow_reinforce, record("reinforce", offset, **SIZES, total_steps=90))
    assert {"terminated", "truncated", "goes on", "reset step left out", "observation clipped"} <= events


@pytest.mark.parametrize("offset", [NEAR, FAR])
def test_actor_critic_is_its_equations(offset, record):
    recording = record("actor_critic", offset, **ROLLOUTS, max_grad_norm=0.4)
    assert ENDS | {"gradient shortened", "observation clipped"} <= compare(slow_actor_critic, recording)
