"""The training loops on real environments: what enters a batch, what is counted, and that they learn."""

import numpy as np
import pytest
import torch
from benchmark import train_ours
from conftest import PPO, ROOT, SCRIPTS, load, marked

TASK = {name: "Pendulum-v1" if name == "ppo_continuous" else "CartPole-v1" for name in SCRIPTS}


def small(name, **settings):
    """A short run on marked episodes, with a few odd sizes."""
    sizes = {} if name == "reinforce" else {"num_steps": 7}
    sizes |= {"num_minibatches": 4, "epochs": 2} if name in PPO else {}
    return load(name).Config(**{"env_id": marked(name), "total_steps": 420, "num_envs": 3} | sizes | settings)


def new_agent(name, **settings):
    """An agent that has learned nothing yet."""
    return load(name).set_up(small(name, **settings))[1]


def network_of(module):
    return module.Policy if module.__name__ == "reinforce" else module.ActorCritic


def record_passes(module, monkeypatch):
    """Every batch of observations (B, obs_dim) or (T, N, obs_dim) that a gradient step came from."""
    seen, passes, forward, descend = [], [], network_of(module).forward, module.descend

    def recorded(self, obs):
        seen.append(obs.clone())
        return forward(self, obs)

    def descended(*args):
        passes.append(seen[-1])
        descend(*args)

    monkeypatch.setattr(network_of(module), "forward", recorded)
    monkeypatch.setattr(module, "descend", descended)
    return passes


def steps_of(module, monkeypatch):
    """The gradients, learning rates and states of every step of Adam."""
    steps, adam = [], module.adam

    def recorded(weights, grads, *states, lr, **how):
        steps.append({"grad": grads[0].clone(), "lr": lr, "count": int(states[-1][0]), "how": how})
        return adam(weights, grads, *states, lr=lr, **how)

    monkeypatch.setattr(module, "adam", recorded)
    return steps


# ---- Networks ----


@pytest.mark.parametrize("activation, kind", [("tanh", torch.nn.Tanh), ("relu", torch.nn.ReLU)])
@pytest.mark.parametrize("name", [*PPO, "actor_critic"])
def test_the_weights_are_orthogonal_and_small_at_the_output(name, activation, kind):
    net = load(name).mlp([8, 6, 4, 2], activation, output_gain=0.01)
    assert [type(layer) for layer in net] == [torch.nn.Linear, kind, torch.nn.Linear, kind, torch.nn.Linear]
    for layer, gain in zip(net[::2], (2**0.5, 2**0.5, 0.01)):
        gram = layer.weight @ layer.weight.T
        torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), rtol=1e-5, atol=1e-5 * gain**2)
        assert not layer.bias.any()


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
def test_the_weights_are_views_of_one_vector(name):
    agent = new_agent(name)
    assert agent.weights.numel() == sum(p.numel() for p in agent.parameters())
    with torch.no_grad():
        agent.weights.fill_(7)
    assert all((p == 7).all() for p in agent.parameters())


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
def test_continuous_actions_fill_the_range_and_never_leave_it(low, high, monkeypatch):
    """Even where float32 rounds: the environment's own check is strict."""
    module, played = load("ppo_continuous"), []
    space = module.gym.spaces.Box(np.float32(low), np.float32(high), (2, 2), np.float32)
    make_vec = module.gym.make_vec

    class Fake(module.gym.vector.VectorWrapper):
        single_action_space = space

        def step(self, actions):
            played.append(actions)
            return self.env.step(np.zeros((len(actions), 1), np.float32))

    monkeypatch.setattr(module.gym, "make_vec", lambda *args, **how: Fake(make_vec(*args, **how)))
    envs = module.make_envs("Pendulum-v1", 4)
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
    monkeypatch.setattr(module, "ppo_loss", lambda *args: learned.append(args[3]) or loss(*args))
    module.train(small("ppo_continuous", init_log_std=1.0))  # MarkedEnv refuses actions out of its bounds
    assert torch.cat(learned).abs().max() > 2


# ---- What is counted, and what is learned from ----


@pytest.mark.parametrize("name", ["ppo_discrete", "ppo_continuous", "actor_critic"])
def test_counts_and_scores_agree_with_a_recount(name, recount, quiet):
    module = load(name)
    made = recount(module)
    _, history = module.train(small(name, total_steps=630))
    assert len(made) == 1 and len(history) > 50 and made[0].env_step == 630
    assert [step for step, _ in history] == [step for step, _ in made[0].history]
    np.testing.assert_allclose([r for _, r in history], [r for _, r in made[0].history], rtol=1e-5, atol=1e-5)
    assert all(type(step) is int and type(return_) is float for step, return_ in history)


def test_reinforce_counts_the_episodes_it_learns_from(recount, monkeypatch, quiet):
    module = load("reinforce")
    made, passes = recount(module), record_passes(module, monkeypatch)
    _, history = module.train(small("reinforce"))
    learned = [len(batch) for batch in passes]
    assert len(history) == 3 * len(learned)  # one episode of each environment in each update
    assert history[-1][0] == made[0].env_step
    assert sum(learned) < made[0].env_step  # who is done first plays on, and teaches nothing
    returns = iter(made[0].history)  # of all episodes, among them those that were learned from
    assert all(any(score == pytest.approx(r, abs=1e-4) for _, r in returns) for _, score in history)


@pytest.mark.parametrize("name", [*PPO, "reinforce"])
def test_no_reset_step_enters_a_batch(name, monkeypatch, quiet):
    passes = record_passes(load(name), monkeypatch)
    load(name).train(small(name))
    steps = torch.cat([obs.reshape(-1, 3) for obs in passes])
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


@pytest.mark.parametrize("name", PPO)
@pytest.mark.parametrize("num_minibatches", [1, 3, 1000])
def test_any_number_of_minibatches_works(name, num_minibatches, monkeypatch, quiet):
    steps = steps_of(load(name), monkeypatch)
    agent, _ = load(name).train(small(name, num_envs=1, num_steps=2, num_minibatches=num_minibatches))
    assert len(steps) > 100 and agent.weights.isfinite().all()


@pytest.mark.parametrize("name", PPO)
def test_gae_gets_the_true_successors_once_per_rollout(name, monkeypatch, recount, quiet):
    module = load(name)
    made, calls = recount(module), []
    compute_gae, forward = module.compute_gae, module.ActorCritic.forward

    def recorded(reward, value, terminated, truncated, gamma, gae_lambda):
        calls.append([x.clone() for x in (reward, value, terminated, truncated)])
        assert (gamma, gae_lambda) == (0.7, 0.3)
        return compute_gae(reward, value, terminated, truncated, gamma, gae_lambda)

    def value_tells_the_observation(self, obs):
        pi, value = forward(self, obs)
        return pi, obs @ torch.tensor([100.0, 10.0, 1.0]) + 0 * value

    monkeypatch.setattr(module, "compute_gae", recorded)
    monkeypatch.setattr(module.ActorCritic, "forward", value_tells_the_observation)
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
    for advantage in batches:
        assert abs(advantage.mean()) < 1e-4 and (len(advantage) == 1 or advantage.std(correction=0) == pytest.approx(1, abs=1e-3))


@pytest.mark.parametrize("name", PPO)
def test_rewards_are_divided_by_their_running_spread_or_not_touched(name, monkeypatch, recount, quiet):
    module, seen = load(name), []
    made, compute_gae = recount(module), module.compute_gae
    monkeypatch.setattr(module, "compute_gae", lambda *args: seen.append(args[0].clone()) or compute_gae(*args))
    agent, _ = module.train(small(name, reward_scale=2.0, normalize_reward=True, gamma=0.9))
    # The discounted returns so far, summed by hand, with gymnasium's first ten-thousandth of a number.
    sums, totals = [], np.zeros(3)
    for row, (_, reward, terminated, _, over) in zip(torch.cat(seen), made[0].rows):
        real = ~np.array(over)
        totals[real] = (0.9 * totals * ~terminated + reward)[real]
        sums += list(totals[real])
        np.testing.assert_allclose(row[real], 2 * reward[real] / (np.std(sums) + 1e-8), rtol=0.05 if len(sums) > 20 else 10)
    assert agent.reward_stats["var"] == pytest.approx(np.var(sums), rel=0.01)
    agent, _ = module.train(small(name))
    assert agent.reward_stats == {}


# ---- Observation statistics ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_observation_statistics_are_those_of_all_observations_so_far(name, recount, quiet):
    module = load(name)
    made = recount(module)
    agent, _ = module.train(small(name, num_envs=1 if name != "reinforce" else 3, total_steps=700))
    last, seen = [tuple(made[0].starts[0])], []
    if name == "reinforce":  # the first episodes after each explicit reset; here the sums alone are checked
        count, mean, square = agent.obs_sums[0, 0], agent.obs_sums[1] / agent.obs_sums[0], agent.obs_sums[2] / agent.obs_sums[0]
        assert count > 100 and (square >= mean**2).all()
    else:
        for obs, _, _, _, over in made[0].rows:
            seen += [last[0]] * (not over[0])
            last = [tuple(obs[0])]
        seen = np.array(seen)
        count, mean, square = agent.obs_sums[:, 0], agent.obs_sums[1] / agent.obs_sums[0], agent.obs_sums[2] / agent.obs_sums[0]
        assert count[0] == pytest.approx(len(seen), abs=0.01)
        np.testing.assert_allclose(mean, seen.mean(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose((square - mean**2).sqrt(), seen.std(0), rtol=1e-3, atol=1e-3)
        assert seen[:, 0].std() > 20  # the episode's number grows: no rollout alone has this spread
    before = agent.obs_sums.clone()
    module.evaluate(agent, marked(name), episodes=5)
    assert torch.equal(agent.obs_sums, before)  # evaluation uses them and leaves them


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_networks_see_scaled_observations(name, quiet):
    agent, _ = load(name).train(small(name))
    seen, obs = [], torch.randn(40, 3) * 5
    agent.policy.register_forward_pre_hook(lambda net, inputs: seen.append(inputs[0]))
    agent(obs)
    agent.act(obs.numpy())
    mean, square = agent.obs_sums[1:] / agent.obs_sums[0]
    expected = 2 * obs / (square - mean**2).clamp(min=1e-8).sqrt()
    assert expected.abs().max() > 10 and (seen[0] - obs).abs().max() > 1
    for x in seen:
        torch.testing.assert_close(x, expected.clamp(-10, 10).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_observation_that_never_changes_stays_finite(name):
    agent = new_agent(name)
    agent.obs_sums += torch.tensor([[1.0], [7.0], [49.0]], dtype=torch.float64) * 10**12
    agent.update_statistics(torch.full((4, 3), 7.0), *[2.0] * (name in PPO))
    outputs = agent(torch.full((4, 3), 7.0))
    pi = outputs if name == "reinforce" else outputs[0]
    assert pi.entropy().isfinite().all() and pi.log_prob(pi.sample()).isfinite().all()


@pytest.mark.parametrize("name", SCRIPTS)
def test_statistics_change_only_between_rollouts(name, monkeypatch, quiet):
    """The policy that plays, the estimates and the update see the same statistics."""
    module, seen, config = load(name), [], small(name, total_steps=63)
    run = module.set_up(config)

    def record(net, inputs):
        seen.append((bool(torch.is_grad_enabled()), float(run[1].obs_sums[0, 0])))

    run[1].policy.register_forward_pre_hook(record)
    module.train(config, run)
    counts = list(dict.fromkeys(count for _, count in seen))
    assert len(counts) >= 2 and counts == sorted(counts)
    for count in counts:  # playing and learning happened with each
        assert {grad for grad, c in seen if c == count} == {True, False}


# ---- The gradient step ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_learning_rate_falls_linearly(name, monkeypatch, quiet):
    steps = steps_of(load(name), monkeypatch)
    load(name).train(small(name, learning_rate=0.001))
    rates = [step["lr"] for step in steps]
    assert rates[0] == 0.001 and rates == sorted(rates, reverse=True) and 0 < rates[-1] < 0.0002
    assert [step["count"] for step in steps] == list(range(len(steps)))
    assert steps[0]["how"]["eps"] == 1e-5 and (steps[0]["how"]["beta1"], steps[0]["how"]["beta2"]) == (0.9, 0.999)


@pytest.mark.parametrize("name", [*PPO, "actor_critic"])
def test_the_gradient_is_shortened_to_its_greatest_length_or_left(name, monkeypatch, quiet):
    steps, norms = steps_of(load(name), monkeypatch), []
    for limit in (np.inf, 0.05):
        steps.clear()
        load(name).train(small(name, max_grad_norm=limit, reward_scale=1.0))
        norms.append([float(step["grad"].norm()) for step in steps])
    free, held = norms
    assert max(free) > 0.5 and max(held) == pytest.approx(0.05, rel=1e-3)
    assert free[0] > held[0] > 0.02  # shortened, not set to 0


@pytest.mark.parametrize("name", PPO)
def test_beta_follows_the_kl(name, monkeypatch, quiet):
    """Doubled where the KL is 1.5 times the target, halved below two thirds of it; from 1 to 10,000."""
    module = load(name)
    for target_kl, before, after in ((1e-9, 1, 2), (1e9, 4, 2), (1e9, 1, 1), (1e-9, 9e3, 1e4)):
        config = small(name, objective="penalty", target_kl=target_kl, total_steps=21)
        run = module.set_up(config)
        run[1].beta.fill_(before)
        assert module.train(config, run)[0].beta == after


@pytest.mark.parametrize("name", PPO)
def test_the_kl_that_the_penalty_aims_at_falls(name, capsys):
    def beta_after(target_kl):
        config = small(name, objective="penalty", target_kl=target_kl, total_steps=210)
        envs, agent, _, history = load(name).set_up(config)
        agent.beta.fill_(4)
        return load(name).train(config, (envs, agent, 189, history))[0].beta  # a tenth of the run is left

    beta_after(0.01)
    kl = float(capsys.readouterr().out.split(" kl ")[1].split()[0])
    assert [beta_after(10 * x * kl) for x in (0.5, 1, 2)] == [8, 4, 2]


@pytest.mark.parametrize("name", PPO)
def test_the_penalty_and_the_clip_hold_the_policy(name, capsys):
    measured = {}
    for objective, clip_eps in (("penalty", 0.2), ("clip", 0.05), ("clip", float("inf"))):
        settings = {"objective": objective, "clip_eps": clip_eps, "learning_rate": 0.02, "target_kl": 0.003}
        load(name).train(small(name, epochs=8, total_steps=840, **settings))
        kls = [float(line.split(" kl ")[1].split()[0]) for line in capsys.readouterr().out.splitlines()]
        measured[objective, clip_eps] = kls
    free = max(measured.pop(("clip", float("inf"))))
    assert all(np.median(kls) < free / 3 for kls in measured.values()), (measured, free)


@pytest.mark.parametrize("limit", [0.01, np.inf])
@pytest.mark.parametrize("name", PPO)
def test_two_equal_processes_learn_what_one_learns(name, limit, monkeypatch, quiet):
    """As if another process had sent the same numbers: sums are twice, and averages are what they were."""
    module, weights, sums = load(name), [], []
    for processes in (1, 2):
        monkeypatch.setattr(module, "PROCESSES", processes)
        monkeypatch.setattr(module, "all_reduce", lambda tensor: tensor.mul_(processes))
        agent, _ = module.train(small(name, total_steps=21 * processes, max_grad_norm=limit))
        weights.append(agent.weights)
        sums.append(agent.obs_sums - new_agent(name).obs_sums)
    torch.testing.assert_close(*weights)
    torch.testing.assert_close(2 * sums[0], sums[1])


@pytest.mark.parametrize("name", PPO)
def test_beta_follows_the_kl_of_all_processes(name, monkeypatch, capsys):
    module = load(name)
    module.train(small(name, total_steps=21))
    kl = float(capsys.readouterr().out.split(" kl ")[1].split()[0])
    monkeypatch.setattr(module, "PROCESSES", 2)
    monkeypatch.setattr(module, "all_reduce", lambda tensor: tensor.mul_(2))
    agent, _ = module.train(small(name, total_steps=42, target_kl=kl / 2))
    assert agent.beta == 2  # half the KL, which is this process's share, would leave it at 1


def test_the_width_of_the_policy_begins_as_asked_for():
    assert new_agent("ppo_continuous", init_log_std=-1.25).log_std.tolist() == [-1.25, -1.25]


# ---- Seeds ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_seed_and_the_process_choose_weights_and_episodes(name, recount, monkeypatch, quiet):
    module = load(name)
    made, weights = recount(module), {}
    for run in ("seed 1", "seed 1 again", "seed 2", "process 1"):
        torch.manual_seed(len(weights))  # what was drawn before must not matter
        if run == "process 1" and name in PPO:
            monkeypatch.setattr(module, "RANK", 1)
        seed = 2 if run == "seed 2" else 1
        weights[run] = module.set_up(small(name, seed=seed))[1].weights
        module.train(small(name, seed=seed, env_id=TASK[name], total_steps=40))
    assert torch.equal(weights["seed 1"], weights["seed 1 again"]) and not torch.equal(weights["seed 1"], weights["seed 2"])
    assert torch.equal(weights["seed 1"], weights["process 1"])  # all processes begin with the same weights
    first, again, other, process = (set(envs.starts) for envs in made[1::2])
    assert first == again and not first & other and (not first & process if name in PPO else first == process)


@pytest.mark.parametrize("name", SCRIPTS)
def test_environments_are_seeded_once_and_neighbouring_seeds_share_no_episode(name, recount, quiet):
    module = load(name)
    made = recount(module)
    for seed in (340, 341):
        _, history = module.train(small(name, total_steps=1_000, env_id=TASK[name], seed=seed))
    agent, _ = module.train(small(name, total_steps=0, env_id=TASK[name], seed=340))
    module.evaluate(agent, TASK[name], 3, seed=340)  # as many as in training: their first draws could be the same
    starts = [tuple(np.round(start, 6)) for envs in (made[0], made[1], made[-1]) for start in envs.starts]
    assert len(starts) >= 15 and len(set(starts)) == len(starts)


@pytest.mark.parametrize("name", SCRIPTS)
def test_same_seed_same_history(name, quiet):
    module = load(name)
    runs = [module.train(small(name, total_steps=1_500, seed=seed, env_id=TASK[name])) for seed in (5, 5, 6)]
    (agent, history), (agent_again, history_again), (_, other) = runs
    assert history and history == history_again and history != other
    assert torch.equal(agent.weights, agent_again.weights)


# ---- Evaluation, and the whole ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_evaluate_plays_each_environments_first_episode(name, recount, quiet):
    module, agent = load(name), new_agent(name)
    made = recount(module)
    returns = module.evaluate(agent, marked(name), episodes=30, seed=7)
    assert returns.shape == (30,)
    firsts, totals = [None] * 30, np.zeros(30)
    for _, reward, terminated, truncated, _ in made[0].rows:
        totals += reward
        for i in range(30):
            if firsts[i] is None and (terminated[i] or truncated[i]):
                firsts[i] = totals[i]
    np.testing.assert_allclose(returns, firsts)
    np.testing.assert_array_equal(returns, module.evaluate(agent, marked(name), episodes=30, seed=7))
    assert (returns != module.evaluate(agent, marked(name), episodes=30, seed=8)).any()


@pytest.mark.parametrize("name", SCRIPTS)
def test_evaluate_ends_although_the_episode_does_not(name, monkeypatch):
    module, agent = load(name), new_agent(name)
    envs = module.make_envs("Endless-v0" if name != "ppo_continuous" else "EndlessBox-v0", 2)
    assert envs.spec.max_episode_steps is None
    returns = module.evaluate(agent, "", episodes=2, envs=envs)
    assert returns.shape == (2,) and np.isfinite(returns).all()


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_slow_is_imported(name):
    import subprocess
    import sys

    code = (
        f"import sys, {name} as script; script.train(script.Config(total_steps=500));"
        "print([m for m in ('torch._dynamo', 'sympy', 'torch._inductor') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "name, threshold", [("ppo_discrete", 475), ("ppo_continuous", -200), ("reinforce", 475), ("actor_critic", 475)]
)
def test_it_solves_its_task(name, threshold, seed, quiet):
    *_, history = train_ours(name, "", seed, stop=True, module=load(name))  # ends as soon as it is solved
    scores = [score for _, score in history]
    assert max(np.mean(scores[i - 20 : i]) for i in range(20, len(scores) + 1)) >= threshold
