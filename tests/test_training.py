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
from conftest import (
    BOX, DISCRETE, PPO, ROOT, SCRIPTS, MarkedEnv, Recount, load, marked, network_of, parse_line, register, spy)
from gymnasium.wrappers.vector import TransformObservation, TransformReward
from peer import SOLVED
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


def new_agent(name, **settings):
    config = small(name, **settings)
    envs = load(name).make_envs(config.env_id, config.num_envs)
    return network_of(name)(envs, config, envs.reset(seed=0)[0])


def networks_of(agent):
    return {key: net for key, net in agent.named_children() if key != "scale"}


def weights_of(agent):
    return parameters_to_vector(agent.parameters()).detach()


class Played(Recount):
    """Recounts what to learn from: actions not answered by a reset; if whole, first episodes after a common reset."""

    def __init__(self, env, whole):
        super().__init__(env)
        self.whole, self.seen, self.scores, self.seeds = whole, [], [], []

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        self.seeds += [] if seed is None else [seed]
        self.obs, self.done, self.firsts = obs.copy(), np.zeros(self.num_envs, bool), {}
        return obs, info

    def step(self, actions):
        waits = self.done if self.whole else np.array(self.over)
        self.seen.append(self.obs[~waits])
        answer = super().step(actions)
        self.done = waits & self.whole | self.over
        ended = {i: self.returns[i] for i in range(self.num_envs) if self.done[i] and not waits[i]}
        if self.whole:  # these are counted together, once the longest has ended
            self.firsts |= ended
            ended = self.firsts if len(self.firsts) == self.num_envs else {}
        self.scores += [(self.env_step, ended[i]) for i in sorted(ended)]
        self.obs = answer[0].copy()
        return answer


@functools.cache
def recorded(name):
    """A run on marked episodes, in rollouts of seven steps, and all that can be seen of it from outside."""
    module, out, make_vec = load(name), io.StringIO(), gym.make_vec
    settings, network = {"init_log_std": 1.0} if name == "ppo_continuous" else {}, network_of(name)
    run = SimpleNamespace(passes=[], acts=[], losses=[])
    run.config = small(name, total_steps=630, gamma=0.7, num_envs=np.int8(3), **settings)  # int8 ends at 127

    def make(*args):
        run.envs = Played(make_vec(*args), whole=name == "reinforce")
        return run.envs

    def note_pass(_, agent, obs):
        if torch.is_grad_enabled():
            run.passes.append(obs.clone())

    def note_loss(_, pi, value, action, old_log_prob, advantage, return_, *weights):
        x = (pi.log_prob(action) - old_log_prob).detach().double()
        run.losses.append((action, (x.exp() - 1 - x).mean().item(), pi.entropy().mean().item()))
        assert not (old_log_prob.requires_grad or advantage.requires_grad or return_.requires_grad)

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(gym, "make_vec", make)
        spy(patch, network, "pi", note_pass)
        spy(patch, network, "act", lambda action, *_: run.acts.append(action.copy()))
        if name in PPO:
            spy(patch, module, "ppo_loss", note_loss)
        run.agent, run.history = module.train(run.config)
    run.lines = [parse_line(line) for line in out.getvalue().splitlines()]
    return run


@pytest.mark.parametrize("name", SCRIPTS)
def test_networks_are_sized_as_asked_and_separate(name):
    agent = new_agent(name, hidden_size=9)
    networks, depth = networks_of(agent), 2 if name == "ppo_continuous" else 1
    assert list(networks) == (["policy"] if name == "reinforce" else ["policy", "critic"])
    for key, net in networks.items():
        outputs = 1 if key == "critic" else 2 if name == "ppo_continuous" else 3
        sizes = [(9, 3), (9,), *[(9, 9), (9,)] * (depth - 1), (outputs, 9), (outputs,)]
        assert [tuple(parameter.shape) for parameter in net.parameters()] == sizes
        x = 10 * torch.randn(1000, 3)
        bend = net(x) + net(-x) - 2 * net(torch.zeros(3))
        assert bend.std(0).min() > 0.01 * net(x).std(0).max()  # 0, if the network were linear
    if name != "reinforce":  # neither network disturbs the other
        agent.value(torch.randn(9, 3)).sum().backward()
        assert {p.grad is None for p in agent.policy.parameters()} == {True}
        assert {p.grad is None for p in agent.critic.parameters()} == {False}


@pytest.mark.parametrize("name", SCRIPTS)
def test_at_first_the_policy_is_undecided_wherever_it_is(name):
    agent = new_agent(name)
    pi = agent.pi(10 * torch.randn(1000, 3))
    if name == "ppo_continuous":  # with two components, 1/√2 times as wide
        assert agent.log_std.tolist() == pytest.approx([0.5 - math.log(2) / 2] * 2)
        torch.testing.assert_close(pi.stddev, torch.full((1000, 2), math.exp(0.5) / 2**0.5))
        assert pi.mean.abs().max() < 0.15 and pi.mean.std(0).max() < 0.02
    else:
        assert (pi.probs - 1 / 3).abs().max() < 0.1 and pi.probs.std(0).max() < 0.01


def test_weights_for_continuous_actions_are_orthogonal_at_first():
    agent = new_agent("ppo_continuous", hidden_size=9)
    for net in networks_of(agent).values():
        for layer in net[::2]:
            lengths = torch.linalg.svdvals(layer.weight) / (0.01 if layer is agent.policy[-1] else 1)
            torch.testing.assert_close(lengths, torch.full_like(lengths, 2**0.5))
            assert not layer.bias.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("low, high", [(-2.0, 2.0), (0.1, 0.3), (-1e-3, 1e5), (-0.7, 0.1)])
def test_continuous_actions_fill_the_range_and_never_leave_it(low, high, dtype, monkeypatch):
    """Even where float32 rounds: MarkedEnv refuses what its space does not contain."""
    played, space = [], gym.spaces.Box(dtype(low), dtype(high), (3,), dtype)
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


@pytest.mark.parametrize("greedy", [True, False])
def test_actions_as_drawn_are_played_by_make_envs_and_by_hand(greedy, quiet):
    """In units of half the range of an action: all three ways of playing the same episode have the same score."""
    module = load("ppo_continuous")
    agent, _ = module.train(module.Config(total_steps=2_000, seed=3))
    torch.manual_seed(5)
    (expected,) = module.evaluate(agent, module.make_envs("Pendulum-v1", 1), greedy, seed=4)
    envs, env = module.make_envs("Pendulum-v1", 1), gym.make("Pendulum-v1")
    for play in (envs.step, lambda action: env.step(2 * action[0].clip(-1, 1))):
        torch.manual_seed(5)
        obs, score, over = envs.reset(seed=4_500)[0], 0, False
        env.reset(seed=4_500)
        while not over:
            obs, reward, terminated, truncated, _ = play(agent.act(np.reshape(obs, (1, 3)), greedy))
            score, over = score + float(np.squeeze(reward)), bool(terminated or truncated)
        assert score == pytest.approx(expected, rel=1e-3)
    assert -1_800 < expected < -10


@pytest.mark.parametrize("name", SCRIPTS)
def test_all_that_is_counted_and_printed_is_a_recount(name):
    """An episode ends by being terminated as by being truncated: about half of these end in each way."""
    run = recorded(name)
    envs, history, lines = run.envs, run.history, run.lines
    assert len(history) > 80 and (envs.env_step == 630 or name == "reinforce" and 630 <= envs.env_step < 660)
    assert all(sum(row[end].sum() for row in envs.rows) > 20 for end in (2, 3))
    assert [step for step, _ in history] == [step for step, _ in envs.scores]
    np.testing.assert_allclose(sorted(history), sorted(envs.scores), rtol=1e-5, atol=1e-5)
    assert all(type(step) is int and type(score) is float for step, score in history)
    assert 15 <= len(lines) <= 20 and lines[-1].step == envs.env_step
    assert lines[0].step == (history[0][0] if name == "reinforce" else 21)  # after the first update
    for line in lines:
        scores = [score for at, score in history if at <= line.step]
        assert (line.total, line.episode) == (630, len(scores))
        assert line.average == pytest.approx(sum(scores[-20:]) / len(scores[-20:]), rel=1e-5)
    if name in PPO:  # KL and entropy are those of a rollout's last minibatch, of which there are eight
        expected = [run.losses[8 * line.step // 21 - 1][1:] for line in lines]
        np.testing.assert_allclose([(line.kl, line.entropy) for line in lines], expected, rtol=0.06, atol=1e-6)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_update_learns_from_each_step_but_resets_once_an_epoch(name):
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
def test_minibatches_are_as_many_as_asked_for_also_of_one_step(name, sizes, kind, monkeypatch, quiet):
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


@pytest.mark.parametrize("size", [0.01, 10_000])
def test_in_actor_critic_the_size_of_the_rewards_does_not_matter(size, wrap, quiet):
    module, runs = load("actor_critic"), []
    for factor in (1, size):
        wrap(lambda env, factor=factor: TransformReward(env, lambda reward: factor * reward))
        agent, history = module.train(module.Config(total_steps=1_000))
        runs.append((weights_of(agent), [step for step, _ in history], [score / factor for _, score in history]))
    (weights, *one), (weights_again, *two) = runs
    assert len(one[0]) > 20 and one[0] == two[0] and two[1] == pytest.approx(one[1])
    torch.testing.assert_close(weights, weights_again, rtol=1e-3, atol=1e-4)


def features():
    """By case: batches of observations (B, features). The first is that of the first reset, too."""
    rng, silent = np.random.default_rng(0), np.tile([0.0, 7.0], (1000, 1))
    x = rng.normal(size=(500, 2)) * [1.0, 0.1]  # positions and angles as CartPole has them
    return {
        **{f"offset of {k}": [k + x[:3], k + x[:300], k + x[300:]] for k in (0, 300, -5000)},
        **{f"units of {unit}": [unit * x[:2], unit * x, unit * (x + 3)] for unit in (1e-3, 1e4)},
        "constant": [np.tile([7.0, -0.1, 0.0, 293.15, -5000.3, 1e6], (5, 1))] * 20,
        "active late": [silent, silent + rng.uniform(-1, 1, size=(1000, 2))],
        "moving": [300 + x[:4], 300 + x, 310 + 30 * x, x - 1000, x[:1]],
        "one-hot": [np.eye(5)[rng.choice(5, size=n, p=[0.5, 0.3, 0.19, 0.01, 0.0])] for n in (5, 500, 500)],
        "one far beyond": [x[:5], x, x[:1] + 1e4],
    }


@pytest.mark.parametrize("case", features())
@pytest.mark.parametrize("name", SCRIPTS)
def test_features_are_measured_from_where_the_first_episodes_began(name, case):
    """In units of half the root mean square distance from there, and limited to 10 such units."""
    first, *batches = [torch.tensor(batch, dtype=torch.float32) for batch in features()[case]]
    scale = load(name).ObsScale(first.numpy())
    middle = scale.centre.expand(2, -1)
    torch.testing.assert_close(scale(middle + 1), 2 * (middle + 1 - scale.centre))  # at first the unit is 1/2
    assert scale(middle + 6).eq(10).all() and scale(middle - 6).eq(-10).all()
    for batch in batches:
        scale.include(batch)
    np.testing.assert_allclose(scale.centre, first.double().numpy().mean(0), rtol=1e-6, atol=1e-6)  # for good
    every = np.concatenate([batch.double().numpy() for batch in batches])
    distance = np.sqrt(np.square(every - scale.centre.double().numpy()).mean(0))
    obs = torch.cat([first, *batches, first + 3 * first.std(), -first])
    expected = 2 * (obs.double().numpy() - scale.centre.double().numpy()) / np.maximum(distance, 1e-9)
    moves = distance > 5e-5
    np.testing.assert_allclose(scale(obs)[:, moves], np.clip(expected, -10, 10)[:, moves], rtol=2e-3, atol=2e-3)
    assert scale(obs).isfinite().all()
    if case == "constant":  # it says nothing, and what changes for once is limited
        assert scale(first).abs().max() <= 2.001 and scale(first + 1).eq(10).all()
    copied = load(name).ObsScale(first.numpy() + 1)
    copied.load_state_dict(scale.state_dict())
    for each in (scale, copied):
        each.include(first - 1000)
    assert torch.equal(scale(obs), copied(obs))
    assert scale(obs.view(len(obs), 1, -1)).shape == (len(obs), 1, obs.shape[1])


@pytest.mark.parametrize("name", PPO)
def test_adam_goes_the_way_of_torchs_adam_also_from_a_kept_state(name):
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

    def freeze(_, agent, *args):
        starts.append(copy.deepcopy(agent.state_dict()))
        agent.get_submodule(frozen).requires_grad_(False)

    spy(monkeypatch, module.ActorCritic, "__init__", freeze)
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
def test_envs_are_seeded_once_and_neighbouring_seeds_share_no_start(name, mode, wrap, monkeypatch, quiet):
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


@pytest.mark.parametrize("name", ["ppo_discrete", "reinforce", "actor_critic"])
def test_a_mask_added_in_one_place_holds_everywhere(name, monkeypatch, quiet):
    """Of three actions, the first must not be played in even steps, and the second must not in odd ones."""
    module, learned, played = load(name), [], []

    def masked_pi(agent, obs):
        even = obs[..., 1] % 2 == 0
        forbidden = torch.stack([even, ~even, torch.zeros_like(even)], -1)
        pi = Categorical(logits=agent.policy(agent.scale(obs)).masked_fill(forbidden, -torch.inf))
        pi.chances = agent.policy(agent.scale(obs)).detach().exp() * ~forbidden
        pi.chances /= pi.chances.sum(-1, keepdim=True)
        return pi

    def note_act(action, agent, obs, greedy=False):
        chances = masked_pi(agent, torch.as_tensor(obs)).chances.numpy()
        played.extend(zip(obs[:, 1] % 2, action, action == chances.argmax(-1), chances.max(-1), [greedy] * len(obs)))

    monkeypatch.setattr(network_of(name), "pi", masked_pi)
    spy(monkeypatch, network_of(name), "act", note_act)
    spy(monkeypatch, Categorical, "log_prob", lambda value, pi, action: learned.append(
        (value.detach(), pi.chances.gather(-1, action.unsqueeze(-1)).squeeze(-1))))
    agent, _ = module.train(small(name))
    for greedy in (True, False):
        module.evaluate(agent, module.make_envs(marked(name), 20), greedy)
    odd, action, likeliest, chance, greedy = np.array(played, float).T
    assert {*zip(odd, action)} == {(0, 1), (0, 2), (1, 0), (1, 2)} and likeliest[greedy == 1].all()
    likeliest, chance = likeliest[greedy == 0], chance[greedy == 0]  # sampled
    assert abs((likeliest - chance).sum()) < 4 * np.sqrt((chance * (1 - chance)).sum()) < (1 - chance).sum()
    assert len(learned) > 10 and weights_of(agent).isfinite().all()
    for value, chance in learned:
        torch.testing.assert_close(value.exp(), chance, rtol=1e-4, atol=1e-6)


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


@pytest.mark.filterwarnings("ignore")  # of gymnasium and numpy, about what is not finite
@pytest.mark.parametrize("wrapper, value, at", [  # of observations, the first two are those of resets
    *((TransformObservation, np.nan, at) for at in (1, 2, 3, 9)), (TransformObservation, 2.0, 5),
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
    errors = RuntimeError, ValueError
    with contextlib.nullcontext() if np.isfinite(value) else pytest.raises(errors):
        module.train(small(name, env_id=TASK[name], total_steps=42))
    assert at <= len(calls) <= (16 if name != "reinforce" else 500)  # which plays its episodes to their ends
    assert all(weights_of(agent).isfinite().all() for agent in agents)


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
def test_evaluate_plays_an_episode_in_each_and_leaves_the_agent_alone(name, wrap, monkeypatch):
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
        out = capsys.readouterr().out
        assert history == [] and "episode 0  average score of the last 20 episodes: no episode yet  " in out
        assert [parse_line(line)[:4] for line in out.splitlines()] == [(21, 42, 0, None), (42, 42, 0, None)]
    action, made = agent.act(np.zeros((2, 3), np.float32)), wrap(Still)
    monkeypatch.setattr(network_of(name), "act", lambda *_: action)
    scores = module.evaluate(agent, module.make_envs(endless, 2))
    assert scores.tolist() == [3.0, 20_000.0] and made[0].env_step == 10_000
    if name == "reinforce":  # whose training plays whole episodes, too
        _, history = module.train(small(name, num_envs=2, total_steps=1))
        assert history == [(20_000, 3.0), (20_000, 20_000.0)]


class Solved(Played):
    """Ends the training, as Ctrl-C would, once the last 20 episodes solve the task."""

    solved = False

    def __init__(self, env, whole, threshold):
        super().__init__(env, whole)
        self.threshold = threshold

    def step(self, actions):
        answer = super().step(actions)
        last = [score for _, score in self.scores[-20:]]
        if len(last) == 20 and sum(last) / 20 >= self.threshold:
            self.solved = True
            raise KeyboardInterrupt
        return answer


def in_other_units(env):
    """CartPole with other units and zeros, and a feature that never changes."""
    space, units, zeros = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32), [1000, 1, 0.001, 1], [-5000, 0, 1.2, 0]
    change = lambda obs: np.column_stack([obs * units + zeros, np.full(len(obs), 293.15)]).astype(np.float32)
    return TransformObservation(env, change, single_observation_space=space)


@pytest.mark.parametrize("name, units", [*((name, None) for name in SCRIPTS), ("ppo_discrete", in_other_units)])
def test_it_solves_its_task_also_in_other_units(name, units, wrap, quiet):
    module = load(name)
    config = module.Config()
    how = (name == "reinforce", SOLVED[TASK[name]])
    made = wrap(lambda env: Solved(units(env) if units else env, *how))
    _, history = module.train(config)
    assert made[0].solved and made[0].env_step < config.total_steps and config.env_id == TASK[name]
    recount = made[0].scores[: len(history)]  # what was played last belongs to a rollout that was cut off
    assert [step for step, _ in history] == [step for step, _ in recount] and len(history) > 20
    np.testing.assert_allclose(sorted(history), sorted(recount), rtol=1e-5)


@pytest.mark.parametrize("size, settings", [(0, {}), (1, dict(env_id="OneStepDiscrete-v0", num_envs=1, num_steps=2))])
def test_in_actor_critic_rewards_of_0_and_a_single_step_are_no_division_by_0(size, settings, wrap, quiet):
    wrap(lambda env: TransformReward(env, lambda reward: size * reward))
    agent, _ = load("actor_critic").train(load("actor_critic").Config(total_steps=200, **settings))
    assert weights_of(agent).isfinite().all()
