# /// script
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]
# ///
"""Actor-critic, in one file: with temporal difference (TD) errors, Q, or the advantage.

The policy π(a|s), or actor, gives the probability of action a in state s. The return is the sum of
the rewards r still to come, where a reward k steps later is multiplied by γ^k. The critic learns to
predict it: V(s) is the expected return from state s, and Q(s, a) the same if the first action is a.
Every few steps both learn from one loss, with a weight ψ_t for each action and an error δ_t:

    L = -E[ψ_t log π(a_t|s_t)] + ½ E[δ_t²] - c E[H(π(·|s_t))]

    --critic td         ψ_t = δ_t                   δ_t = r_t + γ V(s_{t+1}) - V(s_t)
    --critic q          ψ_t = Q(s_t, a_t)           δ_t = r_t + γ Q(s_{t+1}, a_{t+1}) - Q(s_t, a_t)
    --critic advantage  ψ_t = Q(s_t, a_t) - V(s_t)  both δ_t above, their squares added

E is the mean over the steps of an update, after normalising their ψ_t to mean 0 and standard
deviation 1. No gradient flows through ψ_t, nor through the targets r_t + γ V and r_t + γ Q, where
V and Q of a terminal state count as 0. The entropy H tells how unsure π is; c weighs it.

V is the mean of Q over the policy's actions, and Q - V the advantage. With Q - V as ψ_t there is
less noise than with Q and, on average, the same gradient ([1] Sec. 13.4). The δ_t of V, the TD
error, estimates Q - V without Q ([1] Sec. 13.5). The δ_t of Q is that of SARSA ([1] Eq. 6.7).

`python actor_critic.py` solves CartPole (the last 20 scores average 475) after about 18,000 of
100,000 steps. With --critic q, add --gamma 0.99 --max-grad-norm 0.2.
[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd ed. (our r_t is its R_{t+1})
"""

import inspect
import re
from argparse import SUPPRESS, ArgumentParser
from dataclasses import dataclass, fields
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers.vector import FlattenObservation, RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical

torch.set_num_threads(1)  # networks this small are computed faster in a single thread


@dataclass
class Config:
    """The settings of a run. Each is a flag, explained by its comment: num_envs is --num-envs."""
    env_id: str = "CartPole-v1"  # gymnasium environment with Discrete actions
    total_steps: int = 100_000  # environment steps to train for
    num_envs: int = 4  # N, environments played side by side
    num_steps: int = 8  # T, steps of each environment per update
    learning_rate: float = 5e-3  # initial learning rate of Adam; it falls linearly to 0
    max_grad_norm: float = 0.7  # clip the gradient to this norm
    gamma: float = 0.995  # discount of later rewards
    critic: str = "td"  # td, q or advantage: the weight psi of an action
    entropy_coef: float = 0.01  # c, the weight of the entropy bonus
    reward_scale: float = 0.05  # rewards are multiplied by this before learning
    hidden_size: int = 64  # units of each network's hidden layer
    seed: int = 0  # the same seed, machine and versions give the same scores
    eval_episodes: int = 100  # episodes of the evaluation after training; 0: none


class ObsScale(nn.Module):
    """Scales each feature to a root mean square of 2. Those far from 0 become nearly constant."""
    def __init__(self, obs_dim):
        super().__init__()
        # Buffers are not learned, but belong to state_dict(), as the weights do.
        self.count = nn.Buffer(torch.zeros(1))
        self.mean_square = nn.Buffer(torch.ones(obs_dim))

    def forward(self, obs):
        """Observations (..., obs_dim) -> scaled ones, limited to ±10."""
        return (2 * obs / (self.mean_square + 1e-8).sqrt()).clamp(-10, 10)

    def update(self, obs):
        """Includes B more observations (B, obs_dim) in the mean."""
        self.count += len(obs)
        self.mean_square += (obs.square().mean(0) - self.mean_square) * len(obs) / self.count


def mlp(sizes, output_gain):
    """A network (..., sizes[0]) -> (..., sizes[-1]): linear layers, with tanh in between."""
    layers = []
    for size_in, size_out in pairwise(sizes):  # of [4, 64, 2]: 4 and 64, 64 and 2
        layer = nn.Linear(size_in, size_out)
        nn.init.orthogonal_(layer.weight, 2**0.5)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    nn.init.orthogonal_(layer.weight, output_gain)  # the output layer's, drawn again
    return nn.Sequential(*layers[:-1])


class ActorCritic(nn.Module):
    """The policy π(a|s) and the critics V(s) and Q(s, a), sized from the environment's spaces."""
    def __init__(self, envs, config):
        super().__init__()
        obs_dim = envs.single_observation_space.shape[0]
        n_actions = envs.single_action_space.n
        self.scale = ObsScale(obs_dim)
        # Outputs near 0 make all actions about equally likely at first.
        self.policy = mlp([obs_dim, config.hidden_size, n_actions], output_gain=0.01)
        self.v_critic = mlp([obs_dim, config.hidden_size, 1], output_gain=1.0)
        self.q_critic = mlp([obs_dim, config.hidden_size, n_actions], output_gain=1.0)

    def pi(self, obs):
        """Observations (..., obs_dim) -> the distribution π(·|s) over the actions."""
        return Categorical(logits=self.policy(self.scale(obs)))

    def v(self, obs):
        """Observations (..., obs_dim) -> values V(s), of shape (...)."""
        return self.v_critic(self.scale(obs)).squeeze(-1)

    def q(self, obs, action):
        """Observations (..., obs_dim) and actions (...) -> values Q(s, a), of shape (...)."""
        q_of_all_actions = self.q_critic(self.scale(obs))  # (..., n_actions)
        return q_of_all_actions.gather(-1, action.unsqueeze(-1)).squeeze(-1)  # that of each action

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim), an array -> actions (N,), sampled or the most likely ones."""
        pi = self.pi(torch.as_tensor(obs).float())
        return (pi.mode if greedy else pi.sample()).numpy()


class RolloutBuffer:
    """T steps of N environments. Time comes first: row t holds step t of all environments.

    gymnasium uses the step after an episode's end only to reset that environment: its action is
    ignored and its reward is 0. In these places valid is False, and nothing is learned from them.
    """
    def __init__(self, envs, T, seed):
        N, obs_dim = envs.observation_space.shape
        self.obs = np.zeros((T + 1, N, obs_dim), np.float32)  # row t + 1 is what step t led to
        self.action = np.zeros((T, N), int)
        self.reward = np.zeros((T, N), np.float32)
        self.terminated, self.truncated, self.valid = np.zeros((3, T, N), bool)
        self.obs[T], _ = envs.reset(seed=seed)  # only this reset is seeded

    def collect(self, envs, agent, env_step):
        """Plays T steps. Returns (env_step, score) of each episode that ended."""
        T, N = self.reward.shape
        finished = []
        self.obs[0] = self.obs[T]  # a rollout begins where the last one ended
        for t in range(T):
            # For t = 0, row -1 still holds the last step of the previous rollout (at first False).
            self.valid[t] = ~(self.terminated[t - 1] | self.truncated[t - 1])
            self.action[t] = agent.act(self.obs[t])
            (self.obs[t + 1], self.reward[t], self.terminated[t], self.truncated[t],
             info) = envs.step(self.action[t])
            env_step += N
            if "episode" in info:  # "_episode" marks the environments whose episode ended
                scores = info["episode"]["r"][info["_episode"]]
                finished += [(env_step, float(score)) for score in scores]
        return finished


def td_error(reward, value, next_value, terminated, gamma):
    """The error δ_t = r_t + γ V(s_{t+1}) - V(s_t), or the same with Q. All tensors are (T, N)."""
    assert reward.shape == value.shape == next_value.shape == terminated.shape
    # Nothing follows a terminal state. After a truncation, next_value still stands for the rest.
    target = reward + gamma * next_value * ~terminated
    return target.detach() - value  # the critic moves to the target, not the target to the critic


def weigh(agent, config, obs, action, reward, terminated):
    """The weight ψ of each action and the critics' squared error, both (T, N)."""
    if config.critic != "q":  # td and advantage need V
        v = agent.v(obs)  # (T+1, N)
        v_error = td_error(reward, v[:-1], v[1:], terminated, config.gamma)
        if config.critic == "td":
            return v_error, v_error.square()
    # Q needs one more action, after the last row: drawn, but not played, like a reset step's.
    last_action = agent.pi(obs[-1:]).sample()
    q = agent.q(obs, torch.cat([action, last_action]))  # (T+1, N)
    q_error = td_error(reward, q[:-1], q[1:], terminated, config.gamma)
    if config.critic == "q":
        return q[:-1], q_error.square()
    return q[:-1] - v[:-1], v_error.square() + q_error.square()


def train(config):
    """Trains an agent. Returns it and its history: (env_step, score) of each finished episode.

    Ctrl-C ends it early. Raises ValueError (a setting that cannot work), gymnasium.error.Error (an
    environment that cannot be made) or RuntimeError (a gradient that is not finite).
    """
    check(config)
    envs = make_envs(config.env_id, config.num_envs)
    torch.manual_seed(config.seed)
    agent = ActorCritic(envs, config)
    optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5)
    env_step = next_report = 0
    history = []
    # Environment i may get seed + i, so the seeds of runs are 1000 apart.
    buffer = RolloutBuffer(envs, config.num_steps, seed=1000 * config.seed)
    try:
        while env_step < config.total_steps:
            remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
            optimizer.param_groups[0]["lr"] = config.learning_rate * remaining

            # Collect: play T steps of each environment with the current policy.
            history += buffer.collect(envs, agent, env_step)
            env_step += config.num_envs * config.num_steps
            obs, action, reward, terminated, valid = map(torch.as_tensor, (
                buffer.obs, buffer.action, buffer.reward,
                buffer.terminated, buffer.valid))

            # Estimate: ψ of each action, and the squared errors of the critics.
            reward = config.reward_scale * reward  # small targets, as V starts near 0
            psi, squared_error = weigh(agent, config, obs, action, reward, terminated)

            # Update: one optimizer step, from the B valid steps, whose arrays are marked with b_.
            # ψ is centred, as a positive Q would make every action played more likely, and divided
            # by its deviation, so that the policy's loss does not depend on the rewards' scale.
            b_psi = psi[valid].detach()  # (B,)
            b_weight = (b_psi - b_psi.mean()) / (b_psi.std(correction=0) + 1e-8)
            b_obs = obs[:-1][valid]  # (B, obs_dim)
            pi = agent.pi(b_obs)
            b_log_prob = pi.log_prob(action[valid])
            assert b_log_prob.shape == b_weight.shape
            policy_loss = -(b_log_prob * b_weight).mean()
            critic_loss = squared_error[valid].mean()
            entropy = pi.entropy().mean()
            loss = policy_loss + 0.5 * critic_loss - config.entropy_coef * entropy
            agent.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(
                agent.parameters(), config.max_grad_norm, error_if_nonfinite=True)
            optimizer.step()
            agent.scale.update(b_obs)  # not before: π above must be the policy that played

            # Report about twenty times a run, and at its end.
            if env_step >= next_report or env_step >= config.total_steps:
                next_report = env_step + config.total_steps / 20
                average = np.mean([score for _, score in history[-20:]] or np.nan)  # nan: none yet
                print(f"step {env_step:,}  episode {len(history):,}  average score of the last 20 "
                      f"episodes: {average:.2f}  entropy {entropy:.2g}", flush=True)
    except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
        print(f"stopped at step {env_step:,}")
    return agent, history


# ---- From here on: settings, environments, evaluation and the command line ----


def check(config):
    """Raises ValueError for a setting that cannot work. Turns numpy's numbers into Python's."""
    if config.critic not in ("td", "q", "advantage"):
        raise ValueError(f"--critic {config.critic}: must be td, q or advantage")
    lowest = dict(num_envs=1, num_steps=2, max_grad_norm=1e-6, hidden_size=1)
    for spec in fields(config):
        if spec.type in (int, float):
            value = spec.type(getattr(config, spec.name))
            low = lowest.get(spec.name, 0)
            high = 1 if spec.name == "gamma" else 1_000_000_000
            if not low <= value <= high:
                raise ValueError(
                    f"--{spec.name.replace('_', '-')} {value}: must be from {low} to {high}")
            setattr(config, spec.name, value)


def make_envs(env_id, num_envs):
    """Vector environments, with flat observations and the scores of finished episodes in info."""
    envs = gym.make_vec(env_id, num_envs)
    space = envs.single_action_space
    if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
        raise gym.error.Error(f"actions must be Discrete from 0 (Box: ppo_continuous.py): {space}")
    envs = FlattenObservation(envs)  # images, dictionaries and tuples, too
    return RecordEpisodeStatistics(envs)


def evaluate(agent, envs, greedy=True, seed=0):
    """Returns the scores (N,) of an episode of at most 10,000 steps in each environment."""
    obs, _ = envs.reset(seed=1000 * seed + 500)  # other episodes than in training
    scores = np.zeros(envs.num_envs)
    playing = np.ones(envs.num_envs, bool)  # False once the episode has ended
    for _ in range(10_000):
        obs, reward, terminated, truncated, _ = envs.step(agent.act(obs, greedy))
        scores += reward * playing
        playing &= ~(terminated | truncated)
        if not playing.any():
            break
    return scores


def main():
    """Trains an agent with the settings of the command line, and evaluates it."""
    in_a_notebook = "__file__" not in globals()  # there, sys.argv belongs to the kernel
    source = "" if in_a_notebook else inspect.getsource(Config)
    comments = dict(re.findall(r"(\w+): .*# (.*)", source))  # the help of each flag
    parser = ArgumentParser(usage=SUPPRESS, allow_abbrev=False)
    for spec in fields(Config):
        flag = f"--{spec.name.replace('_', '-')}"
        text = f"{comments.get(spec.name)} (default: {spec.default!r})".replace("%", "%%")
        parser.add_argument(flag, type=spec.type, default=spec.default, help=text)
    config = Config(**vars(parser.parse_args([] if in_a_notebook else None)))
    try:
        check(config)
    except ValueError as error:
        parser.error(error)
    gym.logger.min_level = 40  # only errors: a mistake costs one line, without warnings
    try:
        make_envs(config.env_id, 1)  # a trial, as in train a mistake would cost a traceback
    except (gym.error.Error, ImportError) as error:
        parser.error(f"--env-id {config.env_id}: {error}")
    agent, _ = train(config)
    if config.eval_episodes:
        scores = evaluate(agent, make_envs(config.env_id, config.eval_episodes), seed=config.seed)
        print(f"greedy evaluation: {scores.mean():.2f} over {len(scores)} episodes")


if __name__ == "__main__":
    main()
