"""README: its counts, its snippets and commands, and its recipes, the diffs for a copy of a script."""

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
from ablations import apply_diff, module_of, recipe, source
from conftest import ROOT, SCRIPTS, edited, load, marked, parse_line, run_main, spy

README = (ROOT / "README.md").read_text(encoding="utf-8")


def readme_blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def readme_commands():
    lines = "".join(readme_blocks("bash")).replace("\\\n", "").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def write_files(folder):
    """The scripts, and README's own files with an environment, which stand there as "This is `name.py`:"."""
    for name in SCRIPTS:
        shutil.copy(ROOT / f"{name}.py", folder)
    files = re.findall(r"This is `(\w+\.py)`:\n```py\n(.*?)^```", README, re.M | re.S)
    assert [name for name, _ in files] == ["my_env.py", "my_lake.py"]
    for name, text in files:
        (folder / name).write_text(text)


def test_the_quick_start_begins_with_a_fresh_environment():
    quick_start = re.search(r"^## Quick start\n.*?^```bash\n(.*?)^```", README, re.M | re.S).group(1)
    first, second, third = quick_start.splitlines()
    assert "-m venv" in first and "activate" in first
    assert "requirements.txt" in second and second.endswith("python ppo_discrete.py")
    assert "tests/requirements.txt" in third and third.endswith("python -m pytest tests -n 2")


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


def copy_with(word, name="ppo_discrete"):
    """A script with README's diff that has this word in it."""
    assert len(readme_blocks("diff")) == 8  # each has a test below
    diff = recipe(word)
    assert diff.count("\n") <= 40
    return apply_diff(source(name), diff)


@pytest.mark.parametrize("word", ["wandb", "best.pt", "AdamW", "torch.distributed"])
def test_a_recipe_fits_the_other_ppo_script(word):
    compile(copy_with(word, "ppo_continuous"), word, "exec")


def test_the_recipe_of_a_mask_never_plays_what_has_no_effect(quiet):
    module = module_of(copy_with("TAXI"), "mask")
    agent, _ = module.train(module.Config(env_id="Taxi-v4", num_envs=2, total_steps=400))
    assert torch.equal(agent.pi(torch.eye(500)).probs == 0, module.VALID == 0)
    env = gym.make("Taxi-v4")
    for seed in range(30):
        state, info = env.reset(seed=seed)
        obs = np.eye(500, dtype=np.float32)[[state]]
        assert all(info["action_mask"][agent.act(obs)[0]] for _ in range(5))


def test_an_observation_may_end_with_its_mask():
    assert "`invalid = obs[..., -logits.shape[-1]:] == 0`" in README
    module = module_of(copy_with("TAXI").replace("obs @ VALID == 0", "obs[..., -logits.shape[-1]:] == 0"), "mask")
    agent, _ = module.train(module.Config(total_steps=0))
    assert agent.pi(torch.tensor([[0.3, -0.2, 0, 1]])).probs.tolist() == [[0, 1]]


def test_the_recipe_of_logging_logs_what_it_says(monkeypatch, capsys):
    logged = []
    wandb = types.SimpleNamespace(init=lambda config: logged.append(config), log=lambda *words: logged.append(words))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    module, batches = module_of(copy_with("wandb"), "logging"), []
    spy(monkeypatch, module, "make_batch", lambda batch, *_: batches.append(batch))
    module.train(module.Config(num_envs=2, num_steps=20, total_steps=400))
    assert logged[0]["num_envs"] == 2 and [step for _, step in logged[1:]] == list(range(40, 401, 40))
    lines = [parse_line(line) for line in capsys.readouterr().out.splitlines()]
    for line, (metrics, _) in zip(lines, logged[1:], strict=True):
        assert set(metrics) == {"average_score", "kl", "entropy", "explained_variance"}
        assert metrics["average_score"] == pytest.approx(line.average, rel=1e-5)
        assert [f"{metrics[key]:.2g}" for key in ("kl", "entropy")] == [f"{x:.2g}" for x in (line.kl, line.entropy)]
    for (metrics, _), (*_, advantage, return_) in zip(logged[1:], batches, strict=True):
        expected = 1 - np.var(advantage.numpy()) / np.var(return_.numpy())  # R - V is the advantage
        assert metrics["explained_variance"] == pytest.approx(expected, abs=1e-4)


def test_the_recipe_of_the_best_agent_keeps_it_and_changes_nothing(monkeypatch, tmp_path, quiet):
    monkeypatch.chdir(tmp_path)
    module, steps, scores = module_of(copy_with("best.pt"), "best"), [], iter([1, 3, 2] + 20 * [0])
    spy(monkeypatch, module, "report", lambda _, config, env_step, *rest: steps.append(env_step))
    monkeypatch.setattr(module, "evaluate", lambda *given, play=module.evaluate: play(*given) * 0 + next(scores))
    config = module.Config(total_steps=1_000)
    assert module.train(config)[1] == load("ppo_discrete").train(config)[1]
    assert torch.load("best.pt")["env_step"] == steps[1]


def test_the_recipe_of_another_optimizer_lowers_the_rate_as_a_cosine(monkeypatch, tmp_path, quiet):
    module, rates = module_of(copy_with("AdamW"), "optimizer"), []
    spy(monkeypatch, torch.optim.AdamW, "step", lambda _, optimizer: rates.append(optimizer.param_groups[0]["lr"]))
    settings = dict(num_steps=20, total_steps=400, learning_rate=0.01)
    module.train(module.Config(**settings, save=str(tmp_path / "kept.pt")))
    module.train(module.Config(**settings, load=str(tmp_path / "kept.pt")))  # numpy's numbers could not be loaded
    assert rates[::8] == pytest.approx(0.01 * (1 + np.cos(np.pi * np.arange(4) / 4)) / 2)


@pytest.mark.parametrize("critic", ["q", "advantage"])
def test_the_recipe_of_q_and_the_advantage_is_sarsas_error(critic, monkeypatch, quiet):
    """The action behind the last row is drawn by the policy as it is, in the last observation; it is not played."""
    module, acts, draws, losses = module_of(copy_with("q_critic", "actor_critic"), "q"), [], [], []
    sample, network = torch.distributions.Categorical.sample, module.ActorCritic

    def drawn(pi, *size):
        action = sample(pi, *size)
        draws.append((pi.logits.clone(), action.clone()))
        return action

    def compared(agent, optimizer, buffer, reward, config):
        known = {key: value.clone() for key, value in vars(buffer).items()}
        table = agent.q_critic(agent.scale(known["obs"])).tolist()
        v = agent.value(known["obs"]).tolist()
        logits = agent.pi(known["obs"][-1]).logits.detach()
        result = update(agent, optimizer, buffer, reward, config)
        torch.testing.assert_close(draws[-1][0][0], logits)  # from the last observation, by the policy that played
        action = torch.cat([known["action"], draws[-1][1]]).tolist()
        weights, errors = [], []
        for t in range(config.num_steps):
            for n in range(config.num_envs):
                if known["done"][t, n]:
                    continue
                goes_on = not known["terminated"][t, n]
                q = table[t][n][action[t][n]]
                error = reward[t, n].item() + goes_on * config.gamma * table[t + 1][n][action[t + 1][n]] - q
                v_error = reward[t, n].item() + goes_on * config.gamma * v[t + 1][n] - v[t][n]
                weights.append(q if critic == "q" else q - v[t][n])
                errors.append(error**2 if critic == "q" else error**2 + v_error**2)
        assert losses[-1][0].tolist() == pytest.approx(weights, abs=1e-4)
        assert losses[-1][1].tolist() == pytest.approx(errors, abs=1e-4)
        return result

    update = module.update
    monkeypatch.setattr(torch.distributions.Categorical, "sample", drawn)
    monkeypatch.setattr(module, "update", compared)
    spy(monkeypatch, module, "actor_critic_loss", lambda _, pi, action, psi, error, c: losses.append((psi, error)))
    spy(monkeypatch, network, "act", lambda action, *_: acts.append(action))
    config = module.Config(env_id=marked("actor_critic"), num_envs=3, num_steps=7, total_steps=420, critic=critic)
    module.train(config)
    assert len(losses) == 20 and len(draws) == len(acts) + 20


def test_the_recipe_of_the_penalty_solves_cartpole_and_moves_beta(monkeypatch, quiet):
    module, betas = module_of(copy_with("target_kl"), "penalty"), []
    loss = module.ppo_loss
    monkeypatch.setattr(module, "ppo_loss", lambda *given: betas.append(given[-2].item()) or loss(*given))
    agent, history = module.train(module.Config(seed=1, total_steps=13_000))
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


@pytest.mark.parametrize("target", [0.02, 1e-12])
def test_the_recipe_of_the_penalty_moves_beta_by_its_rule(target, monkeypatch, quiet):
    module, seen = module_of(copy_with("target_kl"), "penalty"), []
    spy(monkeypatch, module, "update", lambda result, agent, *_: seen.append((result[0].item(), agent.beta.item())))
    module.train(module.Config(total_steps=5_000, target_kl=target))
    for k, ((kl, beta), (_, after)) in enumerate(zip(seen, seen[1:])):
        now = target * (1 - k * 125 / 5_000)
        factor = 2 if kl > 1.5 * now else 0.5 if kl < now / 1.5 else 1
        assert after == min(max(beta * factor, 1), 10_000)


TWO = """
if RANK >= 0:
    import sys, time
    starts, seeds, make_vec, remove = [], [], gym.make_vec, os.remove
    os.remove = lambda path: time.sleep(2) or remove(path)  # so that all try --save's file at the same time
    class Seen(gym.vector.VectorWrapper):
        def reset(self, **how):
            obs, info = super().reset(**how)
            starts.append(obs.tolist())
            seeds.append(how.get("seed"))
            return obs, info
    gym.make_vec = lambda *given, **how: Seen(make_vec(*given, **how))
    summed, all_reduce, clip = [], torch.distributed.all_reduce, nn.utils.clip_grad_norm_
    torch.distributed.all_reduce = lambda x: (all_reduce(x), summed.append(x.clone()))
    def clip_the_mean(parameters, *given, **how):
        parameters = list(parameters)
        assert all(torch.equal(p.grad, x / 2) for p, x in zip(parameters, summed[-len(parameters):], strict=True))
        return clip(parameters, *given, **how)
    nn.utils.clip_grad_norm_ = clip_the_mean
    agent, history = train(Config(total_steps=2_000, num_envs=4, num_steps=20, save=sys.argv[1] + "/kept.pt"))
    scale = {key: x.tolist() for key, x in agent.scale.state_dict().items()}
    weights = nn.utils.parameters_to_vector(agent.parameters()).tolist()
    torch.distributed.barrier()  # the checkpoint is written
    train(Config(total_steps=2_240, num_envs=4, num_steps=20, load=sys.argv[1] + "/kept.pt"))
    torch.save([starts[:3], history, scale, weights, seeds, torch.initial_seed()], f"{sys.argv[1]}/{RANK}.pt")
    torch.distributed.destroy_process_group()
"""


def test_the_recipe_of_several_processes_shares_all_but_episodes(tmp_path):
    text = copy_with("torch.distributed").split('if __name__ == "__main__"')[0] + TWO
    (tmp_path / "my_copy.py").write_text(text, encoding="utf-8")
    how = "--standalone --local-addr 127.0.0.1 --nproc-per-node 2 --local-ranks-filter 0"
    assert f"`torchrun {how} my_copy.py`" in README
    command = [sys.executable, "-m", "torch.distributed.run", *how.split()]
    result = subprocess.run([*command, tmp_path / "my_copy.py", tmp_path], capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stderr
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for starts, history, *_ in (one, two):
        assert all(step % 8 == 0 for step, _ in history) and 1_500 < history[-1][0] <= 2_080
    assert len({tuple(x) for run in (one, two) for x in run[0][-1]}) == 8 and one[1] != two[1]
    assert one[2:4] == two[2:4]  # the scale and the weights
    one_seeds, two_seeds = ([seed for seed in run[4] if seed is not None] for run in (one, two))
    assert (one_seeds, two_seeds) == ([0, 0, 0, 2_080, 2_080], [0, 1_000_000, 0, 2_080, 1_002_080]) and one[5] != two[5]
    assert 1_800 < one[2]["count"] <= 2_080  # steps of both processes
    lines = [line for line in result.stdout.split("resumed")[0].splitlines() if line.startswith("step ")]
    assert len(lines) == len({line.split()[1] for line in lines}) and lines[-1].startswith("step 2,080 ")
    kept = torch.load(tmp_path / "kept.pt")
    assert kept["env_step"] == 2_080 and kept["history"] == one[1]


def test_environments_may_be_stepped_in_processes_of_their_own(quiet):
    call, how = "make_envs(config.env_id, config.num_envs", ', vectorization_mode="async"'
    assert f"{call}{how})" in " ".join(README.split())
    module = edited("ppo_discrete", (f"{call})", f"{call}{how})"))
    _, history = module.train(module.Config(num_envs=2, total_steps=400))
    assert len(history) > 5


def test_the_recipe_of_images_learns_on_the_cpu(quiet):
    module, seen = module_of(copy_with("CNN"), "images"), []
    network, picture = module.CNN((12, 16, 3), 8, 2), torch.arange(12 * 16 * 3.0).reshape(12, 16, 3)
    network.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    network(picture.reshape(1, -1))
    torch.testing.assert_close(seen[0][0], picture.permute(2, 0, 1) / 255)  # (channels, height, width)
    config = module.Config(env_id="Picture-v0", num_envs=4, num_steps=32, total_steps=2_000, learning_rate=3e-3)
    agent, history = module.train(config)
    assert np.mean([score for _, score in history[-20:]]) > 8  # by chance: 5
    assert module.evaluate(agent, module.make_envs("Picture-v0", 5)).mean() > 9


@pytest.mark.parametrize("env_id, steps, before, after", [
    ("my_env:Reach-v0", 12_000, -60, -12), ("my_lake:MyLake-v0", 8_192, 2, 9),
])
def test_the_readmes_environments_are_learned(env_id, steps, before, after, tmp_path, monkeypatch, quiet):
    write_files(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = load("ppo_discrete")
    settings = module.OTHER_TASKS | {"env_id": env_id, "total_steps": steps, "hidden_size": 32, "epochs": 4}
    agent, history = module.train(module.Config(**settings))
    assert np.mean([score for _, score in history[:50]]) < before
    assert module.evaluate(agent, module.make_envs(env_id, 50)).mean() > after


def test_the_readmes_environment_repeats_its_seeds_and_terminates_at_0(tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    env, ends = gym.make("my_env:Reach-v0"), (False, False)
    assert env.reset(seed=3)[0] == env.reset(seed=3)[0]
    while not any(ends):
        obs, _, *ends, _ = env.step(0 if env.unwrapped.place > 0 else 2)
    assert ends == [True, False] and abs(obs.item()) < 0.3


def test_the_readmes_wrapped_environment_can_be_watched(tmp_path, monkeypatch, capsys):
    """Its function passes render_mode on. (Without the clock of pygame, which would draw four pictures a second.)"""
    write_files(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    ticks = []
    monkeypatch.setattr("pygame.time.Clock", lambda: types.SimpleNamespace(tick=ticks.append))
    words = "--env-id my_lake:MyLake-v0 --total-steps 0 --eval-episodes 0 --render".split()
    status, _, err = run_main(load("ppo_discrete"), monkeypatch, capsys, *words)
    assert (status, err) == (None, "") and ticks


def test_what_the_readme_tells_to_type_in_python_works(tmp_path):
    """As one program in a folder with the scripts; with fewer steps."""
    write_files(tmp_path)
    blocks = [block for block in readme_blocks("py") if "gym.register(" not in block]
    text = "import matplotlib\nmatplotlib.use('agg')\n" + "\n".join(blocks)
    text = text.replace("Config(seed=3", "Config(total_steps=2_000, seed=3")
    text = text.replace("total_steps=60_000", "total_steps=2_500")
    text = text.replace("total_steps=100_000", "total_steps=1_024").replace("video_length=500", "video_length=50")
    (tmp_path / "typed.py").write_text(text)
    result = subprocess.run([sys.executable, "typed.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "curve.png").stat().st_size > 5_000 and (tmp_path / "film/rl-video-episode-0.mp4").exists()


def inline_flags():
    """What stands in README between backquotes and begins with a flag or with a script, and has values."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", README, flags=re.M | re.S))
    found = [span.split() for span in spans if re.match(r"--|python \w+\.py --", span)]
    found = [words[1:] if words[0] == "python" else words for words in found]
    assert len(found) > 15
    return found


def test_every_flag_that_the_readme_names_inline_is_one(monkeypatch, capsys):
    """The scripts' own parsers read them. A flag of a recipe is read by a script with that recipe."""
    modules = {f"{name}.py": load(name) for name in SCRIPTS}
    recipes = [module_of(copy_with("q_critic", "actor_critic"), "q"), module_of(copy_with("target_kl"), "penalty")]

    def is_read(module, words):
        with monkeypatch.context() as patch:
            patch.setattr(module, "train", lambda config: sys.exit(0))
            patch.setattr(module, "make_envs", lambda *_: types.SimpleNamespace(close=lambda: None))
            status, _, err = run_main(module, patch, capsys, *words)
        return status == 0 and err == ""

    names = {f"--{name.replace('_', '-')}" for module in [*modules.values(), *recipes]
             for name in vars(module.Config())} | {"--help"}
    for words in inline_flags():
        candidates = [*modules.values(), *recipes]
        if len(words) == 1:
            assert words[0] in names
            continue
        if words[0] in modules:
            candidates, words = [modules[words[0]]], words[1:]
        assert any(is_read(module, words) for module in candidates), words


def test_the_readmes_worked_numbers_are_what_the_scripts_compute():
    reinforce, ppo = load("reinforce"), load("ppo_discrete")
    reward = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    return_ = reinforce.compute_returns(reward, 1.0)
    assert return_.tolist() == [[3, 1], [2, 0], [1, 0]]
    assert (return_ - return_.mean(1, keepdim=True))[reward > 0].tolist() == [1, -1, 1, 0.5]
    one = torch.ones(1)
    pi = torch.distributions.Categorical(probs=torch.tensor([[0.7, 0.3]]))
    for advantage, expected in ((2, -2.4), (-2, 2.8)):  # the loss is minus what is maximised
        loss, _, _ = ppo.ppo_loss(pi, one, torch.tensor([0]), torch.tensor([0.5]).log(), advantage * one, one, 0.2, 0.0)
        assert loss.item() == pytest.approx(expected, abs=1e-5)
    coin = torch.distributions.Categorical(probs=torch.tensor([0.5, 0.5]))
    assert f"{coin.entropy():.2f}" == "0.69"


def readme_groups():
    """README's other command lines, those together that need each other's file."""
    lines = [line for line in readme_commands() if line.startswith("python ") and "-m " not in line]
    files = {line: set(re.findall(r"[\w-]+\.pt\b", line)) for line in lines}
    together = [line for line in lines if files[line]]
    assert len(together) >= 2 and len(lines) >= 4
    return [together, *([line] for line in lines if line not in together)]


@pytest.mark.parametrize("lines", readme_groups(), ids=lambda lines: lines[0])
def test_every_readme_command_runs(lines, tmp_path, monkeypatch, capsys):
    """With fewer steps; but installing, testing and measuring, which CI and the benchmark do."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for line in lines:
        python, script, *words = shlex.split(line, comments=True)
        assert python == "python"
        if "--total-steps" not in words:
            words += ["--total-steps", "256"]
        elif (steps := words.index("--total-steps") + 1) and words[steps] != "0":
            words[steps] = "512"
        if "--eval-episodes" not in words:
            words += ["--eval-episodes", "5"]
        status, out, err = run_main(load(script.removesuffix(".py")), monkeypatch, capsys, *words)
        assert status in (None, 0) and err == "" and out
