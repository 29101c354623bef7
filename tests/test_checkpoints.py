"""Keeping a run: what a checkpoint brings back, files that are none, interrupted saves; films and windows."""

import contextlib
import io
import os
import pickle
import random
import re
import shutil

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import PPO, SCRIPTS, activation_of, load, marked, parse_line, run_main, spy
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.wrappers.vector import TransformReward
from torch.nn.functional import linear

SIZES = {"num_envs": 2, "num_steps": 5, "num_minibatches": 1, "epochs": 2, "hidden_size": 8}
gym.register("ShortPendulum-v0", PendulumEnv, max_episode_steps=50)  # in which small errors do not grow


def small(name, path="", **settings):
    return load(name).Config(**{"env_id": marked(name), "total_steps": 400, "save": str(path)} | SIZES | settings)


def flags(**settings):
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def read(path):
    return torch.load(path, weights_only=True)


def resumed(name, path, **given):
    """The settings of a resumed run, as in README."""
    return load(name).Config(**torch.load(path)["config"] | dict(load=str(path), **given))


def plain(x):
    """Without tensors, so that == compares nested structures to the last bit."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    return (x.dtype, x.tolist()) if isinstance(x, torch.Tensor) else [*map(plain, x)] if isinstance(x, list) else x


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A checkpoint of each PPO script, by name."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with contextlib.redirect_stdout(io.StringIO()):
        for name in PPO:
            load(name).train(small(name, folder / f"{name}.pt"))
    return {name: folder / f"{name}.pt" for name in PPO}


def spy_on_save(module, monkeypatch):
    """A list, in which train() leaves what belongs into a checkpoint each time it could write one."""
    found, save = [], module.save

    def noted(config, agent, optimizer, envs, env_step, history):
        returns = {key: float(getattr(envs.return_rms, key)) for key in ("mean", "var", "count")}
        found.append(plain({"agent": agent.state_dict(), "optimizer": optimizer.state_dict(),
                            "returns": returns, "env_step": env_step, "history": history}))
        save(config, agent, optimizer, envs, env_step, history)

    monkeypatch.setattr(module, "save", noted)
    return found


@pytest.mark.parametrize("name", PPO)
def test_a_checkpoint_brings_everything_back_to_the_last_bit(name, tmp_path, monkeypatch, quiet):
    module, path = load(name), tmp_path / "kept.pt"
    seen = spy_on_save(module, monkeypatch)
    config = small(name, path, eval_episodes=3, render=True)
    agent, history = module.train(config)
    trained, kept = seen[-1], read(path)
    assert plain(kept) == trained | {"config": kept["config"]}
    assert plain(kept["agent"]) == plain(agent.state_dict())
    assert kept["config"] == vars(config) | {"save": "", "load": "", "render": False}  # these are each run's own
    assert kept["env_step"] == 400 and kept["history"] == history and len(history) > 50
    centre, squares, count = (kept["agent"][f"scale.{key}"] for key in ("centre", "sum_of_squares", "count"))
    assert centre.tolist() == [1, 0, 0] and squares[0] > 300 and count > 300
    assert all(x["returns"]["count"] == pytest.approx(x["agent"]["scale.count"][1], abs=0.01) for x in seen)
    assert all(x["step"] == 80 and x["exp_avg"].any() for x in kept["optimizer"]["state"].values())
    assert kept["returns"]["mean"] != 0 and kept["returns"]["var"] != 1 and kept["returns"]["count"] > 300

    _, history_again = module.train(resumed(name, path, total_steps=0))
    assert seen[-1] == trained and history_again == history and os.listdir(tmp_path) == ["kept.pt"]


@pytest.mark.parametrize("name", PPO)
def test_a_resumed_run_begins_with_what_its_environments_show(name, checkpoints, wrap, monkeypatch, quiet):
    module, seen, made = load(name), [], wrap()
    spy(monkeypatch, module.ActorCritic, "act", lambda action, agent, obs: seen.append(obs.tolist()))
    module.train(resumed(name, checkpoints[name], total_steps=410))
    assert seen[0] == [list(start) for start in made[0].starts[:2]]


@pytest.mark.parametrize("name", PPO)
def test_a_checkpoint_without_a_weight_is_no_checkpoint(name, checkpoints, tmp_path, quiet):
    kept = read(checkpoints[name])
    del kept["agent"]["policy.0.bias"]
    torch.save(kept, tmp_path / "kept.pt")
    with pytest.raises(RuntimeError, match="policy.0.bias"):
        load(name).train(resumed(name, tmp_path / "kept.pt"))


@pytest.mark.parametrize("name", PPO)
def test_settings_may_be_numpys_numbers_and_can_still_be_loaded(name, tmp_path, quiet):
    module, path = load(name), tmp_path / "kept.pt"
    kinds = {int: np.int64, float: np.float64}  # as from a sweep
    numpys = {key: kinds[type(x)](x) for key, x in vars(small(name, total_steps=100)).items() if type(x) in kinds}
    _, history = module.train(small(name, path, **numpys))
    assert module.train(resumed(name, path, total_steps=np.int64(0)))[1] == history != []
    assert all(type(value) is type(getattr(small(name), key)) for key, value in read(path)["config"].items())


@pytest.mark.parametrize("name", PPO)
def test_a_resumed_run_goes_on_where_it_was_with_other_episodes(name, checkpoints, monkeypatch, wrap, tmp_path):
    module, steps, before = load(name), [], read(checkpoints[name])
    seen, step = spy_on_save(module, monkeypatch), module.Adam.step

    def noted(adam):
        steps.append(plain(adam.state_dict()))
        step(adam)

    monkeypatch.setattr(module.Adam, "step", noted)
    config = resumed(name, checkpoints[name], total_steps=500)
    _, history = module.train(config)
    assert history[: len(before["history"])] == before["history"] and 480 < history[-1][0] <= 500
    assert steps[0]["param_groups"][0]["lr"] == config.learning_rate * (1 - 400 / 500) and len(steps) == 2 * 10
    assert steps[0]["state"] == plain(before["optimizer"]["state"])
    assert seen[-1]["agent"]["scale.centre"] == plain(before["agent"]["scale.centre"])
    assert seen[-1]["returns"]["count"] > before["returns"]["count"] + 60
    assert seen[-1]["agent"]["scale.count"][1] > before["agent"]["scale.count"] + 60
    assert module.train(config)[1] == history

    made = wrap()
    module.train(small(name, tmp_path / "kept.pt", env_id=module.Config.env_id, total_steps=100))
    for seed in (0, 1):
        module.train(resumed(name, tmp_path / "kept.pt", total_steps=200, seed=seed))
    starts = [set(envs.starts) for envs in made]
    assert min(map(len, starts)) >= 2 and len(set.union(*starts)) == sum(map(len, starts))  # none in common


@pytest.mark.parametrize("name", PPO)
def test_a_resumed_run_draws_other_actions_than_the_run_began_with(name, tmp_path, monkeypatch, quiet):
    """The policy does not learn here and is nearly the same in all states: only the random numbers tell runs apart."""
    module, path, actions = load(name), tmp_path / "kept.pt", []
    spy(monkeypatch, module.ActorCritic, "act", lambda action, *_: actions.append(action))
    module.train(small(name, path, learning_rate=0.0, num_steps=50, total_steps=100))
    module.train(resumed(name, path, total_steps=200))
    first, second = np.concatenate(actions[:50]), np.concatenate(actions[50:])
    assert len(first) == len(second) and np.isclose(first, second, atol=0.1).mean() < 0.6
    actions.clear()
    module.train(resumed(name, path, total_steps=200))  # but once more it draws the same ones
    assert (np.concatenate(actions) == second).all()


@pytest.mark.parametrize("name", PPO)
def test_a_resumed_run_says_how_many_steps_are_left_to_train(name, checkpoints, capsys):
    for total, left in ((1_500, "1,100"), (400, "0"), (0, "0")):
        load(name).train(resumed(name, checkpoints[name], total_steps=total))
        line, *others = capsys.readouterr().out.splitlines()
        assert line == f"resumed at step 400 with new episodes: --total-steps leaves {left} to train"
        assert bool(others) == (left != "0") and all(parse_line(other).step > 400 for other in others)


def likeliest(state, obs, name):
    """The likeliest action, computed from a checkpoint's bare tensors, as single environments take it."""
    bend = activation_of(load(name).Config())
    layers = sorted({int(key.split(".")[1]) for key in state if key.startswith("policy.")})
    x = (2 * (torch.as_tensor(obs) - state["scale.centre"]) / state["scale.rms"]).clamp(-10, 10)
    for layer in layers:
        x = linear(x, state[f"policy.{layer}.weight"], state[f"policy.{layer}.bias"])
        x = x if layer == layers[-1] else bend(x)
    # Pendulum's torque goes from -2 to 2, and the policy's from -1 to 1.
    return int(x.argmax()) if name == "ppo_discrete" else (2 * x.clamp(-1, 1)).numpy()


def greedy_scores(state, name, task, episodes, seed):
    """The scores of the likeliest actions, recounted in single environments."""
    scores = []
    for i in range(episodes):
        env, score, over = gym.make(task), 0.0, False
        obs, _ = env.reset(seed=seed + i)
        while not over:
            obs, reward, terminated, truncated, _ = env.step(likeliest(state, obs, name))
            score, over = score + reward, terminated or truncated
        scores.append(score)
    return scores


@pytest.mark.parametrize("name", PPO)
def test_a_reloaded_agents_greedy_score_is_a_recount(name, tmp_path, monkeypatch, capsys):
    module, path, make_vec = load(name), tmp_path / "kept.pt", gym.make_vec
    task, episodes, seed = "CartPole-v1" if name == "ppo_discrete" else "ShortPendulum-v0", 4, 7_500
    module.train(module.Config(env_id=task, total_steps=1_000, save=str(path), seed=2))
    state = read(path)["agent"]
    expected = greedy_scores(state, name, task, episodes, seed)
    for key in ("scale.rms", "scale.centre"):  # they make a difference, so their loss would show
        blind = greedy_scores(state | {key: torch.ones_like(state[key])}, name, task, episodes, seed)
        assert expected != pytest.approx(blind, rel=1e-2)
    # Single environments, stepped one by one, begin with their own seeds.
    monkeypatch.setattr(gym, "make_vec", lambda *how: make_vec(*how, vectorization_mode="sync"))
    how = dict(load=path, total_steps=0, eval_episodes=episodes, seed=7)
    status, out, err = run_main(module, monkeypatch, capsys, *flags(**how))
    evaluation = rf"evaluating in {episodes} environments\ngreedy evaluation: (\S+) over {episodes} episodes"
    printed = float(re.fullmatch(rf"resumed.*\n{evaluation}\n", out)[1])
    assert (status, err) == (None, "") and printed == pytest.approx(np.mean(expected), rel=1e-3)
    agent, _ = module.train(resumed(name, path, total_steps=0))
    assert module.evaluate(agent, module.make_envs(task, episodes), seed=7) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", PPO)
def test_load_takes_the_checkpoints_settings_and_a_setting_given_anew_wins(name, tmp_path, monkeypatch, capsys):
    module, default, seen, path = load(name), load(name).Config(), [], tmp_path / "kept.pt"
    module.train(small(name, path, learning_rate=1e-4, total_steps=0, eval_episodes=7, seed=5, gamma=0.5))
    monkeypatch.setattr(module, "train", lambda config: (None, []))
    spy(monkeypatch, module, "train", lambda _, config: seen.append(config))
    monkeypatch.setattr(module, "evaluate", lambda agent, envs, **how: np.zeros(envs.num_envs))
    for given in (
        {}, {"learning_rate": default.learning_rate}, {"env_id": default.env_id}, {"env_id": marked(name)},
        {"total_steps": 7, "gamma": 0.25}, {"num_envs": default.num_envs, "eval_episodes": 9}, {"save": str(path), "seed": 6},
    ):
        assert run_main(module, monkeypatch, capsys, *flags(load=path, **given))[0] is None
        assert seen[-1] == resumed(name, path, **given)
        kept = {"env_id": marked(name), **SIZES, "learning_rate": 1e-4, "total_steps": 0, "seed": 5, "gamma": 0.5}
        kept["eval_episodes"] = 7
        assert vars(seen[-1]) == vars(default) | kept | {"load": str(path)} | given


@pytest.mark.parametrize("name", PPO)
def test_it_saves_with_each_report_and_at_the_end(name, tmp_path, monkeypatch, capsys):
    saved = []
    spy(monkeypatch, torch, "save", lambda _, kept, *where: saved.append(kept["env_step"]))
    monkeypatch.chdir(tmp_path)
    load(name).train(small(name, "kept.pt", total_steps=1_000, epochs=1, num_steps=25))
    printed = [parse_line(line).step for line in capsys.readouterr().out.splitlines()]
    assert 15 <= len(printed) <= 22 and saved == [*printed, 1_000] and read(tmp_path / "kept.pt")["env_step"] == 1_000


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=["Ctrl-C", "disk"])
@pytest.mark.parametrize("name", PPO)
def test_a_save_that_stops_halfway_leaves_the_file_before_it(name, fault, tmp_path, monkeypatch, capsys):
    """What stands under the name is a whole checkpoint at any time, as a new one is put there in one stroke.

    A file can only be moved in one stroke within its folder: what is written first lies in the checkpoint's own.
    """
    module, path, save, replace, saves, put = load(name), tmp_path / "kept.pt", torch.save, os.replace, [], []

    def content():
        return path.read_bytes() if path.exists() else None

    def half(kept, target):
        saves.append(kept["env_step"])
        before = content()
        save(kept, target)
        assert os.path.dirname(target) == str(tmp_path) and content() == before
        assert os.path.basename(target).startswith(path.name)  # else two runs would share it
        whole.before = before
        if len(saves) == 3:
            os.truncate(target, 1_000)
            raise fault

    def whole(source, target):
        assert target == str(path) and content() == whole.before
        put.append(read(source)["env_step"])
        replace(source, target)

    monkeypatch.setattr(torch, "save", half)
    monkeypatch.setattr(os, "replace", whole)
    with contextlib.nullcontext() if fault is KeyboardInterrupt else pytest.raises(OSError, match="No space left"):
        agent, history = module.train(small(name, path))
    if fault is KeyboardInterrupt:  # the save that was cut off is made up for
        assert f"stopped at step {saves[2]}\n" in capsys.readouterr().out and saves[2:] == [saves[2]] * 2
        assert plain(read(path)["agent"]) == plain(agent.state_dict()) and read(path)["history"] == history
    assert put == saves[:2] + saves[3:] and read(path)["env_step"] == put[-1]


@pytest.mark.parametrize("name", PPO)
def test_ctrl_c_saves_what_was_learned_and_main_then_evaluates(name, tmp_path, monkeypatch, capsys):
    """Here it comes with the ninth optimizer step, long after the first report and before the second."""
    module, path, calls = load(name), tmp_path / "kept.pt", []
    seen, step = spy_on_save(module, monkeypatch), module.Adam.step

    def stop(adam):
        calls.append(adam)
        if len(calls) >= 9:
            raise KeyboardInterrupt
        step(adam)

    monkeypatch.setattr(module.Adam, "step", stop)
    how = dict(env_id=marked(name), total_steps=10**6, save=path, eval_episodes=2, **SIZES)
    status, out, err = run_main(module, monkeypatch, capsys, *flags(**how))
    assert (status, err) == (None, "")
    assert re.search(r"^stopped at step 50\nevaluating in 2 .*\ngreedy evaluation: \S+ over 2 episodes\n\Z", out, re.M)
    kept = read(path)
    assert plain(kept) == seen[-1] | {"config": kept["config"]} and kept["env_step"] == 50
    assert kept["history"][-1][0] > 20 and kept["optimizer"]["state"][0]["step"] == 8
    monkeypatch.setattr(module.ActorCritic, "act", lambda agent, *_: stop(agent))
    with pytest.raises(KeyboardInterrupt):  # a second one ends the evaluation, too
        run_main(module, monkeypatch, capsys, *flags(load=path, total_steps=0))


@pytest.mark.parametrize("name", PPO)
def test_a_run_that_dies_of_nan_leaves_the_good_checkpoint(name, tmp_path, monkeypatch, wrap, quiet):
    """Here all rewards from step 22 on are not numbers; of the run that goes on, all."""
    module, path, zeros = load(name), tmp_path / "kept.pt", iter([0.0] * 22)
    seen = spy_on_save(module, monkeypatch)
    wrap(lambda envs: TransformReward(envs, lambda reward: reward + next(zeros, np.nan)))
    with pytest.raises(RuntimeError, match="non-finite"):
        module.train(small(name, path))
    kept, content = read(path), path.read_bytes()
    assert plain(kept) == seen[-1] | {"config": kept["config"]} and kept["env_step"] == 30
    assert all(x.isfinite().all() for x in kept["agent"].values()) and np.isfinite([*kept["returns"].values()]).all()
    with pytest.raises(RuntimeError, match="non-finite"):
        module.train(resumed(name, path, save=str(path)))
    assert path.read_bytes() == content and os.listdir(tmp_path) == ["kept.pt"]


@pytest.mark.parametrize("name", PPO)
def test_a_checkpoint_of_a_gpu_can_be_loaded_where_there_is_none(name, tmp_path, monkeypatch, capsys):
    module, path = load(name), tmp_path / "kept.pt"
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:99")  # it is written to the file
        _, history = module.train(small(name, path))
    with pytest.raises(RuntimeError, match="CUDA"):
        read(path)
    assert module.train(small(name, load=str(path)))[1] == history
    assert run_main(module, monkeypatch, capsys, *flags(load=path, total_steps=0, eval_episodes=0))[0] is None


@pytest.mark.parametrize("name", PPO)
def test_loading_writes_only_on_request_and_a_copy_can_be_continued(name, checkpoints, tmp_path, monkeypatch, capsys):
    module, copied, other = load(name), tmp_path / "copy.pt", tmp_path / "other.pt"
    shutil.copy(checkpoints[name], copied)
    content, kept = copied.read_bytes(), read(copied)

    def run(**how):
        status, _, err = run_main(module, monkeypatch, capsys, *flags(load=copied, eval_episodes=0, **how))
        assert status is None and err == ""

    run(total_steps=0)
    assert os.listdir(tmp_path) == ["copy.pt"] and copied.read_bytes() == content
    run(total_steps=0, save=other)
    assert plain(read(other)) == plain(kept | {"config": kept["config"] | {"total_steps": 0, "eval_episodes": 0}})
    other.unlink()
    run(total_steps=450, save=other)
    assert read(other)["env_step"] == 450 and read(other)["history"][: len(kept["history"])] == kept["history"]
    assert sorted(os.listdir(tmp_path)) == ["copy.pt", "other.pt"] and copied.read_bytes() == content
    run(total_steps=420, save=copied)  # the one that is loaded may be written over
    assert read(copied)["env_step"] == 420


@pytest.mark.parametrize("name", PPO)
def test_nothing_is_overwritten_and_a_wrong_place_is_known_at_once(name, checkpoints, tmp_path, monkeypatch, capsys):
    module, old, folder = load(name), tmp_path / "old.pt", tmp_path / "folder"
    old.write_bytes(b"somebody's work")
    folder.mkdir()
    for save in (old, folder, f"{folder}/", tmp_path / "missing" / "kept.pt", old / "kept.pt"):
        for how in ({}, {"load": checkpoints[name]}):
            status, out, err = run_main(module, monkeypatch, capsys, *flags(total_steps=10, save=save, **how))
            assert (status, out, err.count("\n")) == (2, "", 1), save
            assert "--save must be a new file" in err and f"'{save}'" in err
        with pytest.raises(ValueError, match=rf"--save must be a new file.*'{save}'"):
            module.train(small(name, save))
    assert capsys.readouterr().out == "" and old.read_bytes() == b"somebody's work"
    assert sorted(os.listdir(tmp_path)) == ["folder", "old.pt"] and os.listdir(folder) == []


@pytest.mark.filterwarnings("ignore")  # of torch, about what these files hold
@pytest.mark.parametrize("name", PPO)
def test_missing_foreign_damaged_and_malicious_files_cost_one_line(name, checkpoints, tmp_path, monkeypatch, capsys):
    module, given, reduce = load(name), tmp_path / "given.pt", lambda _: (os.mkdir, (f"{tmp_path}/executed",))
    evil = type("Malicious", (), {"__reduce__": reduce})()  # its unpickling would make a folder
    whole, good, (other,) = checkpoints[name].read_bytes(), read(checkpoints[name]), set(PPO) - {name}
    contents = [b"", b"import this\n", random.Random(1).randbytes(5_000), whole[: len(whole) // 2], whole[:-1]]
    contents += [checkpoints[other].read_bytes(), pickle.dumps(evil), pickle.dumps({"config": evil}, 2)]
    without = {key: value for key, value in good.items() if key != "config"}
    for wrong in (evil, {"config": evil}, without, {}, [1, 2], torch.zeros(3), {"config": 7}, {"config": {"gama": 0.9}},
                  {"config": {3: 4}}, {"config": good["config"] | {"gamma": 9.0}}):
        torch.save(wrong, file := io.BytesIO())
        contents.append(file.getvalue())

    def is_refused(content=None):
        for how in ({}, {"save": given}):
            status, out, err = run_main(module, monkeypatch, capsys, *flags(load=given, total_steps=500, **how))
            assert (status, out, err.count("\n")) == (2, "", 1), (content, err)
            assert re.search(f"--load {given}: missing, or not|--gamma 9.0: must be|actions must be", err)

    is_refused()
    for content in contents:
        given.write_bytes(content)
        is_refused(content)
        with contextlib.nullcontext() if content == contents[10] else pytest.raises(Exception):
            module.train(small(name, load=str(given)))  # which needs no "config"
        assert os.listdir(tmp_path) == ["given.pt"] and given.read_bytes() == content  # and nothing was executed
    given.unlink()
    given.mkdir()
    is_refused()


@pytest.mark.parametrize("name", PPO)
def test_a_film_takes_three_lines(name, tmp_path, quiet):
    module, task = load(name), (load(name).Config.env_id, 1)
    agent, _ = module.train(module.Config(total_steps=50, num_steps=10))
    envs = module.make_envs(*task, vectorization_mode="sync", render_mode="rgb_array")
    envs = gym.wrappers.vector.RecordVideo(envs, str(tmp_path / "film"), video_length=5)
    scores = module.evaluate(agent, envs)
    envs.close()
    assert [film.stat().st_size > 1_000 for film in (tmp_path / "film").glob("*.mp4")] == [True]
    assert scores == module.evaluate(agent, module.make_envs(*task, vectorization_mode="sync"))


@pytest.mark.parametrize("name", PPO)
def test_render_plays_an_episode_in_a_window(name, tmp_path, monkeypatch, capsys):
    module, path, shown, played, seen = load(name), tmp_path / "kept.pt", [], [], {}
    kind = CartPoleEnv if name == "ppo_discrete" else PendulumEnv
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # SDL only pretends to open a window
    monkeypatch.setitem(kind.metadata, "render_fps", 10_000)  # nobody watches
    spy(monkeypatch, kind, "render", lambda frame, env: shown.append(env.render_mode))

    def step(answer, env, action):
        played.append((seen["obs"], np.array(action)))
        seen["obs"] = answer[0]

    spy(monkeypatch, kind, "reset", lambda answer, *_: seen.update(obs=answer[0]))
    spy(monkeypatch, kind, "step", step)
    how = flags(total_steps=0, eval_episodes=0)
    assert run_main(module, monkeypatch, capsys, *how) == (None, "", "") and shown == []
    played.clear()
    status, _, err = run_main(module, monkeypatch, capsys, *how, "--render", "--save", path)
    assert (status, err, {*shown}) == (None, "", {"human"}) and len(shown) > 5
    # It shows the likeliest actions. Those that are drawn are quite others, as the policy has learned nothing.
    state = read(path)["agent"]
    for obs, action in played:
        np.testing.assert_allclose(action, likeliest(state, obs, name), atol=1e-5)
    assert len(played) > 5


@pytest.mark.parametrize("name", SCRIPTS)
def test_evaluating_in_mid_training_changes_nothing(name, monkeypatch, quiet):
    module, sizes = load(name), {} if name == "reinforce" else {"num_steps": 10}
    config = module.Config(env_id=marked(name), total_steps=150, hidden_size=8, **sizes)
    agent, history = module.train(config)
    scores, envs = [], module.make_envs(marked(name), 3)
    spy(monkeypatch, module, "update", lambda result, agent, *_: scores.append(module.evaluate(agent, envs)))
    other, history_again = module.train(config)
    assert len(scores) >= 3 and history_again == history
    assert plain(other.state_dict()) == plain(agent.state_dict())
