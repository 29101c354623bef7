"""What a user meets: the command line, its mistakes, the notebook, the README."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields

import numpy as np
import pytest
from conftest import PPO, ROOT, SCRIPTS, load, marked, run_main

ALLOWED = {"torch", "gymnasium", "numpy"}


def source(name):
    return (ROOT / f"{name}.py").read_text(encoding="utf-8")


def command(name, *arguments):
    return subprocess.run(
        [sys.executable, f"{name}.py", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_needs_nothing_but_its_three_libraries(name):
    for node in ast.walk(ast.parse(source(name))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for top in (n.split(".")[0] for n in names):
                assert top in ALLOWED or top in sys.stdlib_module_names
                assert top not in SCRIPTS


def test_the_tail_is_the_same_in_all_four():
    tails = {source(name)[source(name).index("# ---- From here on") :] for name in SCRIPTS}
    assert len(tails) == 1 and len(tails.pop()) > 3_000


DISCRETE = [name for name in SCRIPTS if name != "ppo_continuous"]
CRITICS = ["ppo_discrete", "actor_critic"]


@pytest.mark.parametrize(
    "part, scripts",
    [(part, SCRIPTS) for part in ("setting", "mlp", "update_obs_stats", "add")]
    + [(part, PPO) for part in ("compute_gae", "ppo_loss", "adapt_beta")]
    + [("to_env", DISCRETE), ("log_prob_of", CRITICS), ("entropy_of", CRITICS)],
)
def test_what_scripts_share_is_the_same_text_in_each(part, scripts):
    texts = set()
    for name in scripts:
        (node,) = (n for n in ast.walk(ast.parse(source(name))) if isinstance(n, ast.FunctionDef) and n.name == part)
        texts.add(ast.get_source_segment(source(name), node))
    assert len(texts) == 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_command_line_trains_prints_and_evaluates(name, monkeypatch, capsys):
    flags = ["--env-id", marked(name), "--total-steps", "2000", "--seed", "3"]
    flags += ["--num-steps", "20", "--minibatch-size", "20"] if name in PPO else []
    status, out, err = run_main(load(name), monkeypatch, capsys, *flags)
    assert status is None and err == ""
    lines = out.splitlines()
    progress = [line for line in lines if "average score of the last 20" in line]
    assert 5 <= len(progress) <= 21
    assert re.match(r" *\d+%  step [\d,]+  episode [\d,]+  average score of the last 20 episodes: -?\d+\.\d", progress[-1])
    assert progress[-1].startswith("100%") and " 0 s left)" in progress[-1]
    assert (" kl " in progress[-1] and " beta 1" in progress[-1]) == (name in PPO)
    assert lines[-2].startswith("greedy") and lines[-1].startswith("sampled")
    assert "nan" not in out


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_tells_every_setting_and_default_in_a_line(name, monkeypatch, capsys):
    module = load(name)
    status, out, _ = run_main(module, monkeypatch, capsys, "--help")
    assert status == 0
    for field in fields(module.Config):
        flag = "--" + field.name.replace("_", "-")
        assert re.search(rf"^ +{flag}[ ,].*\(default: {re.escape(str(field.default) or 'none')}\)$", out, re.M), flag
    assert {"env_id", "total_steps", "num_envs", "seed", "device"} <= {field.name for field in fields(module.Config)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_flags_set_the_config(name, monkeypatch, capsys):
    module, seen = load(name), []

    class Seen(Exception):
        pass

    def train(config):
        seen.append(config)
        raise Seen

    monkeypatch.setattr(module, "train", train)
    for arguments, expected in [
        ([], module.Config()),
        (["--gamma", "0.5", "--no-anneal-lr"], module.Config(gamma=0.5, anneal_lr=False)),
        (["--anneal-lr", "--seed=12"], module.Config(seed=12)),
    ]:
        with pytest.raises(Seen):
            run_main(module, monkeypatch, capsys, *arguments)
        assert seen.pop() == expected


COMMON = [
    ("--env-id", "Nonsense-v0", "Nonsense"),
    ("--env-id", "CartPole-v99", "v99"),
    ("--env-id", "no_such_module:CartPole-v1", "no_such_module"),
    ("--env-id", "", "--env-id"),
    ("--env-id", "FrozenLake-v1", "flat Box"),
    ("--env-id", "CarRacing-v3", "--env-id"),
    ("--env-id", "MultiDiscrete-v0", "MultiDiscrete"),
    ("--total-steps", "-1", "between 0 and"),
    ("--total-steps", "1000000000001", "between 0 and"),
    ("--total-steps", "1e5", "invalid int"),
    ("--num-envs", "0", "between 1 and"),
    ("--num-envs", "2.5", "invalid int"),
    ("--num-envs", "many", "invalid int"),
    ("--learning-rate", "0", "between"),
    ("--learning-rate", "-0.1", "between"),
    ("--learning-rate", "nan", "between"),
    ("--learning-rate", "inf", "between"),
    ("--gamma", "1.01", "between 0.0 and 1.0"),
    ("--gamma", "-0.1", "between 0.0 and 1.0"),
    ("--gamma", "nan", "between 0.0 and 1.0"),
    ("--hidden-size", "0", "between"),
    ("--activation", "gelu", "one of tanh, relu"),
    ("--adam-eps", "0", "between"),
    ("--hidden-layers", "-1", "between"),
    ("--seed", "-1", "between 0 and"),
    ("--device", "cuda:99", "--device cuda:99"),
    ("--device", "toaster", "--device toaster"),
    ("--device", "meta", "--device meta"),
    ("--gama", "0.9", "did you mean --gamma?"),
    ("--gam", "0.9", "did you mean --gamma?"),
    ("--total-step", "9", "did you mean --total-steps?"),
    ("--lr", "0.1", "--help shows all"),
    ("--no-anneal-rl", "", "did you mean --no-anneal-lr?"),
    ("--zzz", "", "--help shows all"),
    ("stray", "argument", "--help shows all"),
    ("--anneal-lr=yes", "", "--anneal-lr"),
    ("--seed", "2147483648", "between 0 and"),
    ("--vectorization", "parallel", "one of auto, sync, async"),
    ("--save", "/no/such/folder/kept.pt", "make it"),
    ("--save", "/", "cannot be a folder"),
    ("--save", "README.md", "--load README.md to go on"),
    ("--load", "no-such-file.pt", "No such file"),
    ("--load", "tests", "Is a directory"),
    ("--load", "README.md", "damaged, or not a file that --save wrote"),
    ("--video", "tests", "choose a new folder"),
    ("--video", "README.md", "--video"),
]
ROLLOUT = [
    ("--num-steps", "0", "between 2 and"),
    ("--num-steps", "1", "between 2 and"),
    ("--value-coef", "-1", "between"),
    ("--entropy-coef", "nan", "between"),
    ("--max-grad-norm", "0", "between"),
    ("--max-grad-norm", "nan", "between"),
    ("--reward-scale", "-1", "between"),
]
ONLY_PPO = [
    ("--minibatch-size", "1000000", "at most the steps of a rollout"),
    ("--minibatch-size", "1", "between 2 and"),
    ("--epochs", "0", "between 1 and"),
    ("--gae-lambda", "1.5", "between 0.0 and 1.0"),
    ("--gae-lambda", "-1", "between 0.0 and 1.0"),
    ("--clip-eps", "-0.2", "between"),
    ("--value-clip", "-0.2", "between"),
    ("--obs-clip", "-10", "between"),
    ("--objective", "Clip", "one of clip, penalty, none"),
    ("--target-kl", "0", "between"),
]
OF = {
    "ppo_discrete": ROLLOUT + ONLY_PPO + [("--env-id", "Pendulum-v1", "ppo_continuous.py")],
    "ppo_continuous": ROLLOUT
    + ONLY_PPO
    + [("--env-id", "CartPole-v1", "ppo_discrete.py"), ("--env-id", "Unbounded-v0", "bounded"), ("--init-log-std", "99", "between")],
    "actor_critic": ROLLOUT + [("--critic", "v", "one of td, q, advantage"), ("--env-id", "Pendulum-v1", "ppo_continuous.py")],
    "reinforce": [("--env-id", "Pendulum-v1", "ppo_continuous.py")],
}
MISTAKES = [(name, *mistake) for name in SCRIPTS for mistake in COMMON + OF[name]]


@pytest.mark.parametrize("name, flag, value, remedy", MISTAKES)
def test_a_mistake_costs_one_line_and_status_2(name, flag, value, remedy, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    status, out, err = run_main(load(name), monkeypatch, capsys, flag, *[value] * bool(value or flag == "--env-id"))
    assert status == 2 and out == ""
    assert err.count("\n") == 1 and remedy in err and flag.split("=")[0] in err


def test_there_are_many_mistakes():
    assert len({mistake[1:] for mistake in MISTAKES}) >= 60


@pytest.mark.parametrize("fault", ["obs", "reward", "reset"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_nan_from_the_environment_stops_the_run(name, fault, monkeypatch, capsys):
    env_id = f"NaN{fault}{'Box' if name == 'ppo_continuous' else 'Discrete'}-v0"
    status, _, err = run_main(load(name), monkeypatch, capsys, "--env-id", env_id)
    (error,) = [line for line in err.splitlines() if line.startswith(f"{name}.py: error")]
    assert status == 2 and "--env-id" in error and "NaN" in error and "Traceback" not in err


@pytest.mark.parametrize("name", SCRIPTS)
def test_divergence_stops_the_run(name, monkeypatch, capsys):
    module = load(name)
    loss_name = next(n for n in dir(module) if n.endswith("_loss"))
    loss = getattr(module, loss_name)
    monkeypatch.setattr(module, loss_name, lambda *args: loss(*args) * float("nan"))
    status, _, err = run_main(module, monkeypatch, capsys, "--total-steps", "3000")
    assert status == 2 and err.count("\n") == 1 and "--learning-rate" in err


@pytest.mark.parametrize("name", SCRIPTS)
def test_wrong_settings_in_python_raise_value_error(name):
    module = load(name)
    for wrong in ({"gamma": 2}, {"num_envs": 2.5}, {"env_id": 7}, {"anneal_lr": "yes"}, {"seed": None}):
        with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", "-")):
            module.Config(**wrong)
    assert module.Config(gamma=1, num_envs=np.int64(4)).num_envs == 4


@pytest.mark.parametrize("name", SCRIPTS)
def test_in_a_notebook_the_kernels_arguments_are_not_ours(name, monkeypatch, capsys):
    module, seen = load(name), []
    monkeypatch.delattr(module, "__file__")  # as in a cell
    monkeypatch.setattr(module, "train", lambda config: seen.append(config) or (None, []))
    monkeypatch.setattr(module, "evaluate", lambda *args, **kwargs: np.zeros(1))
    status, _, err = run_main(module, monkeypatch, capsys, "-f", "/tmp/kernel-1.json")
    assert status is None and err == "" and seen == [module.Config()]


def test_as_a_real_command():
    failed = command("reinforce", "--num-envs", "0")
    assert failed.returncode == 2 and failed.stderr.count("\n") == 1 and failed.stdout == ""
    worked = command("ppo_discrete", "--total-steps", "1000")
    assert worked.returncode == 0 and worked.stderr == "" and "greedy" in worked.stdout


def readme_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:bash|sh|shell)\n(.*?)^```", text, re.M | re.S)
    lines = "".join(blocks).replace("\\\n", "").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def test_the_quick_start_is_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quick_start = re.search(r"^## Quick start\n.*?^```(?:bash|sh|shell)\n(.*?)^```", text, re.M | re.S).group(1)
    first, second = quick_start.splitlines()
    assert "requirements.txt" in first and first.endswith("python ppo_discrete.py")
    assert "tests/requirements.txt" in second and second.endswith("python -m pytest tests")


HARDER = {"LunarLander-v3": "Box2D", "BipedalWalker-v3": "Box2D", "HalfCheetah-v5": "mujoco", "Humanoid-v5": "mujoco"}


@pytest.mark.parametrize("env_id", HARDER)
def test_the_harder_tasks_run_as_the_readme_says(env_id, monkeypatch, capsys):
    pytest.importorskip(HARDER[env_id], reason=f"{env_id} needs gymnasium[box2d,mujoco]")
    (line,) = [line for line in readme_commands() if f" {env_id} " in line]
    _, script, *flags = shlex.split(line)
    module = load(script.removesuffix(".py"))
    evaluate = module.evaluate
    monkeypatch.setattr(module, "evaluate", lambda *args, **options: evaluate(*args, episodes=2, **options))
    status, out, err = run_main(module, monkeypatch, capsys, *flags, "--total-steps", "2000")
    assert status is None and "100%" in out and out.count("2 fresh episodes") == 2


def readme_groups():
    """README's other command lines, those together that need each other's file."""
    lines = [line for line in readme_commands() if line.startswith(("python ", "torchrun ")) and "tests" not in line]
    lines = [line for line in lines if "--nnodes" not in line and not any(env_id in line for env_id in HARDER)]
    together = [line for line in lines if "cartpole.pt" in line]
    assert len(together) >= 3 and len(lines) >= 9
    return [together, *([line] for line in lines if line not in together)]


@pytest.mark.parametrize("lines", readme_groups(), ids=lambda lines: lines[0])
def test_every_readme_command_runs(lines, tmp_path):
    """With fewer steps; but installing, testing and measuring, which CI and the benchmark do."""
    for name in SCRIPTS:
        shutil.copy(ROOT / f"{name}.py", tmp_path)
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


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_inline_metadata_equals_the_requirements(name):
    """As in the reference implementation of PEP 723, which `uv run` follows."""
    block = re.search(r"(?m)^# /// script\n((?:^#(?: .*)?\n)+?)^# ///$", source(name)).group(1)
    metadata = tomllib.loads("".join(line[2:] + "\n" for line in block.splitlines()))
    assert metadata["dependencies"] == (ROOT / "requirements.txt").read_text().split()
    assert metadata["requires-python"] == ">=3.11"


def test_requirements_are_pinned():
    lines = (ROOT / "requirements.txt").read_text().split()
    assert [re.split(r"[=\[]", line)[0] for line in lines] == ["torch", "gymnasium", "numpy"]
    assert all(re.fullmatch(r"[a-z]+(\[[a-z-]+\])?==[\d.]+", line) for line in lines)
