"""README: its counts, its snippets and commands, and its recipes, the diffs for a copy of a script."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import types

import gymnasium as gym
import numpy as np
import pytest
import torch
from ablations import EDITS, apply_diff, edited_text, module_of, recipe
from conftest import ROOT, SCRIPTS, load, parse_line, spy

README = (ROOT / "README.md").read_text(encoding="utf-8")


def source(name):
    return (ROOT / f"{name}.py").read_text(encoding="utf-8")


def readme_blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def readme_commands():
    lines = "".join(readme_blocks("bash")).replace("\\\n", "").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def readme_environment():
    """README's my_env.py."""
    (block,) = [block for block in readme_blocks("py") if "gym.register(" in block]
    return block


def test_the_quick_start_begins_with_a_fresh_environment():
    quick_start = re.search(r"^## Quick start\n.*?^```bash\n(.*?)^```", README, re.M | re.S).group(1)
    first, second, third = quick_start.splitlines()
    assert "-m venv" in first and "activate" in first
    assert "requirements.txt" in second and second.endswith("python ppo_discrete.py")
    assert "tests/requirements.txt" in third and third.endswith("python -m pytest tests")


def test_the_readme_counts_the_scripts_lines_and_names_its_sections():
    for name in SCRIPTS:
        (count,) = re.findall(rf"^\| `{name}\.py` \|[^|]+\|[^|]+\| (\d+) \|", README, re.M)
        assert int(count) == source(name).count("\n"), name
    sections = re.findall(r"^## (.+)$", README, re.M)
    contents = re.search(r"^\*\*Contents:\*\*.*?\n\n", README, re.M | re.S).group().replace("\n", " ")
    links = re.findall(r"\[([^]]+)\]\(#([^)]+)\)", contents)
    assert [title for title, _ in links] == sections
    assert [link for _, link in links] == [title.lower().replace(" ", "-") for title in sections]


def test_the_tutorials_lines_are_those_of_the_scripts():
    texts = [source(name) for name in SCRIPTS]
    snippets = readme_blocks("python")
    assert len(snippets) >= 2
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
RECIPES = ["TAXI", "wandb", "AdamW", "target_kl", "torch.distributed", "CNN"]


def copy_with(word):
    """ppo_discrete.py with README's diff that has this word in it."""
    assert len(readme_blocks("diff")) == len(RECIPES)
    diff = recipe(word)
    assert len(re.findall(r"^\+.", diff, re.M)) <= 30
    return apply_diff(source("ppo_discrete"), diff)


def test_the_recipe_of_a_mask_never_plays_what_has_no_effect(quiet):
    module = module_of(copy_with("TAXI"), "mask")
    agent, _ = module.train(module.Config(env_id="Taxi-v4", num_envs=2, total_steps=400))
    env = gym.make("Taxi-v4")
    for seed in range(30):
        state, info = env.reset(seed=seed)
        obs = np.eye(500, dtype=np.float32)[[state]]
        assert all(info["action_mask"][agent.act(obs)[0]] for _ in range(5))


def test_the_recipe_of_logging_logs_what_it_says(monkeypatch, capsys):
    logged = []
    wandb = types.SimpleNamespace(init=lambda config: logged.append(config), log=lambda *words: logged.append(words))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    module = module_of(copy_with("wandb"), "logging")
    module.train(module.Config(num_envs=2, num_steps=20, total_steps=400))
    assert logged[0]["num_envs"] == 2 and [step for _, step in logged[1:]] == list(range(40, 401, 40))
    lines = [parse_line(line) for line in capsys.readouterr().out.splitlines()]
    for line, (metrics, _) in zip(lines, logged[1:], strict=True):
        assert set(metrics) == {"average_score", "kl", "entropy", "explained_variance"}
        assert metrics["average_score"] == pytest.approx(line.average, rel=1e-5) and metrics["explained_variance"] < 1
        assert [f"{metrics[key]:.2g}" for key in ("kl", "entropy")] == [f"{x:.2g}" for x in (line.kl, line.entropy)]


def test_the_recipe_of_another_optimizer_lowers_the_rate_as_a_cosine(monkeypatch, tmp_path, quiet):
    module, rates = module_of(copy_with("AdamW"), "optimizer"), []
    spy(monkeypatch, torch.optim.AdamW, "step", lambda _, optimizer: rates.append(optimizer.param_groups[0]["lr"]))
    settings = dict(num_steps=20, total_steps=400, learning_rate=0.01)
    module.train(module.Config(**settings, save=str(tmp_path / "kept.pt")))
    module.train(module.Config(**settings, load=str(tmp_path / "kept.pt")))  # numpy's numbers could not be loaded
    assert rates[::8] == pytest.approx(0.01 * (1 + np.cos(np.pi * np.arange(4) / 4)) / 2)


def test_the_recipe_of_the_penalty_solves_cartpole_and_moves_beta(monkeypatch, quiet):
    module, betas = module_of(copy_with("target_kl"), "penalty"), []
    loss = module.ppo_loss
    monkeypatch.setattr(module, "ppo_loss", lambda *given: betas.append(given[-2].item()) or loss(*given))
    agent, history = module.train(module.Config(seed=1))
    assert np.mean([score for _, score in history[-20:]]) >= 475
    assert {betas[i + 1] / betas[i] for i in range(len(betas) - 1)} == {0.5, 1.0, 2.0} and min(betas) == 1
    assert agent.state_dict()["beta"] in (betas[-1] / 2, betas[-1], betas[-1] * 2)  # a checkpoint keeps it
    zero = torch.zeros(3)
    pi = torch.distributions.Categorical(logits=torch.tensor([[0.3, 0.0]] * 3))
    old = pi.log_prob(zero) - torch.tensor([0.5, 0.0, -0.5])
    ratio = np.exp([0.5, 0.0, -0.5])
    kl = np.mean(ratio - 1 - np.log(ratio))
    found = loss(pi, zero, zero, old, torch.tensor([1.0, 2.0, 3.0]), zero, 4.0, 0.0)
    assert found[0].item() == pytest.approx(4 * kl - np.mean(ratio * [1, 2, 3]), abs=1e-5)
    assert found[1].item() == pytest.approx(kl, abs=1e-5)


TWO = """
if RANK >= 0:
    import sys
    starts, make_vec = [], gym.make_vec
    class Seen(gym.vector.VectorWrapper):
        def reset(self, **how):
            obs, info = super().reset(**how)
            starts.append(obs.tolist())
            return obs, info
    gym.make_vec = lambda *given, **how: Seen(make_vec(*given, **how))
    agent, history = train(Config(total_steps=2_000, num_envs=4, num_steps=20, save=sys.argv[1] + "/kept.pt"))
    scale = {key: x.tolist() for key, x in agent.scale.state_dict().items()}
    weights = nn.utils.parameters_to_vector(agent.parameters()).tolist()
    torch.save([starts, history, scale, weights], f"{sys.argv[1]}/{RANK}.pt")
    torch.distributed.destroy_process_group()
"""


def test_the_recipe_of_several_processes_shares_all_but_episodes(tmp_path):
    text = copy_with("torch.distributed").split('if __name__ == "__main__"')[0] + TWO
    (tmp_path / "my_copy.py").write_text(text, encoding="utf-8")
    command = [sys.executable, *"-m torch.distributed.run --standalone --nproc-per-node 2 --local-ranks-filter 0".split()]
    result = subprocess.run([*command, tmp_path / "my_copy.py", tmp_path], capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stderr
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for starts, history, _, _ in (one, two):
        assert len(starts) == 2 and all(step % 8 == 0 for step, _ in history) and 1_500 < history[-1][0] <= 2_080
    assert len({tuple(x) for run in (one, two) for starts in run[0] for x in starts}) == 16 and one[1] != two[1]
    assert one[2:] == two[2:]  # the scale and the weights
    assert 1_800 < one[2]["count"] <= 2_080  # steps of both processes
    lines = [line for line in result.stdout.splitlines() if line.startswith("step ")]
    assert len(lines) == len({line.split()[1] for line in lines}) and lines[-1].startswith("step 2,080 ")
    kept = torch.load(tmp_path / "kept.pt")
    assert kept["env_step"] == 2_080 and kept["history"] == one[1]


def test_the_recipe_of_images_learns_on_the_cpu(quiet):
    module = module_of(copy_with("CNN"), "images")
    config = module.Config(env_id="Picture-v0", num_envs=4, num_steps=32, total_steps=3_000, learning_rate=3e-3)
    agent, history = module.train(config)
    assert np.mean([score for _, score in history[-20:]]) > 8  # by chance: 5
    assert module.evaluate(agent, module.make_envs("Picture-v0", 5)).mean() > 9


def test_every_edit_of_the_ablations_fits_the_scripts():
    for _, scripts, pairs in EDITS:
        for script in scripts:
            compile(edited_text(script, pairs), script, "exec")


def test_the_readmes_environment_is_learned(tmp_path, monkeypatch, quiet):
    (tmp_path / "my_env.py").write_text(readme_environment())
    monkeypatch.syspath_prepend(tmp_path)
    module = load("ppo_discrete")
    config = module.Config(env_id="my_env:Reach-v0", **module.OTHER_TASKS | {"total_steps": 16_384})
    agent, history = module.train(config)
    assert np.mean([score for _, score in history[:50]]) < -60
    assert module.evaluate(agent, module.make_envs("my_env:Reach-v0", 50)).mean() > -12


def test_what_the_readme_tells_to_type_in_python_works(tmp_path):
    """As one program in a folder with the scripts; with fewer steps."""
    for name in SCRIPTS:
        shutil.copy(ROOT / f"{name}.py", tmp_path)
    (tmp_path / "my_env.py").write_text(readme_environment())
    blocks = [block for block in readme_blocks("py") if "gym.register(" not in block]
    text = "import matplotlib\nmatplotlib.use('agg')\n" + "\n".join(blocks)
    text = text.replace("Config(seed=3", "Config(total_steps=3_000, seed=3").replace("total_steps=60_000", "total_steps=4_000")
    text = text.replace("**OTHER_TASKS)", "**OTHER_TASKS | {'total_steps': 3_000})")
    (tmp_path / "typed.py").write_text(text)
    result = subprocess.run([sys.executable, "typed.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "curve.png").stat().st_size > 5_000 and (tmp_path / "film/rl-video-episode-0.mp4").exists()


def readme_groups():
    """README's other command lines, those together that need each other's file."""
    lines = [line for line in readme_commands() if line.startswith("python ") and "-m " not in line]
    files = {line: set(re.findall(r"[\w-]+\.pt\b", line)) for line in lines}
    together = [line for line in lines if files[line]]
    assert len(together) >= 2 and len(lines) >= 4
    return [together, *([line] for line in lines if line not in together)]


@pytest.mark.parametrize("lines", readme_groups(), ids=lambda lines: lines[0])
def test_every_readme_command_runs(lines, tmp_path):
    """With fewer steps; but installing, testing and measuring, which CI and the benchmark do."""
    for name in SCRIPTS:
        shutil.copy(ROOT / f"{name}.py", tmp_path)
    (tmp_path / "my_env.py").write_text(readme_environment())
    for line in lines:
        words = shlex.split(line, comments=True)
        if "--total-steps" not in words:
            words += ["--total-steps", "1000"]
        elif (steps := words.index("--total-steps") + 1) and words[steps] != "0":
            words[steps] = "2000"
        if "--eval-episodes" not in words:
            words += ["--eval-episodes", "5"]
        how = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 200}
        result = subprocess.run([sys.executable, *words[1:]], env=os.environ | {"SDL_VIDEODRIVER": "dummy"}, **how)
        assert result.returncode == 0, (line, result.stderr)
