"""The recipes: each diff fits the scripts, runs, and does what its first line says."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import runs
import torch
from runs import RECIPES

FLAGS = dict(mask="--env-id Taxi-v4", images="--env-id Picture-v0", film="--render")  # that a recipe needs


gym.register("Picture-v0", lambda: gym.wrappers.TransformObservation(  # dark on the left of 0, bright on the right
    gym.make("my_env:Reach-v0"), lambda place: np.full((12, 16, 3), 255 * (place > 0), np.uint8),
    gym.spaces.Box(0, 255, (12, 16, 3), np.uint8)))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Each test runs in a folder of its own, with a stand-in for wandb."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(RECIPES)
    monkeypatch.setitem(sys.modules, "wandb", mock.MagicMock())
    yield
    torch.set_default_device(None)


def load(script="ppo_discrete", recipe=None):
    """A script, patched by a recipe if there is one, as a fresh module in the test's folder."""
    return runs.load(script, recipe=recipe, folder=".")


def run(module, flags):
    with mock.patch("sys.argv", ["script", *flags.split()]):
        module.main()


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.diff")))
def test_a_recipe_fits_and_runs(name, capsys):
    for script in re.findall(r"^\+\+\+ b/(\w+)", (RECIPES / f"{name}.diff").read_text(encoding="utf-8"), re.M):
        module = load(script, name)
        if name != "processes":  # which needs torchrun, see below
            run(module, f"--total-steps 256 --num-steps 32 --eval-episodes 2 {FLAGS.get(name, '')}")
            assert "greedy evaluation: " in capsys.readouterr().out


def test_the_penalty_solves_cartpole(monkeypatch):
    module = load(recipe="penalty")
    monkeypatch.setattr(module, "report", lambda config, env_step, *_: env_step > 14_500 and signal.raise_signal(2))
    agent, history = module.train(module.Config(seed=1))  # which the report interrupts, before step 16,000
    assert max(np.convolve([score for _, score in history], np.ones(20) / 20, "valid")) >= 475
    assert agent.beta <= 4  # which it only is if the penalty holds the KL near its target


@pytest.mark.parametrize("kl, old, new", [(0.031, 4, 8), (0.029, 4, 4), (0.014, 4, 4), (0.013, 4, 2), (0.1, 8e3, 1e4)])
def test_the_penalty_moves_beta(monkeypatch, kl, old, new):
    module = load(recipe="penalty")
    monkeypatch.setattr(module, "update", lambda agent, *_: agent.beta.fill_(old))
    monkeypatch.setattr(module, "kl_divergence", lambda *_: torch.tensor(kl))
    agent, _ = module.train(module.Config(total_steps=125))  # a single update, in which the target is 0.02
    assert agent.state_dict()["beta"] == new


@pytest.mark.parametrize("critic", ["q", "advantage"])
def test_the_gradients_of_the_critics(critic):
    module = load("actor_critic", "critics")
    agent = module.ActorCritic(torch.randn(3, 4), n_actions=2, hidden_size=8)
    buffer = module.RolloutBuffer(5, 3, 4)
    buffer.obs, buffer.next_obs, buffer.reward = torch.randn(5, 3, 4), torch.randn(5, 3, 4), torch.randn(5, 3)
    buffer.action, buffer.terminated = torch.randint(2, (5, 3)), torch.rand(5, 3) < 0.3
    module.update(agent, torch.optim.SGD(agent.parameters(), 0), buffer, module.Config(critic=critic, max_grad_norm=99))
    mean_q, loss = np.mean([agent.q(buffer.obs[i])[buffer.action[i]].item() for i in np.ndindex(5, 3)]), 0
    for i in np.ndindex(5, 3):
        s, next_s, a = agent.scale(buffer.obs[i]), agent.scale(buffer.next_obs[i]), buffer.action[i]
        gamma = 0 if buffer.terminated[i] else 0.995
        q, v, probs = agent.q_critic(s)[a], agent.critic(s)[0], agent.policy(s).softmax(0)
        next_probs, next_q = agent.policy(next_s).softmax(0).tolist(), agent.q_critic(next_s).tolist()
        q_error = buffer.reward[i] + gamma * np.dot(next_probs, next_q) - q
        v_error = buffer.reward[i] + gamma * agent.critic(next_s)[0].item() - v
        weight, error = (q - mean_q, q_error**2) if critic == "q" else (q - v, q_error**2 + v_error**2)
        loss += (0.5 * error - weight.item() * probs[a].log() + 0.01 * (probs * probs.log()).sum()) / 15
    trained = [x for x in agent.parameters() if x.grad is not None]
    torch.testing.assert_close(torch.autograd.grad(loss, trained), tuple(x.grad for x in trained))


def test_the_mask_plays_only_what_has_an_effect():
    module = load(recipe="mask")
    envs = module.make_envs("Taxi-v4", 4)
    obs, _ = envs.reset(seed=0)
    buffer = module.RolloutBuffer(250, *obs.shape)
    buffer.collect(envs, module.ActorCritic(torch.Tensor(obs), 6, 32), obs)
    assert (buffer.obs != buffer.next_obs).any(-1).all()


def test_images_are_learned():
    module = load(recipe="images")
    _, history = module.train(module.Config(env_id="Picture-v0", total_steps=3_000, learning_rate=2e-3))
    assert np.mean([score for _, score in history[-20:]]) > -20  # at first about -100


DRIVER = """
import os, signal, torch, ppo_discrete
rank, update = os.environ["RANK"], ppo_discrete.update
def noted_update(agent, optimizer, batch, *args):
    rank == "1" and os.path.exists("result.pt") and signal.raise_signal(signal.SIGINT)  # Ctrl-C, in the second update
    update(agent, optimizer, batch, *args)
    torch.save((agent.state_dict(), batch[0]), "result.pt")
ppo_discrete.update = noted_update
os.mkdir(rank), os.chdir(rank)
ppo_discrete.main()
"""


def test_processes_share_an_agent_which_the_first_one_saves():
    load(recipe="processes")
    Path("driver.py").write_text(DRIVER)
    torchrun = "torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 2 driver.py --save agent.pt"
    subprocess.run([sys.executable, "-m", *torchrun.split()], check=True)
    (first, obs), (second, other_obs), saved = map(torch.load, ["0/result.pt", "1/result.pt", "0/agent.pt"])
    assert not torch.equal(obs, other_obs) and not os.path.exists("1/agent.pt")
    assert saved["agent"]["scale.count"] == saved["env_step"] < 30_000
    assert all(torch.equal(first[name], x) and torch.equal(saved["agent"][name], x) for name, x in second.items())


def test_async_environments_train_as_others_do():
    modules = load(), load(recipe="async")
    assert torch.equal(*[m.train(m.Config(total_steps=1_000))[0].policy[0].weight for m in modules])


def test_wandb_gets_what_is_printed(capsys):
    run(load(recipe="wandb"), "--total-steps 500 --eval-episodes 0")
    lines = re.findall(r"step (\d+) .*: (\S+)  kl (\S+)  entropy (\S+)", capsys.readouterr().out)
    logs = [mock.log.call_args_list for mock in (sys.modules["wandb"].init().__enter__(), sys.modules["wandb"])]
    assert lines == [(str(step), f"{log['average_score']:.6g}", f"{other['kl']:.2g}", f"{other['entropy']:.2g}")
                     for (log, step), (other, _) in zip(*[[call.args for call in calls] for calls in logs], strict=True)]


def test_after_async_environments_that_fail_ctrl_c_still_works():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(gym.error.NameNotFound):
        load(recipe="async").make_envs("Nonsense-v0", 2)
    assert signal.getsignal(signal.SIGINT) is before is not signal.SIG_IGN


def test_the_learning_rate_falls_along_a_cosine(monkeypatch):
    module, rates = load(recipe="optimizer"), []
    monkeypatch.setattr(module, "update", lambda agent, adamw, *_: rates.append(adamw.param_groups[0]["lr"]))
    module.train(module.Config(total_steps=500, learning_rate=0.02))
    assert rates == pytest.approx([0.02, 0.01 + 0.01 / 2**0.5, 0.01, 0.01 - 0.01 / 2**0.5])


def test_the_best_agent_is_kept_and_training_is_as_before(monkeypatch):
    plain, best, scores = load(), load(recipe="best"), []
    monkeypatch.setattr(best, "evaluate", lambda *a, f=best.evaluate, **b: scores.append(f(*a, **b)) or scores[-1])
    assert torch.equal(*[m.train(m.Config(total_steps=1_000))[0].policy[0].weight for m in (plain, best)])
    assert torch.load("best.pt")["env_step"] == 125 * (1 + np.mean(scores, axis=1).argmax())


def test_a_film_is_written():
    run(load(recipe="film"), "--total-steps 0 --eval-episodes 0 --render")
    assert os.listdir("film") == ["rl-video-episode-0.mp4"]


@pytest.mark.parametrize("env_id, score", [("my_env:Reach-v0", -10), ("my_lake:MyLake-v0", 10)])
def test_environments_of_ones_own_are_learned(env_id, score, capsys):
    run(load(), f"--env-id {env_id} --total-steps 4000 --num-steps 32 --num-minibatches 4")
    assert float(re.search("greedy evaluation: (.*) over", capsys.readouterr().out).group(1)) >= score
