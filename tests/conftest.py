"""Fixtures: the four scripts as modules, and small environments whose truth is known."""

import contextlib
import importlib
import io
import os
import random
import re
import sys
import warnings
from collections import namedtuple
from pathlib import Path

import gymnasium as gym
import hypothesis
import numpy as np
import pytest
import torch
from torch.distributions import Distribution

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "measure")]

from ablations import edited_text, module_of  # noqa: E402  it lies in tests/measure

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

hypothesis.settings.register_profile("same", derandomize=True, deadline=None)  # every run tries the same examples
hypothesis.settings.load_profile("same")

PPO = ["ppo_discrete", "ppo_continuous"]
SCRIPTS = [*PPO, "reinforce", "actor_critic"]


@pytest.fixture(autouse=True)
def same_state():
    """Every test begins with the same random numbers and settings, and what it changes goes with it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    Distribution.set_default_validate_args(False)  # as each script does when it is imported
    level, make_vec = gym.logger.min_level, gym.make_vec
    folder, variables = os.getcwd(), dict(os.environ)
    with warnings.catch_warnings():  # pytest does this, too, unless its plugin for warnings is off
        yield
    gym.logger.min_level, gym.make_vec = level, make_vec
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)


def load(name):
    return importlib.import_module(name)


def edited(name, *pairs):
    """The script as a new module, with each old text replaced by a new one. The old one must be there exactly once."""
    return module_of(edited_text(name, pairs), name)


def activation_of(config):
    """What stands between the layers of the networks: tanh, where it is no setting."""
    return {"relu": torch.relu, "tanh": torch.tanh}[getattr(config, "activation", "tanh")]


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


Line = namedtuple("Line", "step total episode average kl entropy")


def parse_line(line):
    """The numbers of a line that a script prints while it trains. None stands for a number that is not there."""
    pattern = (r"step (\S+) of (\S+)  episode (\S+)  "
               r"average score of the last 20 episodes: (no episode yet|\S+)(?:  kl (\S+))?  entropy (\S+)")
    match = re.fullmatch(pattern, line)
    assert match, line
    *counts, average, kl, entropy = match.groups()
    counts = [int(word.replace(",", "")) for word in counts]
    average = None if average == "no episode yet" else float(average)
    kl = None if kl is None else float(kl)
    entropy = float(entropy)
    again = ["no episode yet" if average is None else f"{average:.6g}", None if kl is None else f"{kl:.2g}"]
    assert list(match.groups()) == [*(f"{x:,}" for x in counts), *again, f"{entropy:.2g}"]  # as many digits as these
    return Line(*counts, average, kl, entropy)


def arrays_in(x):
    """All tensors in something that may be nested: a list, a module, a buffer, a distribution."""
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, torch.nn.Module):
        x = x.state_dict()
    if hasattr(x, "__dict__") and not isinstance(x, dict):
        x = vars(x)
    inside = x.values() if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else ()
    return [array for part in inside for array in arrays_in(part)]


def untouched(function, *given):
    """function(*given), which must leave all tensors in what it is given as they are."""
    arrays = arrays_in(given)
    before = [array.detach().clone() for array in arrays]
    result = function(*given)
    assert arrays and all(map(torch.equal, arrays, before))
    return result


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


def register(name, action_space, limit=5, **kwargs):  # the longest episodes have 6 steps
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


def marked(name, kind="Marked"):
    return f"{kind}Box-v0" if name == "ppo_continuous" else f"{kind}Discrete-v0"


def network_of(name):
    return load(name).Policy if name == "reinforce" else load(name).ActorCritic


def reacting_agent(name):
    """(script, config, environments, an agent that has seen some observations and reacts to them)."""
    module, sizes = load(name), {} if name == "reinforce" else {"num_steps": 8}
    config = module.Config(env_id=marked(name), num_envs=3, hidden_size=4, **sizes)
    envs = module.make_envs(config.env_id, 3)
    agent = network_of(name)(envs, config, envs.reset(seed=0)[0])
    agent.scale.include(torch.randn(7, 3))
    for weights in agent.parameters():
        torch.nn.init.normal_(weights)
    return module, config, envs, agent


class Recount(gym.vector.VectorWrapper):
    """Counts steps, returns and true successors by itself, straight from the environment's answers.

    starts are the first observations of all episodes that were played.
    """

    def __init__(self, env):
        super().__init__(env)
        self.env_step, self.history, self.starts, self.rows = 0, [], [], []

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        self.over = [False] * self.num_envs
        self.returns = [0.0] * self.num_envs
        self.reset_to = [tuple(row) for row in obs]
        return obs, info

    def step(self, actions):
        obs, reward, terminated, truncated, info = super().step(actions)
        self.env_step += self.num_envs
        self.starts += self.reset_to
        self.reset_to = []
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
