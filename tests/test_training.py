"""The training loops on real environments: what enters a batch, what is counted, and that they learn."""

import contextlib
import copy
import functools
import io
import math
import re
import subprocess
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import BOX, DISCRETE, PPO, ROOT, SCRIPTS, MarkedEnv, Recount, load, marked, register, run_main, spy
from gymnasium.wrappers.vector import TransformObservation, TransformReward
from peer import SOLVED, StopWhenSolved
from torch.distributions import Categorical, Independent, Normal
from torch.nn.utils import parameters_to_vector

TASK = {name: "Pendulum-v1" if name == "ppo_continuous" else "CartPole-v1" for name in SCRIPTS}
register("OneStepDiscrete-v0", DISCRETE, limit=1)
register("OneStepBox-v0", BOX, limit=1)


def small(name, **settings):
    """A short run on marked episodes, with a few odd sizes."""
    sizes = {} if name == "reinforce" else {"num_steps": 7}
    sizes |= {"num_minibatches": 4, "epochs": 2} if name in PPO else {}
    return load(name).Config(**{"env_id": marked(name), "total_steps": 420, "num_envs": 3} | sizes | settings)


def network_of(name):
    return load(name).Policy if name == "reinforce" else load(name).ActorCritic


def new_agent(name, **settings):
    config = small(name, **settings)
    return network_of(name)(load(name).make_envs(config.env_id, config.num_envs), config)


def networks_of(agent):
    return {key: net for key, net in agent.named_children() if key != "scale"}


def weights_of(agent):
    return parameters_to_vector(agent.parameters()).detach()


def spy_on_steps(patch, module):
    steps = []  # of each the gradient, the learning rate and the other settings

    def note(_, optimizer):
        (group,) = optimizer.param_groups
        grads = [p.grad.flatten() for p in group["params"] if p.grad is not None]  # a critic may be idle
        steps.append((torch.cat(grads).clone(), group["lr"], group["eps"], group["betas"]))

    spy(patch, getattr(module, "Adam", torch.optim.Adam), "step", note)
    return steps


class Played(Recount):
    """Recounts what to learn from: actions not answered by a reset; if whole, first episodes after a common reset."""

    def __init__(self, env, whole):
        super().__init__(env)
        self.whole, self.seen, self.scores, self.seeds = whole, [], [], []

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        self.seeds += [] if seed is None else [seed]
        self.obs, self.done = obs.copy(), np.zeros(self.num_envs, bool)
        return obs, info

    def step(self, actions):
        waits = self.done if self.whole else np.array(self.over)
        self.seen.append(self.obs[~waits])
        answer = super().step(actions)
        self.done = waits & self.whole | self.over
        self.scores += [(self.env_step, self.returns[i]) for i in range(self.num_envs) if self.done[i] and not waits[i]]
        self.obs = answer[0].copy()
        return answer


@functools.cache
def recorded(name):
    """A run on marked episodes, in rollouts of seven steps, and all that can be seen of it from outside."""
    module, out, make_vec = load(name), io.StringIO(), gym.make_vec
    settings, network = {"init_log_std": 1.0} if name == "ppo_continuous" else {}, network_of(name)
    run = SimpleNamespace(passes=[], acts=[], losses=[], estimates=[], scales=[])
    run.config = small(name, total_steps=630, gamma=0.7, num_envs=np.int8(3), **settings)  # int8 ends at 127

    def make(*args):
        run.envs = Played(make_vec(*args), whole=name == "reinforce")
        return run.envs

    def note_agent(_, agent, *args):
        run.agent = agent
        for net in networks_of(agent).values():
            net.register_forward_pre_hook(lambda _, inputs: run.scales.append(
                (tuple(torch.cat([*agent.scale.buffers()]).tolist()), torch.is_grad_enabled(), inputs[0].abs().max())))

    def note_estimate(_, *args):
        """Beside what an estimate was made from stand the values of what the environments answered."""
        answers = torch.as_tensor(np.stack([row[0] for row in run.envs.rows[-7:]]))
        true = run.agent.value(answers) if name in PPO else run.agent.v(answers)
        run.estimates.append([copy.deepcopy(x.detach()) for x in (true, *args[:4])])

    def note_loss(_, pi, value, action, old_log_prob, advantage, return_, *weights):
        x = (pi.log_prob(action) - old_log_prob).detach().double()
        run.losses.append((action, (x.exp() - 1 - x).mean().item(), pi.entropy().mean().item()))
        assert not (old_log_prob.requires_grad or advantage.requires_grad or return_.requires_grad)

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(gym, "make_vec", make)
        spy(patch, network, "__init__", note_agent)
        spy(patch, network, "pi", lambda _, agent, obs: torch.is_grad_enabled() and run.passes.append(obs.clone()))
        spy(patch, network, "act", lambda action, *_: run.acts.append(action.copy()))
        run.steps = spy_on_steps(patch, module)
        if name in PPO:
            spy(patch, module, "ppo_loss", note_loss)
        if name != "reinforce":
            spy(patch, module, "compute_gae" if name in PPO else "td_error", note_estimate)
        _, run.history = module.train(run.config)
    pattern = r"step (\S+)  episode (\S+)  average score of the last 20 episodes: (\S+)(?:  kl (\S+))?  entropy (\S+)"
    lines = [re.fullmatch(pattern, line) for line in out.getvalue().splitlines()]
    run.lines = [[x and float(x.replace(",", "")) for x in line.groups()] for line in lines]
    return run


@pytest.mark.parametrize("name, kind", [*((name, "Tanh") for name in SCRIPTS), ("ppo_continuous", "ReLU")])
def test_the_weights_are_orthogonal_and_small_at_the_policys_output_and_all_networks_are_as_deep(name, kind):
    depth, deep = (3, {"hidden_layers": 3}) if name in PPO else (1, {})
    deep |= {"activation": kind.lower()} if name == "ppo_continuous" else {}
    agent = new_agent(name, hidden_size=9, **deep)
    assert name != "ppo_continuous" or agent.log_std.tolist() == pytest.approx([0.5 - math.log(2) / 2] * 2)
    networks = networks_of(agent)
    assert len(networks) == {"reinforce": 1, "actor_critic": 3}.get(name, 2)
    for key, net in networks.items():
        assert [type(layer).__name__ for layer in net] == ["Linear", kind] * depth + ["Linear"]
        assert [layer.out_features for layer in net[:-1:2]] == [9] * depth
        for layer in net[::2]:
            gain = 2**0.5 if layer is not net[-1] else 0.01 if key == "policy" else 1
            weight = min(layer.weight, layer.weight.T, key=len) / gain
            torch.testing.assert_close(weight @ weight.T, torch.eye(len(weight)), rtol=1e-5, atol=1e-5)
            assert not layer.bias.any()


@pytest.mark.parametrize("low, high", [(-2.0, 2.0), (0.1, 0.3), (-1e-3, 1e5), (-0.7, 0.1)])
def test_continuous_actions_fill_the_range_and_never_leave_it(low, high, monkeypatch):
    """Even where float32 rounds: MarkedEnv refuses what its space does not contain."""
    played, space = [], gym.spaces.Box(np.float32(low), np.float32(high), (3,), np.float32)
    monkeypatch.setattr(gym, "make_vec", lambda *_: gym.vector.SyncVectorEnv([lambda: MarkedEnv(space)] * 4))
    spy(monkeypatch, MarkedEnv, "step", lambda _, env, action: played.append(action))
    envs = load("ppo_continuous").make_envs("", 4)
    envs.reset(seed=0)
    envs.step(np.array([[-1.0] * 3, [0.0] * 3, [1.0] * 3, [9.0, -9.0, 0.5]], np.float32))
    expected = [[low] * 3, [(low + high) / 2] * 3, [high] * 3, [high, low, low + 0.75 * (high - low)]]
    np.testing.assert_allclose(played, expected, rtol=1e-5)


def test_actions_are_learned_as_sampled_unclipped_and_played_within_bounds():
    """MarkedEnv refuses actions out of its bounds. The policy is as wide at first as was asked for."""
    run = recorded("ppo_continuous")
    learned, sampled = torch.cat([action for action, *_ in run.losses]), np.concatenate(run.acts)
    assert learned.abs().max() > 4 and set(map(tuple, learned.tolist())) <= set(map(tuple, sampled.tolist()))
    np.testing.assert_allclose(np.concatenate(run.acts[:7]).std(), math.e / 2**0.5, rtol=0.25)


@pytest.mark.parametrize("name", SCRIPTS)
def test_episodes_end_by_either_flag_and_all_that_is_counted_and_printed_is_a_recount(name):
    """An episode ends by being terminated as by being truncated: about half of these end in each way."""
    run = recorded(name)
    envs, history, lines = run.envs, run.history, run.lines
    assert len(history) > 80 and (envs.env_step == 630 or name == "reinforce" and 630 <= envs.env_step < 660)
    assert all(sum(row[end].sum() for row in envs.rows) > 20 for end in (2, 3))
    assert [step for step, _ in history] == [step for step, _ in envs.scores]
    np.testing.assert_allclose(sorted(history), sorted(envs.scores), rtol=1e-5, atol=1e-5)
    assert all(type(step) is int and type(score) is float for step, score in history)
    assert 15 <= len(lines) <= 20 and lines[0][0] <= 54 and lines[-1][0] == envs.env_step
    for step, episode, average, *_ in lines:
        scores = [score for at, score in history if at <= step]
        assert episode == len(scores) and average == pytest.approx(sum(scores[-20:]) / len(scores[-20:]), abs=0.0051)
    if name in PPO:  # KL and entropy are those of a rollout's last minibatch, of which there are eight
        expected = [run.losses[8 * int(line[0]) // 21 - 1][1:] for line in lines]
        np.testing.assert_allclose([line[3:] for line in lines], expected, rtol=0.06, atol=1e-6)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_update_learns_from_each_valid_step_once_an_epoch_and_no_reset_step_enters_a_batch(name):
    run = recorded(name)
    batches, seen = run.passes, np.concatenate(run.envs.seen)
    assert not (torch.cat(batches)[:, 2] == 1).any()  # an action follows on each of them
    if name in PPO:  # two epochs of four minibatches: each has an order of its own
        epochs = [torch.cat(batches[i : i + 4]) for i in range(0, len(batches), 4)]
        batches, others = epochs[::2], epochs[1::2]
        assert all(sorted(a.tolist()) == sorted(b.tolist()) for a, b in zip(batches, others, strict=True))
        played = [torch.as_tensor(np.concatenate(run.envs.seen[i : i + 7])) for i in range(0, 210, 7)]
        assert not any(torch.equal(a, b) or torch.equal(a, c) for a, b, c in zip(batches, others, played, strict=True))
    assert len(seen) > 300 and sorted(torch.cat(batches).tolist()) == sorted(seen.tolist())


class Reused(gym.vector.VectorWrapper):
    """Answers with the same arrays each time, filled anew, as some vector environments do to save time."""

    def step(self, actions):
        *answer, info = self.env.step(actions)
        self.kept = getattr(self, "kept", answer)
        for kept, new in zip(self.kept, answer):
            kept[:] = new
        return *self.kept, info


@pytest.mark.parametrize("name", SCRIPTS)
def test_environments_may_reuse_their_arrays(name, wrap, quiet):
    module, runs = load(name), []
    for wrapper in (lambda env: env, Reused):
        wrap(wrapper)
        agent, history = module.train(small(name, total_steps=210))
        scores = module.evaluate(agent, module.make_envs(marked(name), 9))
        runs.append((history, weights_of(agent).tolist(), scores.tolist()))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("kind", ["OneStep", "Marked"])
@pytest.mark.parametrize("sizes", [(1, 2, 1), (3, 7, 4), (3, 7, 9), (1, 9, 4)])
@pytest.mark.parametrize("name", PPO)
def test_minibatches_are_as_many_as_asked_for_and_one_of_one_step_gives_no_nan(name, sizes, kind, monkeypatch, quiet):
    """Also where each episode is one step long, so that half of all steps only reset."""
    module, batches = load(name), []
    spy(monkeypatch, module, "ppo_loss", lambda _, pi, value, action, old, advantage, *args: batches.append(advantage))
    N, T, parts = sizes
    how = dict(num_envs=N, num_steps=T, total_steps=2 * N * T, env_id=marked(name, kind))
    agent, _ = module.train(small(name, num_minibatches=parts, **how))
    assert len(batches) == 2 * 2 * parts and weights_of(agent).isfinite().all()
    lengths = np.array([len(batch) for batch in batches]).reshape(2, 2, parts)
    assert lengths.min() >= 1 and np.ptp(lengths, (1, 2)).max() <= 1
    for x in batches:
        assert abs(x.mean()) < 1e-4 and x.std(correction=0) == pytest.approx(float(len(x) > 1), abs=2e-3)
    with pytest.raises(ValueError, match="num-minibatches"):  # more than there are steps, at worst
        module.train(small(name, num_minibatches=N * (T // 2) + 1, **how))


@pytest.mark.parametrize("name", [*PPO, "actor_critic"])
def test_estimates_get_the_true_successors_and_both_kinds_of_end_once_per_rollout(name):
    """At the end of an episode the successor is its last observation, and not the first one of the next."""
    run = recorded(name)
    assert len(run.estimates) == 30  # not once per epoch
    for k, (true, reward, value, *ends) in enumerate(run.estimates):
        _, raw, terminated, truncated, _ = zip(*run.envs.rows[7 * k : 7 * k + 7])
        next_value, ends = (value[1:], ends) if name in PPO else (ends[0], ends[1:])
        torch.testing.assert_close(next_value, true)
        np.testing.assert_array_equal(ends, [terminated, truncated][: len(ends)])
        if name == "actor_critic":
            torch.testing.assert_close(value[1:], true[:-1])
            np.testing.assert_allclose(reward, run.config.reward_scale * np.array(raw), rtol=1e-5)


@pytest.mark.parametrize("name", PPO)
def test_rewards_are_divided_by_the_running_deviation_of_the_return(name):
    """The discounted returns so far are summed by hand. gymnasium adds a ten-thousandth of a number to them."""
    run, sums, totals, ratios = recorded(name), [], np.zeros(3), []
    learned = torch.cat([estimate[1] for estimate in run.estimates]).numpy()
    for seen, (_, reward, terminated, _, over) in zip(learned, run.envs.rows, strict=True):
        real = ~np.array(over)
        totals[real] = (0.7 * totals * ~terminated + reward)[real]
        sums += list(totals[real])
        ratios += list(seen[real] / reward[real] * np.std(sums))
    np.testing.assert_allclose(ratios[20:], 1, rtol=0.01)


@pytest.mark.parametrize("critic", ["td", "q", "advantage"])
def test_actor_critic_computes_no_critic_and_draws_no_action_that_it_does_not_use(critic, monkeypatch, quiet):
    module, calls, draws, starts = load("actor_critic"), [], [], []
    spy(monkeypatch, module.ActorCritic, "v", lambda *_: calls.append("v"))
    spy(monkeypatch, module.ActorCritic, "q", lambda *_: calls.append("q"))
    spy(monkeypatch, Categorical, "sample", lambda action, *_: draws.append(action.numel()))
    spy(monkeypatch, module.ActorCritic, "__init__", lambda _, agent, *args: starts.append(copy.deepcopy(agent)))
    agent, _ = module.train(small("actor_critic", critic=critic))
    assert calls == {"td": ["v"], "q": ["q"], "advantage": ["v", "q"]}[critic] * 20
    assert sum(draws) == 420 + (0 if critic == "td" else 3 * 20)  # a_{t+1} of each rollout's last row
    for net, learns in (("policy", True), ("v_critic", critic != "q"), ("q_critic", critic != "td")):
        assert learns != torch.equal(*[weights_of(getattr(either, net)) for either in (agent, starts[0])])


def test_reinforce_needs_at_least_two_environments(quiet):
    """With one, the mean of the returns at the same step would be the return itself."""
    with pytest.raises(ValueError, match="--num-envs 1"):
        load("reinforce").train(small("reinforce", num_envs=1))


def features():
    """By case: batches of observations (B, features), of which the first decides what is centred."""
    rng, silent = np.random.default_rng(0), np.tile([0.0, 7.0], (1000, 1))
    x = rng.normal(size=(500, 2)) * [1.0, 0.1]  # positions and angles as CartPole has them
    means = np.array([[-1.0], [1.0]] * 50) + [0, 0.5, -0.5, 1.99, -1.99, 2.01, -2.01, 9.99, -9.99, 10.01, -50]
    return {
        **{f"offset of {k}": [k + x[:300], k + x[300:]] for k in (300, -300, -5000)},
        **{f"means in units of {unit}": [unit * means] for unit in (1, 0.01, 1e4)},
        **{f"{n} observations at first": [300 + x[:n], 300 + x] for n in (2, 41, 121, 499)},
        "constant": [np.tile([7.0, -0.1, 0.0, 300.1, -5000.3, 1e6], (100, 1))] * 20,
        "active late": [silent, silent + rng.uniform(-1, 1, size=(1000, 2))],
        "moving": [300 + x, 310 + 30 * x, x - 1000, x[:1]],
        "one-hot": [np.eye(5)[rng.choice(5, size=2000, p=[0.5, 0.3, 0.19, 0.01, 0.0])]],
    }


@pytest.mark.parametrize("case", features())
@pytest.mark.parametrize("name", PPO)
def test_features_are_scaled_and_those_far_from_0_centred_once_so_that_the_limit_erases_none(name, case):
    batches = [torch.tensor(batch, dtype=torch.float32) for batch in features()[case]]
    first, every, std = batches[0], torch.cat(batches).double().numpy(), 1.5
    scale, copied = (load(name).ObsScale(first.shape[1], std) for _ in range(2))
    torch.testing.assert_close(scale(first), first.clamp(-10, 10))  # at first nothing changes
    for batch in batches:
        scale.update(batch)
    mean, spread = first.double().numpy().mean(0), np.maximum(first.double().numpy().std(0), 1e-4)
    # From beyond 10 deviations a mean goes to 0, from beyond 2 to 2.
    shift = np.where(abs(mean) > 10 * spread, mean, np.sign(mean) * np.maximum(abs(mean) - 2 * spread, 0))
    spread = np.maximum(every.std(0), 1e-4)
    np.testing.assert_allclose(scale.shift, shift, rtol=1e-4)
    np.testing.assert_allclose(scale.std, spread, rtol=2e-3)
    obs = torch.cat([*batches, first + 3 * first.std(), -first])
    expected = np.clip((obs.double().numpy() - shift) / spread * std, -10, 10)
    np.testing.assert_allclose(scale(obs), expected, rtol=2e-3, atol=0.02)
    if case == "constant":  # it says nothing, and what changes for once is limited
        assert scale(first).abs().max() < 0.01 and scale(first + 1).eq(10).all()
    if case == "one-hot":  # what is 0 stays 0, also where a state is not seen at all
        assert torch.equal(scale(torch.eye(5)), torch.diag(scale(torch.eye(5)).diagonal().clamp(min=std)))
    copied.load_state_dict(scale.state_dict())
    scale.update(first - 1000), copied.update(first - 1000)  # the shift is saved, and does not move any more
    np.testing.assert_allclose(scale.shift, shift, rtol=1e-4)
    assert torch.equal(scale(obs), copied(obs))


@pytest.mark.parametrize("name", ["reinforce", "actor_critic"])
def test_the_small_scripts_divide_by_half_the_root_mean_square(name):
    """Also where a feature is always 0, and where one is tiny; an observation far beyond is limited to 10."""
    scale, rng = load(name).ObsScale(4), np.random.default_rng(0)
    parts = [rng.normal(size=(B, 4)) * [3.0, 0.01, 0.0, 50.0] + [0.0, 0.0, 0.0, 100.0] for B in (1, 30, 41, 500)]
    for part in parts:
        scale.update(torch.tensor(part, dtype=torch.float32))
    every = np.concatenate(parts)
    rms = np.sqrt(np.square(every).mean(0))
    expected = np.clip(2 * every / np.maximum(rms, 1e-4), -10, 10)
    np.testing.assert_allclose(scale(torch.tensor(every, dtype=torch.float32)), expected, rtol=1e-3)
    assert rms[2] == 0 and scale(torch.tensor([[99.0, -99.0, -1.0, 1.0]])).tolist()[0][:3] == [10, -10, -10]


@pytest.mark.parametrize("name", SCRIPTS)
def test_all_networks_see_one_scale_which_changes_only_between_rollouts_and_knows_all_valid_observations(name):
    """The policy that plays, the estimates and the update see it. A final observation's last feature would be 1."""
    scales, inputs = [scale[:2] for scale in recorded(name).scales], [scale[2] for scale in recorded(name).scales]
    blocks = [scale for i, (scale, _) in enumerate(scales) if i == 0 or scale != scales[i - 1][0]]
    assert len(blocks) == len(set(blocks)) and blocks == sorted(blocks)
    assert len(blocks) == 30 or name == "reinforce" and len(blocks) > 10
    assert {(block, grad) for block in blocks for grad in (True, False)} == set(scales)  # it played and learned
    scale, seen = recorded(name).agent.scale, np.concatenate(recorded(name).envs.seen).astype(np.float64)
    assert scale.count == len(seen) > 300 and not seen[:, 2].any() and max(inputs) <= 10 and seen.max() > 20
    if name in PPO:
        np.testing.assert_allclose(scale.mean, seen.mean(0), rtol=1e-4)
        np.testing.assert_allclose(scale.std, np.maximum(seen.std(0), 1e-4), rtol=1e-4)
    else:
        np.testing.assert_allclose(scale.mean_square, np.square(seen).mean(0), rtol=1e-4)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_learning_rate_falls_linearly(name):
    run = recorded(name)
    (_, rates, eps, betas), first = zip(*run.steps), run.config.learning_rate
    assert rates[0] == first and [*rates] == sorted(rates, reverse=True) and 0 < rates[-1] < 0.2 * first
    if name != "reinforce":  # whose updates are as long as the episodes
        each = 4 * 2 if name in PPO else 1
        assert rates == pytest.approx([first * (1 - k / 30) for k in range(30) for _ in range(each)])
    assert {*eps} == {1e-5} and {*betas} == {(0.9, 0.999)}


@pytest.mark.parametrize("name", [*PPO, "actor_critic"])
def test_the_gradient_is_clipped_to_its_greatest_norm_or_left(name, monkeypatch, quiet):
    steps, runs = spy_on_steps(monkeypatch, load(name)), []
    for limit in (1e9, 0.05, None):
        steps.clear()
        limit = limit or 1.01 * float(runs[0][0].norm())
        load(name).train(small(name, max_grad_norm=limit, total_steps=63))
        runs.append([grad for grad, *_ in steps])
    free, held, left = runs
    assert free[0].norm() > 0.1 and all(grad.norm() < 0.05001 for grad in held)
    torch.testing.assert_close(held[0], 0.05 * free[0] / free[0].norm(), rtol=1e-3, atol=1e-6)  # not turned
    assert torch.equal(left[0], free[0])


@pytest.mark.parametrize("name", PPO)
def test_adam_goes_the_way_of_torchs_adam_also_with_moved_parameters_and_a_kept_state(name):
    """With gradients of any size, a learning rate that changes, moved parameters, and from a kept state."""
    adam, how = load(name).Adam, dict(lr=0.01, eps=1e-5, fused=True)
    assert issubclass(adam, torch.optim.Optimizer)
    start = new_agent(name).critic
    nets = [copy.deepcopy(start) for _ in range(3)]
    optimizers = [kind(net.parameters(), **how) for kind, net in zip((adam, torch.optim.Adam, adam), nets)]
    for k in range(80):
        if k == 30:
            nets[0].double().float()  # whose parameters stay those of the optimizer
            nets[2] = copy.deepcopy(nets[0])
            optimizers[2] = adam(nets[2].parameters(), lr=0.5, eps=1e-3)
            optimizers[2].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
            assert len({str(optimizer.state_dict()) for optimizer in optimizers}) == 1
        x = torch.randn(16, 3)
        for net, optimizer in zip(nets, optimizers):
            optimizer.param_groups[0]["lr"] = 0.01 * (1 - k / 80)
            optimizer.zero_grad()
            ([1.0, 1e3, 1e-6, 1e-2][k // 20] * (net(x) - x[:, :1] ** 2).square().mean()).backward()
            optimizer.step()
    assert (weights_of(nets[0]) - weights_of(start)).abs().max() > 0.1
    assert all(torch.equal(weights_of(nets[0]), weights_of(net)) for net in nets)
    optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    assert len(torch.optim.lr_scheduler.StepLR(optimizers[0], 1).get_last_lr()) == 2


@pytest.mark.parametrize("frozen", ["policy.0", "policy", "critic"])
@pytest.mark.parametrize("name", PPO)
def test_frozen_parameters_stay_and_the_others_learn(name, frozen, monkeypatch, quiet):
    """A gradient may then be 0: a minibatch of one step has no advantage over itself. This is no mistake."""
    module, starts = load(name), []
    spy(monkeypatch, module.ActorCritic, "__init__", lambda _, agent, *args: starts.append(
        copy.deepcopy(agent.state_dict())) or agent.get_submodule(frozen).requires_grad_(False))
    agent, _ = module.train(small(name, num_minibatches=4 if frozen == "policy.0" else 9, total_steps=63))
    for key, parameter in agent.named_parameters():
        assert torch.equal(parameter, starts[0][key]) == key.startswith(f"{frozen}."), key


def test_nothing_slow_is_imported_by_ppo_not_even_for_a_checkpoint(tmp_path):
    code = (
        "import sys, ppo_discrete, ppo_continuous\n"
        "for script in (ppo_discrete, ppo_continuous):\n"
        "    how = dict(total_steps=50, num_steps=10, save=sys.argv[1] + script.__name__)\n"
        "    script.train(script.Config(**how))\n"
        "    script.train(script.Config(**how | dict(load=how['save'], total_steps=100)))\n"
        "print([m for m in ('torch._dynamo', 'sympy', 'torch._inductor') if m in sys.modules])"
    )
    out = subprocess.check_output([sys.executable, "-c", code, f"{tmp_path}/"], cwd=ROOT, text=True)
    assert out.splitlines()[-1] == "[]" and len(list(tmp_path.iterdir())) == 2 and out.count("step 100 ") == 2


@pytest.mark.parametrize("name, mode", [*TASK.items(), *((x, "sync") for x in SCRIPTS if x != "ppo_continuous")])
def test_envs_are_seeded_once_and_runs_with_neighbouring_seeds_share_no_start(name, mode, wrap, monkeypatch, quiet):
    """Environments are seeded once: with a seed at each reset, all episodes would begin in the same state."""
    module, runs = load(name), []
    if mode == "sync":  # single environments, stepped one by one, as Pendulum's are anyway
        monkeypatch.setattr(gym, "make_vec", functools.partial(gym.make_vec, vectorization_mode="sync"))
    made, sizes = wrap(lambda env: Played(env, False)), {} if name == "reinforce" else {"num_steps": 50}
    total = 650 if name == "ppo_continuous" else 160
    for seed in (340, 340, 341):
        torch.manual_seed(len(runs))  # what was drawn before must not matter
        runs.append(module.train(small(name, env_id=TASK[name], total_steps=total, seed=seed, **sizes)))
    for seed in (340, 341):  # in as many environments as in training: their first draws could be the same
        module.evaluate(runs[0][0], module.make_envs(TASK[name], 3), seed=seed)
    (agent, history), (again, history_again), (other, other_history) = runs
    assert history and history == history_again and history != other_history
    assert torch.equal(weights_of(agent), weights_of(again)) and not torch.equal(weights_of(agent), weights_of(other))
    assert made[0].starts == made[1].starts
    starts = [tuple(np.round(start, 6)) for envs in made[:1] + made[2:] for start in envs.starts]
    assert len(starts) >= 18 and len(set(starts)) == len(starts)
    assert [envs.seeds for envs in made] == [[340_000], [340_000], [341_000], [340_500], [341_500]]


def forbidden(obs):
    """Which of three actions must not be played (..., 3): the first in even steps, the second in odd ones."""
    even = obs[..., 1] % 2 == 0
    return torch.stack([even, ~even, torch.zeros_like(even)], -1)


@pytest.mark.parametrize("name", ["ppo_discrete", "reinforce", "actor_critic"])
def test_a_mask_added_in_one_place_holds_for_acting_learning_and_evaluation(name, monkeypatch, quiet):
    module, learned, played = load(name), [], []

    def masked_pi(agent, obs):
        logits = agent.policy(agent.scale(obs))
        pi = Categorical(logits=logits.masked_fill(forbidden(obs), -torch.inf), validate_args=False)
        pi.chances = logits.detach().double().exp() * ~forbidden(obs)
        pi.chances /= pi.chances.sum(-1, keepdim=True)
        return pi

    def note_act(action, agent, obs, greedy=False):
        chances = agent.pi(torch.as_tensor(obs)).chances.numpy()
        rows = zip(obs[:, 1] % 2, action, action == chances.argmax(-1), chances.max(-1))
        played.extend((*row, greedy) for row in rows)

    monkeypatch.setattr(network_of(name), "pi", masked_pi)
    spy(monkeypatch, network_of(name), "act", note_act)
    spy(monkeypatch, Categorical, "log_prob", lambda value, pi, action: learned.append((value.detach(), pi, action)))
    agent, _ = module.train(small(name))
    for greedy in (True, False):
        module.evaluate(agent, module.make_envs(marked(name), 20), greedy)
    odd, action, likeliest, chance, greedy = np.array(played, float).T
    assert {*zip(odd, action)} == {(0, 1), (0, 2), (1, 0), (1, 2)} and likeliest[greedy == 1].all()
    likeliest, chance = likeliest[greedy == 0], chance[greedy == 0]  # sampled
    assert abs((likeliest - chance).sum()) < 4 * np.sqrt((chance * (1 - chance)).sum()) < (1 - chance).sum()
    assert len(learned) > 10 and weights_of(agent).isfinite().all()
    for value, pi, action in learned:
        expected = pi.chances.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(value.double().exp(), expected, rtol=1e-4, atol=1e-6)


def test_a_gaussian_changed_in_one_place_is_played_learned_and_evaluated(monkeypatch, quiet):
    module, learned, noise, std = load("ppo_continuous"), [], ([], []), torch.tensor([0.02, 0.04])
    mean_of = lambda agent, obs: agent.policy(agent.scale(torch.as_tensor(obs))).tanh() + 0.3
    monkeypatch.setattr(module.ActorCritic, "pi", lambda agent, obs: Independent(Normal(mean_of(agent, obs), std), 1))
    spy(monkeypatch, module.ActorCritic, "act", lambda action, agent, obs, greedy=False: noise[greedy].extend(
        action - mean_of(agent, obs).detach().numpy()))
    spy(monkeypatch, module, "ppo_loss", lambda _, pi, value, action, *args: learned.append(
        (action - pi.mean.detach(), pi.log_prob(action).detach())))
    agent, _ = module.train(small("ppo_continuous"))
    module.evaluate(agent, module.make_envs(marked("ppo_continuous"), 3))
    np.testing.assert_allclose(np.std(noise[0], 0), std, rtol=0.15)
    assert np.abs(noise[1]).max() < 1e-6
    for distance, log_prob in learned:
        expected = -((distance / std) ** 2).sum(-1) / 2 - math.log(0.02 * 0.04) - math.log(2 * math.pi)
        torch.testing.assert_close(log_prob, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("wrapper, value, at", [  # of observations, the first is that of the reset
    (TransformObservation, np.nan, 2), (TransformObservation, np.nan, 8), (TransformObservation, 2.0, 4),
    (TransformReward, np.nan, 3), (TransformReward, np.inf, 7), (TransformReward, -np.inf, 8), (TransformReward, 2, 3),
])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_nan_observation_or_an_infinite_reward_stops_the_run(name, wrapper, value, at, wrap, monkeypatch, quiet):
    module, agents, calls = load(name), [], []

    def spoil(array):
        calls.append(array := np.array(array))
        if len(calls) == at:
            array.flat[0] = value
        return array

    spy(monkeypatch, network_of(name), "__init__", lambda _, agent, *args: agents.append(agent))
    wrap(lambda env: wrapper(env, spoil))
    errors = RuntimeError, ValueError, FloatingPointError
    with contextlib.nullcontext() if np.isfinite(value) else pytest.raises(errors):
        module.train(small(name, env_id=TASK[name], total_steps=42))
    assert at <= len(calls) <= 15 or name == "reinforce"  # which plays its episodes to their ends
    assert weights_of(agents[0]).isfinite().all()


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_interrupted_training_returns_what_was_learned(name, wrap, monkeypatch, capsys):
    module, calls = load(name), []

    def stop(reward):
        calls.append(reward)
        if len(calls) == 31:
            raise KeyboardInterrupt
        return reward

    made = wrap(lambda env: TransformReward(Played(env, name == "reinforce"), stop))
    agent, history = module.train(small(name))
    stopped = int(re.fullmatch(r"stopped at step (\d+)", capsys.readouterr().out.splitlines()[-1])[1])
    assert stopped == 84 or name == "reinforce" and 50 < stopped <= 90  # after the last whole rollout
    assert [at for at, _ in history] == [at for at, _ in made[0].env.scores if at <= stopped] and len(history) > 8
    assert not torch.equal(weights_of(agent), weights_of(new_agent(name)))


@pytest.mark.parametrize("name", SCRIPTS)
def test_evaluate_plays_exactly_one_episode_in_each_environment_and_leaves_the_agent_alone(name, wrap, monkeypatch):
    module, agent, kinds = load(name), copy.deepcopy(recorded(name).agent), []
    before, made = copy.deepcopy(agent.state_dict()), wrap(lambda env: Played(env, whole=True))
    spy(monkeypatch, network_of(name), "act", lambda action, agent, obs, greedy: kinds.append(greedy))
    play = lambda *how: module.evaluate(agent, module.make_envs(marked(name), 30), *how).tolist()
    for scores, envs in zip(runs := [play(), play(True, 0), play(False, 1)], made):
        assert len(envs.scores) == 30 and len(envs.rows) == envs.scores[-1][0] / 30  # it stops with the last of these
        np.testing.assert_allclose(sorted(scores), sorted(score for _, score in envs.scores), rtol=1e-5, atol=1e-5)
    assert kinds == [True] * 2 * len(made[0].rows) + [False] * len(made[2].rows)
    assert runs[0] == runs[1] != runs[2]
    assert all(torch.equal(x, before[key]) for key, x in agent.state_dict().items())


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_episode_without_an_end_is_left_after_10_000_steps(name, wrap, monkeypatch, capsys):
    class Still(Recount):
        def step(self, actions):  # to save time, nothing moves
            self.env_step += 1
            ends = np.array([self.env_step == 3, False])
            return np.zeros((2, 3), np.float32), np.array([1.0, 2.0]), np.zeros(2, bool), ends, {}

    module, agent, endless = load(name), new_agent(name), marked(name, "Endless")
    if name != "reinforce":  # without a finished episode there is no average
        _, history = module.train(small(name, env_id=endless, total_steps=42))
        assert history == [] and "episode 0  average score of the last 20 episodes: nan" in capsys.readouterr().out
    action, made = agent.act(np.zeros((2, 3), np.float32)), wrap(Still)
    monkeypatch.setattr(network_of(name), "act", lambda *_: action)
    scores = module.evaluate(agent, module.make_envs(endless, 2))
    assert scores.tolist() == [3.0, 20_000.0] and made[0].env_step == 10_000
    if name == "reinforce":  # whose training plays whole episodes, too
        _, history = module.train(small(name, num_envs=2, total_steps=1))
        assert history == [(6, 3.0), (20_000, 20_000.0)]


@pytest.mark.parametrize("episodes", [0, 40])
@pytest.mark.parametrize("name", SCRIPTS)
def test_main_evaluates_greedily_in_as_many_episodes_as_asked_for(name, episodes, wrap, monkeypatch, capsys):
    module, kinds, agents, made = load(name), [], [], wrap(lambda env: Played(env, whole=True))
    spy(monkeypatch, network_of(name), "act", lambda action, agent, obs, greedy=False: kinds.append(
        (len(made), greedy, weights_of(agent))))
    spy(monkeypatch, module, "train", lambda result, config: agents.append(weights_of(result[0]).clone()))
    flags = f"--env-id {marked(name)} --total-steps 60 --num-envs 2 --seed 3 --eval-episodes {episodes}"
    flags += "" if name == "reinforce" else " --num-steps 7"
    flags += " --num-minibatches 3" if name in PPO else ""
    status, out, err = run_main(module, monkeypatch, capsys, *flags.split())
    assert (status, err, out.count("evaluation")) == (None, "", episodes > 0)
    assert [envs.num_envs for envs in made] == [1, 2] + [episodes] * (episodes > 0)  # the first is only a trial
    assert {kind[:2] for kind in kinds} == {(2, False), (3, True)} if episodes else {(2, False)}
    if episodes:
        mean = np.mean([score for _, score in made[2].scores])
        assert out.splitlines()[-1] == f"greedy evaluation: {mean:.2f} over {episodes} episodes"
        assert made[2].seeds == [3_500] and torch.equal(kinds[-1][2], agents[0])


@pytest.mark.parametrize("name, origin", [*((name, 0) for name in SCRIPTS), ("ppo_discrete", [300, 0, 20, 0])])
def test_it_solves_its_task_also_where_positions_and_angles_are_counted_from_far_away(name, origin, wrap, quiet):
    module = load(name)
    config = module.Config(seed={"ppo_discrete": 4, "ppo_continuous": 0, "reinforce": 5, "actor_critic": 3}[name])
    moved = lambda env: TransformObservation(env, lambda obs: obs + np.array(origin, np.float32)) if origin else env
    made = wrap(lambda env: StopWhenSolved(moved(env), SOLVED[TASK[name]]))
    _, history = module.train(config)
    assert made[0].solved and made[0].env_step < config.total_steps and config.env_id == TASK[name]
    recount = made[0].history[: len(history)]  # what was played last belongs to a rollout that was cut off
    assert [step for step, _ in history] == [step for step, _ in recount] and len(history) > 20
    np.testing.assert_allclose(sorted(history), sorted(recount), rtol=1e-5)


def test_a_batch_of_one_step_is_no_division_by_zero(quiet):
    module = load("actor_critic")
    module.train(module.Config(env_id=marked("actor_critic"), num_envs=1, num_steps=2, total_steps=200))
