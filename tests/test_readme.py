"""README: every command and block is run or compared, and its counts are right."""

import re
import shutil
import subprocess

import pytest
import torch
from conftest import ROOT, SCRIPTS, load, source

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def commands():
    lines = "".join(blocks("bash")).splitlines()
    return [line for line in lines if not re.match(r"#|python3 -m venv|pip ", line)]  # the quick start is run by CI


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A folder with the scripts and the recipes, in which the test runs."""
    for name in SCRIPTS:
        shutil.copy(ROOT / f"{name}.py", tmp_path)
    shutil.copytree(ROOT / "tests" / "recipes", tmp_path / "tests" / "recipes")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_every_command_runs(copy, run_main):
    """In turn, as some need the file of the one before; with fewer steps."""
    assert len(commands()) > 6
    for line in commands():
        program, *words = line.split()
        if program == "python" and words != ["ppo_discrete.py", "--help"]:
            if "--total-steps" not in words:
                words += ["--total-steps", "250"]
            steps = words.index("--total-steps") + 1
            words[steps] = str(min(500, int(words[steps])))
            assert run_main(words[0].removesuffix(".py"), " ".join([*words[1:], "--eval-episodes", "3"]))
        elif program != "python":
            subprocess.run(line, shell=True, cwd=copy, check=True)


def test_the_blocks_for_notebooks_run(copy, capsys):
    block = "".join(blocks("py")).replace("agent, _ =", 'train(Config(total_steps=250, save="cartpole.pt"))\nagent, _ =')
    exec(block.replace("Config(seed=3", "Config(seed=3, total_steps=1_000").replace('-v1", 100)', '-v1", 3)'), names := {})
    assert re.search(r"^\d+\.\d+$", capsys.readouterr().out, re.M) and names["agent"].scale.count == 250


def test_the_tutorials_lines_are_those_of_the_scripts():
    texts = "".join(source(name) for name in SCRIPTS)
    assert blocks("python") and all(block in texts for block in blocks("python"))


def test_every_flag_that_is_named_is_one():
    settings = {f"--{key.replace('_', '-')}" for name in SCRIPTS for key in vars(load(name).Config())}
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", README))
    assert named - settings <= {"--help", "--critic", "--standalone", "--nproc-per-node"}  # of a recipe, and of torchrun


def test_the_tables_are_complete_and_the_scripts_lines_are_counted_right():
    for name in SCRIPTS:
        assert re.search(rf"^\| `{name}\.py` \|.*\| {source(name).count(chr(10))} \|$", README, re.M), name
    for path in (ROOT / "tests" / "recipes").glob("*.diff"):
        added, removed = (len(re.findall(rf"^[{sign}](?![{sign}]{{2}} )", path.read_text(), re.M)) for sign in "+-")
        assert re.search(rf"^\| `{path.stem}` \|.*\| \+{added}/-{removed} \|$", README, re.M), (path.stem, added, removed)


def test_links_and_pictures_lead_to_files():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_the_clips_example_is_what_the_script_computes():
    pi, one = torch.distributions.Categorical(probs=torch.tensor([[0.7, 0.3]])), torch.ones(1)
    for advantage, expected in ((2, -2.4), (-2, 2.8)):  # the loss is minus what is maximised
        loss = load("ppo_discrete").ppo_loss(
            pi, one, torch.tensor([0]), torch.tensor([0.5]).log(), advantage * one, one, 0.2, 0.0)
        assert loss.item() == pytest.approx(expected, abs=1e-5)
