"""The training loops on real environments: what enters a batch, what is counted, and that they learn."""

import copy

import numpy as np
import pytest
import torch
from conftest import PPO, SCRIPTS, load, marked, steps_to_solve


def small(name, **settings):
    """A short run on marked episodes, with a few odd sizes."""
    sizes = {"normalize_obs": True} | ({} if name == "reinforce" else {"num_steps": 7})
    sizes |= {"minibatch_size": 6, "epochs": 2} if name in PPO else {}
    return load(name).Config(**{"env_id": marked(name), "total_steps": 400, "num_envs": 3} | sizes | settings)


def as_played(agent, obs):
    """Undoes the normalization of MarkedEnv's observations, which are whole numbers."""
    shift = agent.normalize(torch.zeros(3))
    return ((obs - shift) * (agent.obs_norm.running_var + 1e-5).sqrt()).round()


def record_passes(module, monkeypatch):
    """Every batch of observations (B, obs_dim) or (T, N, obs_dim) that a gradient step came from."""
    passes = []
    network = module.Policy if module.__name__ == "reinforce" else module.ActorCritic
    forward = network.forward

    def recorded(self, obs):
        if torch.is_grad_enabled():
            passes.append(as_played(self, obs))
        return forward(self, obs)

    monkeypatch.setattr(network, "forward", recorded)
    return passes


@pytest.mark.parametrize("activation, kind", [("tanh", torch.nn.Tanh), ("relu", torch.nn.ReLU)])
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_weights_are_orthogonal_and_small_at_the_output(name, activation, kind):
    net = load(name).mlp([8, 6, 4, 2], activation, output_gain=0.01)
    assert [type(layer) for layer in net] == [torch.nn.Linear, kind, torch.nn.Linear, kind, torch.nn.Linear]
    for layer, gain in zip(net[::2], (2**0.5, 2**0.5, 0.01)):
        gram = layer.weight @ layer.weight.T
        torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), rtol=1e-5, atol=1e-5 * gain**2)
        assert not layer.bias.any()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_policy_is_nearly_uniform_at_first_and_the_critic_is_not_flat(name, quiet):
    agent, _ = load(name).train(small(name, total_steps=0))
    obs = torch.randn(100, 3)
    assert agent.policy(obs).abs().max() < 0.1
    critics = [getattr(agent, critic) for critic in ("critic", "v_critic") if hasattr(agent, critic)]
    assert all(critic(obs).std() > 0.1 for critic in critics)


@pytest.mark.parametrize("name", SCRIPTS)
def test_counts_and_scores_agree_with_a_recount(name, recount, quiet):
    module = load(name)
    made = recount(module)
    _, history = module.train(small(name, total_steps=600))
    assert len(made) == 1 and len(history) > 50
    assert [step for step, _ in history] == [step for step, _ in made[0].history]
    np.testing.assert_allclose([r for _, r in history], [r for _, r in made[0].history], rtol=1e-5, atol=1e-5)
    assert 600 <= made[0].env_step < 600 + 40
    assert all(type(step) is int and type(return_) is float for step, return_ in history)


@pytest.mark.parametrize("name", [*PPO, "reinforce"])
def test_no_reset_step_enters_a_batch(name, monkeypatch, quiet):
    passes = record_passes(load(name), monkeypatch)
    load(name).train(small(name))
    steps = torch.cat([obs.reshape(-1, 3) for obs in passes])
    assert len(steps) > 300
    # An action is taken from every observation but a final one: that is answered by the reset.
    assert not (steps[:, 2] == 1).any()


def test_no_reset_step_enters_the_actor_critic_loss(monkeypatch, quiet):
    module = load("actor_critic")
    passes, losses = record_passes(module, monkeypatch), []
    loss = module.actor_critic_loss
    monkeypatch.setattr(
        module, "actor_critic_loss", lambda *args: losses.append(len(args[0])) or loss(*args)
    )
    module.train(small("actor_critic"))
    assert losses == [int((obs[:, :, 2] == 0).sum()) for obs in passes]
    assert min(losses) < 21  # so that there were reset steps


@pytest.mark.parametrize("normalize_psi", [False, True])
@pytest.mark.parametrize("critic", ["td", "q", "advantage"])
def test_psi_and_the_critics_errors_are_their_definitions(critic, normalize_psi, monkeypatch, quiet):
    """In every update, recomputed from the networks and the rollout by slow loops."""
    module, kept, checked = load("actor_critic"), {}, []
    loss, tensors, act = module.actor_critic_loss, module.RolloutBuffer.tensors, module.ActorCritic.act

    class Run(module.Run):
        def __init__(self, config, agent, optimizer):
            super().__init__(config, agent, optimizer)
            kept["agent"] = agent

    def keep_tensors(self, device):
        kept["rollout"] = list(tensors(self, device))
        return kept["rollout"]

    def keep_action(self, obs, greedy=False):
        kept["action"] = act(self, obs, greedy)
        return kept["action"]

    def check(log_prob, psi, squared_error, entropy, config):
        agent, (obs, action, reward, terminated, truncated, valid) = kept["agent"], kept["rollout"]
        last = kept["action"]  # the one that was drawn for s_T, where Q needs it
        T, N = action.shape
        expected_psi, expected_error = [], []
        with torch.no_grad():
            for t in range(T):
                for n in (n for n in range(N) if valid[t, n]):
                    x, goes_on = agent.normalize(obs[t : t + 2, n]), 0.0 if terminated[t, n] else 1.0
                    next_action = action[t + 1, n] if t + 1 < T else last[n]
                    delta_v = delta_q = v = q = 0.0
                    if critic != "q":
                        v, v_next = (float(y) for y in agent.v_critic(x))
                        delta_v = float(reward[t, n]) + config.gamma * goes_on * v_next - v
                    if critic != "td":
                        q, q_next = float(agent.q_critic(x)[0, action[t, n]]), float(agent.q_critic(x)[1, next_action])
                        delta_q = float(reward[t, n]) + config.gamma * goes_on * q_next - q
                    expected_psi.append({"td": delta_v, "q": q, "advantage": q - v}[critic])
                    expected_error.append(delta_v**2 + delta_q**2)
        if normalize_psi:
            spread = np.std(expected_psi) + 1e-8
            expected_psi = [(x - np.mean(expected_psi)) / spread for x in expected_psi]
        assert not psi.requires_grad
        torch.testing.assert_close(psi, torch.tensor(expected_psi, dtype=torch.float32), rtol=2e-3, atol=2e-3 if normalize_psi else 1e-5)
        torch.testing.assert_close(squared_error.detach(), torch.tensor(expected_error), rtol=1e-3, atol=1e-5)
        checked.append(len(expected_psi))
        return loss(log_prob, psi, squared_error, entropy, config)

    monkeypatch.setattr(module, "Run", Run)
    monkeypatch.setattr(module.RolloutBuffer, "tensors", keep_tensors)
    monkeypatch.setattr(module.ActorCritic, "act", keep_action)
    monkeypatch.setattr(module, "actor_critic_loss", check)
    agent, _ = module.train(small("actor_critic", critic=critic, normalize_psi=normalize_psi, reward_scale=0.5))
    assert sum(checked) >= 400
    networks = {name for name, _ in agent.named_children()}
    assert networks - {"obs_norm", "policy"} == {"td": {"v_critic"}, "q": {"q_critic"}, "advantage": {"v_critic", "q_critic"}}[critic]


@pytest.mark.parametrize("name", PPO)
def test_every_epoch_sees_every_step_once_in_a_new_order(name, monkeypatch, quiet):
    passes = record_passes(load(name), monkeypatch)
    load(name).train(small(name, total_steps=21, minibatch_size=21))
    first, second = passes[:2]  # one rollout, two epochs of one minibatch
    assert first.shape == second.shape and not torch.equal(first, second)
    assert sorted(map(tuple, first.tolist())) == sorted(map(tuple, second.tolist()))


@pytest.mark.parametrize("name", PPO)
def test_gae_gets_the_true_successors_once_per_rollout(name, monkeypatch, recount, quiet):
    module = load(name)
    made, calls = recount(module), []
    compute_gae, forward = module.compute_gae, module.ActorCritic.forward

    def recorded(rewards, values, terminated, truncated, *rest):
        calls.append([x.clone() for x in (rewards, values, terminated, truncated)])
        return compute_gae(rewards, values, terminated, truncated, *rest)

    def value_tells_the_observation(self, obs):
        first, _ = forward(self, obs)
        value = as_played(self, obs) @ torch.tensor([100.0, 10.0, 1.0])
        return first, value + 0 * self.critic(obs).squeeze(-1)

    monkeypatch.setattr(module, "compute_gae", recorded)
    monkeypatch.setattr(module.ActorCritic, "forward", value_tells_the_observation)
    config = small(name, total_steps=100)
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


@pytest.mark.parametrize("name", SCRIPTS)
def test_environments_are_seeded_once(name, recount, quiet):
    module = load(name)
    made = recount(module)
    settings = {"env_id": "Pendulum-v1"} if name == "ppo_continuous" else {"env_id": "CartPole-v1"}
    module.train(small(name, total_steps=1_000, **settings))
    starts = made[0].starts
    assert len(starts) >= 6 and len(set(starts)) == len(starts)


@pytest.mark.parametrize("name", SCRIPTS)
def test_same_seed_same_history(name, quiet):
    module = load(name)
    settings = {"env_id": "Pendulum-v1"} if name == "ppo_continuous" else {"env_id": "CartPole-v1"}
    runs = [module.train(small(name, total_steps=1_500, seed=seed, **settings)) for seed in (5, 5, 6)]
    (agent, history), (agent_again, history_again), (_, other) = runs
    assert history and history == history_again and history != other
    for weight, weight_again in zip(agent.state_dict().values(), agent_again.state_dict().values()):
        assert torch.equal(weight, weight_again)


@pytest.mark.parametrize("name", PPO)
def test_a_minibatch_of_one_step_is_no_nan(name, quiet):
    agent, _ = load(name).train(small(name, num_envs=1, num_steps=2, minibatch_size=2, total_steps=60))
    assert all(weight.isfinite().all() for weight in agent.state_dict().values())


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_learning_rate_anneals_or_does_not(name, monkeypatch, quiet):
    module, rates = load(name), []
    step = torch.optim.Adam.step
    monkeypatch.setattr(
        torch.optim.Adam, "step", lambda self: rates.append(self.param_groups[0]["lr"]) or step(self)
    )
    module.train(small(name, learning_rate=0.001))
    assert rates[0] == 0.001 and rates == sorted(rates, reverse=True) and 0 < rates[-1] < 0.0002
    rates.clear()
    module.train(small(name, learning_rate=0.001, anneal_lr=False))
    assert set(rates) == {0.001}


@pytest.mark.parametrize("name", PPO)
def test_the_clip_anneals_or_does_not(name, monkeypatch, quiet):
    module, clips = load(name), []
    loss = module.ppo_loss
    monkeypatch.setattr(module, "ppo_loss", lambda *args: clips.append(args[6]) or loss(*args))
    module.train(small(name, clip_eps=0.3, anneal_clip=True))
    assert clips[0] == 0.3 and clips == sorted(clips, reverse=True) and 0 < clips[-1] < 0.06
    clips.clear()
    module.train(small(name, clip_eps=0.3, anneal_clip=False))
    assert set(clips) == {0.3}


@pytest.mark.parametrize("name", PPO)
def test_the_objective_chooses_clip_penalty_or_none(name, monkeypatch, quiet):
    module, clips, kls = load(name), [], []
    loss, kl_of = module.ppo_loss, module.kl_of

    def counted(*args):
        kls.append(torch.is_grad_enabled())
        return kl_of(*args)

    monkeypatch.setattr(module, "ppo_loss", lambda *args: clips.append(args[6]) or loss(*args))
    monkeypatch.setattr(module, "kl_of", counted)
    for objective in ("clip", "penalty", "none"):
        clips.clear(), kls.clear()
        agent, _ = module.train(small(name, objective=objective, learning_rate=0.01))
        assert all((clip is not None) == (objective == "clip") for clip in clips)
        assert sum(kls) == (len(clips) if objective == "penalty" else 0)  # else only measured
        assert (agent.beta != 1) == (objective == "penalty")


@pytest.mark.parametrize("name", PPO)
def test_the_penalty_holds_the_policy_and_nothing_does_not(name, monkeypatch, quiet):
    module, measured = load(name), {}

    class Run(module.Run):
        def report(self, measure):
            measured.setdefault(objective, []).append(float(measure()["kl"]))
            super().report(measure)

    monkeypatch.setattr(module, "Run", Run)
    for objective in ("penalty", "none"):
        module.train(small(name, objective=objective, learning_rate=0.02, epochs=8, minibatch_size=10, target_kl=0.003, total_steps=800))
    held = np.median(measured["penalty"][5:])
    assert 0.0003 < held < 0.03 and np.max(measured["none"]) > 30 * held


@pytest.mark.parametrize("name", PPO)
def test_the_measured_kl_is_that_of_the_whole_update(name, monkeypatch, quiet):
    """Seen from outside: the policy before and after the only update, on all steps but the reset steps."""
    module, seen = load(name), []
    batch = record_passes(module, monkeypatch)

    class Run(module.Run):
        def __init__(self, config, agent, optimizer):
            super().__init__(config, agent, optimizer)
            self.before = copy.deepcopy(agent)

        def report(self, measure):
            obs = self.agent.normalize(batch[0])
            with torch.no_grad():
                old, new = self.before(obs)[0], self.agent(obs)[0]
                widths = [] if name == "ppo_discrete" else [self.before.log_std, self.agent.log_std]
                arguments = (old, new) if name == "ppo_discrete" else (old, widths[0], new, widths[1])
                seen.append((measure()["kl"], module.kl_of(*arguments).mean()))
            super().report(measure)

    monkeypatch.setattr(module, "Run", Run)
    module.train(small(name, normalize_obs=False, total_steps=21, minibatch_size=21, learning_rate=0.02))
    assert seen[0][0] > 1e-5
    torch.testing.assert_close(*seen[0])


@pytest.mark.parametrize("name", PPO)
def test_advantages_are_normalized_in_each_minibatch_or_not_at_all(name, monkeypatch, quiet):
    module, estimates, batches = load(name), [], []
    compute_gae, loss = module.compute_gae, module.ppo_loss
    monkeypatch.setattr(module, "compute_gae", lambda *args: estimates.append(compute_gae(*args)) or estimates[-1])
    monkeypatch.setattr(module, "ppo_loss", lambda *args: batches.append(args) or loss(*args))
    module.train(small(name))
    for _, _, advantage, *_ in batches:
        assert abs(advantage.mean()) < 1e-5 and advantage.std(correction=0) == pytest.approx(1, abs=1e-3)
    estimates.clear(), batches.clear()
    module.train(small(name, normalize_advantage=False))
    assert {x for batch in batches for x in batch[2].tolist()} <= {x for a in estimates for x in a.flatten().tolist()}
    for _, _, advantage, _, old_value, return_, *_ in batches:  # G = Â + V_old, whatever becomes of Â
        torch.testing.assert_close(return_, advantage + old_value)


@pytest.mark.parametrize("name", PPO)
def test_the_value_is_clipped_around_the_old_one_or_not_at_all(name, monkeypatch, quiet):
    module, seen = load(name), []
    loss = module.ppo_loss
    monkeypatch.setattr(module, "ppo_loss", lambda *args: seen.append((args[3].detach(), args[4], args[7])) or loss(*args))
    for value_clip in (0.0, 0.3):
        seen.clear()
        module.train(small(name, value_clip=value_clip, total_steps=21, minibatch_size=21))
        value, old_value, _ = seen[0]  # nothing has been learned yet
        torch.testing.assert_close(value, old_value)
        assert {clip for *_, clip in seen} == {value_clip or None}


@pytest.mark.parametrize("name", [*PPO, "actor_critic"])
def test_the_gradient_is_shortened_to_its_greatest_length_or_left(name, monkeypatch, quiet):
    module, norms = load(name), []
    step = torch.optim.Adam.step

    def recorded(self):
        norms.append(float(self.param_groups[0]["params"][0].grad.norm()))
        return step(self)

    monkeypatch.setattr(torch.optim.Adam, "step", recorded)
    module.train(small(name, max_grad_norm=np.inf, reward_scale=1.0))
    free = list(norms)
    norms.clear()
    module.train(small(name, max_grad_norm=0.05, reward_scale=1.0))
    assert max(free) > 0.5 and max(norms) == pytest.approx(0.05, rel=1e-3)
    assert free[0] > norms[0] and min(norms) > 0.02  # shortened, not set to 0


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_weights_and_their_gradients_are_views_of_one_vector(name):
    module = load(name)
    network = module.Policy if name == "reinforce" else module.ActorCritic
    agent = network(module.make_envs(marked(name), 1), small(name))
    before = copy.deepcopy(agent.state_dict())
    weights = module.as_one_vector(agent)
    assert weights.numel() == sum(p.numel() for p in agent.parameters()) and not weights.grad.any()
    assert all(torch.equal(before[key], value) for key, value in agent.state_dict().items())
    first = sum((p * i).sum() for i, p in enumerate(agent.parameters()))
    first.backward()
    expected = torch.cat([torch.full((p.numel(),), float(i)) for i, p in enumerate(agent.parameters())])
    assert torch.equal(weights.grad, expected)
    with torch.no_grad():
        weights.fill_(7)
    assert all((p == 7).all() for p in agent.parameters())


@pytest.mark.parametrize("name", PPO)
def test_rewards_are_divided_by_their_running_spread_or_not_touched(name, monkeypatch, recount, quiet):
    module, seen = load(name), []
    compute_gae, Normalize = module.compute_gae, module.NormalizeReward
    made, wrapped = recount(module), []

    class Recorded(Normalize):
        def __init__(self, *args):
            wrapped.append(self)
            self.spreads = []
            super().__init__(*args)

        def step(self, actions):
            answer = super().step(actions)
            self.spreads.append(float(np.sqrt(self.return_rms.var + 1e-8)))
            return answer

    monkeypatch.setattr(module, "compute_gae", lambda *args: seen.append(args[0].clone()) or compute_gae(*args))
    monkeypatch.setattr(module, "NormalizeReward", Recorded)
    agent, _ = module.train(small(name, reward_scale=2.0))
    assert not wrapped and agent.reward_stats.tolist() == pytest.approx([0, 1, 1e-4])
    seen.clear()
    agent, _ = module.train(small(name, reward_scale=2.0, normalize_reward=True, gamma=0.9))
    assert wrapped[0].gamma == 0.9
    for row, (_, reward, _, _, over) in zip(torch.cat(seen), made[1].rows):
        spread, real = wrapped[0].spreads.pop(0), ~np.array(over)
        np.testing.assert_allclose(row.numpy()[real], 2 * reward[real] / spread, rtol=1e-4)
    # The discounted returns, summed by hand as gymnasium's wrapper defines them.
    sums, totals = [], np.zeros(3)
    for _, reward, terminated, _, over in made[1].rows:
        real = ~np.array(over)
        totals[real] = (0.9 * totals * ~terminated + reward)[real]
        sums += list(totals[real])
    assert agent.reward_stats[:2].tolist() == pytest.approx([np.mean(sums), np.var(sums)], rel=0.02, abs=0.01)
    assert agent.reward_stats[2] == pytest.approx(len(sums))


@pytest.mark.parametrize("name", PPO)
def test_the_running_spread_of_rewards_goes_on_from_a_checkpoint(name, tmp_path, monkeypatch, quiet):
    module, starts = load(name), []
    path = str(tmp_path / "kept.pt")
    agent, _ = module.train(small(name, normalize_reward=True, save=path))

    class Recorded(module.NormalizeReward):
        def reset(self, **options):
            starts.append([float(x) for x in (self.return_rms.mean, self.return_rms.var, self.return_rms.count)])
            return super().reset(**options)

    monkeypatch.setattr(module, "NormalizeReward", Recorded)
    again, _ = module.train(small(name, normalize_reward=True, load=path, total_steps=800))
    assert starts == [pytest.approx(agent.reward_stats.tolist())]
    assert again.reward_stats[2] > agent.reward_stats[2] + 300


@pytest.mark.parametrize("name", PPO)
def test_observations_are_clipped_or_not(name):
    module = load(name)
    far = torch.tensor([[100.0, -100.0, 0.5]])
    for clip, expected in ((0.0, [[100.0, -100.0, 0.5]]), (10.0, [[10.0, -10.0, 0.5]])):
        config = small(name, obs_clip=clip)
        agent = module.ActorCritic(module.make_envs(config.env_id, 1), config)
        torch.testing.assert_close(agent.normalize(far), torch.tensor(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SCRIPTS)
def test_activation_and_adams_epsilon_are_what_was_asked_for(name, monkeypatch, quiet):
    module, epsilons = load(name), []
    adam = torch.optim.Adam
    monkeypatch.setattr(torch.optim, "Adam", lambda *args, **how: epsilons.append(how["eps"]) or adam(*args, **how))
    for activation, layer, other in (("tanh", torch.nn.Tanh, torch.nn.ReLU), ("relu", torch.nn.ReLU, torch.nn.Tanh)):
        agent, _ = module.train(small(name, activation=activation, adam_eps=0.25, total_steps=20))
        layers = [type(layer) for layer in agent.modules()]
        assert layer in layers and other not in layers
    assert epsilons == [0.25, 0.25]


def test_continuous_actions_are_learned_unclipped_and_played_within_bounds(monkeypatch, recount, quiet):
    module = load("ppo_continuous")
    learned = []
    log_prob_of = module.log_prob_of

    def recorded(action, mean, log_std):
        learned.append(action)
        return log_prob_of(action, mean, log_std)

    monkeypatch.setattr(module, "log_prob_of", recorded)
    module.train(small("ppo_continuous", init_log_std=1.0))  # MarkedEnv refuses actions out of its bounds
    assert torch.cat([a.reshape(-1, 2) for a in learned]).abs().max() > 2


def test_actions_fill_the_environments_range():
    module = load("ppo_continuous")
    config = small("ppo_continuous")
    agent = module.ActorCritic(module.make_envs(config.env_id, 1), config)
    actions = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [9.0, -9.0]])
    np.testing.assert_allclose(agent.to_env(actions), [[-2, 0], [0, 5], [2, 10], [2, 0]])


@pytest.mark.parametrize("name", SCRIPTS)
def test_observation_statistics_are_part_of_the_network(name, quiet):
    module = load(name)
    agent, _ = module.train(small(name))
    statistics = {key for key in agent.state_dict() if key.startswith("obs_norm.running")}
    assert statistics == {"obs_norm.running_mean", "obs_norm.running_var"}
    assert agent.obs_norm.running_mean[0] > 5  # the episode numbers' mean
    before = agent.obs_norm.running_mean.clone()
    module.evaluate(agent, marked(name), episodes=5)
    assert torch.equal(agent.obs_norm.running_mean, before)  # evaluation sees them and leaves them
    middle = agent.normalize(torch.zeros(3))
    assert middle.any() if name == "ppo_continuous" else not middle.any()  # on CartPole 0 stays the middle of the track


@pytest.mark.parametrize("name", SCRIPTS)
def test_observations_stay_as_they_are_without_normalize_obs(name, quiet):
    agent, _ = load(name).train(small(name, normalize_obs=False))
    obs = torch.randn(4, 3)
    torch.testing.assert_close(agent.normalize(obs), obs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PPO)
def test_the_entropy_bonus_widens_the_policy_or_is_off(name, monkeypatch, quiet):
    module, entropies, calls = load(name), [], []
    entropy_of = module.entropy_of

    def recorded(*args):
        if torch.is_grad_enabled():  # else it is only measured
            calls.append(entropy_coef)
            entropies.append(entropy_of(*args).mean().item())
        return entropy_of(*args)

    monkeypatch.setattr(module, "entropy_of", recorded)
    # A policy that is far from uniform, so that there is entropy to gain.
    monkeypatch.setattr(module, "mlp", lambda *args, output_gain, mlp=module.mlp: mlp(*args, 3.0))
    for entropy_coef in (0.0, 10.0):
        module.train(small(name, entropy_coef=entropy_coef, total_steps=1_000))
    assert set(calls) == {10.0}  # a coefficient of 0 computes nothing
    assert np.mean(entropies[-20:]) > entropies[0] + 0.02


@pytest.mark.parametrize("name", SCRIPTS)
def test_evaluate_plays_each_environments_first_episode(name, recount, quiet):
    module = load(name)
    agent, _ = module.train(small(name, total_steps=50))
    made = recount(module)
    returns = module.evaluate(agent, marked(name), episodes=30, seed=7)
    assert returns.shape == (30,)
    firsts = [None] * 30
    totals = np.zeros(30)
    for _, reward, terminated, truncated, _ in made[0].rows:
        totals += reward
        for i in range(30):
            if firsts[i] is None and (terminated[i] or truncated[i]):
                firsts[i] = totals[i]
    np.testing.assert_allclose(returns, firsts)
    np.testing.assert_array_equal(returns, module.evaluate(agent, marked(name), episodes=30, seed=7))
    assert (returns != module.evaluate(agent, marked(name), episodes=30, seed=8)).any()


@pytest.mark.parametrize("name", ["ppo_discrete", "reinforce", "actor_critic"])
def test_actions_are_the_likeliest_or_sampled_from_the_policy(name):
    module = load(name)
    network = module.Policy if name == "reinforce" else module.ActorCritic
    agent = network(module.make_envs(marked(name), 1), small(name))
    with torch.no_grad():
        agent.policy[-1].weight *= 150  # far from uniform
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    logits = agent.policy(agent.normalize(torch.as_tensor(obs)))
    assert 0.4 < logits.softmax(-1).max(-1).values.mean() < 0.95
    assert torch.equal(agent.act(obs, greedy=True), logits.argmax(-1))
    sampled = torch.stack([agent.act(obs) for _ in range(500)])
    frequencies = torch.stack([(sampled == k).float().mean(0) for k in range(3)], -1)
    assert (frequencies - logits.softmax(-1)).abs().max() < 0.12


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "name, threshold", [("ppo_discrete", 475), ("ppo_continuous", -200), ("reinforce", 475), ("actor_critic", 475)]
)
def test_it_solves_its_task(name, threshold, seed):
    module = load(name)
    config = module.Config(seed=seed)
    assert steps_to_solve(module, config, threshold) <= config.total_steps
