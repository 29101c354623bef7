"""Keeping a run: what a checkpoint brings back, what is never overwritten, files that are none, and watching."""

import os
import pickle

import numpy as np
import pytest
import torch
from conftest import PPO, SCRIPTS, config_of, load, weights_of
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv


@pytest.fixture
def checkpoint(corridor):
    """checkpoint(script) trains for 240 steps, writes kept.pt, and returns the agent and its config."""
    def make(name):
        config = config_of(name, env_id=corridor(name, end=3, odd=True, noise=1.0), save="kept.pt", render=True)
        return load(name).train(config)[0], config
    return make


def plain(x):
    """Without tensors, so that == compares nested structures to the last bit."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    return x.tolist() if isinstance(x, torch.Tensor) else [*map(plain, x)] if isinstance(x, list) else x


def resumed(config, **settings):
    return type(config)(**vars(config) | dict(save="", load="kept.pt") | settings)


def test_a_checkpoint_brings_everything_back_to_the_last_bit(ppo, checkpoint, monkeypatch):
    """A run that Ctrl-C ends before its first step saves what it has loaded."""
    def interrupted(*_):
        raise KeyboardInterrupt

    agent, config = checkpoint(ppo)
    again, history = load(ppo).train(resumed(config))
    assert history == [] and plain(again.state_dict()) == plain(agent.state_dict())
    with monkeypatch.context() as patch:
        patch.setattr(load(ppo).RolloutBuffer, "collect", interrupted)
        load(ppo).train(resumed(config, save="again.pt", total_steps=480))
    kept, again = torch.load("kept.pt"), torch.load("again.pt")
    assert kept["settings"] == vars(config) | dict(save="", load="", render=False)
    assert again.pop("settings") == kept["settings"] | dict(total_steps=480)
    again["optimizer"]["param_groups"][0]["lr"] = kept["optimizer"]["param_groups"][0]["lr"]  # that of its step
    assert plain(again) == plain({key: kept[key] for key in again}) and len(again) == 4
    assert kept["env_step"] == 240 and kept["optimizer"]["state"][0]["step"] == 10 * 2 * 4
    assert kept["returns"]["count"] == pytest.approx(240, abs=0.01) and kept["returns"]["mean"] != 0


def test_an_agent_plays_the_same_under_another_seed_and_number_of_environments(ppo, checkpoint):
    agent, config = checkpoint(ppo)
    again, _ = load(ppo).train(resumed(config, seed=5, num_envs=4, num_minibatches=16))
    obs = torch.randn(50, 2) * 3
    assert torch.equal(agent.value(obs), again.value(obs))
    assert (agent.act(obs, greedy=True) == again.act(obs, greedy=True)).all()


def test_a_resumed_run_goes_on_at_its_step_with_the_rate_of_that_step(ppo, checkpoint, monkeypatch, capsys):
    module, rates = load(ppo), []
    agent, config = checkpoint(ppo)
    step = module.Adam.step
    monkeypatch.setattr(module.Adam, "step", lambda adam: (rates.append(adam.param_groups[0]["lr"]), step(adam)))
    capsys.readouterr()
    again, _ = module.train(resumed(config, total_steps=480))
    assert rates[0] == config.learning_rate * (1 - 240 / 480)
    assert capsys.readouterr().out.startswith("resumed at step 240 of 480\nstep 264 of 480 ") and not torch.equal(weights_of(again), weights_of(agent))


def test_a_resumed_run_meets_new_episodes_and_random_numbers_and_can_be_repeated(ppo, corridor, monkeypatch):
    module, starts, weights = load(ppo), [], []

    def noted(buffer, envs, agent, obs, f=module.RolloutBuffer.collect):
        result = f(buffer, envs, agent, obs)
        first = buffer.obs[..., 0] < 1  # where an episode began, as each step leads one place on
        starts[-1] += [torch.initial_seed(), *buffer.obs[first][:, 0].tolist()]
        return result

    monkeypatch.setattr(module.RolloutBuffer, "collect", noted)
    config = config_of(ppo, env_id=corridor(ppo), save="kept.pt")
    for settings in (config, *(resumed(config, total_steps=480, seed=seed) for seed in (0, 0, 1))):
        starts.append([])
        weights.append(weights_of(module.train(settings)[0]))
    assert torch.equal(weights[1], weights[2]) and starts[1] == starts[2]
    assert len(starts[0]) > 40 and not set(starts[0]) & set(starts[1]) and not set(starts[1]) & set(starts[3])


def test_it_is_written_at_each_printed_line_and_on_ctrl_c(ppo, corridor, monkeypatch, capsys):
    module, steps, reports = load(ppo), [], []
    replace, report = os.replace, module.report

    def stop_at_the_third(config, env_step, *rest):
        report(config, env_step, *rest)
        reports.append(env_step)
        if len(reports) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", lambda *paths: (steps.append(torch.load(paths[0])["env_step"]), replace(*paths)))
    monkeypatch.setattr(module, "report", stop_at_the_third)
    agent, _ = module.train(config_of(ppo, env_id=corridor(ppo), save="kept.pt"))
    assert steps == reports and len(steps) == 3 and torch.load("kept.pt")["env_step"] == reports[-1]
    assert plain(torch.load("kept.pt")["agent"]) == plain(agent.state_dict())


def test_a_crash_in_the_first_update_leaves_no_file(ppo, monkeypatch):
    def crash(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(load(ppo), "update", crash)
    with pytest.raises(ZeroDivisionError):
        load(ppo).train(config_of(ppo, save="kept.pt"))
    assert os.listdir() == []


def test_a_checkpoints_settings_are_the_defaults_of_the_command_that_loads_it(ppo, corridor, run_main, monkeypatch):
    module, task = load(ppo), corridor(ppo)
    run_main(ppo, f"--env-id {task} --hidden-size 7 --num-envs 3 --num-steps 8 --num-minibatches 2 --total-steps 48 "
                   "--eval-episodes 2 --save kept.pt")
    configs = []
    monkeypatch.setattr(module, "train", lambda config, f=module.train: (configs.append(config), f(config))[1])
    assert run_main(ppo, "--load kept.pt") == "resumed at step 48 of 48\ngreedy evaluation: 5 over 2 episodes\n"
    other = corridor(ppo)
    run_main(ppo, f"--load kept.pt --save kept.pt --total-steps 96 --num-envs 4 --env-id {other}")
    first, then = map(vars, configs)
    given = dict(hidden_size=7, num_envs=3, num_steps=8, num_minibatches=2, total_steps=48, eval_episodes=2)
    assert first == vars(module.Config()) | module.OTHER_TASKS | given | dict(env_id=task, load="kept.pt")
    assert then == first | dict(save="kept.pt", total_steps=96, num_envs=4, env_id=other)
    kept = torch.load("kept.pt")
    assert kept["env_step"] == 112 and kept["settings"] == then | dict(save="", load="")
    config = module.config_for(load="kept.pt", seed=9)  # in Python
    assert vars(config) == kept["settings"] | dict(load="kept.pt", seed=9)
    assert module.config_for(task, load="kept.pt").env_id == task != config.env_id
    assert plain(module.train(config)[0].state_dict()) == plain(kept["agent"])


def test_numpys_numbers_train_and_are_kept_as_pythons(script):
    config = config_of(script)
    numbers = dict(learning_rate=np.logspace(-4, -2, 3)[1], hidden_size=np.int64(9), gamma=np.float32(0.5), seed=np.int64(1))
    config = type(config)(**vars(config) | numbers | (dict(save="kept.pt") if script in PPO else {}))
    assert all(type(x) in (int, float, str, bool) for x in vars(config).values())
    agent, _ = load(script).train(config)
    if script in PPO:
        again, _ = load(script).train(resumed(config))
        assert plain(again.state_dict()) == plain(agent.state_dict())
        load(script).train(resumed(config, total_steps=480))


def test_a_save_that_dies_halfway_leaves_the_checkpoint_before_it(ppo, checkpoint, monkeypatch):
    def half(checkpoint, path):
        with open(path, "wb") as file:
            file.write(b"half a file")
        raise OSError("No space left on device")

    _, config = checkpoint(ppo)
    before = open("kept.pt", "rb").read()
    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="No space left"):
        load(ppo).train(resumed(config, save="kept.pt", total_steps=480))
    assert open("kept.pt", "rb").read() == before and sorted(os.listdir()) == ["kept.pt", "kept.pt.tmp"]


def test_a_file_that_was_not_loaded_is_never_overwritten(ppo, checkpoint):
    _, config = checkpoint(ppo)
    open("precious.txt", "w").write("work of years")
    for save, load_ in [("precious.txt", ""), ("precious.txt", "kept.pt"), ("kept.pt", "")]:
        before = open(save, "rb").read()
        with pytest.raises(FileExistsError, match=f"save='{save}' would overwrite"):
            load(ppo).train(resumed(config, save=save, load=load_))
        assert open(save, "rb").read() == before


@pytest.mark.parametrize("save", ["no/such/folder.pt", "."])
def test_a_path_that_cannot_be_written_ends_the_run_with_its_first_line(ppo, save, capsys):
    with pytest.raises((OSError, RuntimeError)):
        load(ppo).train(config_of(ppo, save=save))
    assert capsys.readouterr().out.count("\n") <= 1


def test_a_run_that_dies_of_nan_leaves_the_good_checkpoint(ppo, checkpoint, corridor):
    _, config = checkpoint(ppo)
    before = plain(torch.load("kept.pt"))
    broken = corridor(ppo, reward=float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        load(ppo).train(resumed(config, save="kept.pt", env_id=broken, total_steps=480))
    assert plain(torch.load("kept.pt")) == before


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_a_malicious_file_is_refused_and_runs_nothing(ppo, checkpoint, run_main):
    _, config = checkpoint(ppo)
    torch.save({"agent": Malicious()}, "evil.pt")
    for run in (lambda: load(ppo).train(resumed(config, load="evil.pt")), lambda: run_main(ppo, "--load evil.pt")):
        with pytest.raises(pickle.UnpicklingError):
            run()
    assert not os.path.exists("executed")


def test_render_shows_greedy_play_in_a_window(ppo, run_main, monkeypatch):
    shown, kind = [], CartPoleEnv if ppo == "ppo_discrete" else PendulumEnv
    monkeypatch.setitem(kind.metadata, "render_fps", 10_000)  # nobody watches
    render = kind.render
    monkeypatch.setattr(kind, "render", lambda env: (shown.append(env.render_mode), render(env))[1])
    run_main(ppo, "--total-steps 0 --eval-episodes 0")
    assert shown == []
    act = load(ppo).ActorCritic.act
    monkeypatch.setattr(load(ppo).ActorCritic, "act", lambda *a, greedy: shown.append(greedy) or act(*a, greedy))
    run_main(ppo, "--total-steps 0 --eval-episodes 0 --render")
    assert len(shown) > 10 and set(shown) == {"human", True}
