"""Keeping a run: checkpoints, interrupts, faults of disk and files, several processes, films."""

import contextlib
import io
import itertools
import os
import pickle
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import types

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import PPO, ROOT, SCRIPTS, Recount, edited, load, marked, run_main
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from torch.nn.functional import linear

ONCE = {"save", "load", "device", "render", "eval_episodes"}  # these belong to a run, not to what it learns


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks as small as these would only wait for more
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def handlers():
    """Ctrl-C arrives as Python's own, even where it is ignored, as with nohup or in a script's background jobs."""
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    yield
    for number, handler in zip(numbers, before):
        signal.signal(number, handler)


SIZES = {"num_envs": 2, "num_steps": 5, "num_minibatches": 1, "epochs": 2, "hidden_size": 8, "hidden_layers": 2}


def small(name, path="", **settings):
    """A short run on marked episodes."""
    sizes = {"num_envs": 2} if name == "reinforce" else {"num_envs": 2, "num_steps": 5}
    sizes = SIZES | {"save": str(path)} if name in PPO else sizes
    return load(name).Config(**{"env_id": marked(name), "total_steps": 400} | sizes | settings)


def flags(**settings):
    """Settings as words of a command line."""
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]


SMALL = flags(**SIZES)
LONG = flags(total_steps=10**8)


def read(path):
    return torch.load(path, weights_only=True)


def same(one, other):
    """Whether two nested structures of tensors and plain values are equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def copied(state):
    return {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in state.items()}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A checkpoint of each PPO script, by name."""
    folder, paths = tmp_path_factory.mktemp("checkpoints"), {}
    for name in PPO:
        paths[name] = folder / f"{name}.pt"
        with contextlib.redirect_stdout(io.StringIO()):
            load(name).train(small(name, paths[name], normalize_reward=True, objective="penalty", target_kl=1e-7))
    return paths


@pytest.fixture
def watched(monkeypatch):
    """watched(module) notes all that train() hands over to be saved, each time it does."""

    def install(module):
        seen, save = [], module.save

        def noted(config, agent, optimizer, envs, beta, env_step, history):
            stats = {}
            if config.normalize_reward:
                rms = envs.return_rms
                stats = {"mean": float(rms.mean), "var": float(rms.var), "count": float(rms.count)}
            seen.append({
                "agent": copied(agent.state_dict()), "optimizer": copied(optimizer.state_dict()), "reward_stats": stats,
                "beta": float(beta), "env_step": env_step, "history": list(history),
            })
            save(config, agent, optimizer, envs, beta, env_step, history)

        monkeypatch.setattr(module, "save", noted)
        return seen

    return install


# ---- What a checkpoint brings back ----


@pytest.mark.parametrize("name", PPO)
def test_a_checkpoint_brings_everything_back_to_the_last_bit(name, tmp_path, watched):
    module, path = load(name), tmp_path / "kept.pt"
    seen = watched(module)
    config = small(name, path, normalize_reward=True, objective="penalty", target_kl=1e-7, eval_episodes=3, render=True)
    agent, history = module.train(config)
    last, kept = seen[-1], read(path)
    assert set(kept) == {"config", *last} and same({key: kept[key] for key in last}, last)
    assert same(kept["agent"], agent.state_dict()) and kept["history"] == history and kept["env_step"] >= 400
    assert {"scale.count", "scale.sum", "scale.sum_of_squares", "scale.shift", "scale.divisor", "policy.0.weight", "critic.0.bias"} <= kept["agent"].keys()
    assert kept["agent"]["scale.count"] > 300 and (kept["agent"]["scale.divisor"] != 1).all()
    assert kept["optimizer"].keys() == {"mean", "square", "steps"} and kept["optimizer"]["square"].any()
    assert kept["optimizer"]["mean"].any() and kept["optimizer"]["steps"] == 2 * 40  # epochs and rollouts
    assert kept["reward_stats"]["count"] > 300 and kept["beta"] > 1
    assert kept["config"] == {key: value for key, value in vars(config).items() if key not in ONCE}

    resumed = module.resume(str(path), total_steps=0)
    again, history_again = module.train(resumed)
    assert same(seen[-1], last) and same(again.state_dict(), agent.state_dict()) and history_again == history
    assert {key: getattr(resumed, key) for key in ONCE} == {
        key: getattr(module.Config, key) for key in ONCE} | {"load": str(path)}
    assert os.listdir(tmp_path) == ["kept.pt"]


@pytest.mark.parametrize("name", PPO)
def test_settings_may_be_numpys_numbers_and_the_checkpoint_can_still_be_loaded(name, tmp_path, quiet):
    module, path = load(name), tmp_path / "kept.pt"
    config = small(name, path)
    for key, value in vars(config).items():  # as from a sweep
        if type(value) in (int, float):
            setattr(config, key, {int: np.int64, float: np.float64}[type(value)](value))
    _, history = module.train(config)
    assert module.train(module.resume(str(path), total_steps=0))[1] == history != []


@pytest.mark.parametrize("name", PPO)
def test_a_resumed_run_goes_on_where_it_was_with_other_episodes(name, checkpoints, watched, monkeypatch, tmp_path):
    module, steps, made, make_vec = load(name), [], [], gym.make_vec
    step, before = module.Adam.step, read(checkpoints[name])

    def recorded(optimizer):
        steps.append((optimizer.param_groups[0]["lr"], copied(optimizer.state_dict())))
        step(optimizer)

    monkeypatch.setattr(module.Adam, "step", recorded)
    seen = watched(module)
    config = module.resume(str(checkpoints[name]), total_steps=800)
    _, history = module.train(config)
    assert history[: len(before["history"])] == before["history"] and 700 < history[-1][0] < 900
    assert steps[0][0] == pytest.approx(config.learning_rate * (1 - before["env_step"] / 800))
    assert same(steps[0][1], before["optimizer"])
    assert seen[-1]["reward_stats"]["count"] > before["reward_stats"]["count"] + 300  # they go on, too
    assert seen[-1]["agent"]["scale.count"] > before["agent"]["scale.count"] + 300
    _, again = module.train(config)
    assert again == history  # to the last bit

    task, path = module.Config.env_id, tmp_path / "starts.pt"
    monkeypatch.setattr(gym, "make_vec", lambda *args, **how: made.append(Recount(make_vec(*args, **how))) or made[-1])
    module.train(small(name, path, env_id=task))
    module.train(module.resume(str(path), total_steps=800))
    first, second = made
    assert first.starts and second.starts and not set(first.starts) & set(second.starts)


@pytest.mark.parametrize("name", PPO)
def test_the_speed_of_a_resumed_run_is_that_of_its_own_steps(name, checkpoints, quiet):
    """A second passes with each look at the clock, which is one for each rollout of ten steps."""
    report = "            if env_step >= next_report or env_step >= config.total_steps:\n"
    module = edited(name, (report, f"            logged.append(metrics)\n{report}"))
    module.logged, seconds = [], itertools.count()
    module.time = types.SimpleNamespace(time=lambda: float(next(seconds)))
    module.train(module.resume(str(checkpoints[name]), total_steps=450))
    assert [metrics["steps_per_second"] for metrics in module.logged] == [10.0] * 5


def greedy_scores(state, task, episodes, seed):
    """The scores of the likeliest actions, recounted from a checkpoint's bare tensors in single environments."""
    scores = []
    for i in range(episodes):
        env, score, over = gym.make(task), 0.0, False
        obs, _ = env.reset(seed=seed + i)
        while not over:
            x = (torch.as_tensor(obs, dtype=torch.float32) - state["scale.shift"]) / state["scale.divisor"]
            x = x.clamp(-10, 10)
            layers = sorted({int(key.split(".")[1]) for key in state if key.startswith("policy.")})
            for layer in layers:
                x = linear(x, state[f"policy.{layer}.weight"], state[f"policy.{layer}.bias"])
                if layer != layers[-1]:
                    x = x.tanh() if task == "CartPole-v1" else x.relu()
            # Pendulum's torque goes from -2 to 2, and the policy's from -1 to 1.
            action = int(x.argmax()) if task == "CartPole-v1" else (2 * x.clamp(-1, 1)).numpy()
            obs, reward, terminated, truncated, _ = env.step(action)
            score, over = score + reward, terminated or truncated
        scores.append(score)
    return scores


@pytest.mark.parametrize("name", PPO)
def test_a_reloaded_agents_greedy_score_is_a_recount(name, tmp_path, monkeypatch, capsys):
    module, path = load(name), str(tmp_path / "kept.pt")
    task, episodes = module.Config.env_id, 4
    module.train(module.Config(total_steps=3_000, save=path, seed=2))
    state = read(path)["agent"]
    seed = int(np.random.SeedSequence([7, 2**32 - 1]).generate_state(1)[0])
    expected = greedy_scores(state, task, episodes, seed)
    blind = greedy_scores(state | {"scale.divisor": torch.ones_like(state["scale.divisor"])}, task, episodes, seed)
    assert expected != pytest.approx(blind, rel=1e-2)  # the scale makes a difference, so its loss would show
    capsys.readouterr()
    arguments = flags(load=path, total_steps=0, eval_episodes=episodes, seed=7)
    status, out, err = run_main(module, monkeypatch, capsys, *arguments)
    assert status is None and err == ""
    printed = float(re.search(rf"^greedy evaluation: (\S+) over {episodes} episodes$", out, re.M).group(1))
    assert printed == pytest.approx(np.mean(expected), rel=1e-3, abs=0.006)
    agent, _ = module.train(module.resume(path, total_steps=0))
    assert module.evaluate(agent, task, episodes, seed=7) == pytest.approx(expected, rel=1e-3)


def settings_of_main(module, monkeypatch, capsys, *arguments):
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


@pytest.mark.parametrize("name", PPO)
def test_resume_and_load_agree_and_a_setting_given_anew_wins(name, checkpoints, tmp_path, monkeypatch, capsys):
    module, default = load(name), load(name).Config()
    path = tmp_path / "kept.pt"
    module.train(small(name, path, learning_rate=1e-4, total_steps=0, eval_episodes=7, seed=5, gamma=0.5))
    for given in (
        {}, {"learning_rate": default.learning_rate}, {"env_id": default.env_id}, {"total_steps": 7, "gamma": 0.25},
        {"num_envs": default.num_envs, "eval_episodes": 9}, {"save": str(path), "seed": 6},
    ):
        resumed = module.resume(str(path), **given)
        assert settings_of_main(module, monkeypatch, capsys, *flags(load=path, **given)) == resumed
        kept = {"env_id": marked(name), **SIZES, "learning_rate": 1e-4, "total_steps": 0, "seed": 5, "gamma": 0.5}
        for key, value in ({"save": "", "eval_episodes": default.eval_episodes} | kept | given).items():
            assert getattr(resumed, key) == value, key
    # Without resume(), the weights are the checkpoint's, and the settings are those that are given.
    config = small(name, learning_rate=0.003, load=str(checkpoints[name]), total_steps=0, normalize_reward=True)
    agent, history = module.train(config)
    assert config.learning_rate == 0.003 and config.objective == "clip"
    assert same(agent.state_dict(), read(checkpoints[name])["agent"]) and history


@pytest.mark.parametrize("name", PPO)
def test_beta_moves_only_with_the_penalty_and_is_taken_over(name, tmp_path):
    """A target that is far too small makes every update double β; the limit is 10,000."""
    module, path, tiny = load(name), str(tmp_path / "kept.pt"), {"target_kl": 1e-7, "learning_rate": 0.01}
    module.train(small(name, path, total_steps=30, **tiny))
    assert read(path)["beta"] == 1.0
    module.train(module.resume(path, save=path, total_steps=60, objective="penalty"))
    assert read(path)["beta"] == 2.0**3  # three rollouts of ten steps, from 1 on
    module.train(module.resume(path, save=path, total_steps=90, objective="clip"))
    assert read(path)["beta"] == 2.0**3
    module.train(module.resume(path, save=path, total_steps=110, objective="penalty"))
    assert read(path)["beta"] == 2.0**5


@pytest.mark.parametrize("name", PPO)
def test_torchs_adam_in_one_line_saves_and_resumes_too(name, tmp_path):
    module = edited(name, ("optimizer = Adam(", "optimizer = torch.optim.Adam("))
    path = str(tmp_path / "kept.pt")
    agent, history = module.train(module.Config(**vars(small(name, path))))
    again, history_again = module.train(module.resume(path, total_steps=0))
    assert same(again.state_dict(), agent.state_dict()) and history_again == history
    _, longer = module.train(module.resume(path, total_steps=600))
    assert longer[: len(history)] == history and longer[-1][0] > 500


@pytest.mark.parametrize("name", PPO)
def test_it_saves_on_the_way_and_prints_afterwards(name, tmp_path):
    module, steps = load(name), []

    class Out(io.StringIO):
        def write(self, text):
            if text.startswith("step"):
                steps.append((read(tmp_path / "kept.pt")["env_step"], int(text.split()[1].replace(",", ""))))
            elif text.strip():
                assert read(tmp_path / "kept.pt")["env_step"] == 0  # the first line names the settings

    with contextlib.redirect_stdout(Out()):
        module.train(small(name, tmp_path / "kept.pt", total_steps=1_000))
    assert 15 <= len(steps) <= 22 and steps == sorted(steps) and steps[-1][0] >= 1_000
    assert all(saved == printed for saved, printed in steps)


# ---- Processes of their own, which signals can reach ----


def fork(task, folder, interrupt=signal.default_int_handler):
    """Runs task() in a process of its own. Returns its number; what it prints goes to files in folder."""
    for name in ("out", "err"):
        (folder / name).write_text("")
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        # The process ends by itself if a test fails, and torch starts no threads that a fork has lost.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(40)
        torch.set_num_threads(1)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        task()
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait_until(condition, seconds=40):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this took too long"
        time.sleep(0.002)


def ended(child, folder):
    """Waits for a process: (exit status, or minus the signal that killed it; stdout; stderr)."""
    answer = []

    def has_ended():
        answer[:] = os.waitpid(child, os.WNOHANG)
        return answer[0] == child

    try:
        wait_until(has_ended)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return os.waitstatus_to_exitcode(answer[1]), (folder / "out").read_text(), (folder / "err").read_text()


def command_line(name, *arguments):
    if name not in PPO:
        torch.optim.Adam([torch.zeros(1)])  # what this imports, the processes below need not import each time

    def task():
        sys.argv = [f"{name}.py", *map(str, arguments)]
        load(name).main()

    return task


def visible(folder):
    """The files in a folder, but for what the processes above printed."""
    return sorted(set(os.listdir(folder)) - {"out", "err"})


# ---- Nothing stands under the name until a whole checkpoint does ----


@pytest.mark.parametrize("name", PPO)
def test_a_kill_in_the_first_moments_leaves_nothing_or_a_whole_checkpoint(name, tmp_path):
    module, path, moments, found = load(name), tmp_path / "kept.pt", random.Random(name), []
    arguments = ["--env-id", marked(name), *SMALL, "--save", path]
    for _ in range(10):
        child = fork(command_line(name, *arguments, *LONG), tmp_path)
        time.sleep(moments.random() * 0.08)
        os.kill(child, signal.SIGKILL)
        assert ended(child, tmp_path)[0] == -signal.SIGKILL
        found.append(path.exists())
        if found[-1]:
            _, history = module.train(module.resume(str(path), total_steps=0))
            assert history == read(path)["history"]
            path.unlink()
    # What was left over stands in nobody's way.
    child = fork(command_line(name, *arguments, *flags(total_steps=0, eval_episodes=0)), tmp_path)
    status, _, err = ended(child, tmp_path)
    assert status == 0 and err == "" and read(path)["env_step"] == 0
    assert all(re.fullmatch(r"kept\.pt(\.\d+\.unfinished)?", file) for file in visible(tmp_path))


@pytest.mark.parametrize("name", PPO)
def test_a_kill_during_a_save_leaves_the_checkpoint_before_it(name, tmp_path):
    module, path, moments = load(name), tmp_path / "kept.pt", random.Random(name)
    config = small(name, path)
    envs = module.prepare(module.make_envs(config.env_id, config.num_envs))
    agent = module.ActorCritic(envs, config)
    optimizer = module.Adam(agent.parameters(), lr=0.1, eps=1e-5)
    agent.register_buffer("ballast", torch.zeros(2_000_000))  # so that writing takes most of the time

    def task():
        for env_step in itertools.count():
            module.save(config, agent, optimizer, envs, 1.0, env_step, [])

    for _ in range(6):
        path.unlink(missing_ok=True)
        child = fork(task, tmp_path)
        wait_until(path.exists)
        time.sleep(moments.random() * 0.1)
        os.kill(child, signal.SIGKILL)
        assert ended(child, tmp_path)[0] == -signal.SIGKILL
        assert len(read(path)["agent"]["ballast"]) == 2_000_000


@pytest.mark.parametrize("name", PPO)
def test_the_corrected_command_is_not_refused(name, checkpoints, tmp_path, monkeypatch, capsys):
    module, path = load(name), tmp_path / "kept.pt"
    own = ["--env-id", marked(name)]
    for wrong in (
        [*own, "--gamma", "7"], [*own, "--num-minibatches", "99999"], [*own, "--device", "toaster"], [*own, "--render"],
        [*own, "--hidden-size", "x"], ["--env-id", "Nonsense-v0"], ["--env-id", "MultiDiscrete-v0"],
        ["--load", tmp_path / "missing.pt"], ["--load", checkpoints[name], "--hidden-size", "7"],
    ):
        status, _, err = run_main(module, monkeypatch, capsys, *map(str, wrong), "--save", str(path))
        assert status == 2 and err.count("\n") == 1 and os.listdir(tmp_path) == [], wrong
    right = [*own, *SMALL, *flags(total_steps=100, eval_episodes=0, save=path)]
    status, _, err = run_main(module, monkeypatch, capsys, *right)
    assert status is None and err == "" and read(path)["env_step"] == 100


@pytest.mark.parametrize("name", PPO)
def test_a_users_own_unfinished_files_are_never_touched(name, tmp_path, monkeypatch, capsys):
    module, path, work = load(name), tmp_path / "kept.pt", b"somebody's work"
    others = [tmp_path / f"kept.pt{ending}" for ending in (".unfinished", ".1.unfinished", ".tmp", "~")]
    for file in others:
        file.write_bytes(work)
    before = [file.stat().st_mtime_ns for file in others]
    arguments = ["--env-id", marked(name), *SMALL, *flags(total_steps=100, eval_episodes=0, save=path)]
    assert run_main(module, monkeypatch, capsys, *arguments)[0] is None
    assert [(file.read_bytes(), file.stat().st_mtime_ns) for file in others] == [(work, t) for t in before]
    # Even the name that this very process would write to may be taken: then it says so and writes nothing.
    path.unlink()
    (tmp_path / f"kept.pt.{os.getpid()}.unfinished").write_bytes(work)
    status, out, err = run_main(module, monkeypatch, capsys, *arguments)
    assert status == 2 and out == "" and err.count("\n") == 1 and not path.exists()
    assert (tmp_path / f"kept.pt.{os.getpid()}.unfinished").read_bytes() == work


@pytest.mark.parametrize("name", PPO)
def test_nothing_is_overwritten_and_an_unwritable_place_is_known_before_training(
    name, checkpoints, tmp_path, monkeypatch, capsys
):
    path, folder = tmp_path / "old.pt", tmp_path / "folder"
    path.write_bytes(b"somebody's work")
    folder.mkdir()
    for arguments in (["--save", path], ["--load", checkpoints[name], "--save", path], ["--save", folder],
                      ["--save", tmp_path / "missing" / "kept.pt"], ["--save", path / "kept.pt"]):
        status, out, err = run_main(load(name), monkeypatch, capsys, *map(str, arguments))
        assert status == 2 and err.count("\n") == 1 and out == "" and str(arguments[-1]) in err, arguments
    assert path.read_bytes() == b"somebody's work" and sorted(os.listdir(tmp_path)) == ["folder", "old.pt"]
    assert os.listdir(folder) == []
    # The checkpoint that is resumed may be written over, also under another spelling of its name.
    shutil.copy(checkpoints[name], tmp_path / "kept.pt")
    arguments = flags(load=tmp_path / "kept.pt", save=folder / ".." / "kept.pt", total_steps=450, eval_episodes=0)
    status, _, err = run_main(load(name), monkeypatch, capsys, *arguments)
    assert status is None and err == "" and read(tmp_path / "kept.pt")["env_step"] == 450


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=["ctrl-c", "disk"])
@pytest.mark.parametrize("name", PPO)
def test_an_interrupted_or_failed_save_leaves_no_stray_file(name, fault, tmp_path, monkeypatch, capsys):
    module, path, write, saves = load(name), tmp_path / "kept.pt", torch.save, []

    def half(checkpoint, target, *args, **how):
        saves.append(checkpoint["env_step"])
        if len(saves) == 3:
            with open(target, "wb") as file:
                file.write(b"half a checkp")
            raise fault
        write(checkpoint, target, *args, **how)

    monkeypatch.setattr(torch, "save", half)
    agent, history = module.train(small(name, path))
    out, err = capsys.readouterr()
    assert os.listdir(tmp_path) == ["kept.pt"]
    kept = read(path)
    assert same(kept["agent"], agent.state_dict()) and kept["history"] == history
    if fault is KeyboardInterrupt:  # the save that was cut off is made up for
        assert len(saves) == 4 and saves[3] == saves[2] == kept["env_step"] and err == ""
        assert f"stopped at step {saves[2]}\n" in out
    else:
        assert err == f"--save {path}: step {saves[2]} not saved: [Errno 28] No space left on device\n"
        assert kept["env_step"] == 400 and "stopped" not in out


# ---- Interrupts ----


def fast(name):
    """Arguments for steps so small that a signal meets every part of the loop, in a run without an end."""
    return ["--env-id", marked(name), *(SMALL if name in PPO else []), *LONG]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", PPO)
def test_signals_at_random_moments_lose_nothing(name, number, checkpoints, tmp_path):
    path = tmp_path / "kept.pt"
    path.write_bytes(checkpoints[name].read_bytes())
    moments, saved = random.Random(f"{name} {number}"), read(path)["env_step"]
    for _ in range(3):
        child = fork(command_line(name, "--load", path, "--save", path, *LONG), tmp_path)
        wait_until(lambda: "step " in (tmp_path / "out").read_text())
        time.sleep(moments.random() * 0.2)
        os.kill(child, number)
        status, out, err = ended(child, tmp_path)
        kept = read(path)
        assert status == 128 + number and err == "" and "evaluation" not in out
        assert out.endswith(f"stopped at step {kept['env_step']:,}\n")
        assert kept["env_step"] > saved and kept["history"][-1][0] <= kept["env_step"]
        saved = kept["env_step"]
    assert visible(tmp_path) == ["kept.pt"]
    with contextlib.redirect_stdout(io.StringIO()):
        agent, history = load(name).train(load(name).resume(str(path), total_steps=0))
    assert same(agent.state_dict(), kept["agent"]) and history == kept["history"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_signal_ends_the_run_without_an_evaluation(name, number, tmp_path):
    child = fork(command_line(name, *fast(name)), tmp_path)
    wait_until(lambda: "\nstep " in "\n" + (tmp_path / "out").read_text())
    os.kill(child, number)
    status, out, err = ended(child, tmp_path)
    assert status == 128 + number and err == "" and "evaluation" not in out
    assert re.fullmatch(r"stopped at step [\d,]+", out.splitlines()[-1]) and visible(tmp_path) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_signal_during_the_evaluation_ends_that_too(name, tmp_path):
    arguments = ["--env-id", "KeptSlowBox-v0" if name == "ppo_continuous" else "KeptSlow-v0", "--total-steps", 0]
    child = fork(command_line(name, *arguments, "--eval-episodes", 1), tmp_path)
    started = tmp_path / "err"
    wait_until(lambda: started.read_text() == "playing\n")
    os.kill(child, signal.SIGINT)
    status, out, err = ended(child, tmp_path)
    assert status == 130 and err == "playing\n" and "evaluation" not in out


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_ignored_ctrl_c_stays_ignored(name, tmp_path):
    """As in the jobs that a script starts in the background."""
    sizes = SMALL if name in PPO else []
    arguments = ["--env-id", marked(name), *sizes, *flags(total_steps=1_000, eval_episodes=2)]
    child = fork(command_line(name, *arguments), tmp_path, interrupt=signal.SIG_IGN)
    wait_until(lambda: "step " in (tmp_path / "out").read_text())
    for _ in range(3):
        os.kill(child, signal.SIGINT)
        time.sleep(0.01)
    status, out, err = ended(child, tmp_path)
    assert status == 0 and err == "" and out.count("evaluation") == 2 and "stopped" not in out


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_interrupted_train_returns_what_was_learned(name, capsys):
    class CtrlC(Recount):
        def step(self, actions):
            if len(self.rows) == 500:
                signal.raise_signal(signal.SIGINT)
            return super().step(actions)

    module, envs = load(name), CtrlC(gym.make_vec(marked(name), 2))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    agent, history = module.train(small(name, total_steps=10**8), envs)
    assert len(history) > 100 and all(p.isfinite().all() for p in agent.parameters())
    assert capsys.readouterr().out.splitlines()[-1] == f"stopped at step {envs.env_step:,}"
    assert module.evaluate(agent, marked(name), episodes=3).shape == (3,)
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def ctrl_c_at_the_ninth_step(module, monkeypatch):
    """Long after the first report, and long before the second. Returns the optimizer of each step."""
    calls, step = [], module.Adam.step

    def stop(optimizer):
        calls.append(optimizer)
        if len(calls) == 9:
            raise KeyboardInterrupt
        step(optimizer)

    monkeypatch.setattr(module.Adam, "step", stop)
    return calls


@pytest.mark.parametrize("name", PPO)
def test_ctrl_c_saves_what_was_learned_last(name, tmp_path, monkeypatch):
    module, path = load(name), tmp_path / "kept.pt"
    calls = ctrl_c_at_the_ninth_step(module, monkeypatch)
    agent, history = module.train(small(name, path, total_steps=10**6))
    kept = read(path)
    assert same(kept["agent"], agent.state_dict()) and kept["history"] == history and kept["env_step"] == 50
    assert kept["optimizer"]["steps"] == 8 and same(kept["optimizer"], copied(calls[0].state_dict()))


@pytest.mark.parametrize("name", PPO)
def test_ctrl_c_saves_although_nobody_reads_the_output_any_more(name, tmp_path, monkeypatch):
    """As with `| tee log`: the terminal sends Ctrl-C to both programs, and tee may be gone first."""
    module, path = load(name), tmp_path / "kept.pt"
    ctrl_c_at_the_ninth_step(module, monkeypatch)

    class Out(io.StringIO):
        def write(self, text):
            if text.startswith("stopped"):
                raise BrokenPipeError
            return len(text)

    with contextlib.redirect_stdout(Out()), pytest.raises(BrokenPipeError):
        module.train(small(name, path, total_steps=10**6))
    assert read(path)["env_step"] == 50


class Slow(gym.Env):
    """Writes to stderr when an episode goes on, and takes its time: a signal surely finds it at play."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.count += 1
        if self.count == 2:
            print("playing", file=sys.stderr, flush=True)
        time.sleep(0.005)
        return self.observation_space.sample(), 1.0, False, False, {}


gym.register("KeptSlow-v0", lambda: Slow(gym.spaces.Discrete(2)), max_episode_steps=10**5)
gym.register("KeptSlowBox-v0", lambda: Slow(gym.spaces.Box(-1, 1, (1,), np.float32)), max_episode_steps=10**5)


# ---- Faults of disk and files ----


@pytest.mark.parametrize("name", PPO)
def test_a_full_disk_costs_neither_the_run_nor_the_old_checkpoint(name, checkpoints, tmp_path):
    path = tmp_path / "kept.pt"
    path.write_bytes(checkpoints[name].read_bytes())

    def task():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))  # a file of this process cannot grow further
        command_line(name, "--load", path, "--save", path, *flags(total_steps=500, eval_episodes=3))()

    status, out, err = ended(fork(task, tmp_path), tmp_path)
    assert status == 1 and out.count("evaluation") == 2  # the run went on; the status tells of the last save
    reports = [int(line.split()[1].replace(",", "")) for line in out.splitlines() if line.startswith("step")]
    failed = re.findall(rf"^--save {re.escape(str(path))}: step ([\d,]+) not saved: .+$", err, re.M)
    assert [int(step) for step in failed] == [400, *reports] and err.count("\n") == len(failed)
    assert path.read_bytes() == checkpoints[name].read_bytes() and visible(tmp_path) == ["kept.pt"]


@pytest.mark.parametrize("name", PPO)
def test_a_folder_that_vanishes_costs_neither_the_run_nor_more_than_a_line_a_save(name, tmp_path, monkeypatch, capsys):
    module, folder, step, calls = load(name), tmp_path / "folder", load(name).Adam.step, []
    folder.mkdir()

    def vanish(optimizer):
        calls.append(optimizer)
        if len(calls) == 5:
            shutil.rmtree(folder)
        step(optimizer)

    monkeypatch.setattr(module.Adam, "step", vanish)
    arguments = flags(env_id=marked(name), total_steps=400, save=folder / "kept.pt", eval_episodes=2, **SIZES)
    status, out, err = run_main(module, monkeypatch, capsys, *arguments)
    reports = [int(line.split()[1].replace(",", "")) for line in out.splitlines() if line.startswith("step")]
    assert out.count("evaluation") == 2 and len(reports) > 10
    failed = [line for line in err.splitlines() if line.startswith(f"--save {folder / 'kept.pt'}: step ")]
    assert len(failed) == sum(report > 20 for report in reports) and err.splitlines() == failed
    assert status == 1 and not folder.exists()


@pytest.mark.parametrize("name", PPO)
def test_the_status_tells_of_the_last_save_although_no_episode_ended_since(name, tmp_path, monkeypatch, capsys):
    module, write, saves = load(name), torch.save, []
    env_id = "KeptForeverBox-v0" if name == "ppo_continuous" else "KeptForever-v0"
    arguments = flags(env_id=env_id, total_steps=100, eval_episodes=0, **SIZES)

    def fail(*args, **how):
        saves.append(args)
        if len(saves) in broken:
            raise OSError(28, "No space left on device")
        write(*args, **how)

    monkeypatch.setattr(torch, "save", fail)
    # The run saves at first, and then after each of its ten rollouts.
    for broken, expected in ({3}, None), ({11}, 1), (range(2, 99), 1):
        saves.clear()
        path = tmp_path / f"{expected}{len(broken)}.pt"
        status, _, err = run_main(module, monkeypatch, capsys, *arguments, "--save", str(path))
        assert len(saves) == 11 and read(path)["history"] == []
        assert err.count("\n") == sum(number in broken for number in range(1, 12)) and status == expected, broken


class Forever(gym.Env):
    """One episode without an end."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(np.sum(action)), False, False, {}


gym.register("KeptForever-v0", lambda: Forever(gym.spaces.Discrete(2)))
gym.register("KeptForeverBox-v0", lambda: Forever(gym.spaces.Box(-1, 1, (1,), np.float32)))


class Malicious:
    """An object whose unpickling would make a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def changed(good, part, key, value):
    return good | {part: good[part] | {key: value}}


def with_number(tensor, number):
    tensor = tensor.clone()
    tensor.view(-1)[-1] = number
    return tensor


def foreign(folder, whole):
    """Files that no script wrote, and parts of one that a script did write."""
    contents = [b"", b"import this\n", random.Random(1).randbytes(5_000), whole[: len(whole) // 2], whole[:-1]]
    evil = Malicious(folder / "executed")
    return contents + [pickle.dumps(evil), pickle.dumps({"config": evil}, 2)]


def wrong_structures(folder, good):
    """Files in the right format with the wrong things in them."""
    agent, optimizer = good["agent"], good["optimizer"]
    longer = optimizer | {"mean": torch.zeros(999), "square": torch.zeros(999)}
    shorter = optimizer | {"mean": optimizer["mean"][:1], "square": optimizer["square"][:1]}
    yield from ({"config": Malicious(folder / "executed")}, torch.zeros(3), [1, 2], {}, {"config": 7})
    yield from ({key: value for key, value in good.items() if key != gone} for gone in good)
    yield from (good | {"optimizer": longer}, good | {"optimizer": shorter}, good | {"agent": {}}, good | {"optimizer": {}}, good | {"agent": 3.0})
    yield good | {"agent": {key: value for key, value in agent.items() if key != "scale.divisor"}}
    yield changed(good, "agent", "scale.sum", torch.zeros(9))
    yield changed(good, "agent", "another", torch.zeros(3))
    for key, value in (("gamma", 9.0), ("gamma", "0.9"), ("env_id", 3), ("temperature", 1.0), ("hidden_size", 9),
                       ("num_envs", None), ("env_id", "Nonsense-v0"), (3, 4)):
        yield changed(good, "config", key, value)
    yield good | {"config": []}


def wrong_tensors(good):
    for part in ("agent", "optimizer"):
        for key, tensor in good[part].items():
            yield changed(good, part, key, [1.0])
            if isinstance(tensor, torch.Tensor):
                for number in (float("nan"), float("inf")):
                    yield changed(good, part, key, with_number(tensor, number))


def wrong_dtypes(good):
    for key in ("scale.count", "scale.sum", "scale.divisor", "policy.0.weight", "critic.0.bias", "mean", "square"):
        part = "agent" if "." in key else "optimizer"
        for dtype in (torch.complex64, torch.bool, torch.int32):
            yield changed(good, part, key, good[part][key].to(dtype))


def wrong_kinds(good):
    nan, inf = float("nan"), float("inf")
    kinds = {
        "beta": ["x", None, [1.0], nan, inf, -1.0], "env_step": ["x", None, [5], nan, -5, 1.5],
        "history": [3, None, "ab", ["ab"], [(1,)], [(1, 2, 3)], [(1, "x")], [(None, 1.0)]],
        "reward_stats": [3, None, "x", {"mean": "x"}, {"mean": nan, "var": 1.0, "count": 5.0}],
    }
    for key, values in kinds.items():
        yield from (good | {key: value} for value in values)
    for value in ("x", None, [5], nan, -5, 1.5, torch.tensor(5)):
        yield changed(good, "optimizer", "steps", value)


DAMAGES = [wrong_structures, wrong_tensors, wrong_dtypes, wrong_kinds]


@pytest.mark.parametrize("damage", [foreign, *DAMAGES], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", PPO)
def test_foreign_damaged_and_malicious_files_cost_one_line(name, damage, checkpoints, tmp_path, monkeypatch, capsys):
    path, good, contents = tmp_path / "given.pt", read(checkpoints[name]), []
    if damage is foreign:
        contents = foreign(tmp_path, checkpoints[name].read_bytes())
    else:
        for structure in damage(tmp_path, good) if damage is wrong_structures else damage(good):
            file = io.BytesIO()
            torch.save(structure, file)
            contents.append(file.getvalue())
    assert len(contents) >= 7
    faults = []
    for number, content in enumerate(contents):
        path.write_bytes(content)
        try:
            arguments = flags(load=path, save=path, total_steps=0, eval_episodes=0)
            status, out, err = run_main(load(name), monkeypatch, capsys, *arguments)
        except Exception as error:
            status, out, err = "traceback", *capsys.readouterr()[:1], repr(error)
        if status != 2 or out != "" or err.count("\n") != 1:
            faults.append((number, status, out, err))
        assert path.read_bytes() == content or faults and faults[-1][0] == number
        assert os.listdir(tmp_path) == ["given.pt"]
    assert not faults


@pytest.mark.parametrize("name", PPO)
def test_a_checkpoint_that_does_not_fit_costs_one_line(name, checkpoints, monkeypatch, capsys):
    path = str(checkpoints[name])
    for arguments in (["--hidden-size", "7"], ["--hidden-layers", "3"]):
        status, out, err = run_main(load(name), monkeypatch, capsys, "--load", path, *arguments)
        assert status == 2 and out == "" and err.count("\n") == 1
        assert f"--load {path}: does not fit these settings" in err
    (other,) = set(PPO) - {name}
    for extra in ([], ["--env-id", load(other).Config.env_id], ["--env-id", marked(other)]):
        status, out, err = run_main(load(other), monkeypatch, capsys, "--load", path, "--total-steps", "0", *extra)
        assert status == 2 and out == "" and err.count("\n") == 1 and "Traceback" not in err
    for missing in ({"gama": 0.9}, {"temperature": 1.0}):
        with pytest.raises(load(name).SettingError, match=next(iter(missing))):
            load(name).resume(path, **missing)


# ---- Several processes ----


def worker(name, rank, port, folder, settings):
    """One of two processes, as torchrun would start it; leaves what it learned and saw in a file."""

    def task():
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        module, made, make_vec = edited(name), [], gym.make_vec  # a new module, which reads its number anew
        assert (module.RANK, module.PROCESSES) == (rank, 2)
        torch.distributed.init_process_group("gloo")
        gym.make_vec = lambda *args, **how: made.append(Recount(make_vec(*args, **how))) or made[-1]
        agent, history = module.train(module.Config(save=f"{folder}/kept.pt", **settings))
        (envs,) = made
        # The sums over all observations that were answered by an action, and not by a reset.
        obs, sums = np.array(envs.starts[: settings["num_envs"]]), 0.0
        for next_obs, _, _, _, over in envs.rows:
            valid = obs[~np.array(over)].astype(np.float64)
            sums += np.stack([np.ones_like(valid), valid, valid**2]).sum(1)
            obs = next_obs
        starts = [tuple(map(float, start)) for start in envs.starts]
        found = {"history": history, "starts": starts, "rows": len(envs.rows), "sums": sums}
        torch.save(found | {"agent": agent.state_dict()}, f"{folder}/{rank}.pt")
        torch.distributed.destroy_process_group()

    return task


@pytest.mark.parametrize("sizes", [(4, 25, 4), (1, 25, 8)], ids=str)
@pytest.mark.parametrize("name", PPO)
def test_processes_share_weights_and_scale_but_no_episodes(name, sizes, tmp_path):
    total = 500 * sizes[0]
    settings = dict(zip(("num_envs", "num_steps", "num_minibatches"), sizes)) | {"total_steps": total, "epochs": 1}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    children = [fork(worker(name, rank, port, tmp_path, settings), folders[rank]) for rank in (0, 1)]
    for child, folder in zip(children, folders):
        status, _, err = ended(child, folder)
        assert status == 0, err
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1))
    assert same(one["agent"], two["agent"]) and one["history"] != two["history"]
    assert one["starts"] and not set(one["starts"]) & set(two["starts"])
    assert one["rows"] == two["rows"] == total // 2 // sizes[0]
    mean_sums = (one["sums"] + two["sums"]) / 2
    assert 0.45 * total < mean_sums[0, 0] <= 0.5 * total
    for k, key in enumerate(("scale.count", "scale.sum", "scale.sum_of_squares")):
        assert np.allclose(one["agent"][key].numpy(), mean_sums[k], rtol=1e-6)
    kept = read(tmp_path / "kept.pt")
    assert same(kept["agent"], one["agent"]) and kept["history"] == one["history"] and kept["env_step"] == total
    # One process alone would have learned something else.
    with contextlib.redirect_stdout(io.StringIO()):
        alone, _ = load(name).train(load(name).Config(**settings | {"total_steps": total // 2}))
    assert not torch.equal(alone.state_dict()["policy.0.weight"], one["agent"]["policy.0.weight"])


def test_torchrun_runs_and_one_process_prints_and_saves(tmp_path):
    arguments = flags(num_envs=1, num_steps=25, num_minibatches=8, total_steps=200, epochs=2, eval_episodes=2)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["ppo_discrete.py", *arguments, "--save", str(tmp_path / "kept.pt")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("evaluation") == 2 and result.stdout.count("step 200 ") == 1
    assert read(tmp_path / "kept.pt")["env_step"] == 200 and os.listdir(tmp_path) == ["kept.pt"]


# ---- Films and windows ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_film_takes_three_lines(name, tmp_path):
    module, env_id = load(name), load(name).Config.env_id
    settings = {} if name == "reinforce" else {"num_steps": 10}
    agent, _ = module.train(module.Config(total_steps=100, **settings))
    envs = gym.make_vec(env_id, 1, vectorization_mode="sync", render_mode="rgb_array")
    envs = gym.wrappers.vector.RecordVideo(envs, str(tmp_path / "film"), video_length=30)
    scores = module.evaluate(agent, env_id, episodes=1, envs=envs)
    (film,) = (tmp_path / "film").iterdir()
    assert film.suffix == ".mp4" and film.stat().st_size > 1_000
    assert scores == pytest.approx(module.evaluate(agent, env_id, episodes=1), rel=1e-3)


@pytest.mark.parametrize("name", SCRIPTS)
def test_render_plays_an_episode_in_a_window(name, monkeypatch, capsys):
    """In a window that SDL only pretends to open."""
    module, shown = load(name), []
    kind = {"CartPole-v1": CartPoleEnv, "Pendulum-v1": PendulumEnv}[module.Config.env_id]
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(kind.metadata, "render_fps", 10_000)  # nobody watches
    render = kind.render
    monkeypatch.setattr(kind, "render", lambda self: shown.append(self.render_mode) or render(self))
    arguments = flags(total_steps=100, eval_episodes=0)
    status, _, err = run_main(module, monkeypatch, capsys, *arguments)
    assert status is None and err == "" and shown == []
    status, out, err = run_main(module, monkeypatch, capsys, *arguments, "--render")
    assert status is None and err == "" and len(shown) > 5 and set(shown) == {"human"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_cannot_be_shown_is_known_before_training(name, monkeypatch, capsys):
    status, out, err = run_main(load(name), monkeypatch, capsys, "--env-id", marked(name), "--render")
    assert status == 2 and out == "" and err.count("\n") == 1 and marked(name) in err


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_missing_screen_is_known_before_training(name, monkeypatch, capsys):
    module, closed = load(name), []
    kind = {"CartPole-v1": CartPoleEnv, "Pendulum-v1": PendulumEnv}[module.Config.env_id]

    def no_screen(self):
        raise RuntimeError("no screen")

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    close = kind.close
    monkeypatch.setattr(kind, "close", lambda self: closed.append(self.render_mode) or close(self))
    status, out, err = run_main(module, monkeypatch, capsys, *flags(total_steps=0, eval_episodes=0), "--render")
    assert status is None and closed.count("human") >= 2  # the trial's window, and the one that was played in
    monkeypatch.setattr(kind, "render", no_screen)
    with pytest.raises(RuntimeError, match="no screen"):
        run_main(module, monkeypatch, capsys, *flags(total_steps=100, eval_episodes=0), "--render")
    assert "step" not in capsys.readouterr().out


@pytest.mark.parametrize("name", PPO)
def test_a_bit_that_changed_on_the_disk_is_noticed(name, checkpoints, tmp_path, monkeypatch, capsys):
    """In the weights, where no value looks wrong."""
    path, whole = tmp_path / "flipped.pt", checkpoints[name].read_bytes()
    weights = read(checkpoints[name])["agent"]["policy.0.weight"].numpy().tobytes()
    start, draw = whole.index(weights), random.Random(name)
    for _ in range(10):
        place = start + draw.randrange(len(weights))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :])
        arguments = flags(load=path, total_steps=0, eval_episodes=0)
        status, out, err = run_main(load(name), monkeypatch, capsys, *arguments)
        assert status == 2 and out == "" and err.count("\n") == 1 and "not a checkpoint" in err


@pytest.mark.parametrize("name", PPO)
def test_a_link_stays_and_its_target_is_replaced(name, tmp_path, quiet):
    (tmp_path / "large disk").mkdir()
    link, target = tmp_path / "kept.pt", tmp_path / "large disk" / "kept.pt"
    link.symlink_to(target)
    module = load(name)
    module.train(small(name, link, total_steps=40))
    assert link.is_symlink() and not target.is_symlink() and read(target)["env_step"] == 40
    assert os.listdir(tmp_path / "large disk") == ["kept.pt"]
    module.train(module.resume(str(target), save=str(link), total_steps=80))
    assert link.is_symlink() and read(target)["env_step"] == 80


@pytest.mark.parametrize("name", PPO)
def test_a_checkpoint_cannot_say_where_to_save(name, checkpoints, tmp_path, monkeypatch, capsys):
    good = read(checkpoints[name])
    good["config"]["save"] = str(tmp_path / "somewhere.pt")
    torch.save(good, tmp_path / "given.pt")
    arguments = flags(load=tmp_path / "given.pt", total_steps=0, eval_episodes=0)
    status, _, err = run_main(load(name), monkeypatch, capsys, *arguments)
    assert status is None and err == "" and os.listdir(tmp_path) == ["given.pt"]
