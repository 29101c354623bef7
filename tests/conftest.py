"""Fixtures: the four scripts as modules, and small environments whose truth is known."""

import contextlib
import importlib
import io
import os
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from ablations import edited_text, module_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

PPO = ["ppo_discrete", "ppo_continuous"]
SCRIPTS = [*PPO, "reinforce", "actor_critic"]


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Every test draws the same numbers each time, whatever ran before it."""
    torch.manual_seed(0)


def load(name):
    return importlib.import_module(name)


def edited(name, *pairs):
    """The script as a new module, with each old text replaced by a new one. The old one must be there exactly once."""
    return module_of(edited_text(name, pairs), name)


def run_main(module, monkeypatch, capsys, *arguments):
    """main() as the command line runs it; returns (exit status or None, stdout, stderr)."""
    monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *map(str, arguments)])
    status = None
    capsys.readouterr()
    try:
        module.main()
    except SystemExit as stop:
        status = stop.code
    return status, *capsys.readouterr()


def spy(patch, owner, name, note):
    """From now on, note(result, *arguments) is called after each call of this function."""
    function = getattr(owner, name)

    def spied(*args, **kwargs):
        result = function(*args, **kwargs)
        note(result, *args, *kwargs.values())
        return result

    patch.setattr(owner, name, spied)


class MarkedEnv(gym.Env):
    """Short random episodes that end in both ways, and observations that tell where in them they are.

    Observation: [episode number, step in the episode, 1 if the episode is over]. A batch that holds a
    1 in the last place holds a reset step, since no action follows a final observation.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, action_space, endless=False):
        self.action_space, self.endless = action_space, endless
        self.episode = 0

    def observe(self, over=False):
        return np.array([self.episode, self.step_number, over], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.step_number = 0
        self.length = 10**9 if self.endless else int(self.np_random.integers(1, 7))
        self.terminates = bool(self.np_random.integers(2))
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.step_number += 1
        over = self.step_number >= self.length
        return self.observe(over), float(self.np_random.normal()), over and self.terminates, over and not self.terminates, {}


DISCRETE = gym.spaces.Discrete(3)
BOX = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def register(name, action_space, limit=10, **kwargs):
    gym.register(
        name, lambda **options: MarkedEnv(action_space, **options), max_episode_steps=limit, kwargs=kwargs
    )


register("MarkedDiscrete-v0", DISCRETE)
register("MarkedBox-v0", BOX)
register("EndlessDiscrete-v0", DISCRETE, limit=None, endless=True)
register("EndlessBox-v0", BOX, limit=None, endless=True)
register("Unbounded-v0", gym.spaces.Box(-np.inf, np.inf, (2,), np.float32))
register("FromMinus1-v0", gym.spaces.Discrete(3, start=-1))
register("MultiDiscrete-v0", gym.spaces.MultiDiscrete([2, 2]))


class DictEnv(gym.Env):
    """Observes a dictionary, and has no render_mode: as simple as a user's first environment may be."""

    observation_space = gym.spaces.Dict(
        place=gym.spaces.Box(-1, 1, (2,), np.float32), light=gym.spaces.Discrete(3)
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(action), bool(self.np_random.random() < 0.1), False, {}


gym.register("DictObs-v0", DictEnv, max_episode_steps=20)


def marked(name, kind="Marked"):
    return f"{kind}Box-v0" if name == "ppo_continuous" else f"{kind}Discrete-v0"


class Recount(gym.vector.VectorWrapper):
    """Counts steps, returns and true successors by itself, straight from the environment's answers."""

    def __init__(self, env):
        super().__init__(env)
        self.env_step, self.history, self.starts, self.rows = 0, [], [], []

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        self.over = [False] * self.num_envs
        self.returns = [0.0] * self.num_envs
        self.starts += [tuple(row) for row in obs]
        return obs, info

    def step(self, actions):
        obs, reward, terminated, truncated, info = super().step(actions)
        self.env_step += self.num_envs
        self.rows.append((obs.copy(), reward.copy(), terminated.copy(), truncated.copy(), list(self.over)))
        finished = []
        for i in range(self.num_envs):
            if self.over[i]:
                self.over[i], self.returns[i] = False, 0.0
                self.starts.append(tuple(obs[i]))
                continue
            self.returns[i] += float(reward[i])
            if terminated[i] or truncated[i]:
                self.over[i] = True
                finished.append(self.returns[i])
        self.history += [(self.env_step, return_) for return_ in finished]
        return obs, reward, terminated, truncated, info


@pytest.fixture
def wrap(monkeypatch):
    """wrap(wrapper) wraps all vector environments that are made from now on; returns the list of them."""

    def install(wrapper=Recount):
        made, make_vec = [], gym.make_vec

        def wrapped(*args, **kwargs):
            made.append(wrapper(make_vec(*args, **kwargs)))
            return made[-1]

        monkeypatch.setattr(gym, "make_vec", wrapped)
        return made

    return install


@pytest.fixture
def quiet():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        yield out
