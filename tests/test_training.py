"""The training loops on real environments: that they learn, what enters a rollout, seeds, stops and ends."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROLLOUT, ROOT, SCRIPTS, TASK, Corridor, config_of, load, weights_of
from gymnasium.wrappers import TransformObservation, TransformReward

SOLVED = {"CartPole-v1": 475, "Pendulum-v1": -200}


def average(history):
    return np.mean([score for _, score in history[-20:]])


def stop_when_solved(module, monkeypatch, threshold):
    def report(config, env_step, history, *numbers):
        if len(history) >= 20 and average(history) >= threshold:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "report", report)


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_solves_its_task(name, monkeypatch):
    module = load(name)
    stop_when_solved(module, monkeypatch, SOLVED[TASK[name]])
    _, history = module.train(module.Config(seed=1))
    assert average(history) >= SOLVED[TASK[name]] and history[-1][0] < module.Config.total_steps / 2


def other_units(**options):
    """CartPole with other units and zeros, and a feature that never changes."""
    space = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    change = lambda obs: np.append(obs * [1000, 1, 0.001, 1] + [-5000, 0, 1.2, 0], 293.15).astype(np.float32)
    return TransformReward(TransformObservation(gym.make("CartPole-v1", **options), change, space), lambda r: 100 * r)


@pytest.mark.parametrize("name", ["ppo_discrete", "actor_critic", "reinforce"])
def test_it_solves_its_task_in_other_units(name, monkeypatch):
    module = load(name)
    gym.register("OtherUnits-v0", other_units)
    stop_when_solved(module, monkeypatch, 47_500)
    _, history = module.train(module.Config(env_id="OtherUnits-v0", seed=1))
    assert average(history) >= 47_500


@pytest.mark.parametrize("terminates, value", [(True, 1 + 0.5 + 0.25), (False, 1 / (1 - 0.5))])
@pytest.mark.parametrize("name", ROLLOUT)
def test_a_truncation_bootstraps_and_a_termination_does_not(name, terminates, value, corridor, monkeypatch, capsys):
    """Each step pays 1, and γ is 1/2. V of the first place is a sum of three rewards, or of endlessly many."""
    module = load(name)
    monkeypatch.setattr(module, "NormalizeReward", lambda envs, gamma: envs)
    task = corridor(name, 3, end=3 if terminates else None)
    config = config_of(name, env_id=task, gamma=0.5, num_steps=9, learning_rate=0.02, total_steps=8000, hidden_size=32)
    agent, history = module.train(config)
    assert {score for _, score in history} == {3}
    first_obs = torch.tensor([[0.5, history[-1][0] / 9]])  # the place and the number of the episode
    assert agent.value(first_obs).item() == pytest.approx(value, abs=0.1)


@pytest.mark.parametrize("name", ROLLOUT)
def test_a_rollout_holds_each_step_with_what_it_led_to(name, corridor):
    module = load(name)
    envs = module.make_envs(corridor(name, 3), 2)
    obs, _ = envs.reset(seed=0)
    agent = module.ActorCritic(torch.Tensor(obs), 2, 8, *([0.0] if name == "ppo_continuous" else []))
    buffer = module.RolloutBuffer(7, 2, 2, *([2] if name == "ppo_continuous" else []))
    obs, scores = buffer.collect(envs, agent, obs)
    place, episode = buffer.obs.floor().unbind(-1)
    assert place[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0] and episode[:, 0].tolist() == [1, 1, 1, 2, 2, 2, 3]
    assert torch.equal(buffer.next_obs.floor()[..., 0], place + 1)
    assert torch.equal(buffer.next_obs[..., 1], episode)
    assert scores == [3.0] * 4 and obs.astype(int).tolist() == [[1, 3]] * 2
    assert not buffer.terminated.any()
    obs, _ = buffer.collect(envs, agent, obs)
    assert buffer.obs[0].floor().tolist() == [[1, 3]] * 2


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_seed_gives_the_same_run_and_another_seed_another_one(name, capsys):
    def run(seed):
        agent, history = load(name).train(config_of(name, total_steps=2000, seed=seed))
        torch.manual_seed(seed + 5)  # what was drawn before does not matter
        return weights_of(agent).tolist(), history

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize("name", SCRIPTS)
def test_only_the_first_reset_is_seeded_and_the_evaluation_has_other_seeds(name, corridor, run_main):
    log = []
    words = "--num-episodes 3" if name == "reinforce" else "--num-envs 3"
    run_main(name, f"--env-id {corridor(name, log=log)} --seed 7 --total-steps 100 --eval-episodes 2 {words}")
    seeds = [seed for event, seed in log if event == "reset" and seed is not None]
    expected = [7000, 7500] if name == "reinforce" else [7000, 7001, 7002, 7500, 7501]
    assert seeds == expected and len([event for event, _ in log if event == "reset"]) > 15


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", SCRIPTS)
def test_numbers_that_are_not_finite_stop_the_run(name, bad, corridor):
    with pytest.raises(RuntimeError, match="non-finite"):
        load(name).train(config_of(name, env_id=corridor(name, reward=bad)))


class Interrupted(Corridor):
    """The 31st step in it is interrupted, as by Ctrl-C, or fails."""
    error = KeyboardInterrupt

    def step(self, action):
        if sum(event == "step" for event, _ in self.log) == 30:
            raise self.error
        return super().step(action)


class Failing(Interrupted):
    error = ZeroDivisionError


@pytest.mark.parametrize("name", SCRIPTS)
def test_ctrl_c_returns_what_was_learned(name, corridor, capsys):
    module = load(name)
    agent, history = module.train(config_of(name, env_id=corridor(name, kind=Interrupted, noise=1.0)))
    steps = 72 if name in ROLLOUT else 30  # of whole rollouts, or of whole episodes
    assert capsys.readouterr().out.splitlines()[-1] == f"stopped at step {steps}"
    assert max(step for step, _ in history) <= steps
    untrained, _ = module.train(config_of(name, env_id=corridor(name), total_steps=0))
    assert not torch.equal(weights_of(agent), weights_of(untrained))


@pytest.mark.parametrize("kind", [Corridor, Interrupted, Failing])
@pytest.mark.parametrize("name", SCRIPTS)
def test_all_environments_are_closed_whatever_ends_the_run(name, kind, corridor, capsys):
    log = []
    task = corridor(name, kind=kind, log=log)
    if kind is Failing:
        with pytest.raises(ZeroDivisionError):
            load(name).train(config_of(name, env_id=task))
    else:
        load(name).train(config_of(name, env_id=task))
    assert sum(event == "close" for event, _ in log) == (1 if name == "reinforce" else 3)


@pytest.mark.parametrize("limit, end, score", [(4, 2, 2), (None, None, 10_000)])  # the second episodes have 4 steps
@pytest.mark.parametrize("name", ROLLOUT)
def test_evaluate_plays_an_episode_of_at_most_10_000_steps_in_each_environment(name, limit, end, score, corridor):
    module = load(name)
    agent, _ = module.train(config_of(name, total_steps=0, env_id=corridor(name)))
    envs = module.make_envs(corridor(name, limit, end=end, odd=True), 2)
    assert module.evaluate(agent, envs).tolist() == [score, score]


@pytest.mark.parametrize("low, high", [(-2.0, 2.0), (0.1, 0.7), (-1000.0, 3.0)])
def test_continuous_actions_are_clipped_to_1_and_fill_the_range(low, high, register):
    log, space = [], gym.spaces.Box(np.float32(low), np.float32(high), (2,))
    envs = load("ppo_continuous").make_envs(register(actions=space, log=log), 1)
    envs.reset(seed=0)
    for action in (-1.0, 0.0, 1.0, 9.0):
        envs.step(np.array([[action, -action]], np.float32))
    played = [action[0] for event, action in log if event == "step"]
    np.testing.assert_allclose(played, [low, (low + high) / 2, high, high], rtol=1e-5)


CLEAN_IMPORT = """
import torch
before = torch.get_num_threads(), torch.distributions.Distribution._validate_args
import {name} as script
assert before == (torch.get_num_threads(), torch.distributions.Distribution._validate_args)
script.train(script.Config(total_steps=50, **({{}} if script.__name__ == "reinforce" else {{"num_steps": 10}})))
import sys
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


@pytest.mark.parametrize("name", ["ppo_discrete", "ppo_continuous", "reinforce"])
def test_an_import_changes_nothing_and_ppo_never_imports_the_compiler(name):
    out = subprocess.check_output([sys.executable, "-c", CLEAN_IMPORT.format(name=name)], cwd=ROOT, text=True)
    assert out.splitlines()[-1] == "[]" or name == "reinforce"
