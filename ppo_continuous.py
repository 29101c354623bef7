# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]  # for uv
# ///
"""PPO (Proximal Policy Optimization) for continuous actions, in one file.

The policy π(a|s) gives the probability density of action a in state s. The code calls a state obs.
Action a_t in state s_t gives the reward r_t. The critic V(s) predicts the return, the sum of the
rewards that follow, in which a reward k steps later is multiplied by γ^k.

An action is a vector of real numbers, each with a Gaussian of its own. A network gives the means.
The logarithm of each standard deviation σ is learned, too, and is the same in all states.

PPO repeats two things. It plays N environments for T steps, which make a rollout. Then it learns
from the rollout in several passes, called epochs. π_old and V_old are the policy and the critic
before the first epoch.

    δ_t = r_t + γ V_old(s_{t+1}) - V_old(s_t)         TD error            [1] Eq. 12
    Â_t = δ_t + γλ Â_{t+1}                            advantage           [1] Eq. 11, [2] Eq. 16
    R_t = Â_t + V_old(s_t)                            target of V
    ρ_t = π(a_t|s_t) / π_old(a_t|s_t)                 probability ratio   [1] Sec. 3
    L   = -E[min(ρ_t Â_t, clip(ρ_t, 1-ε, 1+ε) Â_t)]   loss of the policy  [1] Eq. 7
          + ½ E[(V(s_t) - R_t)²]                      loss of the critic  [1] Eq. 9
          - c E[H(π(·|s_t))]                          entropy bonus       [1] Eq. 9

The numbers γ, λ, ε and c are settings. Â_t says how much better action a_t turned out than V_old
expected. If an episode or the rollout ends with step t, Â_{t+1} counts as 0. If an episode
terminates, V_old(s_{t+1}) counts as 0, too. E is the mean over a minibatch. In the loss of the
policy, Â_t is first shifted to mean 0 and scaled to standard deviation 1. If Â_t > 0, L falls as
ρ_t rises, up to 1+ε. If Â_t < 0, L falls as ρ_t falls, down to 1-ε. The rollout tells little about
policies further from π_old. The entropy H is high while π is undecided. README.md explains it all.

`python ppo_continuous.py` mostly solves Pendulum (-200) after 14,000 to 30,000 of 100,000 steps.

[1] Schulman et al. 2017, Proximal Policy Optimization Algorithms, arXiv:1707.06347
[2] Schulman et al. 2016, Generalized Advantage Estimation, arXiv:1506.02438
[3] Schulman 2020, Approximating KL Divergence, http://joschu.net/blog/kl-approx.html
"""

import inspect
import os
import re
import sys
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from contextlib import closing
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import (ClipAction, FlattenObservation, RecordEpisodeStatistics,
                                 RescaleAction)
from gymnasium.wrappers.vector import NormalizeReward
from torch import nn, optim
from torch.distributions import Independent, Normal
from torch.nn.utils import clip_grad_norm_


@dataclass
class Config:
    """The settings of a run. Each is a flag, too: num_envs is --num-envs."""
    env_id: str = "Pendulum-v1"  # gymnasium environment with a bounded Box of real-valued actions
    total_steps: int = 100_000  # environment steps to train for, with those of a loaded run
    num_envs: int = 5  # N, environments played side by side
    num_steps: int = 200  # T, steps of each environment per rollout
    epochs: int = 10  # passes over each rollout
    num_minibatches: int = 8  # minibatches per epoch, each for one optimizer step
    learning_rate: float = 2e-3  # initial learning rate of Adam, which falls linearly to 0
    max_grad_norm: float = 1.0  # a longer gradient is shortened to this, none if inf
    gamma: float = 0.98  # discount of later rewards, below 1 if no episode ever terminates
    gae_lambda: float = 0.9  # lambda, from 0 (trusts the critic) to 1 (trusts the rewards)
    clip_eps: float = 0.2  # epsilon, clip of the probability ratio
    entropy_coef: float = 0.0  # c, weight of the entropy bonus
    hidden_size: int = 64  # units of each hidden layer
    seed: int = 0  # the same seed gives the same scores, on the same machine
    save: str = ""  # checkpoint file to write, at every printed line and on Ctrl-C
    load: str = ""  # checkpoint file to resume from, whose settings are then the flags' defaults
    eval_episodes: int = 20  # episodes of the evaluation, none if 0
    render: bool = False  # after training, play an episode in a window

    def __post_init__(self):  # numpy's numbers, as from np.arange, become Python's
        vars(self).update({k: x.item() for k, x in vars(self).items() if isinstance(x, np.generic)})


class ObsScale(nn.Module):
    """Scales each feature of the observations, as networks learn well from numbers of about 1 or 2.

    A scaled feature is 2 · (feature - centre) / rms, within ±10. The centre is the mean of the
    environments' first obs, so a temperature near 293 K comes near 0. It never changes. rms is the
    root mean square of (feature - centre) over all obs included. The 2 was found by trying.
    """
    def __init__(self, first_obs):  # (environments, obs_dim)
        super().__init__()
        self.centre = nn.Buffer(first_obs.mean(0))  # a Buffer is saved with the network
        self.square_sum = nn.Buffer(torch.full_like(self.centre, 1e-8))
        self.count = nn.Buffer(torch.tensor(1e-8))  # as small as square_sum, so rms begins at 1

    def include(self, obs):
        """Includes observations (B, obs_dim) in rms."""
        self.square_sum += (obs - self.centre).square().sum(0)
        self.count += len(obs)

    def forward(self, obs):
        rms = (self.square_sum / self.count).sqrt()
        return (2 * (obs - self.centre) / rms).clamp(-10, 10)  # limits outliers


def mlp(size_in, hidden_size, size_out):
    """A network (..., size_in) -> (..., size_out) with two hidden layers."""
    return nn.Sequential(
        nn.Linear(size_in, hidden_size),
        nn.Tanh(),
        nn.Linear(hidden_size, hidden_size),
        nn.Tanh(),
        nn.Linear(hidden_size, size_out),
    )


class ActorCritic(nn.Module):
    """The policy π(a|s) and the critic V(s): two networks that share no layer."""
    def __init__(self, first_obs, action_dim, hidden_size):
        super().__init__()
        obs_dim = first_obs.shape[1]
        self.scale = ObsScale(first_obs)
        self.policy = mlp(obs_dim, hidden_size, action_dim)
        self.critic = mlp(obs_dim, hidden_size, 1)
        with torch.no_grad():
            self.policy[-1].weight *= 0.01  # at first, all means are near 0
        sigma = torch.full((action_dim,), action_dim**-0.5)  # so the noise has about length 1
        self.log_std = nn.Parameter(sigma.log())

    def pi(self, obs):
        """Observations (..., obs_dim) -> the distribution π(·|s) over the actions."""
        mean = self.policy(self.scale(obs))  # (..., action_dim)
        gaussian = Normal(mean, self.log_std.exp(), validate_args=False)  # unchecked, it is faster
        return Independent(gaussian, 1)  # adds up the log-densities of each action's numbers

    def value(self, obs):
        """Observations (..., obs_dim) -> values V(s), of shape (...)."""
        return self.critic(self.scale(obs)).squeeze(-1)

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim) -> actions (N, action_dim): sampled, or the means.

        -1 stands for an action's lower bound, and 1 for its upper one, as make_envs rescales.
        """
        pi = self.pi(torch.Tensor(obs))  # Tensor makes any numbers float32
        action = pi.mode if greedy else pi.sample()
        return action.numpy()


class RolloutBuffer:
    """A rollout: T steps of N environments, as tensors whose first dimensions are (T, N).

    next_obs[t] is what step t led to, also at the end of an episode. There, obs[t + 1] is already
    the first observation of the next episode.
    """
    def __init__(self, T, N, obs_dim, action_dim):
        self.obs = torch.zeros(T, N, obs_dim)
        self.next_obs = torch.zeros(T, N, obs_dim)
        self.action = torch.zeros(T, N, action_dim)  # as sampled, since log π belongs to these
        self.reward = torch.zeros(T, N)
        self.terminated = torch.zeros(T, N, dtype=torch.bool)  # nothing follows
        self.done = torch.zeros(T, N, dtype=torch.bool)  # terminated, or truncated as time is up

    def collect(self, envs, agent, obs):
        """Plays T steps, starting from obs (N, obs_dim).

        Returns the observations to go on from, and the scores of the episodes that ended.
        """
        scores = []
        for t in range(len(self.obs)):
            action = agent.act(obs)
            self.obs[t] = torch.as_tensor(obs)
            self.action[t] = torch.as_tensor(action)
            obs, reward, terminated, truncated, info = envs.step(action)
            done = terminated | truncated
            self.next_obs[t] = torch.as_tensor(obs)
            self.reward[t] = torch.as_tensor(reward)
            self.terminated[t] = torch.as_tensor(terminated)
            self.done[t] = torch.as_tensor(done)
            for n in np.flatnonzero(done):  # info tells how these episodes ended
                self.next_obs[t, n] = torch.as_tensor(info["final_obs"][n])
                scores.append(float(info["final_info"]["episode"]["r"][n]))  # of unscaled rewards
        return obs, scores


def compute_gae(reward, value, next_value, terminated, done, gamma, gae_lambda):
    """Generalized advantage estimates Â, computed backwards in time. All tensors are (T, N)."""
    assert reward.shape == value.shape == next_value.shape == terminated.shape == done.shape
    delta = reward + gamma * next_value * ~terminated - value
    advantage = delta.clone()  # in the last row, no later TD error is known
    for t in reversed(range(len(delta) - 1)):
        advantage[t] += gamma * gae_lambda * advantage[t + 1] * ~done[t]
    return advantage


def ppo_loss(pi, value, action, old_log_prob, advantage, return_, clip_eps, entropy_coef):
    """The loss L of a minibatch. return_ is R_t."""
    ratio = (pi.log_prob(action) - old_log_prob).exp()
    assert ratio.shape == value.shape == advantage.shape == return_.shape
    clipped_ratio = ratio.clamp(1 - clip_eps, 1 + clip_eps)
    policy_loss = -torch.min(ratio * advantage, clipped_ratio * advantage).mean()
    critic_loss = (value - return_).square().mean()
    return policy_loss + 0.5 * critic_loss - entropy_coef * pi.entropy().mean()


@torch.no_grad()  # so log π_old, Â_t and R_t count as constants
def make_batch(buffer, agent, config):
    """Returns obs, action, log π_old(a|s), Â_t and R_t of all B = T * N steps."""
    log_prob = agent.pi(buffer.obs).log_prob(buffer.action)  # (T, N)
    value = agent.value(buffer.obs)
    next_value = agent.value(buffer.next_obs)
    advantage = compute_gae(buffer.reward, value, next_value, buffer.terminated, buffer.done,
                            config.gamma, config.gae_lambda)
    columns = buffer.obs, buffer.action, log_prob, advantage, advantage + value
    return [x.flatten(0, 1) for x in columns]  # (T, N, ...) -> (B, ...)


def update(agent, optimizer, batch, config):
    """Learns from a batch, in several epochs."""
    for _ in range(config.epochs):
        order = torch.randperm(len(batch[0]))
        for indices in order.tensor_split(config.num_minibatches):
            obs, action, old_log_prob, advantage, return_ = [x[indices] for x in batch]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            loss = ppo_loss(agent.pi(obs), agent.value(obs), action, old_log_prob, advantage,
                            return_, config.clip_eps, config.entropy_coef)
            agent.zero_grad()
            loss.backward()
            clip_grad_norm_(agent.parameters(), config.max_grad_norm, error_if_nonfinite=True)
            optimizer.step()


def train(config):
    """Trains an agent. Returns it and its history: (env_step, score) of each finished episode.

    env_step is that of the rollout's end. Ctrl-C ends training, even within a rollout or an update.
    """
    steps = config.num_envs * config.num_steps
    assert 2 * config.num_minibatches <= steps, "a minibatch needs at least two steps"
    if config.save and config.save != config.load and os.path.exists(config.save):
        raise FileExistsError(f"save={config.save!r} would overwrite a file that was not loaded")

    envs = make_envs(config.env_id, config.num_envs)
    with closing(NormalizeReward(envs, config.gamma)) as envs:  # so V mostly predicts small numbers
        torch.manual_seed(config.seed)
        obs, _ = envs.reset(seed=1000 * config.seed)  # environment n gets 1000 * seed + n
        action_dim = envs.single_action_space.shape[0]
        agent = ActorCritic(torch.Tensor(obs), action_dim, config.hidden_size)
        optimizer = Adam(agent.parameters(), config.learning_rate, fused=True)  # faster, see below
        env_step = next_report = 0
        if config.load:
            env_step, obs = load(config, agent, optimizer, envs)
        buffer = RolloutBuffer(config.num_steps, config.num_envs, obs.shape[1], action_dim)
        history = []
        try:
            while env_step < config.total_steps:
                remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
                optimizer.param_groups[0]["lr"] = config.learning_rate * remaining

                obs, scores = buffer.collect(envs, agent, obs)
                env_step += steps
                history += [(env_step, score) for score in scores]
                agent.scale.include(buffer.obs.flatten(0, 1))  # so even update 1 has scaled obs
                batch = make_batch(buffer, agent, config)
                update(agent, optimizer, batch, config)

                if env_step >= min(next_report, config.total_steps):  # at the end, too
                    next_report = env_step + config.total_steps / 20
                    report(config, env_step, history, agent, batch)
                    save(config, agent, optimizer, envs, env_step)
        except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
            save(config, agent, optimizer, envs, env_step)
            print(f"stopped at step {env_step:,}")
    return agent, history


# ---- From here on: speed, other tasks, environments, checkpoints, evaluation, command line ----


class Adam(optim.Adam):
    """torch's Adam, without the import of torch's compiler, which takes a second or two."""
    add_param_group = inspect.unwrap(optim.Adam.add_param_group)
    step = torch.no_grad()(inspect.unwrap(optim.Adam.step))
    state_dict = inspect.unwrap(optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(optim.Adam.load_state_dict)


# Defaults for any other --env-id. In Python, config_for("Hopper-v5") has them.
OTHER_TASKS = dict(
    total_steps=1_000_000,
    num_envs=16,
    num_steps=64,
    epochs=8,
    num_minibatches=8,
    learning_rate=2e-4,
    gamma=0.99,
    gae_lambda=0.95,
    clip_eps=0.1,
    entropy_coef=0.015,
)


def make_envs(env_id, num_envs, **options):
    """N environments with flat observations. The step that ends an episode starts the next."""
    envs = gym.make_vec(env_id, num_envs, vectorization_mode="sync",
                        vector_kwargs=dict(autoreset_mode=AutoresetMode.SAME_STEP),
                        # The last acts first. ClipAction clips to ±1, then RescaleAction rescales.
                        wrappers=[RecordEpisodeStatistics, FlattenObservation,
                                  lambda env: RescaleAction(env, -1, 1), ClipAction], **options)
    space = envs.single_action_space
    real = space.dtype.kind == "f" and len(space.shape) == 1
    assert real, f"actions must be a Box of one row of real numbers, and not {space}"
    return envs


@torch.no_grad()
def report(config, env_step, history, agent, batch):
    """Prints a line, at most 21 times a run. KL and entropy are means over the last rollout."""
    scores = [score for _, score in history[-20:]]
    average = f"{np.mean(scores):.6g}" if scores else "no episode yet"
    obs, action, old_log_prob, *_ = batch
    pi = agent.pi(obs)
    log_ratio = pi.log_prob(action) - old_log_prob
    kl = (log_ratio.expm1() - log_ratio).mean()  # -log_ratio + ratio - 1, against noise [3]
    entropy = pi.entropy().mean()
    print(f"step {env_step:,} of {config.total_steps:,}  episode {len(history):,}  average score "
          f"of the last 20 episodes: {average}  kl {kl:.2g}  entropy {entropy:.2g}", flush=True)


def save(config, agent, optimizer, envs, env_step):
    """Writes config.save, under another name first, so that a crash leaves the old file whole."""
    if config.save:
        returns = {name: float(x) for name, x in vars(envs.return_rms).items()}  # mean, var, count
        settings = vars(config) | dict(save="", load="", render=False)
        checkpoint = dict(settings=settings, env_step=env_step, agent=agent.state_dict(),
                          optimizer=optimizer.state_dict(), returns=returns)
        torch.save(checkpoint, f"{config.save}.tmp")
        os.replace(f"{config.save}.tmp", config.save)


def load(config, agent, optimizer, envs):
    """Restores the checkpoint config.load. Returns its env_step, and obs of new episodes."""
    checkpoint = torch.load(config.load, weights_only=True)  # unpickles no code
    agent.load_state_dict(checkpoint["agent"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    vars(envs.return_rms).update(checkpoint["returns"])
    env_step = checkpoint["env_step"]
    print(f"resumed at step {env_step:,} of {config.total_steps:,}")
    torch.manual_seed(config.seed + env_step)  # other random numbers than those learned from
    obs, _ = envs.reset(seed=1000 * config.seed + env_step)
    return env_step, obs


def evaluate(agent, envs, seed=0):
    """Plays a greedy episode, of at most 10,000 steps, in each environment. Returns scores (N,)."""
    obs, _ = envs.reset(seed=1000 * seed + 500)  # a fresh run has other seeds
    scores = np.zeros(envs.num_envs)
    playing = np.ones(envs.num_envs, bool)  # False once the episode has ended
    for _ in range(10_000):
        obs, reward, terminated, truncated, _ = envs.step(agent.act(obs, greedy=True))
        scores += reward * playing
        playing &= ~(terminated | truncated)
        if not playing.any():
            break
    return scores


def config_for(env_id="", load="", **settings):
    """A Config with the defaults that --env-id or --load gives on the command line."""
    defaults = {} if env_id in ("", Config.env_id) else OTHER_TASKS | dict(env_id=env_id)
    if load:
        kept = torch.load(load, weights_only=True)["settings"]
        defaults = kept | dict(load=load, env_id=env_id or kept["env_id"])
    return Config(**defaults | settings)


def read_flags():
    """Returns the Config that the command line describes."""
    source = open(__file__, encoding="utf-8").read().replace("%", "%%")  # argparse shows %% as %
    comments = dict(re.findall(r"(\w+): \w+ = .*  # (.*)", source))  # of the settings, as help
    parser = ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False,
                            argument_default=SUPPRESS,  # returns only the flags that are given
                            epilog=f"The defaults for any other --env-id: {OTHER_TASKS}")
    for field in fields(Config):
        kind = dict(action=BooleanOptionalAction) if field.type is bool else dict(type=field.type)
        parser.add_argument(f"--{field.name.replace('_', '-')}", **kind,
                            help=f"{comments.get(field.name, '')} (default: {field.default!r})")
    return config_for(**vars(parser.parse_args()))


def main():
    """Trains an agent with the settings of the command line, and evaluates it."""
    torch.set_num_threads(1)  # networks this small are computed faster in a single thread
    in_a_notebook = "kernel_launcher" in sys.argv[0] or "__file__" not in globals()
    config = Config() if in_a_notebook else read_flags()  # a kernel's flags are not ours
    agent, _ = train(config)
    if config.eval_episodes > 0:
        with closing(make_envs(config.env_id, config.eval_episodes)) as envs:
            scores = evaluate(agent, envs, seed=config.seed)
        print(f"greedy evaluation: {scores.mean():.6g} over {len(scores)} episodes")
    if config.render:
        with closing(make_envs(config.env_id, 1, render_mode="human")) as envs:
            evaluate(agent, envs)


if __name__ == "__main__":
    main()
