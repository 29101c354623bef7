"""The training loops on real environments: that they learn, what enters a rollout, seeds, stops and ends."""

import signal
import subprocess
import sys
from contextlib import nullcontext

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROLLOUT, ROOT, SCRIPTS, TASK, Corridor, config_of, load, weights_of
from runs import SOLVED


def test_it_solves_its_task(script, monkeypatch):
    def solved(history):
        return len(history) >= 20 and np.mean([score for _, score in history[-20:]]) >= SOLVED[TASK[script]]

    module = load(script)
    monkeypatch.setattr(module, "report", lambda config, env_step, history, *_: solved(history) and signal.raise_signal(2))
    _, history = module.train(module.Config(seed=1))
    assert solved(history) and history[-1][0] < module.Config.total_steps / 2


def test_the_same_seed_gives_the_same_run_and_another_seed_another_one(script, capsys):
    def run(seed):
        agent, history = load(script).train(config_of(script, total_steps=2000, seed=seed))
        torch.manual_seed(seed + 5)  # what was drawn before does not matter
        return weights_of(agent).tolist(), history

    assert run(1) == run(1) != run(2)


def test_only_the_first_reset_is_seeded_the_evaluation_has_other_seeds_and_all_is_closed(script, corridor, run_main):
    log = []
    words = "--num-episodes 3" if script == "reinforce" else "--num-envs 3"
    run_main(script, f"--env-id {corridor(script, log=log)} --seed 7 --total-steps 100 --eval-episodes 2 {words}")
    seeds = [seed for event, seed in log if event == "reset" and seed is not None]
    expected = [7000, 7500] if script == "reinforce" else [7000, 7001, 7002, 7500, 7501]
    events = [event for event, _ in log]
    assert seeds == expected and events.count("reset") > 15 and events.count("close") == len(expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_stop_the_run(script, bad, corridor):
    with pytest.raises(RuntimeError, match="non-finite"):
        load(script).train(config_of(script, env_id=corridor(script, reward=bad)))


class Interrupted(Corridor):
    """The 31st step in it is interrupted, as by Ctrl-C, or fails."""
    error = KeyboardInterrupt

    def step(self, action):
        if sum(event == "step" for event, _ in self.log) == 30:
            raise self.error
        return super().step(action)


class Failing(Interrupted):
    error = ZeroDivisionError


def test_ctrl_c_returns_what_was_learned(script, corridor, capsys):
    module = load(script)
    agent, history = module.train(config_of(script, env_id=corridor(script, kind=Interrupted, noise=1.0)))
    steps = 72 if script in ROLLOUT else 30  # of whole rollouts, or of whole episodes
    assert capsys.readouterr().out.splitlines()[-1] == f"stopped at step {steps}"
    assert max(step for step, _ in history) <= steps
    untrained, _ = module.train(config_of(script, env_id=corridor(script), total_steps=0))
    assert not torch.equal(weights_of(agent), weights_of(untrained))


@pytest.mark.parametrize("kind", [Corridor, Interrupted, Failing])
def test_all_environments_are_closed_whatever_ends_the_run(script, kind, corridor, capsys):
    log = []
    task = corridor(script, kind=kind, log=log)
    with pytest.raises(ZeroDivisionError) if kind is Failing else nullcontext():
        load(script).train(config_of(script, env_id=task))
    assert sum(event == "close" for event, _ in log) == (1 if script == "reinforce" else 3)


class Uneven(Corridor):
    """An episode has 2 to 8 steps, which its random start tells. It terminates after 2, 4, 6 or 8, and else is truncated."""

    def step(self, action):
        obs, reward, *_, info = super().step(action)
        over, even = self.place == 2 + int(7 * self.start), self.place % 2 == 0
        return obs, reward, over and even, over and not even, info


def test_evaluate_gives_the_scores_of_whole_first_episodes(script, corridor):
    module, log, greedy_flags = load(script), [], set()
    agent, _ = module.train(config_of(script, total_steps=0, env_id=corridor(script)))
    agent.act = lambda obs, greedy, act=agent.act: (greedy_flags.add(greedy), act(obs, greedy))[1]
    task = corridor(script, None, kind=Uneven, log=log)
    if script == "reinforce":  # which plays its episodes one after another
        scores = module.evaluate(agent, module.make_env(task), 6)
        events = "".join(event[0] for event, _ in log)  # a letter for each reset and step
        assert scores.tolist() == [len(steps) for steps in events.split("r")[2:]]
    else:
        envs = module.make_envs(task, 6)
        starts, scores = envs.reset(seed=500)[0][:, 0], module.evaluate(agent, envs)
        assert scores.tolist() == [2 + int(7 * start) for start in starts]
    assert len(set(scores)) > 2 and greedy_flags == {True}


def test_an_episode_that_never_ends_is_stopped_after_10_000_steps(script, corridor):
    module, task = load(script), corridor(script, None)
    agent, history = module.train(config_of(script, env_id=task, total_steps=1))
    where = [module.make_env(task), 1] if script == "reinforce" else [module.make_envs(task, 1)]
    assert module.evaluate(agent, *where).tolist() == [10_000]
    assert script != "reinforce" or history[0] == (10_000, 10_000)


def test_a_max_grad_norm_of_inf_clips_nothing(script, corridor):
    configs = [config_of(script, env_id=corridor(script, noise=1.0), max_grad_norm=norm) for norm in (np.inf, 1e9, 1e-3)]
    weights = [weights_of(load(script).train(config)[0]).tolist() for config in configs]
    assert weights[0] == weights[1] != weights[2]


class Rising(Corridor):
    """The rewards of an episode are 1, 2, 3 and so on, so a score tells if one is lost."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(self.place), *rest


def test_history_has_each_score_with_its_step(script, corridor):
    """Episodes of 5 steps, in rollouts of 3 environments and 8 steps each."""
    _, history = load(script).train(config_of(script, env_id=corridor(script, 5, kind=Rising), total_steps=96))
    steps = range(5, 105, 5) if script == "reinforce" else [-(-end // 8) * 24 for end in range(5, 33, 5) for _ in range(3)]
    assert history[:18] == [(step, 15.0) for step in steps][:18]


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
import sys
import torch
before = torch.get_num_threads(), torch.distributions.Distribution._validate_args
import {name} as script
assert before == (torch.get_num_threads(), torch.distributions.Distribution._validate_args)
keep, resume = dict(save="kept.pt"), dict(load="kept.pt", save="kept.pt", total_steps=2_000)
for settings in [{{}}] if script.__name__ == "reinforce" else [keep, resume]:
    script.train(script.Config(**dict(total_steps=50) | settings))
print([name for name in ("torch._dynamo", "sympy", "profile") if name in sys.modules])
"""


@pytest.mark.parametrize("name", ["ppo_discrete", "ppo_continuous", "reinforce"])
def test_an_import_changes_nothing_and_ppo_never_imports_the_compiler(name, monkeypatch):
    """Not even to save or load. Its import takes a second, must not be interrupted, and imports a user's profile.py."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out = subprocess.check_output([sys.executable, "-c", CLEAN_IMPORT.format(name=name)], text=True)
    assert out.splitlines()[-1] == "[]" or name == "reinforce"
