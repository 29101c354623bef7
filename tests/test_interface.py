"""What a user meets: the files, the command line, its mistakes, the README."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from benchmark import settings_of
from conftest import PPO, ROOT, SCRIPTS, load, marked, run_main

ALLOWED = {"torch", "gymnasium", "numpy"}
DISCRETE = [name for name in SCRIPTS if name != "ppo_continuous"]


def source(name):
    return (ROOT / f"{name}.py").read_text(encoding="utf-8")


def command(name, *arguments, **how):
    return subprocess.run([sys.executable, f"{name}.py", *arguments], cwd=ROOT, capture_output=True, timeout=200, **how)


# ---- The files ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_needs_nothing_but_its_three_libraries_and_stays_short(name):
    text = source(name)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for top in (n.split(".")[0] for n in names):
                assert (top in ALLOWED or top in sys.stdlib_module_names) and top not in SCRIPTS
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= {"ppo_discrete": 370, "ppo_continuous": 380, "actor_critic": 320, "reinforce": 280}[name]


@pytest.mark.parametrize(
    "part, scripts",
    [(part, SCRIPTS) for part in ("setting", "__init__", "evaluate")]
    + [(part, PPO) for part in ("compute_gae", "ppo_loss", "descend", "save", "set_up", "main")]
    + [("mlp", [*PPO, "actor_critic"])]
    + [(part, ["reinforce", "actor_critic"]) for part in ("save", "main")]
    + [("make_envs", DISCRETE)],
)
def test_what_scripts_share_is_the_same_text_in_each(part, scripts):
    texts = set()
    for name in scripts:
        nodes = [n for n in ast.walk(ast.parse(source(name))) if isinstance(n, ast.FunctionDef) and n.name == part]
        (node,) = [n for n in nodes if part != "__init__" or "given" in ast.unparse(n.args)]
        texts.add(ast.get_source_segment(source(name), node))
    assert len(texts) == 1


def test_requirements_are_pinned():
    lines = (ROOT / "requirements.txt").read_text().split()
    assert [re.split(r"[=\[]", line)[0] for line in lines] == ["torch", "gymnasium", "numpy"]
    assert all(re.fullmatch(r"[a-z]+(\[[a-z-]+\])?==[\d.]+", line) for line in lines)


# ---- The command line ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_command_line_trains_prints_and_evaluates(name, monkeypatch, capsys):
    flags = ["--env-id", marked(name), "--total-steps", "2000", "--seed", "3"]
    flags += ["--num-steps", "20", "--num-minibatches", "5"] if name in PPO else []
    status, out, err = run_main(load(name), monkeypatch, capsys, *flags)
    assert status is None and err == ""
    lines = out.splitlines()
    progress = [line for line in lines if "average score of the last 20" in line]
    assert 5 <= len(progress) <= 21
    assert re.match(r"step [\d,]+  episode [\d,]+  average score of the last 20 episodes: -?\d+\.\d", progress[-1])
    assert int(progress[-1].split()[1].replace(",", "")) >= 2_000
    assert (" kl " in progress[-1]) == (name in PPO) and " entropy " in progress[-1]
    assert lines[-2].startswith("greedy") and lines[-1].startswith("sampled") and "nan" not in lines[-1]


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_tells_every_setting_and_default(name, monkeypatch, capsys):
    module = load(name)
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = run_main(module, monkeypatch, capsys, "--help")
    assert status == 0
    for field in fields(module.Config):
        flag = "--" + field.name.replace("_", "-")
        about = rf"^ +{flag}[ ,].*\n?.*\(default: {re.escape(repr(field.default))}\)$"
        assert re.search(about, out, re.M), flag
    assert {"env_id", "total_steps", "num_envs", "seed", "device"} <= {field.name for field in fields(module.Config)}


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_output_survives_terminals_without_greek_letters(encoding):
    how = {"env": os.environ | {"PYTHONIOENCODING": encoding, "COLUMNS": "200"}}
    assert b"--gamma" in command("ppo_discrete", "--help", **how).stdout
    worked = command("ppo_discrete", "--total-steps", "500", **how)
    assert worked.returncode == 0 and worked.stderr == b"" and b"greedy" in worked.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_flags_set_the_config(name, monkeypatch, capsys):
    module, seen = load(name), []

    class Seen(Exception):
        pass

    def set_up(config):
        seen.append(config)
        raise Seen

    monkeypatch.setattr(module, "set_up", set_up)
    for arguments, expected in [
        ([], module.Config()),
        (["--gamma", "0.5", "--no-render"], module.Config(gamma=0.5, render=False)),
        (["--render", "--seed=12"], module.Config(seed=12, render=True)),
    ]:
        run_main(module, monkeypatch, capsys, *arguments)
        assert seen.pop() == expected


COMMON = [
    ("--env-id", "Nonsense-v0", "Nonsense"),
    ("--env-id", "CartPole-v99", "v99"),
    ("--env-id", "no_such_module:CartPole-v1", "no_such_module"),
    ("--env-id", "", ""),
    ("--env-id", "MultiDiscrete-v0", "MultiDiscrete"),
    ("--total-steps", "-1", "int from 0 to"),
    ("--total-steps", "1e5", "invalid int"),
    ("--num-envs", "0", "int from 1 to"),
    ("--num-envs", "2.5", "invalid int"),
    ("--learning-rate", "-0.1", "float from 0 to"),
    ("--learning-rate", "nan", "float from 0 to"),
    ("--gamma", "1.01", "float from 0 to 1"),
    ("--gamma", "-0.1", "float from 0 to 1"),
    ("--hidden-size", "0", "int from 1 to"),
    ("--seed", "-1", "int from 0 to"),
    ("--device", "cuda:99", ""),
    ("--device", "toaster", "toaster"),
    ("--gama", "0.9", "--gama"),
    ("--gam", "0.9", "--gam"),
    ("stray", "argument", "stray argument"),
    ("--load", "no-such-file.pt", "No such file"),
    ("--load", "tests", "Is a directory"),
    ("--load", "README.md", "not a file that --save wrote"),
    ("--video", "README.md", "exists"),
]
ROLLOUT = [
    ("--hidden-layers", "-1", "int from 0 to"),
    ("--activation", "gelu", "tanh"),
    ("--num-steps", "1", "int from 2 to"),
    ("--entropy-coef", "nan", "float from 0 to"),
    ("--max-grad-norm", "-1", "float from 0 to"),
    ("--reward-scale", "-1", "float from 0 to"),
]
ONLY_PPO = [
    ("--num-minibatches", "0", "int from 1 to"),
    ("--epochs", "0", "int from 1 to"),
    ("--gae-lambda", "1.5", "float from 0 to 1"),
    ("--clip-eps", "-0.2", "float from 0 to"),
    ("--objective", "Clip", "penalty"),
    ("--target-kl", "-1", "float from 0 to"),
]
WRONG_ACTIONS = [("--env-id", "Pendulum-v1", "ppo_continuous.py"), ("--env-id", "Start5-v0", "from 0")]
OF = {
    "ppo_discrete": ROLLOUT + ONLY_PPO + WRONG_ACTIONS,
    "ppo_continuous": ROLLOUT + ONLY_PPO + [
        ("--env-id", "CartPole-v1", "ppo_discrete.py"), ("--env-id", "Unbounded-v0", "bounded"), ("--init-log-std", "nan", "float"),
    ],
    "actor_critic": ROLLOUT + [("--critic", "v", "advantage")] + WRONG_ACTIONS,
    "reinforce": WRONG_ACTIONS,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_mistake_costs_one_line_and_status_2(name, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    for flag, value, remedy in COMMON + OF[name]:
        status, out, err = run_main(load(name), monkeypatch, capsys, flag, value)
        assert status == 2 and out == "", (flag, value, out, err)
        assert err.count("\n") == 1 and remedy in err, (flag, value, err)


@pytest.mark.parametrize("name", [*PPO, "actor_critic"])
def test_a_diverged_run_costs_one_line_and_status_2(name, monkeypatch, capsys):
    status, _, err = run_main(load(name), monkeypatch, capsys, "--learning-rate", "1e30")
    assert status == 2 and err.count("\n") == 1 and "--learning-rate" in err


@pytest.mark.parametrize("fault", ["obs", "reward", "reset"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_nan_from_the_environment_stops_the_run(name, fault, monkeypatch, capsys):
    env_id = f"NaN{fault}{'Box' if name == 'ppo_continuous' else 'Discrete'}-v0"
    status, _, err = run_main(load(name), monkeypatch, capsys, "--env-id", env_id)
    assert status == 2 and "not finite" in err and "Traceback" not in err
    assert sum(line.startswith(f"{name}.py: error") for line in err.splitlines()) == 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_error_inside_training_keeps_its_traceback(name, monkeypatch):
    module = load(name)
    monkeypatch.setattr(module, "descend", lambda *args: 1 / 0)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--total-steps", "1000"])
    with pytest.raises(ZeroDivisionError):
        module.main()


@pytest.mark.parametrize("name", SCRIPTS)
def test_wrong_settings_in_python_raise_value_error(name):
    module = load(name)
    for wrong in ({"gamma": 2}, {"num_envs": 2.5}, {"render": "yes"}, {"hidden_size": 0}, {"gama": 0.9}):
        with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", "[-_]")):
            module.Config(**wrong)
    config = module.Config(gamma=1, num_envs=np.int64(4))
    assert type(config.num_envs) is int and type(config.gamma) is float  # so that checkpoints hold plain values


@pytest.mark.parametrize("name", SCRIPTS)
def test_in_a_notebook_the_kernels_arguments_are_not_ours(name, monkeypatch, capsys):
    module, seen = load(name), []
    monkeypatch.delattr(module, "__file__")  # as in a cell
    monkeypatch.setattr(module, "set_up", lambda config: seen.append(config) or 1 / 0)
    run_main(module, monkeypatch, capsys, "-f", "/tmp/kernel-1.json")
    assert seen == [module.Config()]


@pytest.mark.parametrize("name", DISCRETE)
def test_observations_that_are_no_flat_vectors_are_flattened(name, quiet):
    module = load(name)
    sizes = {} if name == "reinforce" else {"num_steps": 10}
    for env_id, obs_dim in (("FrozenLake-v1", 16), ("Blackjack-v1", 45), ("DictObs-v0", 5)):
        agent, history = module.train(module.Config(env_id=env_id, total_steps=400, **sizes))
        assert history and agent.obs_sums.shape == (3, obs_dim)
        assert module.evaluate(agent, env_id, episodes=4).shape == (4,)


# ---- README ----


def readme_blocks(language, path="README.md"):
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def readme_commands(path="README.md"):
    lines = "".join(readme_blocks("bash", path)).replace("\\\n", "").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def test_the_quick_start_is_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quick_start = re.search(r"^## Quick start\n.*?^```(?:bash|sh|shell)\n(.*?)^```", text, re.M | re.S).group(1)
    first, second = quick_start.splitlines()
    assert "requirements.txt" in first and first.endswith("python ppo_discrete.py")
    assert "tests/requirements.txt" in second and second.endswith("python -m pytest tests")


HARDER = {"LunarLander-v3": "Box2D", "BipedalWalker-v3": "Box2D", "HalfCheetah-v5": "mujoco", "Humanoid-v5": "mujoco"}


@pytest.mark.parametrize("env_id", HARDER)
def test_the_harder_tasks_run_with_the_flags_that_are_written_down(env_id, monkeypatch, capsys):
    pytest.importorskip(HARDER[env_id], reason=f"{env_id} needs gymnasium[box2d,mujoco]")
    lines = readme_commands() + readme_commands("tests/results/README.md")
    (line,) = [line for line in lines if f" {env_id} " in line]
    _, script, *flags = shlex.split(line)
    module = load(script.removesuffix(".py"))
    evaluate = module.evaluate
    monkeypatch.setattr(module, "evaluate", lambda *args, **options: evaluate(*args, episodes=2, **options))
    status, out, err = run_main(module, monkeypatch, capsys, *flags, "--total-steps", "4096")
    assert status is None and "step 4,096" in out and out.count("evaluation") == 2


def test_the_tutorials_lines_are_those_of_the_scripts():
    texts = [source(name) for name in SCRIPTS]
    snippets = readme_blocks("python")
    assert len(snippets) >= 9
    for snippet in snippets:
        assert any(f"\n{snippet}" in text for text in texts), snippet


def test_the_readmes_environment_is_learned_in_a_notebook_as_on_the_command_line(tmp_path, monkeypatch, quiet):
    (tmp_path / "my_env.py").write_text(readme_blocks("py")[0])
    monkeypatch.syspath_prepend(tmp_path)
    (line,) = [line for line in readme_commands() if "my_env" in line]
    module = load("ppo_discrete")
    settings = settings_of(module, line.removeprefix("python ppo_discrete.py "))
    agent, history = module.train(module.Config(**settings | {"total_steps": 30_000}))
    assert np.mean([score for _, score in history[:50]]) < -60
    assert module.evaluate(agent, settings["env_id"], 50).mean() > -35


def readme_groups():
    """README's other command lines, those together that need each other's file."""
    lines = [line for line in readme_commands() if line.startswith(("python ", "torchrun ")) and "tests" not in line]
    lines = [line for line in lines if "--nnodes" not in line and not any(env_id in line for env_id in HARDER)]
    together = [line for line in lines if "cartpole.pt" in line]
    assert len(together) >= 3 and len(lines) >= 6
    return [together, *([line] for line in lines if line not in together)]


@pytest.mark.parametrize("lines", readme_groups(), ids=lambda lines: lines[0])
def test_every_readme_command_runs(lines, tmp_path):
    """With fewer steps; but installing, testing and measuring, which CI and the benchmark do."""
    for name in SCRIPTS:
        shutil.copy(ROOT / f"{name}.py", tmp_path)
    (tmp_path / "my_env.py").write_text(readme_blocks("py")[0])
    for line in lines:
        words = shlex.split(line, comments=True)
        steps = words.index("--total-steps") + 1 if "--total-steps" in words else None
        if steps is None and "--help" not in words:
            words += ["--total-steps", "1000"]
        elif steps is not None and words[steps] != "0":
            words[steps] = "2000"
        words[0:1] = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "torch.distributed.run"]
        result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert result.returncode == 0, (line, result.stderr)
