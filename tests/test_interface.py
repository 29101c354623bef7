"""What a user meets: the files, the command line, the printed lines, and mistakes."""

import ast
import re
import subprocess
import sys
import tomllib
from dataclasses import fields

import numpy as np
import pytest
import runs
import torch
from conftest import PPO, ROLLOUT, ROOT, SCRIPTS, config_of, load, source
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

def test_a_script_needs_nothing_but_its_three_libraries(script):
    allowed = {"torch", "gymnasium", "numpy", *sys.stdlib_module_names}
    for node in ast.walk(ast.parse(source(script))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert {module.split(".")[0] for module in names} <= allowed


SAME = {
    (*SCRIPTS,): "ObsScale",
    (*ROLLOUT,): "evaluate",
    (*PPO,): "compute_gae ppo_loss make_batch update Adam report save load config_for read_flags main",
    ("ppo_discrete", "actor_critic"): "mlp ActorCritic make_envs",
    ("reinforce", "actor_critic"): "read_flags",
}


@pytest.mark.parametrize("names", SAME)
def test_what_scripts_share_is_the_same_text_in_each(names):
    parts = [{node.name: ast.get_source_segment(source(name), node) for node in ast.parse(source(name)).body
              if isinstance(node, (ast.FunctionDef, ast.ClassDef))} for name in names]
    for title in SAME[names].split():
        assert len({part[title] for part in parts}) == 1, title


def test_a_script_brings_its_requirements_along(script):
    """As the specification of inline script metadata reads them."""
    block = re.match(r"# /// script\n((?:# .*\n)+?)# ///\n", source(script))[1]
    metadata = tomllib.loads(re.sub("^# ", "", block, flags=re.M))
    assert metadata == {"requires-python": ">=3.11", "dependencies": (ROOT / "requirements.txt").read_text().split()}


def test_help_tells_every_setting_with_its_comment_and_default(script, run_main, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit, match="0"):
        run_main(script, "--help")
    out, config = capsys.readouterr().out, load(script).Config()
    for field in fields(config):
        comment = re.search(rf"^    {field.name}: .*  # (.+)$", source(script), re.M)[1]
        flag, default = f"--{field.name.replace('_', '-')}", getattr(config, field.name)
        assert re.search(rf"^  {flag}\b.*\n?.* {re.escape(comment)} \(default: {re.escape(repr(default))}\)$", out, re.M), flag


@pytest.fixture
def settings(monkeypatch):
    """settings(module, words) is the Config that the command line makes of them."""
    def read(module, words):
        monkeypatch.setattr(sys, "argv", ["x.py", *words.split()])
        return module.read_flags()
    return read


def test_every_setting_is_a_flag(script, settings):
    module = load(script)
    assert settings(module, "") == module.Config()
    for field in fields(module.Config):
        value = {int: 7, float: 0.25, str: "x", bool: True}[field.type]
        words = f"--{field.name.replace('_', '-')} {'' if value is True else value}"
        if field.name not in ("env_id", "load"):
            assert settings(module, words) == module.Config(**{field.name: value})


def test_another_task_takes_its_settings_by_its_name_alone(ppo, settings):
    module = load(ppo)
    other = module.OTHER_TASKS | dict(env_id="Acrobot-v1")
    assert settings(module, "--env-id Acrobot-v1") == module.Config(**other)
    # What is given on the command line wins, also where it is the default of the script's own task.
    steps = module.Config.total_steps
    assert settings(module, f"--env-id Acrobot-v1 --total-steps {steps}") == module.Config(**other | dict(total_steps=steps))
    assert module.config_for("Acrobot-v1", total_steps=steps) == module.Config(**other | dict(total_steps=steps))
    assert module.config_for(module.Config.env_id, seed=3) == module.Config(seed=3)


@pytest.mark.parametrize("reward", [1.0, 1e-6])
def test_a_run_prints_its_average_scores_and_its_evaluation(script, reward, corridor, run_main):
    sizes = "--num-envs 3 --num-steps 8 --num-minibatches 4" if script in PPO else ""
    out = run_main(script, f"--env-id {corridor(script, 4, reward=reward)} --total-steps 960 {sizes} --eval-episodes 3")
    *lines, last = out.splitlines()
    assert re.search(r"entropy (0\.6\d|2\.1)$", lines[0])  # log 2, or that of two Gaussians with σ = 1/√2
    assert 15 <= len(lines) <= 21 and last == f"greedy evaluation: {4 * reward:g} over 3 episodes"
    for line in lines:
        numbers = re.fullmatch(r"step ([\d,]+) of 960  episode ([\d,]+)  average score of the last 20 episodes: (\S+)"
                               rf"{'  kl (?:0|[0-9].*)' if script in PPO else ''}  entropy .*", line)
        assert float(numbers[3]) == pytest.approx(4 * reward, rel=1e-4)
    assert int(numbers[1].replace(",", "")) >= 960 and int(numbers[2]) == pytest.approx(240, abs=6)


def test_the_evaluation_is_the_mean_of_its_scores(script, run_main, monkeypatch):
    monkeypatch.setattr(load(script), "evaluate", lambda *_, **__: np.array([1.0, 2.0, 6.0]))
    assert run_main(script, "--total-steps 0") == "greedy evaluation: 3 over 3 episodes\n"
    assert run_main(script, "--total-steps 0 --eval-episodes 0") == ""


def test_without_a_finished_episode_there_is_no_average(rollout, corridor, capsys):
    load(rollout).train(config_of(rollout, env_id=corridor(rollout, None)))
    assert "episode 0  average score of the last 20 episodes: no episode yet  " in capsys.readouterr().out


def test_the_printed_average_is_that_of_the_last_20_episodes(script, capsys):
    """KL and entropy, too, of log-probabilities that were 0, and now are log(1/2) or, of two Gaussians, -1.145."""
    module, of_last_rollout = load(script), [0.5]
    if script in ROLLOUT:
        agent = module.ActorCritic(torch.zeros(1, 4), 2, 8)
        torch.nn.init.zeros_(agent.policy[-1].bias)
        action = torch.zeros(6, 2) if script == "ppo_continuous" else torch.zeros(6)
        of_last_rollout = agent, [torch.zeros(6, 4), action, *torch.zeros(3, 6)] if script in PPO else module.RolloutBuffer(3, 2, 4)
    module.report(module.Config(), 1, [(1, 1000.0)] + [(1, 1.0)] * 12 + [(1, 4.0)] * 8, *of_last_rollout)
    others = dict(reinforce="entropy 0.5", actor_critic="entropy 0.69", ppo_discrete="kl 0.19  entropy 0.69",
                  ppo_continuous="kl 0.46  entropy 2.1")
    assert f"episode 21  average score of the last 20 episodes: 2.2  {others[script]}\n" in capsys.readouterr().out


@pytest.mark.parametrize("launcher", ["ipykernel_launcher.py", "colab_kernel_launcher.py"])  # the first is VS Code's, too
def test_in_a_notebook_the_kernels_arguments_are_not_ours(script, launcher, monkeypatch):
    seen = []
    monkeypatch.setattr(load(script), "train", lambda config: seen.append(config) or sys.exit())
    monkeypatch.setattr(sys, "argv", [f"/usr/lib/{launcher}", "-f", "/tmp/kernel-1.json"])
    with pytest.raises(SystemExit):
        load(script).main()
    assert seen == [load(script).Config()]


def test_where_no_file_is_known_a_script_runs_with_its_defaults(script):
    """As in Spyder's console or a plain prompt of Python."""
    short = re.sub(r"(total_steps: int = )[\d_]+", r"\g<1>500", source(script))
    out = subprocess.check_output([sys.executable, "-c", short], text=True)
    assert "of 500 " in out and "over 20 episodes" in out


NEW_SETTINGS = """    new_int: int = 3  # of 100 % each
    new_float: float = 0.5  # a float
    new_str: str = "x"
    new_on: bool = True  # on at first
    new_off: bool = False  # off at first

    def __post_init__"""


def test_a_new_setting_is_one_line(script, settings, capsys):
    module = runs.load(script, [("\n    def __post_init__", NEW_SETTINGS)])
    words = "--new-int 7 --new-float 1e-3 --new-str y --no-new-on --new-off"
    assert settings(module, words) == module.Config(new_int=7, new_float=1e-3, new_str="y", new_on=False, new_off=True)
    for words, message in ("--help", r"of 100 % each\s+\(default:\s+3\)"), ("--new-on False", "arguments: False"):
        with pytest.raises(SystemExit):
            settings(module, words)
        assert re.search(message, "".join(capsys.readouterr()))


@pytest.mark.parametrize("space, size", [
    (Discrete(16), 16), (Dict(place=Box(-1, 1, (2,)), light=Discrete(3)), 5), (Box(0, 255, (2, 3, 4), np.uint8), 24)])
def test_observations_of_any_shape_are_flattened(script, space, size, corridor):
    agent, history = load(script).train(config_of(script, env_id=corridor(script, space=space)))
    assert history and next(agent.policy.parameters()).shape[1] == size


def test_a_flag_is_not_abbreviated(script, run_main):
    with pytest.raises(SystemExit, match="2"):
        run_main(script, "--gam 0.9")


NUMBERED, VECTOR = "actions must be Discrete from 0, and not ", "actions must be a Box of .*, and not Box.*"
MISTAKES = [  # a setting, its value or a space of actions, words of the error, scripts
    ("num_envs", 0, "a (minibatch|rollout) needs at least", ROLLOUT),
    ("num_steps", 0, "a (minibatch|rollout) needs at least", ROLLOUT),
    ("num_steps", -8, "a (minibatch|rollout) needs at least", ROLLOUT),
    ("num_minibatches", 13, "a minibatch needs at least two steps", PPO),
    ("num_episodes", 1, "would be its own baseline", ["reinforce"]),
    *[("env_id", space, NUMBERED + re.escape(str(space)), ["ppo_discrete", "actor_critic", "reinforce"]) for space in (
        Box(-1, 1, (2,)), MultiDiscrete([2, 2]), Discrete(3, start=-1), Dict(a=Discrete(2)))],
    ("env_id", Box(0, 10, (1,), np.int64), VECTOR + "int64", ["ppo_continuous"]),
    ("env_id", Box(-1, 1, (2, 3)), VECTOR + r"\(2, 3\)", ["ppo_continuous"]),
]


@pytest.mark.parametrize("name, setting, value, words", [
    (name, *mistake) for *mistake, names in MISTAKES for name in names])
def test_a_wrong_setting_ends_the_run_before_it_begins(name, setting, value, words, register, capsys):
    value = register(actions=value) if not isinstance(value, (int, float, str)) else value
    with pytest.raises(Exception, match=words):
        load(name).train(config_of(name, **{setting: value}))
    assert "step" not in capsys.readouterr().out
