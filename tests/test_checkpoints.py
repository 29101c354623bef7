"""Keeping a run: checkpoints, interrupts, faults of disk and files, several processes, films."""

import contextlib
import io
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
import traceback

import pytest
import torch
from conftest import PPO, ROOT, SCRIPTS, load, marked, run_main


def small(name, path="", **settings):
    """A short run on marked episodes."""
    sizes = {} if name == "reinforce" else {"num_steps": 5}
    sizes |= {"num_minibatches": 1, "epochs": 2} if name in PPO else {}
    defaults = {"env_id": marked(name), "total_steps": 400, "num_envs": 2, "save": str(path)}
    return load(name).Config(**defaults | sizes | settings)


def read(path):
    return torch.load(path, weights_only=True)


def same(one, other):
    """Whether two nested structures of tensors and plain values are equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A checkpoint of each script, by name."""
    folder, paths = tmp_path_factory.mktemp("checkpoints"), {}
    for name in SCRIPTS:
        paths[name] = folder / f"{name}.pt"
        with contextlib.redirect_stdout(io.StringIO()):
            load(name).train(small(name, paths[name], **({"normalize_reward": True} if name in PPO else {})))
    return paths


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_checkpoint_brings_everything_back(name, tmp_path, quiet):
    module, path = load(name), tmp_path / "kept.pt"
    agent, history = module.train(small(name, path))
    kept = read(path)
    assert same(kept["agent"], agent.state_dict()) and same(kept["history"], history)
    assert {"obs_sums", "adam_mean", "adam_square", "adam_steps"} <= kept["agent"].keys() and kept["env_step"] >= 400
    assert kept["agent"]["adam_steps"] > 5 and kept["agent"]["adam_square"].any()
    again, history_again = module.train(module.Config(load=str(path), total_steps=0))
    assert same(again.state_dict(), agent.state_dict()) and history_again == history
    assert torch.equal(again.weights, agent.weights)
    assert os.listdir(tmp_path) == ["kept.pt"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_resumed_run_goes_on_where_it_was_with_other_episodes(name, checkpoints, recount, monkeypatch, quiet):
    module, steps = load(name), []
    made, adam, before = recount(module), module.adam, read(checkpoints[name])

    def recorded(*args, lr, **how):
        steps.append((lr, int(args[-1][0]), args[2][0].clone(), args[3][0].clone()))
        return adam(*args, lr=lr, **how)

    monkeypatch.setattr(module, "adam", recorded)
    resume = module.Config(load=str(checkpoints[name]), total_steps=800)
    agent, history = module.train(resume)
    assert history[: len(before["history"])] == before["history"] and 700 < history[-1][0] < 900
    assert steps[0][0] == pytest.approx(resume.learning_rate * (1 - before["env_step"] / 800))
    assert steps[0][1] == before["agent"]["adam_steps"] and torch.equal(steps[0][2], before["agent"]["adam_mean"])
    assert torch.equal(steps[0][3], before["agent"]["adam_square"])
    if name in PPO:  # the running spread of rewards goes on, too
        assert before["reward_stats"]["count"] > 300 and agent.reward_stats["count"] > before["reward_stats"]["count"] + 300
    _, again = module.train(resume)
    assert again == history  # to the last bit
    task = "Pendulum-v1" if name == "ppo_continuous" else "CartPole-v1"
    path = checkpoints[name].with_name(f"{name}_starts.pt")
    made.clear()
    module.train(small(name, path, env_id=task))
    module.train(module.Config(load=str(path), total_steps=800))
    first, second = made
    assert first.starts and second.starts and not set(first.starts) & set(second.starts)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_settings_are_the_checkpoints_where_none_are_given(name, checkpoints, monkeypatch, capsys):
    """On the command line as in Python."""
    module, seen, train = load(name), [], load(name).train
    path = str(checkpoints[name])
    monkeypatch.setattr(module, "train", lambda config, run: seen.append(config) or train(config, run))
    run_main(module, monkeypatch, capsys, "--load", path, "--total-steps", "0", "--gamma", "0.5")
    for config in (seen.pop(), module.Config(load=path, total_steps=0, gamma=0.5)):
        assert (config.gamma, config.total_steps, config.load) == (0.5, 0, path)
        assert (config.env_id, config.num_envs, config.save) == (marked(name), 2, "")
    default = module.Config().learning_rate
    other = checkpoints[name].with_name(f"{name}_rate.pt")
    train(small(name, other, learning_rate=1e-4, total_steps=0))
    assert module.Config(load=str(other)).learning_rate == 1e-4
    assert module.Config(load=str(other), learning_rate=default).learning_rate == default  # given, although the default


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_saves_on_the_way_and_prints_afterwards(name, tmp_path, monkeypatch):
    module, steps = load(name), []

    class Out(io.StringIO):
        def write(self, text):
            if text.startswith("step"):
                steps.append((read(tmp_path / "kept.pt")["env_step"], int(text.split()[1].replace(",", ""))))

    with contextlib.redirect_stdout(Out()):
        module.train(small(name, tmp_path / "kept.pt", total_steps=2_000))
    assert 10 <= len(steps) <= 22 and steps == sorted(steps) and steps[-1][0] >= 2_000
    assert all(saved == printed for saved, printed in steps)


# ---- Interrupts and faults ----


def fork(task, folder):
    """Runs task() in a process of its own. Returns its number; what it prints goes to files in folder."""
    for name in ("out", "err"):
        (folder / name).write_text("")
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        signal.alarm(60)  # so that no failure here leaves a process behind
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
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


def ended(child, folder):
    """Waits for a process: (exit status, or minus the signal that killed it; stdout; stderr)."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), (folder / "out").read_text(), (folder / "err").read_text()


def command_line(name, *arguments):
    def task():
        sys.argv = [f"{name}.py", *map(str, arguments)]
        load(name).main()

    return task


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("name", SCRIPTS)
def test_ctrl_c_saves_what_was_learned_last(name, tmp_path, monkeypatch, quiet):
    module, path, calls = load(name), tmp_path / "kept.pt", []
    descend = module.descend

    def stop(*args):
        calls.append(args)
        if len(calls) == 9:  # long after the first report, and long before the second
            raise KeyboardInterrupt
        descend(*args)

    monkeypatch.setattr(module, "descend", stop)
    agent, history = module.train(small(name, path, total_steps=10**6))
    kept = read(path)
    assert agent.status == 130 and same(kept["agent"], agent.state_dict()) and same(kept["history"], history)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", SCRIPTS)
def test_signals_at_random_moments_lose_nothing(name, number, checkpoints, tmp_path):
    path = tmp_path / "kept.pt"
    path.write_bytes(checkpoints[name].read_bytes())
    moments, saved = random.Random(f"{name} {number}"), read(path)["env_step"]
    for _ in range(4):
        before = path.stat().st_mtime_ns
        child = fork(command_line(name, "--load", path, "--save", path, "--total-steps", 10**7), tmp_path)
        wait_until(lambda: path.stat().st_mtime_ns != before)
        time.sleep(0.05 + moments.random() * 0.5)
        os.kill(child, number)
        status, _, err = ended(child, tmp_path)
        assert status == 130 and "Traceback" not in err, err
        kept = read(path)
        assert kept["env_step"] > saved and kept["history"][-1][0] <= kept["env_step"]
        saved = kept["env_step"]
    assert sorted(os.listdir(tmp_path)) == ["err", "kept.pt", "out"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_interrupted_train_returns_what_was_learned(name, quiet):
    module, handlers = load(name), [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.4)
    agent, history = module.train(small(name, total_steps=10**8))
    assert history and agent.status == 130 and agent.weights.isfinite().all()
    assert module.evaluate(agent, marked(name), episodes=3).shape == (3,)
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_sigkill_during_a_save_leaves_a_whole_checkpoint(name, tmp_path):
    module, path, moments = load(name), tmp_path / "kept.pt", random.Random(name)

    def task():
        config = small(name, path)
        _, agent, env_step, history = module.set_up(config)
        agent.register_buffer("ballast", torch.zeros(5_000_000))  # so that writing takes most of the time
        while True:
            module.save(config, agent, env_step, history)

    for _ in range(8):
        path.unlink(missing_ok=True)
        child = fork(task, tmp_path)
        wait_until(lambda: path.exists() and path.stat().st_size > 10**6)
        time.sleep(moments.random() * 0.2)
        os.kill(child, signal.SIGKILL)
        assert ended(child, tmp_path)[0] == -signal.SIGKILL
        assert len(read(path)["agent"]["ballast"]) == 5_000_000


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_full_disk_costs_neither_the_run_nor_the_old_checkpoint(name, checkpoints, tmp_path):
    path = tmp_path / "kept.pt"
    path.write_bytes(checkpoints[name].read_bytes())

    def task():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))  # a file of this process cannot grow further
        command_line(name, "--load", path, "--save", path, "--total-steps", 500)()

    status, out, err = ended(fork(task, tmp_path), tmp_path)
    assert status == 1 and out.count("evaluation") == 2  # the run went on; the status tells of the last save
    assert err.count("\n") == err.count(f"--save {path}: step") >= 1
    assert path.read_bytes() == checkpoints[name].read_bytes()


class Malicious:
    """An object whose unpickling would make a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", SCRIPTS)
def test_foreign_damaged_and_malicious_files_cost_one_line(name, checkpoints, tmp_path, monkeypatch, capsys):
    path, whole, good = tmp_path / "given.pt", checkpoints[name].read_bytes(), read(checkpoints[name])
    contents = [b"", b"import this\n", random.Random(1).randbytes(5_000), whole[: len(whole) // 2], whole[:-1]]
    contents += [pickle.dumps(Malicious(tmp_path / "executed")), pickle.dumps({"config": Malicious(tmp_path / "executed")}, 2)]
    agent = good["agent"]
    longer = {key: torch.zeros(999) if key.startswith("adam_") else value for key, value in agent.items()}
    for structure in (
        {"config": Malicious(tmp_path / "executed")}, torch.zeros(3), [1, 2], {}, {"config": 7},
        *({key: value for key, value in good.items() if key != gone} for gone in good),
        good | {"agent": longer},  # which torch's Adam would write past the end of
        good | {"agent": agent | {"obs_sums": torch.zeros(3, 9)}}, good | {"agent": {}},
        good | {"config": good["config"] | {"gamma": 9.0}}, good | {"config": good["config"] | {"temperature": 1.0}},
    ):
        file = io.BytesIO()
        torch.save(structure, file)
        contents.append(file.getvalue())
    for content in contents:
        path.write_bytes(content)
        status, _, err = run_main(load(name), monkeypatch, capsys, "--load", str(path), "--total-steps", "0")
        assert status == 2 and err.count("\n") == 1 and "Traceback" not in err, (content[:80], err)
        assert path.read_bytes() == content and not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_checkpoint_that_does_not_fit_costs_one_line(name, checkpoints, monkeypatch, capsys):
    path = str(checkpoints[name])
    for arguments in (["--hidden-size", "7"], *([["--hidden-layers", "3"]] if name != "reinforce" else [])):
        status, _, err = run_main(load(name), monkeypatch, capsys, "--load", path, *arguments)
        assert status == 2 and err.count("\n") == 1 and "size" in err
    for other in set(SCRIPTS) - {name}:
        status, _, err = run_main(load(other), monkeypatch, capsys, "--load", path, "--total-steps", "0")
        assert status == 2 and err.count("\n") == 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_overwritten_and_an_unwritable_place_is_known_before_training(name, checkpoints, tmp_path, monkeypatch, capsys):
    path, film = tmp_path / "old.pt", tmp_path / "film"
    path.write_bytes(b"somebody's work")
    film.mkdir()
    (film / "old.mp4").write_bytes(b"somebody's film")
    for arguments in (["--save", path], ["--load", checkpoints[name], "--save", path], ["--video", film], ["--video", path],
                      ["--save", tmp_path / "missing" / "kept.pt"], ["--save", path / "kept.pt"], ["--save", film]):
        status, out, err = run_main(load(name), monkeypatch, capsys, *map(str, arguments))
        assert status == 2 and err.count("\n") == 1 and "episode" not in out and str(arguments[-1]) in err, arguments
    assert path.read_bytes() == b"somebody's work" and os.listdir(film) == ["old.mp4"]
    assert sorted(os.listdir(tmp_path)) == ["film", "old.pt"]


# ---- Several processes ----

WORKER = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests"]
import torch
from conftest import load, Recount
module, folder = load(sys.argv[2]), sys.argv[3]
torch.distributed.init_process_group("gloo")
rank, made, make_vec = module.RANK, [], module.gym.make_vec
module.gym.make_vec = lambda *args, **how: made.append(Recount(make_vec(*args, **how))) or made[-1]
agent, history = module.train(module.Config(total_steps=4_000, num_envs=4, num_steps=25, save=f"{folder}/kept.pt"))
seen = torch.tensor([[float(x) for x in row] for obs, *_ in made[0].rows for row in obs])
torch.save({"agent": agent.state_dict(), "history": history, "starts": made[0].starts, "rows": len(made[0].rows), "sum": seen.double().sum(0)},
           f"{folder}/{rank}.pt")
torch.distributed.destroy_process_group()
"""


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", PPO)
def test_processes_share_weights_and_statistics_but_no_episodes(name, tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    result = torchrun(str(tmp_path / "worker.py"), str(ROOT), name, str(tmp_path))
    assert result.returncode == 0, result.stderr
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1))
    assert same(one["agent"], two["agent"]) and one["history"] != two["history"]
    assert not set(one["starts"]) & set(two["starts"])
    assert one["rows"] == two["rows"] == 4_000 // 2 // 4
    count = float(one["agent"]["obs_sums"][0, 0])
    assert 3_500 < count < 4_001  # the observations of both, without those that were answered by a reset
    kept = read(tmp_path / "kept.pt")
    assert same(kept["agent"], one["agent"]) and kept["env_step"] == 4_000
    with contextlib.redirect_stdout(io.StringIO()):
        alone, _ = load(name).train(load(name).Config(total_steps=4_000, num_envs=4, num_steps=25))
    assert not same(alone.state_dict()["adam_mean"], one["agent"]["adam_mean"])


def test_under_torchrun_one_process_prints(tmp_path):
    result = torchrun("ppo_discrete.py", "--total-steps", "2000", "--save", str(tmp_path / "kept.pt"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("evaluation") == 2 and read(tmp_path / "kept.pt")["env_step"] >= 2_000


# ---- Films and windows ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_video(name, tmp_path, monkeypatch, capsys):
    flags = ["--total-steps", "100", "--save", str(tmp_path / "kept.pt"), "--video", str(tmp_path / "film")]
    status, _, err = run_main(load(name), monkeypatch, capsys, *flags)
    assert status is None and err == ""
    (film,) = (tmp_path / "film").glob("*.mp4")
    assert film.stat().st_size > 1_000


def test_render(monkeypatch, capsys):
    """In a window that SDL only pretends to open."""
    status, _, err = run_main(load("reinforce"), monkeypatch, capsys, "--total-steps", "100", "--render")
    assert status is None and err == ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_cannot_be_shown_is_known_before_training(name, tmp_path, monkeypatch, capsys):
    for how in (["--render"], ["--video", str(tmp_path / "film")]):
        status, out, err = run_main(load(name), monkeypatch, capsys, "--env-id", marked(name), *how)
        assert status == 2 and out == "" and err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "moviepy", None)
    status, out, err = run_main(load(name), monkeypatch, capsys, "--video", str(tmp_path / "film2"))
    assert status == 2 and out == "" and err.count("\n") == 1 and "MoviePy is not installed" in err
