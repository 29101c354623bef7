"""What a user meets: the files, the command line, its mistakes, the README."""

import ast
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from dataclasses import fields
from math import inf, nan

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import PPO, ROOT, SCRIPTS, edited, load, marked, run_main

ALLOWED = {"torch", "gymnasium", "numpy"}
DISCRETE = [name for name in SCRIPTS if name != "ppo_continuous"]
TAIL = "# ---- From here on"


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks as small as these would only wait for more
    yield
    torch.set_num_threads(threads)


def source(name):
    return (ROOT / f"{name}.py").read_text(encoding="utf-8")


def flag(setting):
    return "--" + setting.replace("_", "-")


# ---- The files ----


def statements(name):
    """The statements of a script's outermost level: (name, statement, whether it stands above the line)."""
    text = source(name)
    assert text.count(TAIL) == 1
    line = text[: text.index(TAIL)].count("\n") + 1
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            title = node.name
        elif isinstance(node, ast.Assign):
            title = ast.unparse(node.targets[0])
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            title = "import"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            title = "docstring"
        else:
            title = ast.unparse(node).splitlines()[0]
        yield title, node, node.lineno < line


HEAD = ["docstring", "import"]
SETTINGS = ["setting", "Config"]
FORM = {
    "reinforce": [*HEAD, *SETTINGS, "ObsScale", "Policy", "compute_returns", "one_thread", "train"],
    "actor_critic": [*HEAD, *SETTINGS, "ObsScale", "linear", "mlp", "ActorCritic", "td_error", "one_thread", "train"],
} | dict.fromkeys(PPO, [
    *HEAD, "RANK", "PROCESSES", *SETTINGS, "ELSEWHERE", "ObsScale", "linear", "mlp", "ActorCritic", "RolloutBuffer",
    "compute_gae", "ppo_loss", "Adam", "one_thread", "train",
])


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_algorithm_stands_first(name):
    above = [title for title, _, is_above in statements(name) if is_above]
    below = [title for title, _, is_above in statements(name) if not is_above]
    assert list(dict.fromkeys(above)) == FORM[name]
    assert {"SettingError", "check", "make_envs", "evaluate", "main"} <= set(below) and not set(above) & set(below)
    assert below[-1] == "if __name__ == '__main__':"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_needs_nothing_but_its_three_libraries(name):
    text = source(name)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for top in (n.split(".")[0] for n in names):
                assert (top in ALLOWED or top in sys.stdlib_module_names) and top not in SCRIPTS
    assert max(map(len, text.splitlines())) <= 100


def root(node):
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_set_on_the_agent_from_outside(name):
    for node in ast.walk(ast.parse(source(name))):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            assert root(node) != "agent", ast.unparse(node)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert not re.fullmatch(r"agent(\..+)?\.(register_.+|add_module|__setattr__)", called), called
            if called in ("setattr", "delattr", "vars", "object.__setattr__"):
                assert root(node.args[0]) != "agent", ast.unparse(node)


def test_what_scripts_share_is_the_same_text_in_each():
    texts = {}
    for name in SCRIPTS:
        for title, node, _ in statements(name):
            if title not in HEAD:
                texts.setdefault(title, {})[name] = ast.get_source_segment(source(name), node)
    # What depends on the actions or on the algorithm; ObsScale and main also on having several processes.
    own = {"Config", "ActorCritic", "train", "check", "prepare", "ObsScale", "main"}
    between_ppo = {"Config", "ELSEWHERE", "ActorCritic", "RolloutBuffer", "train", "check", "prepare"}
    for title, by_script in texts.items():
        if title not in own | between_ppo:
            assert len(set(by_script.values())) == 1, title
        if title not in between_ppo:
            for group in (PPO, ["reinforce", "actor_critic"]):
                assert len({text for name, text in by_script.items() if name in group}) <= 1, title
    assert len({texts["prepare"][name] for name in DISCRETE}) == 1
    shared = {title for title, by_script in texts.items() if len(by_script) == 4}
    assert {"setting", "one_thread", "SettingError", "make_envs", "derive_seed", "evaluate"} <= shared - own
    for title in ("compute_gae", "ppo_loss", "Adam", "save", "resume", "restore", "describe", "average"):
        assert texts[title].keys() == set(PPO)


def requirements(path="requirements.txt"):
    return (ROOT / path).read_text().split()


def test_requirements_are_pinned():
    lines = requirements()
    assert [re.split(r"[=\[]", line)[0] for line in lines] == ["torch", "gymnasium", "numpy"]
    assert all(re.fullmatch(r"[a-z]+(\[[a-z-]+\])?==[\d.]+", line) for line in lines)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_brings_its_requirements_along(name):
    """As the specification of inline script metadata reads them."""
    block = r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
    (found,) = re.finditer(block, source(name))
    lines = found["content"].splitlines(keepends=True)
    metadata = tomllib.loads("".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    assert found["type"] == "script" and found.start() == 0
    assert metadata["dependencies"] == requirements()


# ---- Settings ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_signature_names_every_setting_with_its_default(name):
    """So that a notebook completes it. The defaults are read from the text."""
    (config,) = [node for title, node, _ in statements(name) if title == "Config"]
    written = {}
    for line in config.body[1:]:
        assert isinstance(line, ast.AnnAssign) and line.value.func.id == "setting"
        written[line.target.id] = (line.annotation.id, ast.literal_eval(line.value.args[0]))
    module = load(name)
    parameters = inspect.signature(module.Config).parameters
    assert {key: (p.annotation.__name__, p.default) for key, p in parameters.items()} == written
    assert vars(module.Config()) == {key: default for key, (_, default) in written.items()}
    assert all(type(default).__name__ == kind for kind, default in written.values())
    common = {"env_id", "total_steps", "num_envs", "seed", "eval_episodes", "render"}
    assert common <= set(written) and ({"save", "load", "device"} <= set(written)) == (name in PPO)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_tells_every_setting_and_default(name, monkeypatch, capsys):
    module = load(name)
    monkeypatch.setenv("COLUMNS", "300")
    status, out, err = run_main(module, monkeypatch, capsys, "--help")
    assert status == 0 and err == ""
    elsewhere = module.ELSEWHERE if name in PPO else {}
    assert set(elsewhere) <= {spec.name for spec in fields(module.Config)}
    for spec in fields(module.Config):
        other = re.escape(f"; on other tasks: {elsewhere[spec.name]!r}") if spec.name in elsewhere else ""
        about = rf"^ +{flag(spec.name)}[ ,].*\n?.*\(default: {re.escape(repr(spec.default))}{other}\)$"
        assert re.search(about, out, re.M), spec.name


def config_of_main(module, monkeypatch, capsys, *arguments):
    """The settings that the command line hands to train()."""
    seen = []

    class Seen(Exception):
        pass

    def train(config, envs=None):
        seen.append(config)
        raise Seen

    with monkeypatch.context() as patch, pytest.raises(Seen):
        patch.setattr(module, "train", train)
        run_main(module, patch, capsys, *arguments)
    return seen.pop()


@pytest.mark.parametrize("name", SCRIPTS)
def test_flags_set_the_config(name, monkeypatch, capsys):
    module, shown = load(name), []
    make_envs = module.make_envs
    monkeypatch.setattr(module, "make_envs", lambda *args: shown.append(args) or make_envs(*args))
    for arguments, expected in [
        ([], module.Config()),
        (["--gamma", "0.5", "--no-render"], module.Config(gamma=0.5, render=False)),
        (["--render", "--seed=12"], module.Config(seed=12, render=True)),
        (["--eval-episodes", "0", "--env-id", module.Config.env_id], module.Config(eval_episodes=0)),
    ]:
        assert config_of_main(module, monkeypatch, capsys, *arguments) == expected
    assert shown == [(module.Config.env_id, 1, "human")]


@pytest.mark.parametrize("name", PPO)
def test_another_task_takes_the_settings_for_other_tasks_by_its_name_alone(name, monkeypatch, capsys):
    module, task = load(name), marked(name)
    elsewhere = module.Config(env_id=task, **module.ELSEWHERE)
    assert elsewhere != module.Config(env_id=task)
    assert config_of_main(module, monkeypatch, capsys, "--env-id", task) == elsewhere
    # What is given on the command line wins, also where it is the default of the script's own task.
    steps, rate = module.Config.total_steps, module.Config.learning_rate
    given = config_of_main(module, monkeypatch, capsys, "--env-id", task, "--total-steps", str(steps),
                           "--learning-rate", str(rate), "--num-envs", "3", "--no-normalize-reward")
    expected = module.ELSEWHERE | dict(total_steps=steps, learning_rate=rate, num_envs=3, normalize_reward=False)
    assert given == module.Config(env_id=task, **expected)
    for own in ([], ["--env-id", module.Config.env_id]):
        assert config_of_main(module, monkeypatch, capsys, *own) == module.Config()


@pytest.mark.parametrize("name", PPO)
def test_the_first_line_says_which_settings_a_run_has(name, monkeypatch, capsys):
    module, task, own = load(name), marked(name), load(name).Config.env_id
    few = ["--total-steps", "0", "--eval-episodes", "0"]
    changed = "total_steps 0, {}eval_episodes 0"
    for arguments, expected in [
        (few, f"{own} with the default settings, but {changed.format('')}"),
        (["--env-id", own, *few, "--gamma", "0.5"],
         f"{own} with the default settings, but {changed.format('gamma 0.5, ')}"),
        (["--env-id", task, *few],
         f"{task} with the settings for other tasks (ELSEWHERE), but {changed.format('')}"),
        (["--env-id", task, *few, "--gamma", "0.5"],
         f"{task} with the settings for other tasks (ELSEWHERE), but {changed.format('gamma 0.5, ')}"),
    ]:
        status, out, err = run_main(module, monkeypatch, capsys, *arguments)
        assert status is None and err == "" and out.splitlines()[0] == expected
    assert module.describe(module.Config()) == f"{own} with the default settings"
    same = module.describe(module.Config(env_id=task, **module.ELSEWHERE))
    assert same == f"{task} with the settings for other tasks (ELSEWHERE)"


@pytest.mark.parametrize("name", PPO)
def test_environments_of_ones_own_have_their_name_in_the_first_line(name, capsys):
    module = load(name)
    envs = gym.make_vec(marked(name), 3)
    module.train(module.Config(total_steps=0, num_envs=3), envs)
    assert capsys.readouterr().out.startswith(f"{marked(name)} with ")


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_evaluations_have_the_seed_of_the_run(name, monkeypatch, capsys):
    module, seen = load(name), []
    evaluate = module.evaluate
    monkeypatch.setattr(module, "evaluate", lambda *given: seen.append(given[2:]) or evaluate(*given))
    arguments = ["--env-id", marked(name), "--total-steps", "0", "--eval-episodes", "3", "--seed", "7"]
    status, out, err = run_main(module, monkeypatch, capsys, *arguments)
    assert status is None and seen == [(3, True, 7), (3, False, 7)]


# ---- A run ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_command_line_trains_prints_and_evaluates(name, monkeypatch, capsys):
    module = load(name)
    flags = ["--env-id", marked(name), "--total-steps", "1000", "--seed", "3", "--eval-episodes", "5"]
    if name in PPO:
        flags += ["--num-envs", "4", "--num-steps", "10", "--num-minibatches", "5", "--hidden-size", "8"]
    status, out, err = run_main(module, monkeypatch, capsys, *flags)
    assert status is None and err == ""
    lines = out.splitlines()
    progress = [line for line in lines if "average score of the last 20" in line]
    assert 5 <= len(progress) <= 21 and len(lines) == len(progress) + 2 + (name in PPO)
    assert re.match(r"step [\d,]+  episode [\d,]+  average score of the last 20 episodes: -?\d+\.\d", progress[-1])
    assert int(progress[-1].split()[1].replace(",", "")) >= 1_000
    assert (" kl " in progress[-1]) == (name in PPO) and " entropy " in progress[-1]
    assert re.fullmatch(r"greedy evaluation: -?\d+\.\d\d over 5 episodes", lines[-2])
    assert re.fullmatch(r"sampled evaluation: -?\d+\.\d\d over 5 episodes", lines[-1])
    # Without evaluation, all else is the same. (The episodes of the training do not depend on it.)
    status, shorter, err = run_main(module, monkeypatch, capsys, *flags, "--eval-episodes", "0")
    assert status is None and err == "" and "evaluation" not in shorter
    assert shorter.splitlines()[name in PPO:] == lines[name in PPO : -2]


RUN = """
import runpy, sys
for name in ("ppo_discrete.py", "ppo_continuous.py"):
    sys.argv = [name, "--help"]
    try:
        runpy.run_path(name, run_name="__main__")
    except SystemExit as stop:
        assert stop.code == 0
    sys.argv[1:] = ["--total-steps", "500", "--eval-episodes", "2"]
    runpy.run_path(name, run_name="__main__")
assert "torch._dynamo" not in sys.modules
"""


def test_ppo_spares_an_import_and_terminals_without_greek_letters_get_all_its_output():
    """torch.optim.Adam would import torch._dynamo, which takes two seconds."""
    how = {"env": os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "200"}, "timeout": 200}
    result = subprocess.run([sys.executable, "-c", RUN], cwd=ROOT, capture_output=True, **how)
    assert result.returncode == 0 and result.stderr == b"", result.stderr.decode()
    assert result.stdout.count(b"--gamma ") == 2 and result.stdout.count(b"evaluation: ") == 4


@pytest.mark.parametrize("name", ["ppo_discrete", "reinforce"])  # the others' main() is the same text
def test_whoever_has_read_enough_may_go(name):
    arguments = "--total-steps 4000 --eval-episodes 0"
    line = f"set -o pipefail; {shlex.quote(sys.executable)} {name}.py {arguments} | head -1"
    result = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.stdout.count("\n") == 1 and result.stderr == "" and result.returncode == 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_in_a_notebook_the_kernels_arguments_are_not_ours(name, monkeypatch, capsys):
    module = load(name)
    monkeypatch.delattr(module, "__file__")  # as in a cell
    assert config_of_main(module, monkeypatch, capsys, "-f", "/tmp/kernel-1.json") == module.Config()


@pytest.mark.parametrize("name", DISCRETE)
def test_observations_that_are_no_flat_vectors_are_flattened(name):
    module = load(name)
    sizes = {} if name == "reinforce" else {"num_steps": 10}
    for env_id, obs_dim in (("FrozenLake-v1", 16), ("Blackjack-v1", 45), ("DictObs-v0", 5)):
        agent, history = module.train(module.Config(env_id=env_id, total_steps=400, **sizes))
        assert history and agent.scale.sum.shape == (obs_dim,)
        assert module.evaluate(agent, env_id, episodes=4).shape == (4,)


# ---- Mistakes ----

COMMON = [
    ("--env-id", "Nonsense-v0", "Nonsense"),
    ("--env-id", "CartPole-v99", "v99"),
    ("--env-id", "no_such_module:CartPole-v1", "no_such_module"),
    ("--env-id", "", "--env-id"),
    ("--env-id", "MultiDiscrete-v0", "MultiDiscrete"),
    ("--total-steps", "-1", "a whole number from 0 to"),
    ("--total-steps", "1e5", "invalid int"),
    ("--num-envs", "0", "a whole number from 1 to"),
    ("--num-envs", "2.5", "invalid int"),
    ("--learning-rate", "-0.1", "a number from 0 to 1"),
    ("--learning-rate", "nan", "a number from 0 to 1"),
    ("--learning-rate", "1e30", "a number from 0 to 1"),
    ("--gamma", "1.01", "a number from 0 to 1"),
    ("--gamma", "-0.1", "a number from 0 to 1"),
    ("--hidden-size", "0", "a whole number from 1 to"),
    ("--seed", "-1", "a whole number from 0 to"),
    ("--seed", "18446744073709551616", "a whole number"),
    ("--eval-episodes", "-1", "a whole number from 0 to"),
    ("--eval-episodes", "1000000000000", "a whole number from 0 to 10000"),
    ("--num-envs", "99999999999999999999", "a whole number from 1 to 10000"),
    ("--hidden-size", "1000000", "a whole number from 1 to 10000"),
    ("--gama", "0.9", "--gama"),
    ("--gam", "0.9", "--gam"),
    ("stray", "argument", "stray argument"),
]
ROLLOUT = [
    ("--hidden-layers", "-1", "a whole number from 0 to"),
    ("--activation", "gelu", "tanh or relu"),
    ("--num-steps", "1", "a whole number from 2 to"),
    ("--num-steps", "99999999999999", "a whole number from 2 to 1000000"),
    ("--hidden-layers", "1000000", "a whole number from 0 to 100"),
    ("--entropy-coef", "nan", "a number from 0 to"),
    ("--max-grad-norm", "-1", "a number from"),
    ("--max-grad-norm", "0", "a number from"),
    ("--reward-scale", "-1", "a number from"),
    ("--reward-scale", "0", "a number from"),
]
ONLY_PPO = [
    ("--obs-std", "0", "a number from"),
    ("--obs-std", "-1", "a number from"),
    ("--num-minibatches", "0", "must be from 1 to"),
    ("--epochs", "0", "a whole number from 1 to"),
    ("--gae-lambda", "1.5", "a number from 0 to 1"),
    ("--clip-eps", "-0.2", "a number from 0 to"),
    ("--objective", "Clip", "clip or penalty"),
    ("--target-kl", "-1", "a number from 0 to"),
    ("--device", "cuda:99", "cpu or cuda"),
    ("--device", "toaster", "cpu or cuda"),
    ("--device", "meta", "cpu or cuda"),
    ("--load", "no-such-file.pt", "No such file"),
    ("--load", "tests", "Is a directory"),
    ("--load", "README.md", "not a checkpoint of this script"),
    ("--save", "README.md", "exists"),
    ("--save", "tests", "exists"),
    ("--save", "no/such/folder.pt", "No such file"),
    ("--video", "film", "--video"),
]
LOST = [(name, "x", name) for name in ("--save", "--load", "--device", "--video")]
WRONG_ACTIONS = [("--env-id", "Pendulum-v1", "ppo_continuous.py"), ("--env-id", "Start5-v0", "from 0")]
OF = {
    "ppo_discrete": ROLLOUT + ONLY_PPO + WRONG_ACTIONS,
    "ppo_continuous": ROLLOUT + ONLY_PPO + [
        ("--env-id", "CartPole-v1", "ppo_discrete.py"), ("--env-id", "Unbounded-v0", "bounds"),
        ("--env-id", "WholeBox-v0", "a Box of floats"),
        ("--init-log-std", "nan", "a number from"), ("--init-log-std", "1e9", "a number from"),
    ],
    "actor_critic": ROLLOUT + LOST + [("--critic", "v", "td or q or advantage")] + WRONG_ACTIONS,
    "reinforce": LOST + WRONG_ACTIONS,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_mistake_costs_one_line_and_status_2(name, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    for key, value, remedy in COMMON + OF[name]:
        status, out, err = run_main(load(name), monkeypatch, capsys, key, value)
        assert (status, out, err.count("\n")) == (2, "", 1), (key, value, err)
        assert err.startswith(f"{name}.py: error: ") and remedy in err, (key, value, err)


@pytest.mark.parametrize("name", PPO)
def test_more_minibatches_than_half_the_rollout_are_refused(name, monkeypatch, capsys):
    """At worst every other step only resets, and no minibatch may be empty."""
    few = ["--num-envs", "3", "--num-steps", "7", "--total-steps", "1", "--eval-episodes", "0"]
    status, out, err = run_main(load(name), monkeypatch, capsys, *few, "--num-minibatches", "10")
    assert status == 2 and out == "" and err.count("\n") == 1 and "--num-minibatches 10" in err and "9" in err
    for env_id in (load(name).Config.env_id, "InterfaceOneBox-v0" if name == "ppo_continuous" else "InterfaceOne-v0"):
        status, _, err = run_main(load(name), monkeypatch, capsys, *few, "--num-minibatches", "9", "--env-id", env_id)
        assert status is None and err == ""


class Odd(gym.Env):
    """Fails in its own code, earns rewards beyond measure, or plays episodes of a single step, as it is told."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, box=False, place="", error=None, reward=1.0, single=False):
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32) if box else gym.spaces.Discrete(2)
        self.place, self.error, self.reward, self.single = place, error, reward, single
        self.fail("init")

    def fail(self, place):
        if place == self.place:
            raise self.error("the user's own")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.fail("reset")
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.fail("step")
        over = self.single or bool(self.np_random.random() < 0.2)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), self.reward, over, False, {}


def odd(name, **how):
    """Registers an environment that fits the script. Returns its name."""
    box = name == "ppo_continuous"
    env_id = f"Odd{'Box' if box else ''}{'x'.join(re.sub('[^a-zA-Z0-9]', '', str(value)) for value in how.values())}-v0"
    if env_id not in gym.registry:
        gym.register(env_id, Odd, kwargs={"box": box} | how, max_episode_steps=20)
    return env_id


gym.register("InterfaceOne-v0", Odd, kwargs={"single": True})
gym.register("InterfaceOneBox-v0", Odd, kwargs={"single": True, "box": True})


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_diverged_run_costs_one_line_and_status_2(name, monkeypatch, capsys):
    words = ["--env-id", odd(name, reward=1e38), *(["--no-normalize-reward"] if name in PPO else [])]
    status, _, err = run_main(load(name), monkeypatch, capsys, *words)
    lines = [line for line in err.splitlines() if line.startswith(f"{name}.py: error: ")]
    assert status == 2 and len(lines) == 1 and "not finite" in lines[0] and "Traceback" not in err
    assert ("reward" if name == "reinforce" else "gradient") in lines[0]


@pytest.mark.parametrize("fault", ["obs", "reward", "reset"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_nan_from_the_environment_stops_the_run(name, fault, monkeypatch, capsys):
    env_id = f"NaN{fault}{'Box' if name == 'ppo_continuous' else 'Discrete'}-v0"
    status, _, err = run_main(load(name), monkeypatch, capsys, "--env-id", env_id)
    (line,) = [line for line in err.splitlines() if line.startswith(f"{name}.py: error: ")]
    assert status == 2 and "Traceback" not in err
    assert line.endswith(f"the environment's {'reward' if fault == 'reward' else 'observation'} is not finite")


def values_that_cannot_work(kind, name):
    """For a setting of this type: what a notebook's user might write."""
    if kind is bool:
        return [None, "yes", 3, nan]
    if kind is str:
        return [None, 3, nan, ["x"]]
    beyond = [] if name in ("max_grad_norm", "clip_eps") else [inf]
    return [None, "7", "x", nan, -inf, *beyond, [1]] + ([2.5] if kind is int else [])


@pytest.mark.parametrize("name", SCRIPTS)
def test_wrong_settings_in_python_name_the_setting_the_value_and_what_is_right(name):
    module, right = load(name), {int: "a whole number", float: "a number from", bool: "a bool", str: "a str"}
    choices = {"objective": "clip or penalty", "activation": "tanh or relu", "critic": "td or q or advantage"}
    for spec in fields(module.Config):
        remedy = choices.get(spec.name, right[spec.type])
        for value in values_that_cannot_work(spec.type, spec.name):
            config = module.Config(**{spec.name: value})  # the constructor checks nothing
            for call in (module.check, module.train):
                with pytest.raises(module.SettingError) as caught:
                    call(config)
                message = str(caught.value)
                assert message.startswith(f"{flag(spec.name)} {value!r}: must be {remedy}"), message
    assert issubclass(module.SettingError, ValueError)
    with pytest.raises(TypeError, match="gama"):
        module.Config(gama=0.9)
    fine = {"gamma": 1, "num_envs": np.int64(4), "learning_rate": np.float32(0.5)}
    fine |= {"max_grad_norm": inf} if name != "reinforce" else {}
    assert module.check(module.Config(**fine)) is None
    if name in PPO:
        assert module.check(module.Config(clip_eps=inf)) is None
        with pytest.raises(module.SettingError, match="--device meta: must be cpu or cuda"):
            module.check(module.Config(device="meta"))


# ---- An error in code keeps its traceback ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_typo_in_a_copied_network_keeps_its_traceback(name, monkeypatch, capsys):
    module = edited(name, ("self.scale = ObsScale(obs_dim", "self.scale = ObsScal(obs_dim"))
    with pytest.raises(NameError, match="ObsScal'"):
        run_main(module, monkeypatch, capsys)


@pytest.mark.parametrize("error", [KeyError, ValueError, TypeError, RuntimeError])
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_error_of_the_environments_own_keeps_its_traceback(name, error, monkeypatch, capsys):
    for place in ("init", "reset", "step"):
        env_id = odd(name, place=place, error=error)
        with pytest.raises(error, match="the user's own") as caught:
            run_main(load(name), monkeypatch, capsys, "--env-id", env_id)
        assert not isinstance(caught.value, load(name).SettingError)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_error_inside_training_keeps_its_traceback(name, monkeypatch, capsys):
    monkeypatch.setattr(load(name).ObsScale, "update", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_main(load(name), monkeypatch, capsys, "--total-steps", "1000")


# ---- README ----


def readme_blocks(language, path="README.md"):
    """The blocks of code in a language, whatever else their first line says."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```", text, re.M | re.S)


def readme_commands(path="README.md"):
    lines = "".join(readme_blocks("bash", path)).replace("\\\n", "").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def readme_environment():
    """README's my_env.py."""
    (block,) = [block for block in readme_blocks("py") if "gym.register(" in block]
    return block


def test_the_quick_start_is_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quick_start = re.search(r"^## Quick start\n.*?^```(?:bash|sh|shell)\n(.*?)^```", text, re.M | re.S).group(1)
    first, second = quick_start.splitlines()
    assert "requirements.txt" in first and first.endswith("python ppo_discrete.py")
    assert "tests/requirements.txt" in second and second.endswith("python -m pytest tests")


HARDER = {"LunarLander-v3": "ppo_discrete", "BipedalWalker-v3": "ppo_continuous", "HalfCheetah-v5": "ppo_continuous",
          "Humanoid-v5": "ppo_continuous"}


@pytest.mark.parametrize("env_id", HARDER)
def test_harder_tasks_run_by_their_name_alone(env_id, monkeypatch, capsys):
    """And with what else README and the record of results write down for them."""
    lines = readme_commands() + readme_commands("tests/results/README.md")
    lines = [line for line in lines if re.search(rf"\.py .*{env_id}( |$)", line)]
    rest = {line.partition("#")[0].split(".py ")[1].strip() for line in lines}
    for words in sorted(rest | {f"--env-id {env_id}"}):
        few = ["--total-steps", "1", "--eval-episodes", "0", "--epochs", "1"]
        status, out, err = run_main(load(HARDER[env_id]), monkeypatch, capsys, *shlex.split(words), *few)
        assert status is None and re.search(r"^step [\d,]+ ", out, re.M) and out.startswith(f"{env_id} with ")


def test_the_readme_counts_the_lines_to_read():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in SCRIPTS:
        (count,) = re.findall(rf"^\| `{name}\.py` \|[^|]+\|[^|]+\| (\d+) \| 20/20 ", text, re.M)
        assert int(count) == source(name).split(TAIL)[0].count("\n"), name


def test_the_tutorials_lines_are_those_of_the_scripts():
    texts = [source(name) for name in SCRIPTS]
    snippets = readme_blocks("python")
    assert len(snippets) >= 9
    for snippet in snippets:
        assert any(f"\n{snippet}" in text for text in texts), snippet


class Picture(gym.Env):
    """A dark or a bright image, whose brightness is the action to take."""

    observation_space = gym.spaces.Box(0, 255, (12, 16, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.draw(), {}

    def step(self, action):
        reward = float(action == self.bright)
        return self.draw(), reward, False, False, {}

    def draw(self):
        self.bright = int(self.np_random.integers(2))
        return np.full((12, 16, 3), 200 * self.bright + 20, np.uint8)


gym.register("Picture-v0", Picture, max_episode_steps=10)


def apply_diff(text, diff):
    """The text with a diff of README in it. Each hunk's old lines have to be there exactly once."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
        assert old, f"nothing says where this belongs:\n{hunk}"
        assert text.count(old) == 1, (text.count(old), old)
        text = text.replace(old, new)
    return text


def test_the_readmes_changes_of_a_copy_apply_and_train(monkeypatch, quiet):
    logged = []
    wandb = types.SimpleNamespace(init=lambda config: logged.append(config), log=lambda *words: logged.append(words))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    few = {"num_envs": 2, "num_steps": 20, "total_steps": 400, "num_minibatches": 1}
    settings = {"TAXI": {"env_id": "Taxi-v4"}, "wandb": {}, "AdamW": {}, "CNN": {"env_id": "Picture-v0"}}
    blocks = readme_blocks("diff")
    assert len(blocks) == len(settings)
    for (word, given), block in zip(settings.items(), blocks):
        assert word in block
        module = types.ModuleType("changed")
        exec(compile(apply_diff(source("ppo_discrete"), block), "changed.py", "exec"), vars(module))
        agent, history = module.train(module.Config(**few, **given))
        assert history or word == "TAXI"
        if word == "TAXI":  # nothing that has no effect is ever played
            env = gym.make("Taxi-v4")
            for seed in range(30):
                state, info = env.reset(seed=seed)
                obs = np.eye(500, dtype=np.float32)[[state]]
                assert all(info["action_mask"][agent.act(obs)[0]] for _ in range(5))
    assert logged[0]["num_envs"] == 2 and [step for _, step in logged[1:]] == list(range(40, 401, 40))


def test_the_readmes_environment_is_learned_in_a_notebook_as_on_the_command_line(tmp_path, monkeypatch):
    (tmp_path / "my_env.py").write_text(readme_environment())
    monkeypatch.syspath_prepend(tmp_path)
    module = load("ppo_discrete")
    agent, history = module.train(module.Config(env_id="my_env:Reach-v0", **module.ELSEWHERE | {"total_steps": 16_384}))
    assert np.mean([score for _, score in history[:50]]) < -60
    assert module.evaluate(agent, "my_env:Reach-v0", 50).mean() > -35


def test_what_the_readme_tells_to_type_in_python_works(tmp_path, monkeypatch):
    """Block by block, in one notebook that a PPO script was pasted into; with fewer steps."""
    (tmp_path / "my_env.py").write_text(readme_environment())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def shortened(train):
        def shorter(config, envs=None):
            config.total_steps = min(config.total_steps, 1_000)
            return train(config, envs)

        return shorter

    for name in SCRIPTS:
        monkeypatch.setattr(load(name), "train", shortened(load(name).train))
    cell = dict(vars(load("ppo_discrete")))
    for block in readme_blocks("py"):
        if "gym.register(" not in block:
            exec(compile(block, "README.md", "exec"), cell)


def readme_groups():
    """README's other command lines, those together that need each other's file."""
    lines = [line for line in readme_commands() if line.startswith(("python ", "torchrun ")) and "tests" not in line]
    lines = [line for line in lines if "--nnodes" not in line and not any(env_id in line for env_id in HARDER)]
    files = {line: set(re.findall(r"[\w-]+\.pt\b", line)) for line in lines}
    together = [line for line in lines if files[line]]
    assert len(together) >= 2 and len(lines) >= 5
    return [together, *([line] for line in lines if line not in together)]


@pytest.mark.parametrize("lines", readme_groups(), ids=lambda lines: lines[0])
def test_every_readme_command_runs(lines, tmp_path):
    """With fewer steps; but installing, testing and measuring, which CI and the benchmark do."""
    for name in SCRIPTS:
        shutil.copy(ROOT / f"{name}.py", tmp_path)
    (tmp_path / "my_env.py").write_text(readme_environment())
    for line in lines:
        words = shlex.split(line, comments=True)
        steps = words.index("--total-steps") + 1 if "--total-steps" in words else None
        if steps is None and "--help" not in words:
            words += ["--total-steps", "1000"]
        elif steps is not None and words[steps] != "0":
            words[steps] = "2000"
        if "--eval-episodes" not in words and "--help" not in words:
            words += ["--eval-episodes", "5"]
        words[0:1] = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "torch.distributed.run"]
        result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert result.returncode == 0, (line, result.stderr)
