"""Keeping a run: what a checkpoint brings back, what is never overwritten, files that are none, and watching."""

import os
import pickle

import pytest
import torch
from conftest import PPO, config_of, load, weights_of
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv


@pytest.fixture
def checkpoint(corridor):
    """checkpoint(script) trains for 240 steps, writes kept.pt, and returns the agent and its config."""
    def make(name):
        config = config_of(name, env_id=corridor(name, end=3, odd=True, noise=1.0), save="kept.pt")
        return load(name).train(config)[0], config
    return make


def plain(x):
    """Without tensors, so that == compares nested structures to the last bit."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    return x.tolist() if isinstance(x, torch.Tensor) else [*map(plain, x)] if isinstance(x, list) else x


def resumed(config, **settings):
    return type(config)(**vars(config) | dict(save="", load="kept.pt") | settings)


@pytest.mark.parametrize("name", PPO)
def test_a_checkpoint_brings_everything_back_to_the_last_bit(name, checkpoint):
    agent, config = checkpoint(name)
    again, history = load(name).train(resumed(config, save="again.pt"))
    assert history == [] and plain(again.state_dict()) == plain(agent.state_dict())
    kept = torch.load("kept.pt")
    assert plain(torch.load("again.pt")) == plain(kept)
    assert kept["env_step"] == 240 and kept["optimizer"]["state"][0]["step"] == 10 * 2 * 4
    assert kept["returns"]["count"] == pytest.approx(240, abs=0.01) and kept["returns"]["mean"] != 0


@pytest.mark.parametrize("name", PPO)
def test_a_resumed_run_goes_on_at_its_step_with_the_rate_of_that_step(name, checkpoint, monkeypatch, capsys):
    module, rates = load(name), []
    agent, config = checkpoint(name)
    step = module.Adam.step
    monkeypatch.setattr(module.Adam, "step", lambda adam: (rates.append(adam.param_groups[0]["lr"]), step(adam)))
    capsys.readouterr()
    again, _ = module.train(resumed(config, total_steps=480))
    assert rates[0] == config.learning_rate * (1 - 240 / 480)
    assert capsys.readouterr().out.startswith("step 264 of 480 ") and not torch.equal(weights_of(again), weights_of(agent))


@pytest.mark.parametrize("name", PPO)
def test_it_is_written_at_each_printed_line_and_on_ctrl_c(name, corridor, monkeypatch, capsys):
    module, steps, reports = load(name), [], []
    replace, report = os.replace, module.report

    def stop_at_the_third(config, env_step, *numbers):
        report(config, env_step, *numbers)
        reports.append(env_step)
        if len(reports) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", lambda *paths: (steps.append(torch.load(paths[0])["env_step"]), replace(*paths)))
    monkeypatch.setattr(module, "report", stop_at_the_third)
    agent, _ = module.train(config_of(name, env_id=corridor(name), save="kept.pt"))
    assert steps == [0, *reports] and torch.load("kept.pt")["env_step"] == reports[-1]
    assert plain(torch.load("kept.pt")["agent"]) == plain(agent.state_dict())


@pytest.mark.parametrize("name", PPO)
def test_a_save_that_dies_halfway_leaves_the_checkpoint_before_it(name, checkpoint, monkeypatch):
    def half(checkpoint, path):
        with open(path, "wb") as file:
            file.write(b"half a file")
        raise OSError("No space left on device")

    _, config = checkpoint(name)
    before = open("kept.pt", "rb").read()
    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="No space left"):
        load(name).train(resumed(config, save="kept.pt", total_steps=480))
    assert open("kept.pt", "rb").read() == before


@pytest.mark.parametrize("name", PPO)
def test_a_file_that_was_not_loaded_is_never_overwritten(name, checkpoint):
    _, config = checkpoint(name)
    open("precious.txt", "w").write("work of years")
    for save, load_ in [("precious.txt", ""), ("precious.txt", "kept.pt"), ("kept.pt", "")]:
        before = open(save, "rb").read()
        with pytest.raises(FileExistsError, match=f"save='{save}' would overwrite"):
            load(name).train(resumed(config, save=save, load=load_))
        assert open(save, "rb").read() == before


@pytest.mark.parametrize("save", ["no/such/folder.pt", "."])
@pytest.mark.parametrize("name", PPO)
def test_a_path_that_cannot_be_written_ends_the_run_before_it_begins(name, save, capsys):
    with pytest.raises((OSError, RuntimeError)):
        load(name).train(config_of(name, save=save))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", PPO)
def test_a_run_that_dies_of_nan_leaves_the_good_checkpoint(name, checkpoint, corridor):
    _, config = checkpoint(name)
    before = plain(torch.load("kept.pt"))
    broken = corridor(name, reward=float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        load(name).train(resumed(config, save="kept.pt", env_id=broken, total_steps=480))
    assert plain(torch.load("kept.pt")) == before


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.filterwarnings("ignore")  # of torch, about what these files hold
@pytest.mark.parametrize("name", PPO)
def test_foreign_and_malicious_files_are_refused_and_run_nothing(name, checkpoint):
    _, config = checkpoint(name)
    torch.save({"agent": Malicious()}, "evil.pt")
    open("pickle.pt", "wb").write(pickle.dumps(Malicious()))
    open("text.pt", "w").write("import this\n")
    for load_, error in [("evil.pt", pickle.UnpicklingError), ("pickle.pt", pickle.UnpicklingError),
                         ("text.pt", pickle.UnpicklingError), ("missing.pt", FileNotFoundError)]:
        with pytest.raises(error):
            load(name).train(resumed(config, load=load_))
    assert not os.path.exists("executed")


@pytest.mark.parametrize("nothing", ["", None])
@pytest.mark.parametrize("name", PPO)
def test_no_save_and_no_load_leave_no_file(name, nothing):
    load(name).train(config_of(name, save=nothing, load=nothing))
    assert os.listdir() == []


@pytest.mark.parametrize("name", PPO)
def test_render_shows_greedy_play_in_a_window(name, run_main, monkeypatch):
    shown, kind = [], CartPoleEnv if name == "ppo_discrete" else PendulumEnv
    monkeypatch.setitem(kind.metadata, "render_fps", 10_000)  # nobody watches
    render = kind.render
    monkeypatch.setattr(kind, "render", lambda env: (shown.append(env.render_mode), render(env))[1])
    run_main(name, "--total-steps 0 --eval-episodes 0")
    assert shown == []
    run_main(name, "--total-steps 0 --eval-episodes 0 --render")
    assert len(shown) > 5 and set(shown) == {"human"}
