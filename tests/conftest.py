"""The four scripts as modules, and what several tests need."""

import importlib
import os
import signal
import sys
from pathlib import Path

import gymnasium as gym
import hypothesis
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "measure")]
os.environ["SDL_VIDEODRIVER"] = "dummy"  # windows are only pretended
torch.set_num_threads(1)  # as main() does, and as tests that run side by side need

hypothesis.settings.register_profile("same", derandomize=True, deadline=None, max_examples=100)
hypothesis.settings.load_profile("same")

PPO = ["ppo_discrete", "ppo_continuous"]
ROLLOUT = [*PPO, "actor_critic"]  # the scripts that learn from rollouts
SCRIPTS = [*ROLLOUT, "reinforce"]
MODULES = {name: importlib.import_module(name) for name in SCRIPTS}  # before a test has copies of them on its path
TASK = {name: "Pendulum-v1" if name == "ppo_continuous" else "CartPole-v1" for name in SCRIPTS}
DISCRETE, BOX = gym.spaces.Discrete(2), gym.spaces.Box(-2, 2, (2,), np.float64)


def pytest_generate_tests(metafunc):
    """A test of `ppo`, `rollout` or `script` runs once for each of these scripts, by name."""
    for argument, names in dict(ppo=PPO, rollout=ROLLOUT, script=SCRIPTS).items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, names)


def load(name):
    return MODULES[name]


def source(name):
    return (ROOT / f"{name}.py").read_text(encoding="utf-8")


def config_of(name, **settings):
    """A Config whose runs are short, with whatever of the sizes the script has."""
    sizes = dict(num_envs=3, num_steps=8, num_minibatches=4, epochs=2, num_episodes=3, hidden_size=8, total_steps=240)
    config = load(name).Config(**{key: x for key, x in sizes.items() if hasattr(load(name).Config, key)})
    vars(config).update(settings)
    return config


def weights_of(agent):
    return torch.nn.utils.parameters_to_vector(agent.parameters()).detach()


class Corridor(gym.Env):
    """An environment whose truth is known: each step leads one place on, and ends in one of two ways.

    An observation is [place + a random start, number of the episode]. The reward is 1, or whatever `reward` says,
    plus noise if asked for. With `end`, episodes terminate after so many steps, or only the odd ones of them.
    gymnasium truncates the others after max_episode_steps. With `space`, observations are random ones of it.
    """

    def __init__(self, actions=DISCRETE, end=None, odd=False, reward=1.0, noise=0.0, space=None, render_mode=None, log=None):
        self.space, self.observation_space = space, space or gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space, self.end, self.odd, self.reward, self.noise = actions, end, odd, reward, noise
        self.render_mode, self.episode, self.log = render_mode, 0, [] if log is None else log

    def observe(self):
        return self.space.sample() if self.space else np.array([self.place + self.start, self.episode], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.log.append(("reset", seed))
        self.place, self.episode = 0, self.episode + 1
        self.start = self.np_random.random()
        return self.observe(), {}

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(action)
        self.log.append(("step", action))
        self.place += 1
        reward = self.reward + self.noise * self.np_random.normal()
        terminated = self.place == self.end and (self.episode % 2 == 1 or not self.odd)
        return self.observe(), reward, terminated, False, {}

    def close(self):
        self.log.append(("close", None))


@pytest.fixture
def register():
    """register(limit, ...) registers a Corridor for this test alone, and returns its id."""
    names = []

    def one(limit=5, kind=Corridor, **how):
        names.append(f"Corridor{len(names)}-v0")
        gym.register(names[-1], lambda **render: kind(**how, **render), max_episode_steps=limit)
        return names[-1]

    yield one
    for name in names:
        del gym.registry[name]


@pytest.fixture
def corridor(register):
    """corridor(script, ...) does the same with actions that fit the script."""
    return lambda name, *limit, **how: register(*limit, actions=BOX if name == "ppo_continuous" else DISCRETE, **how)


@pytest.fixture
def run_main(monkeypatch, capsys):
    """run_main(script, "--flag value") is the command line. Returns what was printed."""
    def run(name, words=""):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["script.py", *words.split()])
            load(name).main()
        return capsys.readouterr().out
    return run


@pytest.fixture(autouse=True)
def same_state(monkeypatch, tmp_path):
    """Every test begins with the same random numbers, in a folder of its own, and what it changes goes with it."""
    torch.manual_seed(0)
    np.random.seed(0)
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup ignores it, also for new processes
    yield
    signal.signal(signal.SIGINT, before)
