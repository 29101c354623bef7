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

import gymnasium as gym
import numpy as np
import pytest
import torch
from ablations import EDITS, apply_diff, edited_text, module_of, recipe
from conftest import PPO, ROOT, SCRIPTS, edited, load, marked, run_main, spy

ALLOWED = {"torch", "gymnasium", "numpy"}
DISCRETE = [name for name in SCRIPTS if name != "ppo_continuous"]
TAIL = "# ---- From here on"


def source(name):
    return (ROOT / f"{name}.py").read_text(encoding="utf-8")


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


HEAD = ["docstring", "import", "torch.set_num_threads(1)", "Config"]
MIDDLE = ["mlp", "ActorCritic", "RolloutBuffer"]
FORM = {
    "reinforce": [*HEAD, "ObsScale", "Policy", "play", "compute_returns", "train"],
    "actor_critic": [*HEAD, "ObsScale", *MIDDLE, "td_error", "weigh", "train"],
} | dict.fromkeys(PPO, [*HEAD, "OTHER_TASKS", "ObsScale", *MIDDLE, "compute_gae", "ppo_loss", "train"])


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_algorithm_stands_first(name):
    above = [title for title, _, is_above in statements(name) if is_above]
    below = [title for title, _, is_above in statements(name) if not is_above]
    assert list(dict.fromkeys(above)) == FORM[name]
    adam, save = (["Adam"], ["save"]) if name in PPO else ([], [])
    assert below == [*adam, "check", "make_envs", *save, "evaluate", "main", "if __name__ == '__main__':"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_needs_nothing_but_its_three_libraries(name):
    text = source(name)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for top in (n.split(".")[0] for n in names):
                assert (top in ALLOWED or top in sys.stdlib_module_names) and top not in SCRIPTS
    assert max(map(len, text.splitlines())) <= 100


def test_what_scripts_share_is_the_same_text_in_each():
    texts = {}
    for name in SCRIPTS:
        for title, node, _ in statements(name):
            if title not in ("docstring", "import", "Config", "train"):
                texts.setdefault(title, {})[name] = ast.get_source_segment(source(name), node)

    def same(title, *names):
        found = [texts[title][name] for name in names]
        return len(found) > 1 and len(set(found)) == 1

    for title in ("ObsScale", "compute_gae", "ppo_loss", "Adam", "save", "main", "evaluate"):
        assert same(title, *PPO), title
    for title in ("mlp", "RolloutBuffer", "evaluate"):
        assert same(title, "ppo_discrete", "actor_critic"), title
    for title in ("ObsScale", "main"):
        assert same(title, "reinforce", "actor_critic"), title
    act = [re.search(r"    @torch.no_grad.*?\n\n\n", source(name), re.S).group() for name in DISCRETE]
    assert len(set(act)) == 1
    # Nearly nine tenths of the lines of ppo_continuous.py stand in ppo_discrete.py as well.
    lines = set(source("ppo_discrete").splitlines())
    others = [line for line in source("ppo_continuous").split("import inspect")[1].splitlines() if line not in lines]
    assert len(others) <= 55, others


def requirements():
    return (ROOT / "requirements.txt").read_text().split()


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
def test_help_tells_every_setting_with_its_comment_and_default(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    status, out, err = run_main(load(name), monkeypatch, capsys, "--help")
    assert (status, err) == (0, "")
    written = re.findall(r"^    (\w+): (\w+) = (\S+)  # (.+)$", source(name), re.M)
    assert [setting for setting, *_ in written] == [spec.name for spec in fields(load(name).Config)]
    for setting, kind, default, comment in written:
        default = ast.literal_eval(default)
        assert type(default).__name__ == kind and getattr(load(name).Config(), setting) == default
        about = rf"^ +--{setting.replace('_', '-')} .*\n?.*{re.escape(comment)} \(default: {re.escape(repr(default))}\)$"
        assert re.search(about, out, re.M), setting
    assert name not in PPO or "'total_steps': " in out.split("With another --env-id")[1]


def test_a_setting_of_a_copy_needs_no_comment_and_may_have_any(monkeypatch, capsys):
    line = "    seed: int = 0"
    module = edited("ppo_discrete", (line, f"    tries: int = 3\n    share: float = 0.5  # 50 % of % {{s}}\n{line}"))
    status, out, err = run_main(module, monkeypatch, capsys, "--help")
    assert (status, err) == (0, "") and "--tries" in out and "50 % of % {s} (default: 0.5)" in out


def config_of_main(module, monkeypatch, capsys, *arguments):
    """The settings that the command line hands to train()."""
    class Seen(Exception):
        pass

    def train(config):
        raise Seen(config)

    with monkeypatch.context() as patch, pytest.raises(Seen) as seen:
        patch.setattr(module, "train", train)
        run_main(module, patch, capsys, *arguments)
    return seen.value.args[0]


@pytest.mark.parametrize("name", SCRIPTS)
def test_flags_set_the_config(name, monkeypatch, capsys):
    module = load(name)
    for arguments, expected in [
        ([], {}),
        (["--gamma", "0.5"], {"gamma": 0.5}),
        (["--seed=12", "--total-steps", "7"], {"seed": 12, "total_steps": 7}),
        (["--eval-episodes", "0", "--env-id", module.Config.env_id], {"eval_episodes": 0}),
        *([(["--render", "--clip-eps", "1"], {"render": True, "clip_eps": 1.0})] if name in PPO else []),
    ]:
        assert config_of_main(module, monkeypatch, capsys, *arguments) == module.Config(**expected)


@pytest.mark.parametrize("name", PPO)
def test_another_task_takes_the_settings_for_other_tasks_by_its_name_alone(name, monkeypatch, capsys):
    module, task = load(name), marked(name)
    other = module.Config(env_id=task, **module.OTHER_TASKS)
    assert other != module.Config(env_id=task)
    assert config_of_main(module, monkeypatch, capsys, "--env-id", task) == other
    # What is given on the command line wins, also where it is the default of the script's own task.
    steps, rate = module.Config.total_steps, module.Config.learning_rate
    given = config_of_main(module, monkeypatch, capsys, "--env-id", task, "--total-steps", steps,
                           "--learning-rate", rate, "--num-envs", "3")
    expected = module.OTHER_TASKS | dict(total_steps=steps, learning_rate=rate, num_envs=3)
    assert given == module.Config(env_id=task, **expected)


# ---- A run ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_command_line_trains_prints_and_evaluates(name, wrap, monkeypatch, capsys):
    module, made = load(name), wrap()
    words = ["--env-id", marked(name), "--total-steps", "1000", "--seed", "3"]
    if name in PPO:
        words += ["--num-envs", "4", "--num-steps", "10", "--num-minibatches", "5", "--hidden-size", "8"]
    status, out, err = run_main(module, monkeypatch, capsys, *words, "--eval-episodes", "5")
    assert (status, err) == (None, "") and [envs.num_envs for envs in made][-1] == 5
    *lines, last = out.splitlines()
    kl = r"  kl \S+" if name in PPO else ""
    for line in lines:
        assert re.fullmatch(rf"step [\d,]+  episode [\d,]+  average score of the last 20 episodes: (-?\d+\.\d\d|nan)"
                            rf"{kl}  entropy -?\d\S*", line), line
    assert 12 <= len(lines) <= 21 and int(lines[-1].split()[1].replace(",", "")) >= 1_000
    firsts, totals = [None] * 5, np.zeros(5)  # the score of each environment's first episode
    for _, reward, terminated, truncated, _ in made[-1].rows:
        totals += reward
        for i in np.flatnonzero(terminated | truncated):
            firsts[i] = totals[i] if firsts[i] is None else firsts[i]
    assert last == f"greedy evaluation: {np.mean(firsts):.2f} over 5 episodes"
    # Without evaluation, all else is the same.
    status, shorter, err = run_main(module, monkeypatch, capsys, *words, "--eval-episodes", "0")
    assert (status, err) == (None, "") and shorter.splitlines() == lines


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_terminal_without_greek_letters_gets_all_the_output(name):
    how = {"env": os.environ | {"PYTHONIOENCODING": "ascii"}, "cwd": ROOT, "capture_output": True, "timeout": 100}
    result = subprocess.run([sys.executable, f"{name}.py", "--help"], **how)
    assert result.returncode == 0 and b"--gamma " in result.stdout and result.stderr == b""


@pytest.mark.parametrize("name", SCRIPTS)
def test_in_a_notebook_the_kernels_arguments_are_not_ours(name, monkeypatch, capsys):
    module = load(name)
    monkeypatch.delattr(module, "__file__")  # as in a cell
    monkeypatch.setattr(inspect, "getsource", lambda cell: 1 / 0)  # nor is there a source to read
    assert config_of_main(module, monkeypatch, capsys, "-f", "/tmp/kernel-1.json") == module.Config()


@pytest.mark.parametrize("name", DISCRETE)
def test_observations_that_are_no_flat_vectors_are_flattened(name, quiet):
    module = load(name)
    sizes = {} if name == "reinforce" else {"num_steps": 10}
    for env_id, obs_dim in (("FrozenLake-v1", 16), ("Blackjack-v1", 45), ("DictObs-v0", 5)):
        agent, history = module.train(module.Config(env_id=env_id, total_steps=400, **sizes))
        assert history and next(agent.policy.parameters()).shape[1] == obs_dim
        assert module.evaluate(agent, module.make_envs(env_id, 4)).shape == (4,)


# ---- Mistakes ----

COMMON = [
    ("--env-id", "Nonsense-v0", "Nonsense"),
    ("--env-id", "no_such_module:CartPole-v1", "no_such_module"),
    ("--env-id", "HalfCheetah-v2", "gymnasium-robotics"),  # an ImportError of gymnasium
    ("--env-id", "LunarLander-v2", "LunarLander-v3"),  # as in older tutorials
    ("--env-id", "", "--env-id"),
    ("--env-id", "MultiDiscrete-v0", "MultiDiscrete"),
    ("--total-steps", "-1", "must be from 0 to"),
    ("--total-steps", "1e5", "invalid int"),
    ("--num-envs", "0", "--num-envs 0: must be from"),
    ("--num-envs", "2.5", "invalid int"),
    ("--learning-rate", "nan", "must be from 0 to"),
    ("--gamma", "1.01", "must be from 0 to 1"),
    ("--hidden-size", "0", "must be from 1 to"),
    ("--seed", "-1", "must be from 0 to"),
    ("--seed", "18446744073709551616", "must be from 0 to"),
    ("--eval-episodes", "-1", "must be from 0 to"),
    ("--gama", "0.9", "--gama"),
    ("--gam", "0.9", "--gam"),
    ("stray", "argument", "stray argument"),
]
ROLLOUT = [
    ("--num-steps", "1", "must be from 2 to"),
    ("--entropy-coef", "nan", "must be from 0 to"),
    ("--max-grad-norm", "0", "must be from"),
]
ONLY_PPO = [
    ("--hidden-layers", "-1", "must be from 0 to"),
    ("--obs-std", "0", "must be from"),
    ("--num-minibatches", "0", "must be from 1 to"),
    ("--num-minibatches", "999999", "must be from 1 to"),
    ("--epochs", "0", "must be from 1 to"),
    ("--gae-lambda", "1.5", "must be from 0 to 1"),
    ("--clip-eps", "-0.2", "must be from 0 to"),
    ("--load", "no-such-file.pt", "--load no-such-file.pt: missing, or not a checkpoint of this script"),
    ("--load", "tests", "--load tests: missing, or not a checkpoint of this script"),
    ("--load", "README.md", "not a checkpoint of this script"),
    ("--save", "README.md", "must be a new file"),
    ("--save", "tests", "must be a new file"),
    ("--save", "no/such/folder.pt", "must be a new file in a folder"),
    ("--save", "README.md/kept.pt", "must be a new file in a folder"),
]
WRONG_ACTIONS = [("--env-id", "Pendulum-v1", "ppo_continuous.py"), ("--env-id", "FromMinus1-v0", "start=-1")]
OF = {
    "ppo_discrete": ROLLOUT + ONLY_PPO + WRONG_ACTIONS,
    "ppo_continuous": ROLLOUT + ONLY_PPO + [
        ("--env-id", "CartPole-v1", "ppo_discrete.py"), ("--env-id", "Unbounded-v0", "bounded"),
        ("--activation", "gelu", "relu or tanh"),
        ("--init-log-std", "nan", "must be from -10 to 10"), ("--init-log-std", "11", "must be from -10 to 10"),
    ],
    "actor_critic": ROLLOUT + [("--critic", "v", "td, q or advantage"), ("--save", "x", "--save")] + WRONG_ACTIONS,
    "reinforce": [("--num-envs", "1", "must be from 2 to"), ("--load", "x", "--load")] + WRONG_ACTIONS,
}


@pytest.mark.filterwarnings("error")  # a terminal shows warnings as well
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_mistake_costs_one_line_and_status_2(name, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(load(name), "train", lambda config: pytest.fail("it trains"))
    for key, value, remedy in COMMON + OF[name]:
        status, out, err = run_main(load(name), monkeypatch, capsys, key, value)
        assert (status, out, err.count("\n")) == (2, "", 1), (key, value, err)
        assert err.startswith(f"{name}.py: error: ") and remedy in err, (key, value, err)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_mistakes_in_python_are_value_errors(name, monkeypatch, capsys):
    module = load(name)
    wrong = {"gamma": 1.5, "num_envs": 0, "total_steps": -1, "learning_rate": float("nan"), "seed": "x"}
    wrong |= {"save": str(ROOT / "README.md"), "num_minibatches": 61} if name == "ppo_discrete" else {}
    for setting, value in wrong.items():
        for call in (module.check, module.train):
            with pytest.raises(ValueError):
                call(module.Config(**{setting: value}))
    with pytest.raises(gym.error.Error, match="Nonsense"):
        module.train(module.Config(env_id="Nonsense-v0"))
    config = module.Config(num_envs=np.int64(4), gamma=1, learning_rate=np.float32(0.5))
    module.check(config)
    assert [type(x) for x in (config.num_envs, config.gamma, config.learning_rate)] == [int, float, float]
    monkeypatch.setattr(module, "check", lambda config: {}["a mistake in a copy"])  # keeps its traceback
    with pytest.raises(KeyError, match="a mistake in a copy"):
        run_main(module, monkeypatch, capsys)


class Odd(gym.Env):
    """Fails in its own code where it is told to."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, box=False, place="", error=None):
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32) if box else gym.spaces.Discrete(2)
        self.place, self.error = place, error
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
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("error", [KeyError, ValueError, OSError, RuntimeError])
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_error_of_the_environments_own_keeps_its_traceback(name, error, monkeypatch, capsys):
    for place in ("init", "reset", "step"):
        env_id = f"Odd{place}{error.__name__}{'Box' * (name == 'ppo_continuous')}-v0"
        if env_id not in gym.registry:
            how = {"box": name == "ppo_continuous", "place": place, "error": error}
            gym.register(env_id, Odd, kwargs=how, max_episode_steps=20)
        with pytest.raises(error, match="the user's own"):
            run_main(load(name), monkeypatch, capsys, "--env-id", env_id)


# ---- README ----

README = (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_the_readme_counts_the_lines_of_the_scripts_and_names_its_sections():
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
    lines = capsys.readouterr().out.splitlines()
    for line, (metrics, _) in zip(lines, logged[1:], strict=True):
        assert set(metrics) == {"average_score", "kl", "entropy", "explained_variance"}
        assert f"episodes: {metrics['average_score']:.2f}  kl {metrics['kl']:.2g}" in line
        assert line.endswith(f"entropy {metrics['entropy']:.2g}") and metrics["explained_variance"] < 1


def test_the_recipe_of_another_optimizer_has_a_rate_that_falls_as_a_cosine(monkeypatch, tmp_path, quiet):
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


def test_the_recipe_of_several_processes_shares_weights_and_scale_but_no_episodes(tmp_path):
    text = copy_with("torch.distributed").split('if __name__ == "__main__"')[0] + TWO
    (tmp_path / "my_copy.py").write_text(text, encoding="utf-8")
    command = [sys.executable, *"-m torch.distributed.run --standalone --nproc-per-node 2 --local-ranks-filter 0".split()]
    result = subprocess.run([*command, tmp_path / "my_copy.py", tmp_path], capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stderr
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for starts, history, _, _ in (one, two):
        assert len(starts) == 1 and all(step % 8 == 0 for step, _ in history) and 1_500 < history[-1][0] <= 2_080
    assert not {tuple(x) for x in one[0][0]} & {tuple(x) for x in two[0][0]} and one[1] != two[1]
    assert one[2:] == two[2:]  # the scale and the weights
    assert 1_800 < one[2]["count"][0] <= 2_080  # steps of both processes
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
