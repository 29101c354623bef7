# /// script
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]
# ///
"""PPO (Proximal Policy Optimization) for discrete actions, in one file.

The policy π(a|s), or actor, gives the probability of action a in state s.
The policy plays N copies of an environment for T steps: a rollout. The critic V(s) learns to
predict the return, the sum of the rewards r that follow state s, where a reward k steps later is
multiplied by γ^k. The advantage Â_t estimates how much better action a_t was than the policy's
average. PPO makes actions with an advantage above the mean more likely and others less likely, in
several passes (epochs) over the same steps. π_old is the policy that played them. The clip removes
any gain from raising a good action's ratio ρ_t above 1+ε, or lowering a bad one's below 1-ε.

    δ_t = r_t + γ V(s_{t+1}) - V(s_t)                       TD error            [1] Eq. 12
    Â_t = δ_t + γλ Â_{t+1}                                  GAE                 [1] Eq. 11, [2]
    ρ_t = π(a_t|s_t) / π_old(a_t|s_t)                       probability ratio   [1] Sec. 3
    L   = -E[min(ρ_t Â_t, clip(ρ_t, 1-ε, 1+ε) Â_t)]         clipped surrogate   [1] Eq. 7
          + ½ E[(V(s_t) - R_t)²] - c E[H(π(·|s_t))]         critic, entropy     [1] Eq. 9

δ_t: V(s_{t+1}) counts as 0 if the episode terminated, but not if only its time was up.
Â_t: generalized advantage estimation (GAE). The larger λ (0 to 1), the more it relies on rewards
     instead of the critic. Â_{t+1} counts as 0 if step t is the last of an episode or a rollout.
L:   E is the mean over a random minibatch, after normalising its Â_t. The critic's target R_t is
     Â_t + V(s_t) before that and the update. The entropy H tells how unsure π is; c weighs it.

`python ppo_discrete.py` solves CartPole (average score 475) after about 13,000 of 30,000 steps.

[1] Schulman et al. 2017, Proximal Policy Optimization Algorithms, arXiv:1707.06347
[2] Schulman et al. 2016, Generalized Advantage Estimation, arXiv:1506.02438, Eq. 16
"""

import inspect
import os
import re
from argparse import SUPPRESS, ArgumentParser
from dataclasses import dataclass, fields
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers.vector import FlattenObservation, NormalizeReward, RecordEpisodeStatistics
from torch import nn, optim
from torch.distributions import Categorical

torch.set_num_threads(1)  # networks this small are computed faster in a single thread


@dataclass
class Config:
    """The settings of a run. Each is a flag, explained by its comment: num_envs is --num-envs."""
    env_id: str = "CartPole-v1"  # gymnasium environment with Discrete actions
    total_steps: int = 30_000  # environment steps to train for
    num_envs: int = 5  # N, environments played side by side
    num_steps: int = 25  # T, steps of each environment per rollout
    epochs: int = 4  # passes over each rollout
    num_minibatches: int = 2  # minibatches per epoch, each for one optimizer step
    learning_rate: float = 1e-2  # initial learning rate of Adam; it falls linearly to 0
    max_grad_norm: float = 1.0  # clip the gradient to this norm
    gamma: float = 0.995  # discount of later rewards
    gae_lambda: float = 0.97  # GAE's lambda: 0 relies on the critic, 1 on the rewards
    clip_eps: float = 0.2  # epsilon, clip of the probability ratio
    entropy_coef: float = 0.0  # initial c, weight of the entropy bonus; it falls to its negative
    obs_std: float = 2.0  # standard deviation that observations are scaled to
    hidden_layers: int = 1  # hidden layers of each network
    hidden_size: int = 32  # units of each hidden layer
    seed: int = 0  # the same seed, machine and versions give the same scores
    save: str = ""  # checkpoint to write: during the run, at its end, on Ctrl-C
    load: str = ""  # checkpoint to resume; the command line also restores its settings
    eval_episodes: int = 100  # episodes of the evaluation after training; 0: none
    render: bool = False  # after training, play an episode in a window


# Settings to begin with elsewhere: Config(env_id="LunarLander-v3", **OTHER_TASKS). The command line
# uses these settings for any --env-id but the default one.
OTHER_TASKS = dict(
    total_steps=500_000, num_envs=8, num_steps=256, epochs=10, num_minibatches=16,
    learning_rate=1e-3, gae_lambda=0.95, entropy_coef=0.01, hidden_layers=2, hidden_size=64,
)


class ObsScale(nn.Module):
    """Scales each feature of the observations: networks learn best from numbers of about 1 or 2."""
    def __init__(self, obs_dim, target_std):
        super().__init__()
        self.target_std = target_std
        # Buffers are not learned, but belong to state_dict(), as the weights do.
        self.count = nn.Buffer(torch.zeros(1))
        self.mean = nn.Buffer(torch.zeros(obs_dim))
        self.std = nn.Buffer(torch.full((obs_dim,), target_std))  # so that at first nothing changes
        self.shift = nn.Buffer(torch.zeros(obs_dim))

    def forward(self, obs):
        """Observations (..., obs_dim) -> scaled to target_std, limited to ±10."""
        return ((obs - self.shift) * (self.target_std / self.std)).clamp(-10, 10)

    def update(self, obs):
        """Merges B more observations (B, obs_dim) into the mean and deviation of all so far."""
        batch_var, batch_mean = torch.var_mean(obs, 0, correction=0)
        self.count += len(obs)
        weight = len(obs) / self.count.item()
        change = batch_mean - self.mean
        self.mean += weight * change
        # Both variances, weighted, plus (1 - weight) * weight * change**2, as the means differ.
        var = (1 - weight) * (self.std**2 + weight * change**2) + weight * batch_var
        self.std = var.clamp(min=1e-8).sqrt()
        if weight == 1:  # the first update
            # Limited to ±10, features far from 0 would be constant. So a mean beyond 2 deviations
            # is moved to 2, one beyond 10 to 0. A shift that kept changing would slow learning.
            beyond = batch_mean - batch_mean.clamp(-2 * self.std, 2 * self.std)
            self.shift = torch.where(batch_mean.abs() > 10 * self.std, batch_mean, beyond)


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
    """The policy π(a|s) and the critic V(s): two networks, sized from the environment's spaces."""
    def __init__(self, envs, config):
        super().__init__()
        obs_dim = envs.single_observation_space.shape[0]
        n_actions = envs.single_action_space.n
        hidden = [config.hidden_size] * config.hidden_layers
        self.scale = ObsScale(obs_dim, config.obs_std)
        # Outputs near 0 make all actions about equally likely at first.
        self.policy = mlp([obs_dim, *hidden, n_actions], output_gain=0.01)
        self.critic = mlp([obs_dim, *hidden, 1], output_gain=1.0)

    def pi(self, obs):
        """Observations (..., obs_dim) -> the distribution π(·|s) over the actions."""
        logits = self.policy(self.scale(obs))  # (..., n_actions): log π(·|s) up to a constant
        return Categorical(logits=logits, validate_args=False)  # unchecked, it is faster

    def value(self, obs):
        """Observations (..., obs_dim) -> values V(s), of shape (...)."""
        return self.critic(self.scale(obs)).squeeze(-1)

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


def compute_gae(reward, value, terminated, truncated, gamma, gae_lambda):
    """Generalized advantage estimates Â (T, N), computed backwards in time ([1] Eq. 11).

    reward, terminated and truncated are (T, N). value is (T+1, N): value[t+1] belongs to the
    observation that step t led to, which at the end of an episode is its last one.
    """
    assert reward.shape == terminated.shape == truncated.shape == value[1:].shape
    # Nothing follows a terminal state. After a truncation, V still stands for the rest.
    delta = reward + gamma * value[1:] * ~terminated - value[:-1]
    continues = ~(terminated | truncated)  # after an end, step t + 1 only resets
    advantage = torch.zeros_like(value)  # (T+1, N): the last row, beyond the rollout, stays 0
    for t in reversed(range(len(reward))):
        advantage[t] = delta[t] + gamma * gae_lambda * advantage[t + 1] * continues[t]
    return advantage[:-1]


def ppo_loss(pi, value, action, old_log_prob, advantage, return_, clip_eps, entropy_coef):
    """The loss L to minimise, KL(π_old‖π) and the entropy of a minibatch. return_ is R_t."""
    log_ratio = pi.log_prob(action) - old_log_prob
    ratio = log_ratio.exp()
    assert ratio.shape == value.shape == advantage.shape == return_.shape
    kl = (ratio - 1 - log_ratio).mean()  # an estimate of KL(π_old‖π), for the report
    clipped_ratio = ratio.clamp(1 - clip_eps, 1 + clip_eps)
    policy_loss = -torch.min(ratio * advantage, clipped_ratio * advantage).mean()
    value_loss = (value - return_).square().mean()
    entropy = pi.entropy().mean()
    loss = policy_loss + 0.5 * value_loss - entropy_coef * entropy
    return loss, kl, entropy


def train(config):
    """Trains an agent. Returns it and its history: (env_step, score) of each finished episode.

    Ctrl-C ends it early. Raises ValueError (a setting that cannot work), gymnasium.error.Error (an
    environment that cannot be made) or RuntimeError (a gradient that is not finite).
    """
    check(config)
    envs = make_envs(config.env_id, config.num_envs)
    envs = NormalizeReward(envs, config.gamma)  # divides by the deviation of discounted sums
    torch.manual_seed(config.seed)
    agent = ActorCritic(envs, config)
    optimizer = Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5, fused=True)
    env_step = 0
    history = []
    if config.load:
        checkpoint = torch.load(config.load, weights_only=True)  # runs no code hidden in the file
        agent.load_state_dict(checkpoint["agent"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        vars(envs.return_rms).update(checkpoint["returns"])  # NormalizeReward's statistics
        env_step = checkpoint["env_step"]
        history = checkpoint["history"]
    # Environment i may get seed + i, so runs' seeds are 1000 apart. A resumed run gets a new one.
    buffer = RolloutBuffer(envs, config.num_steps, seed=1000 * config.seed + env_step)
    next_report = env_step
    try:
        while env_step < config.total_steps:
            remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
            optimizer.param_groups[0]["lr"] = config.learning_rate * remaining

            # Collect: play T steps of each environment with the current policy.
            history += buffer.collect(envs, agent, env_step)
            env_step += config.num_envs * config.num_steps

            obs, action, reward, terminated, truncated, valid = map(torch.as_tensor, (
                buffer.obs, buffer.action, buffer.reward,
                buffer.terminated, buffer.truncated, buffer.valid))
            # Estimate advantages and targets once: targets must stand still while networks learn.
            with torch.no_grad():
                value = agent.value(obs)  # (T+1, N)
                advantage = compute_gae(reward, value, terminated, truncated,
                                        config.gamma, config.gae_lambda)  # (T, N)
                # Indexing with valid (T, N) keeps the B valid steps.
                b_obs = obs[:-1][valid]  # (B, obs_dim)
                b_action = action[valid]  # (B, ...): one action a row
                b_advantage = advantage[valid]  # (B,), like the next two
                b_return = b_advantage + value[:-1][valid]  # what the critic learns to predict
                b_old_log_prob = agent.pi(b_obs).log_prob(b_action)  # π is still π_old

            # Update: several passes over the rollout, in shuffled minibatches.
            for _ in range(config.epochs):
                order = torch.randperm(len(b_obs))
                for mb in order.tensor_split(config.num_minibatches):  # indices of one minibatch
                    # Normalised, so that the policy's loss does not depend on the rewards' scale.
                    std, mean = torch.std_mean(b_advantage[mb], correction=0)
                    mb_advantage = (b_advantage[mb] - mean) / (std + 1e-8)
                    # c falls from entropy_coef to -entropy_coef: the run ends with little noise.
                    loss, kl, entropy = ppo_loss(
                        agent.pi(b_obs[mb]), agent.value(b_obs[mb]), b_action[mb],
                        b_old_log_prob[mb], mb_advantage, b_return[mb],
                        config.clip_eps, config.entropy_coef * (2 * remaining - 1))
                    agent.zero_grad()  # optimizer.zero_grad() imports torch's compiler
                    loss.backward()
                    nn.utils.clip_grad_norm_(
                        agent.parameters(), config.max_grad_norm, error_if_nonfinite=True)
                    optimizer.step()

            agent.scale.update(b_obs)  # only now, so that π and π_old see the same scale

            # Report about 20 times a run, and at its end; kl and entropy are the last minibatch's.
            if env_step >= next_report or env_step >= config.total_steps:
                next_report = env_step + config.total_steps / 20
                average = np.mean([score for _, score in history[-20:]] or np.nan)  # nan: none yet
                print(f"step {env_step:,}  episode {len(history):,}  average score of the last 20 "
                      f"episodes: {average:.2f}  kl {kl:.2g}  entropy {entropy:.2g}", flush=True)
                save(config, agent, optimizer, envs, env_step, history)
    except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
        print(f"stopped at step {env_step:,}")
    save(config, agent, optimizer, envs, env_step, history)
    return agent, history


# ---- From here on: optimizer, settings, environments, checkpoints, evaluation, command line ----


class Adam(optim.Adam):
    """optim.Adam, but a second quicker to start: its decorators would import torch's compiler."""
    add_param_group = optim.Adam.add_param_group.__wrapped__
    state_dict = optim.Adam.state_dict.__wrapped__
    load_state_dict = optim.Adam.load_state_dict.__wrapped__
    step = torch.no_grad()(optim.Adam.step.__wrapped__)


def check(config):
    """Raises ValueError for a setting that cannot work. Turns numpy's numbers into Python's."""
    lowest = dict(num_envs=1, num_steps=2, epochs=1, num_minibatches=1, max_grad_norm=1e-6,
                  obs_std=0.01, hidden_size=1)
    highest = dict(gamma=1, gae_lambda=1,
                   # With more, one might be empty, as every other step may only reset.
                   num_minibatches=config.num_envs * (config.num_steps // 2))
    for spec in fields(config):
        if spec.type in (int, float):
            value = spec.type(getattr(config, spec.name))
            low = lowest.get(spec.name, 0)
            high = highest.get(spec.name, 1_000_000_000)
            if not low <= value <= high:
                raise ValueError(
                    f"--{spec.name.replace('_', '-')} {value}: must be from {low} to {high}")
            setattr(config, spec.name, value)
    folder = os.path.dirname(config.save) or "."  # the "/" below makes a file fail
    is_new = not os.path.exists(config.save) and os.access(f"{folder}/", os.W_OK)
    if config.save and config.save != config.load and not is_new:
        raise ValueError(f"--save {config.save}: must be a new file in a folder that can be "
                         "written to, or the one to --load")


def make_envs(env_id, num_envs, **options):
    """Vector environments, with flat observations and the scores of finished episodes in info."""
    envs = gym.make_vec(env_id, num_envs, **options)
    space = envs.single_action_space
    if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
        raise gym.error.Error(f"actions must be Discrete from 0 (Box: ppo_continuous.py): {space}")
    envs = FlattenObservation(envs)  # images, dictionaries and tuples, too
    return RecordEpisodeStatistics(envs)


def save(config, agent, optimizer, envs, env_step, history):
    """Writes a checkpoint under another name, then renames it: a crash spares the last one."""
    if not config.save:
        return
    torch.save({
        "config": {key: x for key, x in vars(config).items()
                   if key not in ("save", "load", "eval_episodes", "render")},  # each run's own
        "agent": agent.state_dict(),
        "optimizer": optimizer.state_dict(),
        "returns": {key: float(x) for key, x in vars(envs.return_rms).items()},
        "env_step": env_step,
        "history": history,
    }, f"{config.save}.tmp")
    os.replace(f"{config.save}.tmp", config.save)


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
    """Trains with the settings of the command line, evaluates the agent, and shows it if asked."""
    in_a_notebook = "__file__" not in globals()  # there, sys.argv belongs to the kernel
    source = "" if in_a_notebook else inspect.getsource(Config)
    comments = dict(re.findall(r"(\w+): .*# (.*)", source))  # the help of each flag
    parser = ArgumentParser(usage=SUPPRESS, allow_abbrev=False, argument_default=SUPPRESS,
                            epilog=f"With another --env-id, the defaults are {OTHER_TASKS}.")
    for spec in fields(Config):
        text = f"{comments.get(spec.name)} (default: {spec.default!r})".replace("%", "%%")
        kind = {"action": "store_true"} if spec.type is bool else {"type": spec.type}
        parser.add_argument(f"--{spec.name.replace('_', '-')}", help=text, **kind)
    given = vars(parser.parse_args([] if in_a_notebook else None))
    try:
        if "load" in given:
            given = torch.load(given["load"], weights_only=True)["config"] | given
        elif given.get("env_id", Config.env_id) != Config.env_id:
            given = OTHER_TASKS | given
        config = Config(**given)
    except Exception:  # torch.load raises many kinds of error
        parser.error(f"--load {given['load']}: missing, or not a checkpoint of this script")
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
    if config.render:  # "sync", as gymnasium's vectorised CartPole opens no window
        evaluate(agent, make_envs(
            config.env_id, 1, vectorization_mode="sync", render_mode="human"))


if __name__ == "__main__":
    main()
