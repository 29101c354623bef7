"""Keeping a run: checkpoints, signals, faults of disk and files, several processes, films."""

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
import zipfile

import pytest
import torch
from conftest import PPO, ROOT, SCRIPTS, load, marked, run_main


def small(name, path="", **settings):
    """A short run on marked episodes; 60 steps make 20 rollouts or so."""
    sizes = {} if name == "reinforce" else {"num_steps": 5}
    sizes |= {"minibatch_size": 10, "epochs": 2} if name in PPO else {}
    defaults = {"env_id": marked(name), "total_steps": 400, "num_envs": 2, "normalize_obs": True, "save": str(path)}
    return load(name).Config(**defaults | sizes | settings)


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
            load(name).train(small(name, paths[name]))
    return paths


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_checkpoint_brings_everything_back(name, tmp_path, capsys):
    module, path = load(name), tmp_path / "kept.pt"
    agent, history = module.train(small(name, path))
    checkpoint = module.read_checkpoint(path)
    assert same(checkpoint["agent"], agent.state_dict()) and same(checkpoint["history"], history)
    assert checkpoint["script"] == f"{name}.py" and checkpoint["config"] == vars(small(name, path))
    assert torch.equal(checkpoint["rng"], torch.get_rng_state())
    again, history_again = module.train(small(name, load=str(path), total_steps=0))
    assert same(again.state_dict(), agent.state_dict()) and history_again == history
    assert f"{checkpoint['env_step']} steps" in capsys.readouterr().out


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_resumed_run_goes_on_where_it_was(name, checkpoints, monkeypatch, quiet):
    module, starts, steps = load(name), [], []
    step = torch.optim.Adam.step

    def recorded(self):
        steps.append((self.param_groups[0]["lr"], [state["step"].item() for state in self.state.values()]))
        return step(self)

    class Run(module.Run):
        def __init__(self, *args):
            super().__init__(*args)
            starts.append((self.env_step, same(self.optimizer.state_dict()["state"], before["optimizer"]["state"])))
            assert torch.equal(torch.get_rng_state(), before["rng"])

    before = module.read_checkpoint(checkpoints[name])
    monkeypatch.setattr(torch.optim.Adam, "step", recorded)
    monkeypatch.setattr(module, "Run", Run)
    resume = small(name, load=str(checkpoints[name]), total_steps=800)
    _, history = module.train(resume)
    assert starts == [(before["env_step"], True)] and before["env_step"] >= 400
    assert history[: len(before["history"])] == before["history"] and history[-1][0] >= 780
    done = before["optimizer"]["state"][0]["step"].item()
    assert done > 1 and steps[0][1][0] == done and len(steps) > 5
    assert steps[0][0] == pytest.approx(resume.learning_rate * (1 - before["env_step"] / 800))
    _, again = module.train(resume)
    assert again == history  # to the last bit
    steps.clear()
    module.train(small(name, load=str(checkpoints[name]), total_steps=800, anneal_lr=False, learning_rate=1e-4))
    assert {rate for rate, _ in steps} == {1e-4}  # the new setting, not the old one's rest


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_resumed_run_plays_other_episodes(name, checkpoints, recount, quiet):
    module = load(name)
    made = recount(module)
    settings = {"env_id": "Pendulum-v1" if name == "ppo_continuous" else "CartPole-v1", "normalize_obs": False}
    path = checkpoints[name].with_name(f"{name}_starts.pt")
    module.train(small(name, path, **settings))
    module.train(small(name, load=str(path), total_steps=800, **settings))
    first, second = made
    assert first.starts and second.starts and not set(first.starts) & set(second.starts)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_command_line_takes_the_settings_of_the_checkpoint(name, checkpoints, monkeypatch, capsys):
    module, seen, train = load(name), [], load(name).train
    monkeypatch.setattr(module, "train", lambda config: seen.append(config) or train(config))
    path = str(checkpoints[name])
    status, out, err = run_main(module, monkeypatch, capsys, "--load", path)  # nothing is left to train
    assert status is None and err == "" and "steps were trained" in out and out.count("evaluation") == 2
    assert seen.pop() == small(name, load=path)
    run_main(module, monkeypatch, capsys, "--load", path, "--total-steps", "0", "--gamma", "0.5")
    assert seen.pop() == small(name, load=path, total_steps=0, gamma=0.5)


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_saves_on_the_way(name, tmp_path, monkeypatch, quiet):
    module, steps = load(name), []

    class Run(module.Run):
        def save(self):
            super().save()
            steps.append(module.read_checkpoint(tmp_path / "kept.pt")["env_step"])

    monkeypatch.setattr(module, "Run", Run)
    module.train(small(name, tmp_path / "kept.pt", total_steps=2_000))
    assert len(steps) >= 10 and steps == sorted(steps) and steps[-1] >= 2_000
    assert os.listdir(tmp_path) == ["kept.pt"]


# ---- The fault drill ----


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
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", SCRIPTS)
def test_signals_at_random_moments_lose_nothing(name, number, checkpoints, tmp_path):
    module, path = load(name), tmp_path / "kept.pt"
    path.write_bytes(checkpoints[name].read_bytes())
    moments, saved = random.Random(f"{name} {number}"), module.read_checkpoint(path)["env_step"]
    for _ in range(5):
        child = fork(command_line(name, "--load", path, "--save", path, "--total-steps", 10**7), tmp_path)
        while b"steps were trained" not in (tmp_path / "out").read_bytes():
            time.sleep(0.005)
        time.sleep(0.05 + moments.random() * 0.7)
        os.kill(child, number)
        status, out, err = ended(child, tmp_path)
        assert (status, err) == (130, "stopped\n"), err
        checkpoint = module.read_checkpoint(path)
        assert f"step {checkpoint['env_step']:,} " in out.splitlines()[-1]
        assert checkpoint["env_step"] > saved and checkpoint["history"][-1][0] <= checkpoint["env_step"]
        saved = checkpoint["env_step"]
    assert sorted(os.listdir(tmp_path)) == ["err", "kept.pt", "out"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_second_ctrl_c_stops_at_once(name, tmp_path):
    """A rollout of this environment takes minutes."""
    sizes = [] if name == "reinforce" else ["--num-steps", 10_000]
    child = fork(command_line(name, "--env-id", marked(name).replace("Marked", "Slow"), *sizes), tmp_path)
    time.sleep(0.7)
    os.kill(child, signal.SIGINT)
    time.sleep(0.3)
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(child, signal.SIGINT)
    assert ended(child, tmp_path)[::2] == (130, "stopped\n")


@pytest.mark.parametrize("name", SCRIPTS)
def test_sigkill_during_a_save_leaves_a_whole_checkpoint(name, checkpoints, tmp_path):
    module, path = load(name), tmp_path / "kept.pt"
    moments = random.Random(name)
    settings = {"load": str(checkpoints[name]), "total_steps": 10**6}

    class SavesAllTheTime(module.Run):
        def report(self, *measure):
            self.agent.register_buffer("ballast", torch.zeros(5_000_000))  # so that writing takes most of the time
            while True:
                self.save()

    def task():
        module.Run = SavesAllTheTime
        module.train(small(name, path, **settings))

    for _ in range(10):
        path.unlink(missing_ok=True)
        child = fork(task, tmp_path)
        while not path.exists():
            time.sleep(0.005)
        time.sleep(moments.random() * 0.2)
        os.kill(child, signal.SIGKILL)
        assert ended(child, tmp_path)[0] == -signal.SIGKILL
        assert len(module.read_checkpoint(path)["agent"]["ballast"]) == 5_000_000


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_full_disk_costs_neither_the_run_nor_the_old_checkpoint(name, checkpoints, tmp_path):
    path = tmp_path / "kept.pt"
    path.write_bytes(checkpoints[name].read_bytes())

    def task():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))  # a file of this process cannot grow further
        command_line(name, "--load", path, "--save", path, "--total-steps", 500)()

    status, out, err = ended(fork(task, tmp_path), tmp_path)
    assert status == 0 and out.count("evaluation") == 2
    assert err.count("\n") == err.count(f"--save {path}: not saved at step") >= 1 and "File too large" in err
    assert path.read_bytes() == checkpoints[name].read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["err", "kept.pt", "out"]


class Malicious:
    """An object whose unpickling would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def damaged_files(good, folder):
    """(kind, path) for files that are no checkpoints, each in another way."""
    whole = good.read_bytes()
    for part in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        yield f"cut to {part} bytes", whole[:part]
    chance = random.Random(0)
    for _ in range(20):  # single bytes changed where the structure is: at the end, the zip's directory
        spoilt = bytearray(whole)
        spoilt[-chance.randrange(1, 800)] ^= 1 << chance.randrange(8)
        yield "spoilt", bytes(spoilt)
    yield "text", b"import this\n"
    yield "noise", random.Random(1).randbytes(5_000)
    yield "pickle", pickle.dumps({"script": "x"})
    yield "malicious pickle", pickle.dumps(Malicious(folder / "executed"))
    yield "malicious pickle in protocol 2", pickle.dumps({"script": Malicious(folder / "executed")}, protocol=2)
    for name, content in {
        "malicious checkpoint": {"script": "ppo_discrete.py", "agent": Malicious(folder / "executed")},
        "weights alone": torch.nn.Linear(2, 2).state_dict(),
        "tensor": torch.zeros(3),
        "list": [1, 2, 3],
        "empty": {},
    }.items():
        contents = io.BytesIO()
        torch.save(content, contents)
        yield name, contents.getvalue()
    contents = io.BytesIO()
    with zipfile.ZipFile(contents, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(Malicious(folder / "executed")))
    yield "malicious zip", contents.getvalue()


@pytest.mark.parametrize("name", SCRIPTS)
def test_damaged_foreign_and_malicious_files_cost_one_line(name, checkpoints, tmp_path, monkeypatch, capsys):
    path, refused = tmp_path / "given.pt", 0
    for kind, contents in damaged_files(checkpoints[name], tmp_path):
        path.write_bytes(contents)
        status, out, err = run_main(load(name), monkeypatch, capsys, "--load", str(path), "--total-steps", "0")
        if kind == "spoilt" and status is None:
            continue  # a byte that nothing depends on
        refused += 1
        assert status == 2 and err.count("\n") == 1 and f"--load {path}" in err, (kind, err)
        assert path.read_bytes() == contents and not (tmp_path / "executed").exists(), kind
    assert refused > 16


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_checkpoint_with_parts_missing_or_wrong_costs_one_line(name, checkpoints, tmp_path, monkeypatch, capsys):
    good, path = torch.load(checkpoints[name], weights_only=True), tmp_path / "given.pt"
    spoilt = [{key: value for key, value in good.items() if key != gone} for gone in good]
    spoilt += [good | {key: 7} for key in good]
    spoilt.append(good | {"agent": good["agent"] | {"obs_norm.running_mean": torch.zeros(9)}})
    spoilt.append(good | {"config": good["config"] | {"gamma": 9.0}})
    for contents in spoilt:
        torch.save(contents, path)
        status, _, err = run_main(load(name), monkeypatch, capsys, "--load", str(path), "--total-steps", "0")
        assert status in (2, None) and err.count("\n") == (status == 2), err
        assert status == 2 or contents["env_step"] == 7


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_checkpoint_of_another_script_environment_or_shape_is_named(name, checkpoints, monkeypatch, capsys):
    path = str(checkpoints[name])
    for other in set(SCRIPTS) - {name}:
        _, _, err = run_main(load(other), monkeypatch, capsys, "--load", path)
        assert f"was saved by {name}.py" in err and err.count("\n") == 1
    env_id = "Pendulum-v1" if name == "ppo_continuous" else "CartPole-v1"
    for flag, wanted, saved in (
        ("--env-id", env_id, marked(name)),
        ("--hidden-size", "7", str(small(name).hidden_size)),
        ("--hidden-layers", "3", str(small(name).hidden_layers)),
        ("--activation", *(("tanh", "relu") if name == "ppo_continuous" else ("relu", "tanh"))),
        *([("--obs-clip", "5.0", "0.0")] if name in PPO else []),
    ):
        status, _, err = run_main(load(name), monkeypatch, capsys, "--load", path, flag, wanted)
        assert status == 2 and err.count("\n") == 1 and f"{flag} {wanted}" in err and f"{flag} {saved}" in err


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_overwritten(name, checkpoints, tmp_path, monkeypatch, capsys):
    path, film = tmp_path / "old.pt", tmp_path / "film"
    path.write_bytes(b"somebody's work")
    film.mkdir()
    (film / "old.mp4").write_bytes(b"somebody's film")
    for arguments in (["--save", path], ["--load", checkpoints[name], "--save", path], ["--video", film]):
        status, out, err = run_main(load(name), monkeypatch, capsys, *map(str, arguments))
        assert status == 2 and err.count("\n") == 1 and "%" not in out and str(arguments[-1]) in err
    assert path.read_bytes() == b"somebody's work" and os.listdir(film) == ["old.mp4"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_unwritable_place_is_known_before_training(name, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for path in ("missing/kept.pt", "file/kept.pt", "folder"):
        status, out, err = run_main(load(name), monkeypatch, capsys, "--save", str(tmp_path / path))
        assert status == 2 and out == "" and err.count("\n") == 1 and f"--save {tmp_path / path}" in err
    status, out, err = run_main(load(name), monkeypatch, capsys, "--video", str(tmp_path / "file"))
    assert status == 2 and out == "" and err.count("\n") == 1 and "--video" in err


# ---- Several processes ----

RANK = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, importlib
from torch import distributed as dist
module, folder = importlib.import_module(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
rank = dist.get_rank()
values = [torch.full((2, 3), float(rank)), torch.tensor(10.0 * rank)]
module.average(values)
assert values[0].tolist() == [[0.5] * 3] * 2 and values[1].item() == 5.0
make_vec = module.gym.make_vec
seeds = []
class Seen(module.gym.vector.VectorWrapper):
    def reset(self, *, seed=None, options=None):
        seeds.append(seed)
        return self.env.reset(seed=seed, options=options)
module.gym.make_vec = lambda *args, **options: Seen(make_vec(*args, **options))
agent, history = module.train(module.Config(total_steps=3_000, normalize_obs=True, save=f"{folder}/kept.pt"))
torch.save({"agent": agent.state_dict(), "history": history, "seeds": seeds}, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", PPO)
def test_processes_end_with_identical_weights(name, tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    result = torchrun(str(tmp_path / "rank.py"), str(ROOT), name, str(tmp_path))
    assert result.returncode == 0, result.stderr
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert same(ranks[0]["agent"], ranks[1]["agent"]) and ranks[0]["history"] != ranks[1]["history"]
    assert abs(ranks[0]["seeds"][0] - ranks[1]["seeds"][0]) > 1_000  # no environment plays another's episodes
    kept = load(name).read_checkpoint(tmp_path / "kept.pt")
    assert same(kept["agent"], ranks[0]["agent"]) and kept["env_step"] >= 3_000
    with contextlib.redirect_stdout(io.StringIO()):
        alone, _ = load(name).train(load(name).Config(total_steps=3_000, normalize_obs=True))
    assert not same(alone.state_dict(), ranks[0]["agent"])


def test_under_torchrun_one_process_prints(tmp_path):
    result = torchrun("ppo_discrete.py", "--total-steps", "2000", "--save", str(tmp_path / "kept.pt"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("100%") == 1 and result.stdout.count("evaluation") == 2


# ---- Films and windows ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_video(name, tmp_path, monkeypatch, capsys):
    flags = ["--total-steps", "100", "--save", str(tmp_path / "kept.pt"), "--video", str(tmp_path / "film")]
    status, _, err = run_main(load(name), monkeypatch, capsys, *flags)
    assert status is None and err == ""
    films = list((tmp_path / "film").glob("*.mp4"))
    assert len(films) == 3 and min(film.stat().st_size for film in films) > 1_000


def test_render(monkeypatch, capsys):
    """In a window that SDL only pretends to open."""
    status, _, err = run_main(load("reinforce"), monkeypatch, capsys, "--total-steps", "100", "--render")
    assert status is None and err == ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_environment_that_cannot_be_shown_costs_one_line(name, tmp_path, monkeypatch, capsys):
    for how in (["--render"], ["--video", str(tmp_path / "film")]):
        status, out, err = run_main(load(name), monkeypatch, capsys, "--env-id", marked(name), *how)
        assert status == 2 and out == "" and err.count("\n") == 1 and "--render or --video" in err
    no_screen = load(name).gym.make("CartPole-v1")
    monkeypatch.setattr(no_screen.unwrapped, "reset", lambda **_: (_ for _ in ()).throw(RuntimeError("No display")))
    with pytest.raises(load(name).UsageError, match="No display"):
        load(name).watch(no_screen, None)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_missing_moviepy_is_named_before_training(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "moviepy", None)
    status, out, err = run_main(load(name), monkeypatch, capsys, "--video", str(tmp_path / "film"))
    assert status == 2 and out == "" and err.count("\n") == 1 and "MoviePy is not installed, run `pip install" in err


@pytest.mark.parametrize("name", SCRIPTS)
def test_processes_for_environments(name, monkeypatch, quiet):
    module, modes = load(name), []
    make_vec = module.gym.make_vec

    def recorded(*args, **options):
        envs = make_vec(*args, **options)
        modes.append(type(envs.unwrapped).__name__)
        return envs

    monkeypatch.setattr(module.gym, "make_vec", recorded)
    _, history = module.train(small(name, vectorization="async"))
    _, in_turn = module.train(small(name, vectorization="sync"))
    assert history and history == in_turn
    assert modes == ["AsyncVectorEnv", "SyncVectorEnv"]
