"""The training loops on real environments: what enters a batch, what is counted, and that they learn."""

import copy
import itertools
import math
import re
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import (
    BOX, DISCRETE, PPO, ROOT, SCRIPTS, MarkedEnv, Recount, edited, load, marked, run_main,
)
from peer import SOLVED, StopWhenSolved
from torch.distributions import Independent, Normal
from torch.nn.utils import parameters_to_vector

TASK = {name: "Pendulum-v1" if name == "ppo_continuous" else "CartPole-v1" for name in SCRIPTS}


def small(name, **settings):
    """A short run on marked episodes, with a few odd sizes."""
    sizes = {} if name == "reinforce" else {"num_steps": 7}
    sizes |= {"num_minibatches": 4, "epochs": 2} if name in PPO else {}
    return load(name).Config(**{"env_id": marked(name), "total_steps": 420, "num_envs": 3} | sizes | settings)


def network_of(module):
    return module.Policy if hasattr(module, "Policy") else module.ActorCritic


def new_agent(name, **settings):
    """An agent that has learned nothing yet."""
    module, config = load(name), small(name, **settings)
    return network_of(module)(module.prepare(gym.make_vec(config.env_id, config.num_envs)), config)


def weights_of(agent):
    return parameters_to_vector(agent.parameters()).detach()


def on_new_agent(module, monkeypatch, function):
    """Calls function(agent) for each agent that is made."""
    network = network_of(module)
    start = network.__init__
    monkeypatch.setattr(network, "__init__", lambda agent, *args: start(agent, *args) or function(agent))


def record_passes(module, monkeypatch):
    """Every batch of observations (B, obs_dim) that a gradient step came from."""
    passes, network = [], network_of(module)
    pi = network.pi

    def recorded(agent, obs):
        if torch.is_grad_enabled():  # acting and looking back need no gradients
            passes.append(obs.clone())
        return pi(agent, obs)

    monkeypatch.setattr(network, "pi", recorded)
    return passes


def steps_of(module, monkeypatch):
    """The gradients, learning rates and optimizers of every step of Adam."""
    adam, steps = getattr(module, "Adam", torch.optim.Adam), []
    step = adam.step

    def recorded(optimizer, *args):
        group = optimizer.param_groups[0]
        grads = [p.grad for p in group["params"] if p.grad is not None]  # one critic of actor_critic.py may be idle
        grad = torch.cat([grad.flatten().clone() for grad in grads])
        steps.append({"grad": grad, "lr": group["lr"], "optimizer": optimizer})
        return step(optimizer, *args)

    monkeypatch.setattr(adam, "step", recorded)
    return steps


def lines_of(printed):
    """The lines of a report: step, episode, average score, KL (None where there is none) and entropy."""
    pattern = (
        r"step ([\d,]+)  episode ([\d,]+)  average score of the last 20 episodes: (\S+)"
        r"(?:  kl (\S+))?  entropy (\S+)"
    )
    lines = [re.fullmatch(pattern, line) for line in printed.splitlines() if line.startswith("step ")]
    return [[x and float(x.replace(",", "")) for x in line.groups()] for line in lines]


def sync(name, count, mode=gym.vector.AutoresetMode.NEXT_STEP, make=None):
    """Vector environments as a user would make them."""
    make = make or (lambda: gym.make(marked(name)))
    return gym.vector.SyncVectorEnv([make] * count, autoreset_mode=mode)


# ---- Networks ----


@pytest.mark.parametrize("activation, kind", [("tanh", torch.nn.Tanh), ("relu", torch.nn.ReLU)])
@pytest.mark.parametrize("name", [*PPO, "actor_critic"])
def test_the_weights_are_orthogonal_and_small_at_the_output(name, activation, kind):
    config = small(name, hidden_layers=2, hidden_size=6, activation=activation)
    net = load(name).mlp(8, 2, config, output_gain=0.01)
    assert [type(layer) for layer in net] == [torch.nn.Linear, kind, torch.nn.Linear, kind, torch.nn.Linear]
    assert [tuple(layer.weight.shape) for layer in net[::2]] == [(6, 8), (6, 6), (2, 6)]
    for layer, gain in zip(net[::2], (2**0.5, 2**0.5, 0.01)):
        gram = layer.weight @ layer.weight.T
        torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), rtol=1e-5, atol=1e-5 * gain**2)
        assert not layer.bias.any()
    assert len(load(name).mlp(8, 2, small(name, hidden_layers=0), output_gain=1.0)) == 1


def test_reinforces_weights_are_orthogonal_and_small_at_the_output():
    net = new_agent("reinforce", hidden_size=2).policy
    assert [type(layer) for layer in net] == [torch.nn.Linear, torch.nn.Tanh, torch.nn.Linear]
    for weight, gain in ((net[0].weight, 2**0.5), (net[2].weight.T, 0.01)):
        torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(2), rtol=1e-5, atol=1e-5 * gain**2)
    assert not net[0].bias.any() and not net[2].bias.any()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_policy_is_nearly_uniform_at_first_and_the_critics_are_not_flat(name):
    agent, obs = new_agent(name), torch.randn(100, 3)
    assert agent.policy(obs).abs().max() < 0.2
    critics = [getattr(agent, critic) for critic in ("critic", "v_critic", "q_critic") if hasattr(agent, critic)]
    assert len(critics) == {"reinforce": 0, "actor_critic": 2}.get(name, 1)
    assert all(critic(obs).std() > 10 * agent.policy(obs).std() for critic in critics)


@pytest.mark.parametrize("name", SCRIPTS)
def test_actions_are_the_likeliest_or_sampled_from_the_policy(name):
    agent = new_agent(name)
    with torch.no_grad():
        agent.policy[-1].weight *= 150  # far from uniform
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    output = agent.policy(torch.as_tensor(obs)).detach()
    sampled = np.stack([agent.act(obs) for _ in range(500)])
    if name == "ppo_continuous":
        np.testing.assert_allclose(agent.act(obs, greedy=True), output, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(sampled.mean(0), output, atol=0.35)
        np.testing.assert_allclose(sampled.std(0), agent.log_std.exp().detach().expand(50, 2), rtol=0.15)
    else:
        assert 0.4 < output.softmax(-1).max(-1).values.mean() < 0.95
        np.testing.assert_array_equal(agent.act(obs, greedy=True), output.argmax(-1))
        frequencies = np.stack([(sampled == k).mean(0) for k in range(3)], -1)
        assert np.abs(frequencies - output.softmax(-1).numpy()).max() < 0.12


@pytest.mark.parametrize("low, high", [(-2.0, 2.0), (0.1, 0.3), (-1e-3, 1e5), (-0.7, 0.1)])
def test_continuous_actions_fill_the_range_and_never_leave_it(low, high):
    """Even where float32 rounds: the environment's own check is strict."""
    module, played = load("ppo_continuous"), []
    space = gym.spaces.Box(np.float32(low), np.float32(high), (2, 2), np.float32)

    class Fake(gym.vector.VectorWrapper):
        single_action_space = space

        def step(self, actions):
            played.append(actions)
            return self.env.step(np.zeros((len(actions), 1), np.float32))

    envs = module.prepare(Fake(gym.make_vec("Pendulum-v1", 4)))
    envs.reset(seed=0)
    extremes = np.array([[-1.0] * 4, [0.0] * 4, [1.0] * 4, [9.0, -9.0, 0.5, -0.5]], np.float32)
    envs.step(extremes)
    assert played[0].shape == (4, 2, 2) and all(space.contains(action.astype(np.float32)) for action in played[0])
    np.testing.assert_allclose(played[0][0], low, rtol=1e-6)
    np.testing.assert_allclose(played[0][1], (low + high) / 2, rtol=1e-5)
    np.testing.assert_allclose(played[0][2], high, rtol=1e-6)
    np.testing.assert_allclose(played[0][3].ravel()[:2], [high, low], rtol=1e-6)


def test_continuous_actions_are_learned_unclipped_and_played_within_bounds(monkeypatch, quiet):
    module, learned = load("ppo_continuous"), []
    loss = module.ppo_loss
    monkeypatch.setattr(module, "ppo_loss", lambda *args: learned.append(args[2]) or loss(*args))
    module.train(small("ppo_continuous", init_log_std=1.0))  # MarkedEnv refuses actions out of its bounds
    assert torch.cat(learned).abs().max() > 2


def test_the_width_of_the_policy_begins_as_asked_for():
    assert new_agent("ppo_continuous", init_log_std=-1.25).log_std.tolist() == [-1.25, -1.25]


# ---- What is counted, and what is learned from ----


@pytest.mark.parametrize("name", ["ppo_discrete", "ppo_continuous", "actor_critic"])
def test_counts_scores_and_printed_averages_agree_with_a_recount(name, recount, capsys):
    module = load(name)
    made = recount(module)
    _, history = module.train(small(name, total_steps=1050))
    assert len(made) == 1 and len(history) > 80 and made[0].env_step == 1050
    assert [step for step, _ in history] == [step for step, _ in made[0].history]
    np.testing.assert_allclose([r for _, r in history], [r for _, r in made[0].history], rtol=1e-5, atol=1e-5)
    assert all(type(step) is int and type(return_) is float for step, return_ in history)

    lines = lines_of(capsys.readouterr().out)
    assert 15 <= len(lines) <= 20 and lines[0][0] <= 53 and lines[-1][0] == 1050
    for step, episode, average, *_ in lines:
        scores = [score for at, score in made[0].history if at <= step]
        assert episode == len(scores) and average == pytest.approx(sum(scores[-20:]) / len(scores[-20:]), abs=0.0051)


class Reused(gym.vector.VectorWrapper):
    """Answers with the same arrays each time, filled anew, as some vector environments do to save time."""

    def __init__(self, env):
        super().__init__(env)
        N = self.num_envs
        self.obs = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        self.others = np.zeros(N), np.zeros(N, bool), np.zeros(N, bool)  # reward, terminated, truncated

    def reset(self, **kwargs):
        self.obs[:], info = self.env.reset(**kwargs)
        return self.obs, info

    def step(self, actions):
        self.obs[:], *others, info = self.env.step(actions)
        for kept, new in zip(self.others, others, strict=True):
            kept[:] = new
        return self.obs, *self.others, info


@pytest.mark.parametrize("name", SCRIPTS)
def test_environments_may_reuse_their_arrays(name, quiet):
    module = load(name)
    agent, history = module.train(small(name), sync(name, 3))
    again, history_again = module.train(small(name), Reused(sync(name, 3)))
    assert history_again == history and torch.equal(weights_of(again), weights_of(agent))


@pytest.mark.parametrize("name", SCRIPTS)
def test_without_a_finished_episode_there_is_no_average(name, monkeypatch, capsys):
    module = load(name)
    endless = gym.make_vec("EndlessBox-v0" if name == "ppo_continuous" else "Endless-v0", 2)
    if name == "reinforce":  # waits for an end, at most 10,000 steps of each environment
        monkeypatch.setattr(module.Policy, "act", lambda agent, obs: np.zeros(2, np.int64))  # to save time
        _, history = module.train(small(name, total_steps=1), endless)
    else:
        _, history = module.train(small(name, total_steps=42), endless)
    assert history == []
    lines = lines_of(capsys.readouterr().out)
    assert lines and all(episode == 0 and math.isnan(average) for _, episode, average, *_ in lines)


def test_reinforce_counts_the_episodes_it_learns_from(recount, monkeypatch, capsys):
    module = load("reinforce")
    made, passes = recount(module), record_passes(module, monkeypatch)
    _, history = module.train(small("reinforce", total_steps=630))
    learned = [len(batch) for batch in passes]
    assert len(history) == 3 * len(learned)  # one episode of each environment in each update
    assert history[-1][0] == made[0].env_step
    assert sum(learned) < made[0].env_step  # who is done first plays on, and teaches nothing
    returns = iter(made[0].history)  # of all episodes, among them those that were learned from
    assert all(any(score == pytest.approx(r, abs=1e-4) for _, r in returns) for _, score in history)
    lines = lines_of(capsys.readouterr().out)
    assert len(lines) > 10 and lines[-1][:2] == [made[0].env_step, len(history)]
    for step, episode, average, *_ in lines:
        scores = [score for at, score in history if at <= step]
        assert episode == len(scores) and average == pytest.approx(sum(scores[-20:]) / len(scores[-20:]), abs=0.0051)


@pytest.mark.parametrize("name", [*PPO, "reinforce"])
def test_no_reset_step_enters_a_batch(name, monkeypatch, quiet):
    passes = record_passes(load(name), monkeypatch)
    load(name).train(small(name))
    steps = torch.cat(passes)
    assert len(steps) > 200
    # An action is taken from every observation but a final one: that is answered by the reset.
    assert not (steps[:, 2] == 1).any()


@pytest.mark.parametrize("name", PPO)
def test_every_epoch_sees_every_step_once_in_a_new_order(name, monkeypatch, quiet):
    passes = record_passes(load(name), monkeypatch)
    load(name).train(small(name, total_steps=21, num_minibatches=1))
    first, second = passes  # one rollout, two epochs of one minibatch
    assert first.shape == second.shape and not torch.equal(first, second)
    assert sorted(map(tuple, first.tolist())) == sorted(map(tuple, second.tolist()))


@pytest.mark.parametrize(
    "num_envs, num_steps, num_minibatches", [(1, 2, 1), (3, 7, 1), (3, 7, 4), (3, 7, 9), (1, 3, 1)]
)
@pytest.mark.parametrize("name", PPO)
def test_every_number_of_minibatches_is_kept_to(name, num_envs, num_steps, num_minibatches, monkeypatch, quiet):
    """Also where each episode is one step long, so that half of all steps only reset."""
    module = load(name)
    passes, steps = record_passes(module, monkeypatch), steps_of(module, monkeypatch)
    make = lambda: gym.wrappers.TimeLimit(MarkedEnv(BOX if name == "ppo_continuous" else DISCRETE), 1)
    sizes = dict(num_envs=num_envs, num_steps=num_steps, num_minibatches=num_minibatches)
    for envs in (sync(name, num_envs, make=make), sync(name, num_envs)):
        passes.clear(), steps.clear()
        agent, _ = module.train(small(name, total_steps=8 * num_envs * num_steps, **sizes), envs)
        assert len(passes) == len(steps) == 8 * 2 * num_minibatches and weights_of(agent).isfinite().all()
        lengths = np.array([len(obs) for obs in passes]).reshape(8, 2, num_minibatches)
        assert lengths.min() >= 1 and (lengths.max((1, 2)) - lengths.min((1, 2))).max() <= 1
    with pytest.raises(module.SettingError, match="num-minibatches"):  # more than there are steps, at worst
        module.train(small(name, **sizes | dict(num_minibatches=num_envs * (num_steps // 2) + 1)))


@pytest.mark.parametrize("name", PPO)
def test_gae_gets_the_true_successors_once_per_rollout(name, monkeypatch, recount, quiet):
    module = load(name)
    made, calls = recount(module), []
    compute_gae, value = module.compute_gae, module.ActorCritic.value

    def recorded(reward, value, terminated, truncated, gamma, gae_lambda):
        calls.append([x.clone() for x in (reward, value, terminated, truncated)])
        assert (gamma, gae_lambda) == (0.7, 0.3)
        return compute_gae(reward, value, terminated, truncated, gamma, gae_lambda)

    def value_tells_the_observation(self, obs):
        return obs @ torch.tensor([100.0, 10.0, 1.0]) + 0 * value(self, obs)

    monkeypatch.setattr(module, "compute_gae", recorded)
    monkeypatch.setattr(module.ActorCritic, "value", value_tells_the_observation)
    config = small(name, total_steps=105, gamma=0.7, gae_lambda=0.3)
    module.train(config)
    rows = made[0].rows
    assert len(calls) * config.num_steps == len(rows)  # not once per epoch
    for t, (obs, reward, terminated, truncated, over) in enumerate(rows):
        rollout, row = calls[t // config.num_steps], t % config.num_steps
        rewards, values, term, trunc = rollout[0][row], rollout[1][row + 1], rollout[2][row], rollout[3][row]
        real = ~np.array(over)
        np.testing.assert_allclose(values, obs @ [100, 10, 1])
        np.testing.assert_allclose(rewards[real], config.reward_scale * reward[real], rtol=1e-5)
        np.testing.assert_array_equal(term[real], terminated[real])
        np.testing.assert_array_equal(trunc[real], truncated[real])


@pytest.mark.parametrize("name", PPO)
def test_advantages_are_normalized_in_each_minibatch(name, monkeypatch, quiet):
    module, batches = load(name), []
    loss = module.ppo_loss
    monkeypatch.setattr(module, "ppo_loss", lambda *args: batches.append(args[4]) or loss(*args))
    module.train(small(name))
    assert len(batches) > 100 and all(len(advantage) > 1 for advantage in batches)
    for advantage in batches:
        assert abs(advantage.mean()) < 1e-4 and advantage.std(correction=0) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", PPO)
def test_rewards_are_divided_by_their_running_spread_or_not_touched(name, monkeypatch, recount, tmp_path, quiet):
    module, seen, path = load(name), [], tmp_path / "run.pt"
    made, compute_gae = recount(module), module.compute_gae
    monkeypatch.setattr(module, "compute_gae", lambda *args: seen.append(args[0].clone()) or compute_gae(*args))
    module.train(small(name, reward_scale=2.0, normalize_reward=True, gamma=0.9, save=str(path)))
    # The discounted returns so far, summed by hand, with gymnasium's first ten-thousandth of a number.
    sums, totals = [], np.zeros(3)
    for row, (_, reward, terminated, _, over) in zip(torch.cat(seen), made[0].rows):
        real = ~np.array(over)
        totals[real] = (0.9 * totals * ~terminated + reward)[real]
        sums += list(totals[real])
        tolerance = 0.05 if len(sums) > 20 else 10
        np.testing.assert_allclose(row[real], 2 * reward[real] / (np.std(sums) + 1e-8), rtol=tolerance)
    assert torch.load(path, weights_only=True)["reward_stats"]["var"] == pytest.approx(np.var(sums), rel=0.01)
    seen.clear()
    module.train(small(name, save=str(tmp_path / "other.pt")))
    assert torch.load(tmp_path / "other.pt", weights_only=True)["reward_stats"] == {}
    scale = small(name).reward_scale
    for row, (_, reward, *_) in zip(torch.cat(seen), made[1].rows, strict=True):
        np.testing.assert_allclose(row, scale * reward, rtol=1e-6)


# ---- The scale of the observations ----


def new_scale(name, obs_dim, std=2.0):
    return load(name).ObsScale(obs_dim, std)


@pytest.mark.parametrize("offset", [300, -300])
@pytest.mark.parametrize("name", SCRIPTS)
def test_features_far_from_0_are_centred_and_keep_their_differences(name, offset):
    """Positions and angles as CartPole has them, but counted from somewhere else."""
    scale, rng = new_scale(name, 2), np.random.default_rng(0)
    x = rng.normal(size=(500, 2)) * [1.0, 0.1]
    obs = torch.tensor(offset + x, dtype=torch.float32)
    torch.testing.assert_close(scale(obs), torch.full((500, 2), math.copysign(10.0, offset)))  # so far it says nothing
    scale.update(obs)
    np.testing.assert_allclose(scale.shift, offset + x.mean(0), rtol=1e-6)
    np.testing.assert_allclose(scale.divisor, x.std(0) / 2, rtol=1e-3)
    # The float32 of 300 has steps of 0.00003, a 1,600th of the second feature's unit.
    np.testing.assert_allclose(scale(obs), 2 * (x - x.mean(0)) / x.std(0), atol=2e-3)
    assert scale(obs).std(0, correction=0).tolist() == pytest.approx([2, 2], rel=1e-3)


@pytest.mark.parametrize("std", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("name", SCRIPTS)
def test_means_are_moved_to_at_most_2_standard_deviations_and_to_0_from_beyond_10(name, std):
    x = np.array([-1.0, 1.0] * 50)  # mean 0, standard deviation 1
    centres = np.array([0.0, 0.5, -0.5, 1.99, -1.99, 2.01, -2.01, 9.99, -9.99, 10.01, -10.01, 50.0])
    left = np.array([0.0, 0.5, -0.5, 1.99, -1.99, 2.0, -2.0, 2.0, -2.0, 0.0, 0.0, 0.0])
    for width in (1.0, 1e-3, 1e4):  # in any unit
        scale, obs = new_scale(name, len(centres), std), torch.tensor(width * (x[:, None] + centres))
        scale.update(obs)
        np.testing.assert_array_equal(scale.shift != 0, abs(centres) > 2)
        np.testing.assert_allclose(scale.shift, width * (centres - left), rtol=1e-4)
        np.testing.assert_allclose(scale.divisor, width / std, rtol=1e-5)
        np.testing.assert_allclose(scale(obs), std * (left + x[:, None]), rtol=1e-4, atol=1e-4)
        assert scale(obs).abs().max() < 10


@pytest.mark.parametrize("name", SCRIPTS)
def test_centring_happens_at_the_first_update_only_and_is_saved(name):
    scale, rng = new_scale(name, 2), np.random.default_rng(0)
    first = np.stack([300 + rng.normal(size=100), rng.normal(size=100)], 1)
    scale.update(torch.tensor(first))
    shift = scale.shift.clone()
    assert shift[0] == pytest.approx(first[:, 0].mean(), rel=1e-6) and shift[1] == 0
    later = np.stack([310 + 3 * rng.normal(size=100), 500 + rng.normal(size=100)], 1)  # now the second one is far, too
    scale.update(torch.tensor(later))
    assert torch.equal(scale.shift, shift)
    np.testing.assert_allclose(scale.divisor, np.concatenate([first, later]).std(0) / 2, rtol=1e-5)

    copy_, obs = new_scale(name, 2), torch.tensor(later[:5], dtype=torch.float32)
    copy_.load_state_dict(scale.state_dict())
    torch.testing.assert_close(copy_(obs), scale(obs), rtol=0, atol=0)
    for either in (scale, copy_):
        either.update(torch.tensor(first - 1000))
    assert torch.equal(copy_.shift, shift) and torch.equal(copy_.divisor, scale.divisor)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_feature_that_never_changes_says_nothing_and_stays_finite(name):
    scale = new_scale(name, 3)
    for _ in range(1000):
        scale.update(torch.tensor([[7.0, -0.1, 0.0]] * 100))
    torch.testing.assert_close(scale(torch.tensor([[7.0, -0.1, 0.0]])), torch.zeros(1, 3), rtol=0, atol=0.01)
    torch.testing.assert_close(scale(torch.tensor([[8.0, 0.1, -1.0]])), torch.tensor([[10.0, 10.0, -10.0]]))
    agent = new_agent(name)
    agent.scale.update(torch.full((4, 3), 7.0))
    pi = agent.pi(torch.full((4, 3), 7.0))
    assert pi.entropy().isfinite().all() and pi.log_prob(pi.sample()).isfinite().all()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_feature_that_becomes_active_late_is_scaled_from_then_on(name):
    scale, rng = new_scale(name, 2), np.random.default_rng(0)
    silent = np.stack([np.zeros(1000), np.full(1000, 7.0)], 1)
    active = silent + rng.uniform(-1, 1, size=(1000, 2))
    for obs in (silent, active):
        scale.update(torch.tensor(obs))
    every = np.concatenate([silent, active])
    expected = 2 * (every - [0, 7]) / every.std(0)
    assert abs(expected).max() < 10
    np.testing.assert_allclose(scale(torch.tensor(every, dtype=torch.float32)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SCRIPTS)
def test_one_hot_observations_stay_apart(name):
    """Also where a state is rare, or not seen at all: none of them looks like another one."""
    scale = new_scale(name, 5)
    states = np.random.default_rng(0).choice(5, size=2000, p=[0.5, 0.3, 0.19, 0.01, 0.0])
    scale.update(torch.eye(5)[states])
    seen = scale(torch.eye(5))
    assert not scale.shift.any() and seen.isfinite().all()
    torch.testing.assert_close(seen, torch.diag(seen.diagonal()))  # what is 0 stays 0
    assert (seen.diagonal() > 2).all() and (seen.diagonal() <= 10).all()


@pytest.mark.parametrize("name", SCRIPTS)
def test_observation_statistics_are_those_of_all_observations_so_far(name, recount, quiet):
    module = load(name)
    made = recount(module)
    sizes = {} if name == "reinforce" else {"num_envs": 1} | ({"num_minibatches": 3} if name in PPO else {})
    agent, _ = module.train(small(name, total_steps=700, **sizes))
    count, total, square = agent.scale.count, agent.scale.sum, agent.scale.sum_of_squares
    deviation = (square / count - (total / count) ** 2).sqrt()
    torch.testing.assert_close(agent.scale.divisor, (deviation.clamp(min=1e-4) / 2).float())
    if name == "reinforce":  # test_update.py recounts them
        assert count > 100
    else:
        last, seen = [tuple(made[0].starts[0])], []
        for obs, _, _, _, over in made[0].rows:
            seen += [last[0]] * (not over[0])
            last = [tuple(obs[0])]
        seen = np.array(seen, np.float64)
        assert count == len(seen)
        np.testing.assert_allclose(total / count, seen.mean(0), rtol=1e-9)
        np.testing.assert_allclose(deviation, seen.std(0), rtol=1e-6, atol=1e-9)
        assert seen[:, 0].std() > 20  # the episode's number grows: no rollout alone has this spread
    before = copy.deepcopy(agent.scale.state_dict())
    module.evaluate(agent, marked(name), episodes=5)
    for key, x in agent.scale.state_dict().items():  # evaluation uses them and leaves them
        assert torch.equal(x, before[key])


@pytest.mark.parametrize("name", SCRIPTS)
def test_all_networks_see_scaled_observations(name, quiet):
    agent, _ = load(name).train(small(name))
    seen, obs = [], torch.randn(40, 3) * 5
    networks = [net for net in agent.children() if isinstance(net, torch.nn.Sequential)]
    assert len(networks) == {"reinforce": 1, "actor_critic": 3}.get(name, 2)
    for net in networks:
        net.register_forward_pre_hook(lambda net, inputs: seen.append(inputs[0]))
    agent.pi(obs)
    agent.act(obs.numpy())
    if name in PPO:
        agent.value(obs)
    if name == "actor_critic":
        agent.v(obs), agent.q(obs, torch.zeros(40, dtype=torch.long))
    count, total, square = agent.scale.count, agent.scale.sum, agent.scale.sum_of_squares
    expected = 2 * (obs - agent.scale.shift) / (square / count - (total / count) ** 2).clamp(min=1e-8).sqrt()
    assert expected.abs().max() > 10 and (seen[0] - obs).abs().max() > 1
    assert len(seen) == len(networks) + 1
    for x in seen:
        torch.testing.assert_close(x, expected.clamp(-10, 10).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scale_changes_only_between_rollouts(name, monkeypatch, quiet):
    """The policy that plays, the estimates and the update see the same scale."""
    module, seen = load(name), []

    def watch(agent):
        now = lambda: (agent.scale.count.item(), *agent.scale.shift.tolist(), *agent.scale.divisor.tolist())
        agent.policy.register_forward_pre_hook(lambda *_: seen.append((torch.is_grad_enabled(), now())))

    on_new_agent(module, monkeypatch, watch)
    module.train(small(name, total_steps=63))
    scales = [scale for _, scale in seen]
    blocks = [scale for i, scale in enumerate(scales) if i == 0 or scale != scales[i - 1]]
    assert len(blocks) == len(set(blocks)) >= 2 and blocks == sorted(blocks)
    for block in blocks:  # playing and learning happened with each
        assert {grad for grad, scale in seen if scale == block} == {True, False}


# ---- The gradient step ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_learning_rate_falls_linearly(name, monkeypatch, quiet):
    steps = steps_of(load(name), monkeypatch)
    load(name).train(small(name, learning_rate=0.001))
    rates = [step["lr"] for step in steps]
    assert rates[0] == 0.001 and rates == sorted(rates, reverse=True) and 0 < rates[-1] < 0.0002
    if name != "reinforce":  # whose updates are as long as the episodes
        each = 4 * 2 if name in PPO else 1
        assert rates == pytest.approx([0.001 * (1 - k / 20) for k in range(20) for _ in range(each)])
    optimizers = {id(step["optimizer"]): step["optimizer"] for step in steps}
    assert len(optimizers) == 1
    group = vars(steps[0]["optimizer"]) if name in PPO else steps[0]["optimizer"].param_groups[0]
    assert group["eps"] == 1e-5 and (name in PPO or group["betas"] == (0.9, 0.999))


@pytest.mark.parametrize("name", [*PPO, "actor_critic"])
def test_the_gradient_is_clipped_to_its_greatest_norm_or_left(name, monkeypatch, quiet):
    steps, norms = steps_of(load(name), monkeypatch), []
    for limit in (np.inf, 0.05):
        steps.clear()
        load(name).train(small(name, max_grad_norm=limit, reward_scale=1.0))
        norms.append([float(step["grad"].norm()) for step in steps])
    free, held = norms
    assert max(free) > 0.5 and max(held) == pytest.approx(0.05, rel=1e-3)
    assert free[0] > held[0] > 0.02  # shortened, not set to 0


def beta_after(name, path, before, env_step=0, total_steps=21, **settings):
    """β after one rollout, which begins with this β at this step."""
    module = load(name)
    path.unlink(missing_ok=True)
    module.train(small(name, total_steps=0, save=str(path), **settings))
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint["beta"] == 1.0
    torch.save(checkpoint | {"beta": float(before), "env_step": env_step}, path)
    module.train(module.resume(str(path), total_steps=total_steps, save=str(path)))
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint["env_step"] == env_step + 21 * module.PROCESSES
    return checkpoint["beta"]


@pytest.mark.parametrize("name", PPO)
def test_beta_follows_the_kl_if_the_penalty_is_used(name, tmp_path, quiet):
    """Doubled where the KL is 1.5 times the target, halved below two thirds of it; from 1 to 10,000."""
    for target_kl, before, after in ((1e-9, 1, 2), (1e3, 4, 2), (1e3, 1, 1), (1e-9, 9e3, 1e4)):
        path, how = tmp_path / "run.pt", dict(target_kl=target_kl)
        assert beta_after(name, path, before, objective="penalty", **how) == after
        assert beta_after(name, path, before, objective="clip", **how) == before


@pytest.mark.parametrize("name", PPO)
def test_the_kl_that_the_penalty_aims_at_falls(name, tmp_path, capsys):
    def beta(target_kl):  # a tenth of the run is left
        settings = dict(objective="penalty", target_kl=target_kl)
        return beta_after(name, tmp_path / "run.pt", 4, env_step=189, total_steps=210, **settings)

    beta(0.01)
    kl = lines_of(capsys.readouterr().out)[-1][3]
    assert [beta(10 * x * kl) for x in (0.5, 1, 2)] == [8, 4, 2]


@pytest.mark.parametrize("name", PPO)
def test_the_penalty_and_the_clip_hold_the_policy(name, capsys):
    measured = {}
    for objective, clip_eps in (("penalty", 0.2), ("clip", 0.05), ("clip", float("inf"))):
        settings = {"objective": objective, "clip_eps": clip_eps, "learning_rate": 0.02, "target_kl": 0.003}
        load(name).train(small(name, epochs=8, total_steps=420, **settings))
        measured[objective, clip_eps] = [line[3] for line in lines_of(capsys.readouterr().out)]
    free = max(measured.pop(("clip", float("inf"))))
    assert all(np.median(kls) < free / 3 for kls in measured.values()), (measured, free)


@pytest.mark.parametrize("limit", [0.01, np.inf])
@pytest.mark.parametrize("name", PPO)
def test_two_equal_processes_learn_what_one_learns(name, limit, monkeypatch, quiet):
    """As if another process had sent the same numbers: averages are what they were."""
    module, agents = load(name), []
    for processes in (1, 2):
        monkeypatch.setattr(module, "PROCESSES", processes)
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.mul_(2))
        agent, history = module.train(small(name, total_steps=21 * processes, max_grad_norm=limit))
        agents.append(agent)
    assert history[-1][0] > 21 and history[-1][0] % 6 == 0  # the steps of both are counted
    torch.testing.assert_close(*map(weights_of, agents))
    torch.testing.assert_close(*[agent.scale.sum for agent in agents])
    torch.testing.assert_close(*[agent.scale.divisor for agent in agents])


@pytest.mark.parametrize("name", PPO)
def test_the_average_over_processes_is_taken_of_gradients_sums_and_kl(name, monkeypatch, quiet):
    """As if the other process had sent zeros. The gradient is averaged before it is clipped."""
    module = load(name)
    steps, first, sums = steps_of(module, monkeypatch), [], []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: sizes.append(tuple(tensor.shape)))
    for processes in (1, 2):
        sizes = []
        steps.clear()
        monkeypatch.setattr(module, "PROCESSES", processes)
        agent, _ = module.train(small(name, total_steps=21 * processes, max_grad_norm=np.inf))
        first.append(steps[0]["grad"])
        sums.append(agent.scale.sum_of_squares)
    torch.testing.assert_close(first[0] / 2, first[1])
    torch.testing.assert_close(sums[0] / 2, sums[1])
    assert sizes == [(len(first[0]),)] * 2 * 4 + [(1,), (1 + 3 + 3,)]
    steps.clear()
    module.train(small(name, total_steps=42, max_grad_norm=1e-3))
    assert steps[0]["grad"].norm() == pytest.approx(1e-3, rel=1e-2)  # averaged after the clip, it would be half as long


@pytest.mark.parametrize("name", PPO)
def test_beta_follows_the_kl_of_all_processes(name, monkeypatch, tmp_path, capsys):
    """Here the other process has three times the KL of this one, so that the average is twice this one's."""
    module, path, settings = load(name), tmp_path / "run.pt", dict(objective="penalty")
    beta_after(name, path, 8, **settings)
    kl = lines_of(capsys.readouterr().out)[-1][3]
    monkeypatch.setattr(module, "PROCESSES", 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.mul_(4 if len(tensor) == 1 else 2))
    settings["total_steps"] = 42
    assert beta_after(name, path, 8, target_kl=1.1 * kl, **settings) == 16  # this process's KL alone: 8
    assert lines_of(capsys.readouterr().out)[-1][3] == pytest.approx(2 * kl, rel=0.1)
    assert beta_after(name, path, 8, target_kl=2 * kl, **settings) == 8  # this process's KL alone: 4, the sum: 16


# ---- The optimizer of PPO ----


def two_layers():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def backward(net, size=1.0):
    x = torch.randn(16, 4, dtype=net[0].weight.dtype)
    (size * (net(x) - x[:, :2] ** 2).square().mean()).backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", PPO)
def test_adam_goes_the_way_of_torchs_adam(name, dtype):
    """With large gradients and with such as are shorter than ε, and with a learning rate that changes."""
    nets = [two_layers().to(dtype) for _ in range(2)]
    optimizers = [load(name).Adam(nets[0].parameters(), lr=0.01, eps=1e-5)]
    optimizers += [torch.optim.Adam(nets[1].parameters(), lr=0.01, eps=1e-5)]
    start = weights_of(nets[0]).clone()
    for k in range(400):
        for net, optimizer in zip(nets, optimizers):
            torch.manual_seed(k)
            optimizer.param_groups[0]["lr"] = 0.01 * (1 - k / 400)
            optimizer.zero_grad()
            backward(net, size=[1.0, 1e3, 1e-6, 1e-2][k // 100])
            optimizer.step()
        if k in (0, 150, 399):
            tolerance = dict(rtol=1e-9, atol=1e-11) if dtype == torch.float64 else dict(rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(*map(weights_of, nets), **tolerance)
    assert (weights_of(nets[0]) - start).abs().max() > 0.1


@pytest.mark.parametrize("name", PPO)
def test_zero_grad_forgets_the_gradients(name):
    agent = new_agent(name)
    optimizer = load(name).Adam(agent.parameters(), lr=0.01, eps=1e-5)
    agent.value(torch.randn(10, 3)).mean().backward()
    assert any(p.grad is not None for p in agent.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in agent.parameters())


@pytest.mark.parametrize("name", PPO)
def test_frozen_parameters_are_left_alone(name, monkeypatch, quiet):
    module, starts = load(name), []

    def freeze(agent):
        agent.policy[0].requires_grad_(False)
        starts.append(copy.deepcopy(agent.state_dict()))

    on_new_agent(module, monkeypatch, freeze)
    agent, _ = module.train(small(name, normalize_reward=True))
    for key, parameter in agent.named_parameters():
        assert torch.equal(parameter, starts[0][key]) == (key in ("policy.0.weight", "policy.0.bias")), key


@pytest.mark.parametrize("part", ["policy", "critic"])
@pytest.mark.parametrize("name", PPO)
def test_a_whole_network_can_be_frozen(name, part, monkeypatch, quiet):
    """Then a gradient may be 0: a minibatch of one step has no advantage over itself. This is no mistake."""
    module, starts = load(name), []

    def freeze(agent):
        getattr(agent, part).requires_grad_(False)
        starts.append(weights_of(getattr(agent, part)).clone())

    on_new_agent(module, monkeypatch, freeze)
    agent, _ = module.train(small(name, num_minibatches=9, entropy_coef=0.0))
    assert torch.equal(weights_of(getattr(agent, part)), starts[0])


def step_of(agent, optimizer):
    obs = torch.randn(10, 3)
    pi = agent.pi(obs)
    optimizer.zero_grad()
    (pi.log_prob(pi.sample()).mean() + agent.value(obs).mean()).backward()
    optimizer.step()


@pytest.mark.parametrize("name", PPO)
def test_a_copied_agent_that_left_its_optimizer_is_an_error(name):
    agent = new_agent(name)
    optimizer = load(name).Adam(agent.parameters(), lr=0.01, eps=1e-5)
    step_of(agent, optimizer)
    trained, copied = weights_of(agent).clone(), copy.deepcopy(agent)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="optimizer"):
            step_of(copied, optimizer)
    assert torch.equal(weights_of(agent), trained) and torch.equal(weights_of(copied), trained)


@pytest.mark.parametrize("name", PPO)
def test_a_parameter_that_the_loss_leaves_out_stays_as_it_is(name):
    agent = new_agent(name)
    agent.spare = torch.nn.Parameter(torch.ones(3))
    optimizer = load(name).Adam(agent.parameters(), lr=0.01, eps=1e-5)
    before = weights_of(agent.policy).clone()
    step_of(agent, optimizer)
    assert (agent.spare == 1).all() and not torch.equal(weights_of(agent.policy), before)


@pytest.mark.parametrize("change", [lambda agent: agent.double().float(), lambda agent: agent.to("cpu").train()])
@pytest.mark.parametrize("name", PPO)
def test_an_agent_that_was_moved_or_converted_learns_the_same(name, change):
    weights = []
    for change in (lambda agent: agent, change):
        torch.manual_seed(1)
        agent = new_agent(name)
        before = weights_of(agent).clone()
        optimizer = load(name).Adam(agent.parameters(), lr=0.01, eps=1e-5)
        step_of(agent, optimizer)
        changed = change(agent)
        step_of(changed, optimizer)
        assert changed is agent
        weights.append(weights_of(agent).clone())
    assert torch.equal(*weights) and not torch.equal(weights[0], before)


OURS = "optimizer = Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5)"
TORCHS = "optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5)"


@pytest.mark.parametrize("name", PPO)
def test_torchs_adam_takes_its_place_with_one_line(name, tmp_path, quiet):
    module, weights = edited(name, (OURS, TORCHS)), []
    for either in (load(name), module):
        agent, _ = either.train(either.Config(**vars(small(name, total_steps=42))))
        weights.append(weights_of(agent))
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-4)
    assert (weights[0] - weights_of(new_agent(name))).abs().max() > 0.01


@pytest.mark.parametrize("name", PPO)
def test_with_torchs_adam_a_checkpoint_can_be_resumed(name, tmp_path, quiet):
    module, path = edited(name, (OURS, TORCHS)), str(tmp_path / "run.pt")
    agent, _ = module.train(module.Config(**vars(small(name, total_steps=42, save=path))))
    again, _ = module.train(module.resume(path, total_steps=42))
    assert torch.equal(weights_of(agent), weights_of(again))


# ---- Seeds ----


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", PPO)
def test_each_process_draws_actions_of_its_own(name, rank, monkeypatch, quiet):
    module, seeds = load(name), []
    monkeypatch.setattr(module, "RANK", rank)
    act = module.ActorCritic.act
    monkeypatch.setattr(module.ActorCritic, "act", lambda *given: seeds.append(torch.initial_seed()) or act(*given))
    module.train(small(name, seed=7))
    assert set(seeds) == {int(np.random.SeedSequence((7, rank, 0)).generate_state(1)[0])}


@pytest.mark.parametrize("name", SCRIPTS)
def test_seeds_differ_for_each_run_process_and_resumed_step(name):
    seeds = [load(name).derive_seed(*numbers) for numbers in itertools.product(range(4), range(4), (0, 1, 2, 125))]
    assert len(set(seeds)) == len(seeds) == 64 and all(0 <= seed < 2**32 for seed in seeds)


def rollouts_of(name, num_steps):
    """Settings for rollouts of this length. REINFORCE has none: its rollouts are whole episodes."""
    return {} if name == "reinforce" else {"num_steps": num_steps}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_seed_and_the_process_choose_weights_and_episodes(name, recount, monkeypatch, quiet):
    module, weights = load(name), []
    made = recount(module)
    on_new_agent(module, monkeypatch, lambda agent: weights.append(weights_of(agent).clone()))
    for run in ("seed 1", "seed 1 again", "seed 2", "process 1"):
        torch.manual_seed(len(weights))  # what was drawn before must not matter
        if run == "process 1" and name in PPO:
            monkeypatch.setattr(module, "RANK", 1)
        module.train(small(name, seed=2 if run == "seed 2" else 1, env_id=TASK[name], total_steps=40))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert torch.equal(weights[0], weights[3])  # all processes begin with the same weights
    first, again, other, process = (set(envs.starts) for envs in made)
    assert first == again and not first & other and (not first & process if name in PPO else first == process)


@pytest.mark.parametrize("name", SCRIPTS)
def test_environments_are_seeded_once_and_neighbouring_seeds_share_no_episode(name, recount, quiet):
    module = load(name)
    made = recount(module)
    for seed in (340, 341):
        _, history = module.train(small(name, total_steps=1_000, env_id=TASK[name], seed=seed, **rollouts_of(name, 50)))
    agent, _ = module.train(small(name, total_steps=0, env_id=TASK[name], seed=340))
    module.evaluate(agent, TASK[name], 3, seed=340)  # as many as in training: their first draws could be the same
    starts = [tuple(np.round(start, 6)) for envs in (made[0], made[1], made[-1]) for start in envs.starts]
    assert len(starts) >= 15 and len(set(starts)) == len(starts)


@pytest.mark.parametrize("name", SCRIPTS)
def test_same_seed_same_history(name, quiet):
    module = load(name)
    sizes = rollouts_of(name, 50)
    runs = [module.train(small(name, total_steps=1_500, seed=s, env_id=TASK[name], **sizes)) for s in (5, 5, 6)]
    (agent, history), (agent_again, history_again), (_, other) = runs
    assert history and history == history_again and history != other
    assert torch.equal(weights_of(agent), weights_of(agent_again))


# ---- Environments of one's own ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_environments_that_a_user_made_are_trained_on_as_they_are(name, quiet):
    module = load(name)
    envs = Recount(sync(name, 3))
    agent, history = module.train(small(name, num_envs=1, env_id="NoSuch-v0", num_minibatches=5) if name in PPO
                                  else small(name, num_envs=1, env_id="NoSuch-v0"), envs)
    assert envs.env_step >= 420 and history[-1][0] > 400 and all(step % 3 == 0 for step, _ in history)
    if name != "reinforce":  # which counts only the episodes that it learns from
        assert envs.env_step == 420 and [step for step, _ in history] == [step for step, _ in envs.history]
    same, history_of_same = module.train(small(name, num_minibatches=5) if name in PPO else small(name))
    assert history == history_of_same  # as if the script had made them
    assert torch.equal(weights_of(agent), weights_of(same))


@pytest.mark.parametrize("name", PPO)
def test_the_number_of_environments_is_theirs(name, tmp_path, quiet):
    module, path = load(name), tmp_path / "run.pt"
    config = small(name, num_envs=1, num_steps=2, num_minibatches=4, total_steps=60, save=str(path))
    with pytest.raises(module.SettingError, match="num-minibatches"):
        module.train(config)
    module.train(config, sync(name, 5))
    assert config.num_envs == 1  # the user's settings are left as they are
    assert torch.load(path, weights_only=True)["config"]["num_envs"] == 5


@pytest.mark.parametrize("mode", [gym.vector.AutoresetMode.SAME_STEP, gym.vector.AutoresetMode.DISABLED])
@pytest.mark.parametrize("name", SCRIPTS)
def test_another_autoreset_mode_is_refused(name, mode, quiet):
    module = load(name)
    with pytest.raises(module.SettingError, match=f"NEXT_STEP.*{mode.name}"):
        module.train(small(name), sync(name, 3, mode))
    with pytest.raises(module.SettingError, match=f"NEXT_STEP.*{mode.name}"):
        module.evaluate(new_agent(name), "", episodes=3, envs=sync(name, 3, mode))
    assert issubclass(module.SettingError, ValueError)


@pytest.mark.parametrize("name", SCRIPTS)
def test_evaluate_plays_in_environments_of_ones_own(name, quiet):
    module, agent = load(name), new_agent(name)
    envs = Recount(sync(name, 4))
    returns = module.evaluate(agent, "NoSuch-v0", envs=envs)
    np.testing.assert_allclose(returns, first_scores(envs))
    assert returns.shape == (4,)


@pytest.mark.parametrize("name", ["ppo_discrete", "reinforce", "actor_critic"])
def test_steps_are_counted_in_plain_ints(name, quiet):
    """A small integer of numpy's would run over, and the history could not be written as JSON."""
    module, sizes = load(name), {} if name == "reinforce" else {"num_steps": 7}
    _, history = module.train(module.Config(num_envs=np.int8(3), total_steps=120, **sizes))
    assert history and {type(step) for step, _ in history} == {int}


# ---- One policy, for acting and for learning ----


def forbidden(obs):
    """Which of three actions must not be played (..., 3): the first in even steps, the second in odd ones."""
    even = obs[..., 1] % 2 == 0
    return torch.stack([even, ~even, torch.zeros_like(even)], -1)


@pytest.mark.parametrize("name", ["ppo_discrete", "reinforce", "actor_critic"])
def test_a_mask_added_in_one_place_holds_for_acting_and_learning(name, monkeypatch, quiet):
    module, seen, learned = load(name), [], []
    network, Categorical = network_of(module), torch.distributions.Categorical
    log_prob = Categorical.log_prob

    def masked_pi(agent, obs):
        logits = agent.policy(agent.scale(obs))
        seen.append((obs.clone(), logits.detach().clone()))
        return Categorical(logits=logits.masked_fill(forbidden(obs), -torch.inf), validate_args=False)

    def recorded(pi, action):
        result = log_prob(pi, action)
        if torch.is_grad_enabled():
            learned.append((*seen[-1], action.clone(), result.detach().clone()))
        return result

    monkeypatch.setattr(network, "pi", masked_pi)
    if name == "ppo_discrete":
        loss, old = module.ppo_loss, []
        monkeypatch.setattr(module, "ppo_loss", lambda *args: old.append((len(learned), args[3])) or loss(*args))
    monkeypatch.setattr(Categorical, "log_prob", recorded)

    played, act = [], network.act
    monkeypatch.setattr(network, "act", lambda agent, obs, greedy=False: played.append(
        (torch.as_tensor(obs), act(agent, obs, greedy))) or played[-1][1])
    agent, _ = module.train(small(name, entropy_coef=0.01) if name != "reinforce" else small(name))
    module.evaluate(agent, marked(name), episodes=20)
    module.evaluate(agent, marked(name), episodes=20, greedy=False)
    counts = np.zeros((2, 3), int)
    for obs, action in played:
        for row, a in zip(obs, action):
            counts[int(row[1] % 2), a] += 1
    assert counts[0, 0] == counts[1, 1] == 0 and (counts + [[1000, 0, 0], [0, 1000, 0]] > 20).all()

    assert len(learned) > 10 and weights_of(agent).isfinite().all()
    for obs, logits, action, result in learned:
        for x, z, a, value in zip(obs.reshape(-1, 3), logits.reshape(-1, 3), action.flatten(), result.flatten()):
            allowed = [2, 1] if x[1] % 2 == 0 else [2, 0]
            assert int(a) in allowed
            expected = float(z[a]) - math.log(sum(math.exp(float(z[k])) for k in allowed))
            assert float(value) == pytest.approx(expected, abs=1e-5)
    if name == "ppo_discrete":  # in an update's first minibatch, π is still π_old: all ratios are 1
        for i, old_log_prob in old[:: 2 * 4]:
            torch.testing.assert_close(learned[i][3], old_log_prob, rtol=0, atol=1e-5)


def test_a_gaussian_changed_in_one_place_is_played_and_learned_from(monkeypatch, quiet):
    module, learned, played = load("ppo_continuous"), [], []
    monkeypatch.setattr(module.ActorCritic, "pi", lambda agent, obs: Independent(
        Normal(agent.policy(agent.scale(obs)).tanh() + 0.3, torch.tensor([0.02, 0.04])), 1))
    loss, act = module.ppo_loss, module.ActorCritic.act

    def recorded_act(agent, obs, greedy=False):
        with torch.no_grad():
            mean = agent.policy(agent.scale(torch.as_tensor(obs))).tanh() + 0.3
        played.append((mean.numpy(), act(agent, obs, greedy), greedy))
        return played[-1][1]

    def recorded_loss(pi, value, action, *args):
        learned.append((pi.mean.detach(), action, pi.log_prob(action).detach()))
        return loss(pi, value, action, *args)

    monkeypatch.setattr(module.ActorCritic, "act", recorded_act)
    monkeypatch.setattr(module, "ppo_loss", recorded_loss)
    agent, _ = module.train(small("ppo_continuous"))
    module.evaluate(agent, marked("ppo_continuous"), episodes=3)
    assert {greedy for *_, greedy in played} == {True, False}
    noise = np.concatenate([action - mean for mean, action, greedy in played if not greedy])
    np.testing.assert_allclose(noise.std(0), [0.02, 0.04], rtol=0.15)
    assert all(np.abs(action - mean).max() < 1e-6 for mean, action, greedy in played if greedy)
    for mean, action, log_prob in learned:
        z = (action - mean) / torch.tensor([0.02, 0.04])
        expected = -(z**2).sum(-1) / 2 - math.log(0.02 * 0.04) - math.log(2 * math.pi)
        torch.testing.assert_close(log_prob, expected, rtol=1e-4, atol=1e-3)


# ---- Numbers that are not finite, and what is put back ----


class Spoiled(gym.vector.VectorWrapper):
    """Replaces one number: the first environment's observation or reward, in one step (the reset is step 0)."""

    def __init__(self, env, what, value, at):
        super().__init__(env)
        self.what, self.value, self.at, self.count = what, value, at, 0

    def spoil(self, obs):
        obs = obs.copy()
        obs[0, 0] = self.value
        return obs

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return self.spoil(obs) if (self.what, self.at) == ("observation", 0) else obs, info

    def step(self, actions):
        obs, reward, *rest = super().step(actions)
        self.count += 1
        if self.count == self.at and self.what == "observation":
            obs = self.spoil(obs)
        if self.count == self.at and self.what == "reward":
            reward = np.array([self.value, *reward[1:]])
        return obs, reward, *rest


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 3, 7])  # 7 is the last step of a rollout
@pytest.mark.parametrize("what", ["observation", "reward"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_not_finite_is_named(name, what, at, value, quiet):
    if (what, at) == ("reward", 0):
        at = 8
    # These episodes are ten steps long, so that none ends with the number that is not finite.
    endless = "EndlessBox-v0" if name == "ppo_continuous" else "Endless-v0"
    make = lambda: gym.wrappers.TimeLimit(gym.make(endless), 10)
    module, envs = load(name), Spoiled(sync(name, 3, make=make), what, value, at)
    with pytest.raises(FloatingPointError, match=f"the environment's {what} is not finite"):
        module.train(small(name), envs)
    assert envs.count <= max(at, 1)  # at once


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_evaluation_names_an_observation_that_is_not_finite(name, value, quiet):
    with pytest.raises(FloatingPointError, match="the environment's observation is not finite"):
        load(name).evaluate(new_agent(name), "", episodes=3, envs=Spoiled(sync(name, 3), "observation", value, 1))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_gradient_that_is_not_finite_is_named(name, quiet):
    """The reward is finite, but its square is not, in float32. REINFORCE squares no reward, and bears more."""
    value, what = (1e39, "loss") if name == "reinforce" else (1e30, "gradient")
    module, envs = load(name), Spoiled(sync(name, 3), "reward", value, 3)
    with pytest.raises(FloatingPointError, match=f"the {what} is not finite"):
        module.train(small(name), envs)


class Interrupting(gym.vector.VectorWrapper):
    """Raises an error in step 30, or another, and writes down the number of torch's threads before."""

    def __init__(self, env, error, last=30):
        super().__init__(env)
        self.error, self.last, self.threads = error, last, []

    def step(self, actions):
        self.threads.append(torch.get_num_threads())
        if len(self.threads) == self.last and self.error:
            raise self.error
        return super().step(actions)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), KeyError("speed"), SystemExit(3)])
@pytest.mark.parametrize("name", SCRIPTS)
def test_training_and_evaluation_compute_in_one_thread_and_put_the_number_back(name, error, quiet):
    module, before = load(name), torch.get_num_threads()
    calls = [  # Ctrl-C ends an evaluation, and is no error in a training
        (30, (KeyError, SystemExit), lambda envs: module.train(small(name), envs)),
        (3, (KeyError, SystemExit, KeyboardInterrupt), lambda envs: module.evaluate(new_agent(name), "", envs=envs)),
    ]
    try:
        for last, kinds, call in calls:
            torch.set_num_threads(3)
            envs = Interrupting(sync(name, 3), error, last)
            try:
                call(envs)
            except kinds as raised:
                assert raised is error
            assert torch.get_num_threads() == 3 and len(envs.threads) >= last and set(envs.threads) == {1}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_interrupted_training_returns_what_was_learned(name, capsys):
    module = load(name)
    envs = Interrupting(Recount(sync(name, 3)), KeyboardInterrupt())
    agent, history = module.train(small(name), envs)
    assert not torch.equal(weights_of(agent), weights_of(new_agent(name)))
    assert [step for step, _ in history] == [step for step, _ in envs.env.history] or name == "reinforce"
    assert capsys.readouterr().out.splitlines()[-1] == "stopped at step 87"


# ---- Evaluation, and the whole ----


def first_scores(envs):
    """The score of the first episode of each environment, from a Recount."""
    firsts, totals = [None] * envs.num_envs, np.zeros(envs.num_envs)
    for _, reward, terminated, truncated, _ in envs.rows:
        totals += reward
        for i in range(envs.num_envs):
            if firsts[i] is None and (terminated[i] or truncated[i]):
                firsts[i] = totals[i]
    return firsts


@pytest.mark.parametrize("name", SCRIPTS)
def test_evaluate_plays_each_environments_first_episode(name, recount, quiet):
    module, agent = load(name), new_agent(name)
    made = recount(module)
    returns = module.evaluate(agent, marked(name), episodes=30, seed=7)
    assert returns.shape == (30,)
    np.testing.assert_allclose(returns, first_scores(made[0]))
    np.testing.assert_array_equal(returns, module.evaluate(agent, marked(name), episodes=30, seed=7))
    assert (returns != module.evaluate(agent, marked(name), episodes=30, seed=8)).any()


@pytest.mark.parametrize("name", SCRIPTS)
def test_evaluate_ends_although_the_episode_does_not(name, monkeypatch):
    module, agent, rewards = load(name), new_agent(name), []
    action = agent.act(np.zeros((1, 3), np.float32))
    monkeypatch.setattr(network_of(module), "act", lambda *_: action)  # to save time
    envs = module.make_envs("Endless-v0" if name != "ppo_continuous" else "EndlessBox-v0", 1)
    assert envs.spec.max_episode_steps is None
    step = envs.step
    monkeypatch.setattr(envs, "step", lambda action: rewards.append((answer := step(action))[1].copy()) or answer)
    returns = module.evaluate(agent, "", episodes=1, envs=envs)
    assert len(rewards) == 10_000
    np.testing.assert_allclose(returns, np.sum(rewards, 0))


@pytest.mark.parametrize("name", SCRIPTS)
def test_main_evaluates_greedily_and_by_sampling(name, recount, monkeypatch, capsys):
    """Which action was the likeliest, and how far the played one was from it, is computed at each act."""
    module, acts, agents, network = load(name), [], [], network_of(load(name))
    made, act = recount(module), network.act

    def recorded(agent, obs, greedy=False):
        action = act(agent, obs, greedy)
        with torch.no_grad():
            output = agent.policy(agent.scale(torch.as_tensor(obs))).numpy()
        acts.append((len(made), output, action, greedy, weights_of(agent).clone()))
        return action

    on_new_agent(module, monkeypatch, agents.append)
    monkeypatch.setattr(network, "act", recorded)
    sizes = [] if name == "reinforce" else ["--num-steps", "7"]
    flags = ["--env-id", marked(name), "--total-steps", "60", "--num-envs", "2", "--eval-episodes", "70", *sizes]
    flags += ["--num-minibatches", "3"] if name in PPO else []
    status, out, err = run_main(module, monkeypatch, capsys, *flags, "--seed", "3")
    assert (status, err, len(made), len(agents)) == (None, "", 3, 1)

    expected = [f"{kind} evaluation: {np.mean(first_scores(envs)):.2f} over 70 episodes"
                for kind, envs in zip(("greedy", "sampled"), made[1:])]
    assert [line for line in out.splitlines() if "evaluation" in line] == expected
    assert [envs.num_envs for envs in made[1:]] == [70, 70]
    assert made[1].starts[:70] == made[2].starts[:70]  # both play the same episodes
    trained = weights_of(agents[0])
    assert all(torch.equal(weights, trained) for number, *_, weights in acts if number > 1)

    for number, is_greedy in ((1, False), (2, True), (3, False)):
        mine = [(output, action, greedy) for which, output, action, greedy, _ in acts if which == number]
        assert {greedy for *_, greedy in mine} == {is_greedy}
        output, action = (np.concatenate([x[k] for x in mine]) for k in (0, 1))
        assert len(output) > 50
        if name == "ppo_continuous":
            z = (action - output) / agents[0].log_std.detach().exp().numpy()
            assert np.abs(z).max() < 1e-5 if is_greedy else (number == 1 or abs(z.std() - 1) < 0.15)
        else:
            likeliest = action == output.argmax(-1)
            chance = torch.softmax(torch.as_tensor(output), -1).max(-1).values.mean()
            assert chance < 0.9
            assert likeliest.all() if is_greedy else abs(likeliest.mean() - chance) < (0.2 if number == 1 else 0.12)


@pytest.mark.parametrize("episodes", [0, 1])
@pytest.mark.parametrize("name", SCRIPTS)
def test_main_plays_as_many_evaluation_episodes_as_asked_for(name, episodes, recount, monkeypatch, capsys):
    module = load(name)
    made = recount(module)
    flags = ["--env-id", marked(name), "--total-steps", "40", "--eval-episodes", str(episodes)]
    status, out, err = run_main(module, monkeypatch, capsys, *flags)
    assert (status, err) == (None, "")
    assert [envs.num_envs for envs in made[1:]] == [1] * (2 * episodes)
    assert out.count("evaluation") == 2 * episodes and out.count("over 1 episodes") == 2 * episodes


def test_nothing_slow_is_imported_for_ppo():
    code = (
        "import sys, ppo_discrete, ppo_continuous\n"
        "for script in (ppo_discrete, ppo_continuous):\n"
        "    script.train(script.Config(total_steps=200, num_steps=20))\n"
        "print([m for m in ('torch._dynamo', 'sympy', 'torch._inductor') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def solves(module, config, envs, threshold):
    """Trains until the task is solved, and asserts that it is, by the scores that the script counted."""
    _, history = module.train(config, StopWhenSolved(envs, threshold))  # ends as soon as it is solved
    scores = [score for _, score in history]
    averages = [np.mean(scores[i - 20 : i]) for i in range(20, len(scores) + 1)]  # several may end in the same step
    assert max(averages) >= threshold and history[-1][0] < config.total_steps


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_solves_its_task(name, seed, quiet):
    module = load(name)
    config = module.Config(seed=seed)
    assert config.env_id == TASK[name]
    solves(module, config, gym.make_vec(config.env_id, config.num_envs), SOLVED[config.env_id])


class Elsewhere(gym.ObservationWrapper):
    """CartPole, with positions and angles counted from somewhere else."""

    def observation(self, obs):
        return obs + np.array([300, 0, 20, 0], np.float32)


def test_cartpole_is_solved_although_its_features_are_far_from_0(quiet):
    module = load("ppo_discrete")
    config = module.Config(seed=0)
    envs = sync("", config.num_envs, make=lambda: Elsewhere(gym.make("CartPole-v1")))
    solves(module, config, envs, 475)
