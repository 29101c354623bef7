# /// script
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]
# ///
"""PPO (Proximal Policy Optimization) for discrete actions, in one file.

The policy π(a|s), or actor, gives the probability of action a in state s.

The actor plays N copies of an environment for T steps. These N·T steps are a rollout. The critic
V(s) learns to predict the return, the sum of the rewards r that follow state s, where a reward k
steps later is multiplied by γ^k. The advantage Â_t estimates how much better action a_t was than
the policy's average action. PPO makes actions with an advantage above the mean more likely and the
others less likely, in several epochs over the same steps. Let π_old be the policy that played them.
Once a good action is 1+ε times as likely as under π_old, or a bad one 1-ε times as likely, the clip
removes any gain from going further.

    δ_t = r_t + γ V(s_{t+1}) - V(s_t)                       TD error            [1] Eq. 12
    Â_t = δ_t + γλ Â_{t+1}                                  GAE                 [1] Eq. 11, [2]
    ρ_t = π(a_t|s_t) / π_old(a_t|s_t)                       probability ratio   [1] Sec. 3
    L   = -E[min(ρ_t Â_t, clip(ρ_t, 1-ε, 1+ε) Â_t)]         clipped surrogate   [1] Eq. 7
          + ½ E[(V(s_t) - R_t)²] - c E[H(π(·|s_t))]         critic, entropy     [1] Eq. 9

In δ_t, V(s_{t+1}) counts as 0 if the episode terminated, but not if only its time was up. In Â_t,
Â_{t+1} counts as 0 if step t is the last of an episode or a rollout. This generalized advantage
estimation (GAE) relies on the critic with λ = 0, on the rewards with λ = 1. The critic's target is
R_t = Â_t + V(s_t), computed before the update. E is the mean over a minibatch, a random part of the
rollout; in each, Â_t is first shifted and scaled to mean 0 and standard deviation 1. H, the entropy
of the distribution π(·|s), is large where the policy is undecided, and c is its weight.

The paper writes r_t(θ) for ρ_t, and K for the number of epochs. With --objective penalty, L begins
with -E[ρ_t Â_t - β KL(π_old‖π)] instead ([1] Eq. 8): the divergence KL measures how far π has moved
from π_old, and its weight β adapts to it.

`python ppo_discrete.py` solves CartPole after about 13,000 of 30,000 steps. The score of an
episode is the sum of its rewards. CartPole is solved when the last 20 episodes average 475.

[1] Schulman et al. 2017, Proximal Policy Optimization Algorithms, arXiv:1707.06347
[2] Schulman et al. 2016, Generalized Advantage Estimation, arXiv:1506.02438, Eq. 16
"""

import os
import signal
import sys
import time
import zipfile
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

# torchrun starts several processes and numbers them. Without it, this is process 0 of 1.
RANK = int(os.environ.get("RANK", 0))
PROCESSES = int(os.environ.get("WORLD_SIZE", 1))


def setting(default, help):
    """A field of Config: its default, and what --help says about it."""
    return field(default=default, metadata={"help": help})


@dataclass
class Config:
    """Every setting of a run. Each is a flag of the command line: num_envs becomes --num-envs."""
    env_id: str = setting("CartPole-v1", "gymnasium environment with Discrete actions")
    total_steps: int = setting(30_000, "environment steps to train for")
    num_envs: int = setting(5, "N, environments played side by side")
    num_steps: int = setting(25, "T, steps of each environment per rollout")
    epochs: int = setting(4, "passes over each rollout")
    num_minibatches: int = setting(2, "minibatches per epoch, each for one optimizer step")
    learning_rate: float = setting(1e-2, "initial learning rate of Adam; it falls linearly to 0")
    max_grad_norm: float = setting(1.0, "clip the gradient to this norm; inf: never")
    gamma: float = setting(0.995, "discount of later rewards")
    gae_lambda: float = setting(0.97, "GAE's lambda: 0 relies on the critic, 1 on the rewards")
    objective: str = setting("clip", "clip or penalty: what keeps the policy near the old one")
    clip_eps: float = setting(0.2, "epsilon, clip of the probability ratio; inf: none")
    target_kl: float = setting(0.02, "KL per update that the penalty aims at first; falls to 0")
    entropy_coef: float = setting(0.0, "c, the weight of the entropy bonus")
    obs_std: float = setting(2.0, "standard deviation that observations are scaled to")
    reward_scale: float = setting(0.05, "learn from the rewards times this number")
    normalize_reward: bool = setting(False, "divide rewards by the returns' standard deviation")
    hidden_layers: int = setting(1, "hidden layers of each network")
    hidden_size: int = setting(32, "units of each hidden layer")
    activation: str = setting("tanh", "tanh or relu, after each hidden layer")
    seed: int = setting(0, "the same seed, machine and versions give the same scores")
    device: str = setting("cpu", "where torch computes: cpu or cuda")
    save: str = setting("", "checkpoint to write: during the run, at the end, on Ctrl-C")
    load: str = setting("", "checkpoint to resume, with its settings")
    eval_episodes: int = setting(100, "episodes of each evaluation after training; 0: none")
    render: bool = setting(False, "after training, play an episode in a window")


# Settings to begin with on other tasks. The command line uses them for any other --env-id; in
# Python, write Config(env_id="LunarLander-v3", **ELSEWHERE).
ELSEWHERE = dict(
    total_steps=500_000, num_envs=8, num_steps=256, epochs=10, num_minibatches=16,
    learning_rate=1e-3, gae_lambda=0.95, entropy_coef=0.01, reward_scale=1.0,
    normalize_reward=True, hidden_layers=2, hidden_size=64,
)


class ObsScale(nn.Module):
    """Scales each feature of the observations to a standard deviation of target_std.

    Networks learn best from numbers of the order of 1. This is all you need to know about this
    class on a first reading.
    """
    def __init__(self, obs_dim, target_std):
        super().__init__()
        self.target_std = target_std
        # Sums over all observations so far, in float64 for precision. Buffers are not learned, but
        # belong to state_dict(), as the weights do.
        self.count = nn.Buffer(torch.zeros(1, dtype=torch.float64))
        self.sum = nn.Buffer(torch.zeros(obs_dim, dtype=torch.float64))
        self.sum_of_squares = nn.Buffer(torch.zeros(obs_dim, dtype=torch.float64))
        # What is subtracted from each feature, and what it is then divided by: at first 0 and 1.
        self.shift = nn.Buffer(torch.zeros(obs_dim))
        self.divisor = nn.Buffer(torch.ones(obs_dim))

    def forward(self, obs):
        """Observations (..., obs_dim) -> scaled ones, limited to the range from -10 to 10."""
        return ((obs - self.shift) / self.divisor).clamp(-10, 10)

    def update(self, obs):
        """Takes B more observations (B, obs_dim) into account."""
        first = self.count == 0
        obs = obs.double()
        self.count += len(obs)
        self.sum += obs.sum(0)
        self.sum_of_squares += obs.square().sum(0)
        average(self.count, self.sum, self.sum_of_squares)  # under torchrun
        mean = self.sum / self.count
        variance = self.sum_of_squares / self.count - mean**2
        std = variance.clamp(min=1e-8).sqrt()  # rounding may leave a variance of 0 or less
        self.divisor.copy_(std / self.target_std)
        if first:
            # tanh units saturate far from 0. So a mean more than 2 standard deviations from 0 is
            # moved to ±2 of them, and one more than 10 away to 0. This is done only once, as a
            # shift that keeps changing makes learning slower.
            new_mean = mean.clamp(-2 * std, 2 * std)
            new_mean[mean.abs() > 10 * std] = 0
            self.shift.copy_(mean - new_mean)


def linear(size_in, size_out, gain):
    """A linear layer with orthogonal weights, times gain, and biases of 0."""
    layer = nn.Linear(size_in, size_out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(size_in, size_out, config, output_gain):
    """A network (..., size_in) -> (..., size_out) with the hidden layers that config asks for."""
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[config.activation]
    layers = []
    size = size_in
    for _ in range(config.hidden_layers):
        layers += [linear(size, config.hidden_size, gain=2**0.5), activation()]
        size = config.hidden_size
    return nn.Sequential(*layers, linear(size, size_out, output_gain))


class ActorCritic(nn.Module):
    """The policy π(a|s) and the critic V(s): two networks, sized from the environment's spaces."""
    def __init__(self, envs, config):
        super().__init__()
        obs_dim = envs.single_observation_space.shape[0]
        n_actions = envs.single_action_space.n
        self.scale = ObsScale(obs_dim, config.obs_std)
        # Outputs near 0 make all actions about equally likely at first.
        self.policy = mlp(obs_dim, n_actions, config, output_gain=0.01)
        self.critic = mlp(obs_dim, 1, config, output_gain=1.0)

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
        check_finite("observation", obs)
        device = self.scale.divisor.device  # where the networks are
        obs = torch.as_tensor(obs, dtype=torch.float32, device=device)
        pi = self.pi(obs)
        action = pi.mode if greedy else pi.sample()
        return action.cpu().numpy()


class RolloutBuffer:
    """T steps of N environments. Time comes first: row t holds step t of all environments.

    gymnasium uses the step after an episode's end only to reset that environment: its action is
    ignored and its reward is 0. In these places valid is False, and nothing is learned from them.
    """
    def __init__(self, T, N, obs_dim):
        self.obs = np.zeros((T + 1, N, obs_dim), np.float32)  # row t + 1 is what step t led to
        self.action = np.zeros((T, N), np.int64)
        self.reward = np.zeros((T, N), np.float32)
        self.terminated = np.zeros((T, N), bool)
        self.truncated = np.zeros((T, N), bool)
        self.valid = np.zeros((T, N), bool)

    def tensors(self, device):
        """An object with the same fields as tensors. On the CPU they share the arrays' memory."""
        arrays = vars(self)
        return SimpleNamespace(**{name: torch.as_tensor(arrays[name], device=device)
                                  for name in arrays})


def compute_gae(reward, value, terminated, truncated, gamma, gae_lambda):
    """Generalized advantage estimates Â (T, N), computed backwards in time ([1] Eq. 11).

    reward, terminated and truncated are (T, N). value is (T+1, N): value[t+1] belongs to the
    observation that step t led to, which at the end of an episode is its last one.
    """
    assert reward.shape == terminated.shape == truncated.shape == value[1:].shape
    # Nothing follows a terminal state. After a truncation, V still stands for the rest.
    delta = reward + gamma * value[1:] * ~terminated - value[:-1]
    continues = ~(terminated | truncated)  # after an end, row t + 1 only resets
    advantage = torch.zeros_like(value)  # (T+1, N): the last row, beyond the rollout, stays 0
    for t in reversed(range(len(reward))):
        advantage[t] = delta[t] + gamma * gae_lambda * advantage[t + 1] * continues[t]
    return advantage[:-1]


def ppo_loss(pi, value, action, old_log_prob, advantage, return_, beta, config):
    """The loss L to minimise, and its parts. Tensors have a row for each step; return_ is R_t."""
    log_ratio = pi.log_prob(action) - old_log_prob
    ratio = log_ratio.exp()
    assert ratio.shape == value.shape == advantage.shape == return_.shape
    if config.objective == "clip":
        clipped_ratio = ratio.clamp(1 - config.clip_eps, 1 + config.clip_eps)
        surrogate = torch.min(ratio * advantage, clipped_ratio * advantage)
    else:
        kl = ratio - 1 - log_ratio  # never negative; on average over π_old, KL(π_old‖π)
        surrogate = ratio * advantage - beta * kl
    policy_loss = -surrogate.mean()
    value_loss = (value - return_).square().mean()
    entropy = pi.entropy().mean()
    loss = policy_loss + 0.5 * value_loss - config.entropy_coef * entropy
    return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}


class Adam:
    """Adam (arXiv:1412.6980, Algorithm 1): on a first reading, take it for torch.optim.Adam.

    It is faster: a few operations on one long vector compute the changes of all parameters. And it
    starts sooner: the first of torch's optimizers to be constructed imports modules for one to two
    seconds. Change the agent, or freeze parameters (requires_grad = False), before the optimizer is
    constructed: parameters frozen later would keep moving by momentum.
    """
    def __init__(self, parameters, lr, eps):
        self.params = list(parameters)
        self.param_groups = [{"params": self.params, "lr": lr}]  # as torch's optimizers have
        self.eps = eps
        # Running means of the gradients and of their squares.
        self.mean = torch.zeros_like(parameters_to_vector(self.params))
        self.square = torch.zeros_like(self.mean)
        self.steps = 0

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        if all(p.grad is None for p in self.params):
            raise RuntimeError("no gradient has reached the optimizer's parameters: construct it "
                               "anew if the agent is a copy of the one it was constructed for")
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        grad = torch.cat([g.flatten() for g in grads])
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * grad
        self.square = 0.999 * self.square + 0.001 * grad**2
        mean_hat = self.mean / (1 - 0.9**self.steps)  # makes up for the start at 0
        square_hat = self.square / (1 - 0.999**self.steps)
        change = self.param_groups[0]["lr"] * mean_hat / (square_hat.sqrt() + self.eps)
        sizes = [p.numel() for p in self.params]
        for p, part in zip(self.params, change.split(sizes)):
            p -= part.view_as(p)

    def state_dict(self):
        return {"mean": self.mean, "square": self.square, "steps": self.steps}

    def load_state_dict(self, state):
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
        assert isinstance(state["steps"], int) and state["steps"] >= 0, "steps is damaged"
        self.steps = state["steps"]


@contextmanager
def one_thread():
    """Lets torch use one thread: with networks this small, several only wait for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@one_thread()
def train(config, envs=None):
    """Trains an agent. Returns it and its history: (env_step, score) of each finished episode.

    envs may be vector environments of your own (see prepare). Ctrl-C ends the training early. Under
    torchrun, the history and the statistics of normalize_reward are those of this process alone.
    Raises SettingError for a setting that cannot work, and FloatingPointError for a number that is
    not finite.
    """
    # Settings and environments. What is called here and not defined above stands further down.
    if envs is not None:
        env_id = getattr(envs.spec, "id", "your environments")
        config = replace(config, env_id=env_id, num_envs=envs.num_envs)
    check(config)
    if envs is None:
        envs = make_envs(config.env_id, config.num_envs)
    envs = prepare(envs)
    if config.normalize_reward:  # the outermost wrapper, as save and restore read its return_rms
        envs = gym.wrappers.vector.NormalizeReward(envs, config.gamma)

    # Agent, optimizer and buffer.
    torch.manual_seed(config.seed)  # every process begins with the same weights
    agent = ActorCritic(envs, config).to(config.device)
    optimizer = Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5)
    params = list(agent.parameters())  # listed once: listing them takes time
    rates = [group["lr"] for group in optimizer.param_groups]  # torch's may have several groups
    T = config.num_steps
    N = config.num_envs
    obs_dim = envs.single_observation_space.shape[0]
    buffer = RolloutBuffer(T, N, obs_dim)

    # A new run, or one that is resumed.
    beta = 1.0
    env_step = 0
    history = []
    if config.load:
        beta, env_step, history = restore(config, agent, optimizer, envs)
    save(config, agent, optimizer, envs, beta, env_step, history)  # even if no step is trained
    print(describe(config), flush=True)

    # A different seed, process or resumed step gives different episodes. The environments are
    # seeded only once: later resets draw new starts.
    seed = derive_seed(config.seed, RANK, env_step)
    torch.manual_seed(seed)  # for actions and minibatches
    obs, _ = envs.reset(seed=seed)
    done = np.zeros(N, bool)
    next_report = env_step
    first_step = env_step
    start_time = time.time()
    try:
        while env_step < config.total_steps:
            remaining = 1 - env_step / config.total_steps  # falls to 0 at the end
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * remaining

            # Collect: play T steps with the current policy.
            buffer.obs[0] = obs
            for t in range(T):
                buffer.valid[t] = ~done  # after an episode's end, this step only resets
                action = agent.act(obs)
                obs, reward, terminated, truncated, info = envs.step(action)
                check_finite("reward", reward)
                buffer.action[t] = action
                buffer.reward[t] = config.reward_scale * reward  # a small V is learned faster
                buffer.terminated[t] = terminated
                buffer.truncated[t] = truncated
                buffer.obs[t + 1] = obs
                done = terminated | truncated
                env_step += N * PROCESSES  # each process has N environments of its own
                if done.any():
                    history += [(env_step, float(score)) for score in info["episode"]["r"][done]]
            check_finite("observation", obs)  # the last one; act has checked the others

            # Estimate advantages and targets, once per rollout, so that the targets stand still
            # while the networks learn.
            rollout = buffer.tensors(config.device)
            valid = rollout.valid  # (T, N): indexing with it keeps the B valid steps
            with torch.no_grad():
                value = agent.value(rollout.obs)  # (T+1, N)
                advantage = compute_gae(rollout.reward, value, rollout.terminated,
                                        rollout.truncated, config.gamma, config.gae_lambda)
                b_obs = rollout.obs[:-1][valid]  # (T, N, obs_dim) -> (B, obs_dim)
                b_action = rollout.action[valid]
                b_advantage = advantage[valid]
                b_return = (advantage + value[:-1])[valid]  # what the critic learns to predict
                b_old_log_prob = agent.pi(b_obs).log_prob(b_action)  # π is still π_old

            # Update: several passes over the rollout, in shuffled minibatches.
            for _ in range(config.epochs):
                order = torch.randperm(len(b_obs))
                for mb in order.tensor_split(config.num_minibatches):  # indices of one minibatch
                    # Normalised, so that the policy's loss does not depend on the rewards' scale.
                    std, mean = torch.std_mean(b_advantage[mb], correction=0)
                    mb_advantage = (b_advantage[mb] - mean) / (std + 1e-8)
                    loss, parts = ppo_loss(
                        agent.pi(b_obs[mb]), agent.value(b_obs[mb]), b_action[mb],
                        b_old_log_prob[mb], mb_advantage, b_return[mb], beta, config)
                    optimizer.zero_grad()
                    loss.backward()
                    average(*[p.grad for p in params if p.grad is not None])  # under torchrun
                    norm = clip_grad_norm_(params, config.max_grad_norm)
                    if not norm.isfinite():
                        raise FloatingPointError("the gradient is not finite; a smaller "
                                                 "--learning-rate may help")
                    optimizer.step()

            # Look back: how far did the update move the policy?
            with torch.no_grad():
                log_ratio = agent.pi(b_obs).log_prob(b_action) - b_old_log_prob
                ratio = log_ratio.exp()
                kl = (ratio - 1 - log_ratio).mean()
                average(kl)  # under torchrun
            if config.objective == "penalty":  # adapt β ([1] Sec. 4), here within limits
                target_kl = config.target_kl * remaining
                if kl > 1.5 * target_kl:
                    beta = min(2 * beta, 1e4)
                elif kl < target_kl / 1.5:
                    beta = max(beta / 2, 1.0)
            agent.scale.update(b_obs)  # only now: π and π_old saw the same scale

            # Report: metrics of each update, ready for wandb.log(metrics, env_step). About twenty
            # times a run, and at its end, some of them are printed.
            scores = [score for _, score in history[-20:]]
            clipped = (ratio - 1).abs() > config.clip_eps  # with a gradient or without
            error_var = b_advantage.var(correction=0)  # as the advantage is R_t - V(s_t)
            return_var = b_return.var(correction=0)
            metrics = {
                "episode": len(history),
                "average_score": float(np.mean(scores)) if scores else np.nan,
                "kl": kl.item(),
                "beta": beta,
                "clipped_fraction": clipped.double().mean().item(),
                "explained_variance": 1 - (error_var / return_var).item(),  # 1: V met its targets
                "steps_per_second": (env_step - first_step) / (time.time() - start_time),
                **{name: part.item() for name, part in parts.items()},  # of the last minibatch
            }
            if env_step >= next_report or env_step >= config.total_steps:
                next_report = env_step + config.total_steps / 20
                save(config, agent, optimizer, envs, beta, env_step, history)
                print(f"step {env_step:,}  episode {metrics['episode']:,}  average score of the "
                      f"last 20 episodes: {metrics['average_score']:.2f}  kl {metrics['kl']:.2g}  "
                      f"entropy {metrics['entropy']:.2g}", flush=True)
    except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
        save(config, agent, optimizer, envs, beta, env_step, history)
        print(f"stopped at step {env_step:,}", flush=True)
    return agent, history


# ---- From here on: checks, environments, checkpoints, evaluation and the command line ----


class SettingError(ValueError):
    """A setting that cannot work. The message names it, and says what would be right."""


def check(config):
    """Raises SettingError for a setting that cannot work. Turns numpy's numbers into Python's."""
    # The lowest and the highest value. Numbers not listed here may be from 0 to infinity.
    limits = {
        "num_envs": (1, 10_000), "num_steps": (2, 1_000_000), "epochs": (1, 1_000_000),
        "hidden_layers": (0, 100), "hidden_size": (1, 10_000), "eval_episodes": (0, 10_000),
        "learning_rate": (0, 1), "max_grad_norm": (1e-6, np.inf),
        "gamma": (0, 1), "gae_lambda": (0, 1), "target_kl": (0, 1000), "entropy_coef": (0, 1000),
        "obs_std": (0.01, 10), "reward_scale": (1e-6, 1e6), "seed": (0, 2**64 - 1),
    }
    choices = {"objective": ["clip", "penalty"], "activation": ["tanh", "relu"]}
    for spec in fields(config):
        name, value = spec.name, getattr(config, spec.name)
        low, high = limits.get(name, (0, np.inf))
        if name in choices:
            right = " or ".join(choices[name])
            fits = value in choices[name]
        elif spec.type is int:
            right = f"a whole number from {low} to {high}"
            fits = isinstance(value, Integral) and low <= value <= high
        elif spec.type is float:
            right = f"a number from {low} to {high}"
            fits = isinstance(value, Real) and low <= value <= high
        else:
            right = f"a {spec.type.__name__}"
            fits = isinstance(value, spec.type)
        if not fits:
            raise SettingError(f"--{name.replace('_', '-')} {value!r}: must be {right}")
        setattr(config, name, spec.type(value))

    fewest = config.num_envs * (config.num_steps // 2)  # at worst, every other step only resets
    if not 1 <= config.num_minibatches <= fewest:
        raise SettingError(f"--num-minibatches {config.num_minibatches}: must be from 1 to "
                           f"{fewest}, half the steps of a rollout")
    try:
        torch.zeros(1, dtype=torch.float64, device=config.device).item()  # as ObsScale needs
    except Exception as error:  # torch raises many kinds
        reason = str(error).splitlines()[0]
        raise SettingError(f"--device {config.device}: must be cpu or cuda: {reason}") from None
    if config.save and RANK == 0:
        resumed = config.load and os.path.realpath(config.save) == os.path.realpath(config.load)
        if os.path.exists(config.save) and not resumed:
            raise SettingError(f"--save {config.save}: exists; choose a new file, or --load it")
        try:
            open(unfinished(config.save), "xb").close()
            os.remove(unfinished(config.save))
        except OSError as error:
            raise SettingError(f"--save {config.save}: {error.strerror}") from None


def describe(config):
    """A run's settings in words: its changes to whichever of two sets gives the shorter text."""
    descriptions = []
    for words, base in [("the default settings", Config()),
                        ("the settings for other tasks (ELSEWHERE)", Config(**ELSEWHERE))]:
        changed = [f"{name} {value}" for name, value in vars(config).items()
                   if name != "env_id" and value != getattr(base, name)]
        descriptions.append(f"{words}, but {', '.join(changed)}" if changed else words)
    return f"{config.env_id} with {min(descriptions, key=len)}"


def make_envs(env_id, num_envs, render_mode=None):
    """Vector environments: copies of one environment that step together."""
    options = {}
    if render_mode:
        options = {"render_mode": render_mode, "vectorization_mode": "sync"}
    try:
        return gym.make_vec(env_id, num_envs, **options)
    except (gym.error.Error, ModuleNotFoundError) as error:
        raise SettingError(f"--env-id {env_id}: {' '.join(str(error).split())}") from None
    except TypeError as error:
        if "'render_mode'" not in str(error):
            raise
        raise SettingError(f"--render: {env_id} does not take a render_mode") from None


def prepare(envs):
    """Adds wrappers: flat observations, and scores of finished episodes in info.

    The vector environments must be in gymnasium's NEXT_STEP autoreset mode: the step after an
    episode's end ignores the action, and only begins the next episode. RecordEpisodeStatistics is
    added here, so leave it out of your own.
    """
    if envs.metadata.get("autoreset_mode") != gym.vector.AutoresetMode.NEXT_STEP:
        raise SettingError("vector environments must have autoreset_mode NEXT_STEP, gymnasium's "
                           f"default, not {envs.metadata.get('autoreset_mode')}")
    space = envs.single_action_space
    if not isinstance(space, gym.spaces.Discrete) or space.start != 0:
        raise SettingError(f"actions must be Discrete, counted from 0, not {space}: use "
                           "ppo_continuous.py for a Box; number other actions in a wrapper")
    obs_space = envs.single_observation_space
    if obs_space != gym.spaces.flatten_space(obs_space):
        envs = gym.wrappers.vector.FlattenObservation(envs)
    return gym.wrappers.vector.RecordEpisodeStatistics(envs)


def check_finite(name, numbers):
    """Raises FloatingPointError unless all numbers of the environment are finite."""
    if not np.isfinite(numbers).all():
        raise FloatingPointError(f"the environment's {name} is not finite")


def derive_seed(*numbers):
    """A seed made of several numbers. Other numbers almost surely give an unrelated seed.

    gymnasium seeds N copies of an environment with seed, seed + 1 and so on. So runs with the seeds
    0 and 1 would play nearly the same episodes, if these were used as they are.
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def average(*tensors):
    """Averages tensors of one dtype over the processes of torchrun, in place."""
    if PROCESSES > 1:
        vector = parameters_to_vector(tensors)  # one message instead of many
        torch.distributed.all_reduce(vector)
        vector_to_parameters(vector / PROCESSES, tensors)


def unfinished(path):
    """Where a checkpoint is written, before it is renamed."""
    return f"{os.path.realpath(path)}.{os.getpid()}.unfinished"


def kept(settings):
    """A dictionary of settings without those of a single run, which a checkpoint does not keep."""
    single = ("save", "load", "device", "eval_episodes", "render")
    return {name: value for name, value in settings.items() if name not in single}


def save(config, agent, optimizer, envs, beta, env_step, history):
    """Writes a checkpoint beside config.save and renames it, so that it is never half a file."""
    if not config.save or RANK > 0:
        return
    stats = vars(envs.return_rms) if config.normalize_reward else {}  # mean, variance and count
    checkpoint = {
        "config": kept(vars(config)),
        "agent": agent.state_dict(),
        "optimizer": optimizer.state_dict(),
        "reward_stats": {name: float(value) for name, value in stats.items()},
        "beta": beta,
        "env_step": env_step,
        "history": history,
    }
    path = unfinished(config.save)
    try:
        torch.save(checkpoint, path)
        os.replace(path, os.path.realpath(config.save))  # where config.save may be a link to
    except (OSError, RuntimeError) as error:  # no reason to lose the run
        print(f"--save {config.save}: step {env_step:,} not saved: {error}", file=sys.stderr)
    finally:
        if os.path.exists(path):
            os.remove(path)


def read_checkpoint(path):
    """The dictionary in a checkpoint. No code in the file is run."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        assert isinstance(checkpoint["config"], dict)
        with zipfile.ZipFile(path) as archive:  # torch does not compare the checksums it writes
            assert archive.testzip() is None
        return checkpoint
    except Exception as error:  # a foreign file can fail in any way
        reason = getattr(error, "strerror", None) or "not a checkpoint of this script"
        raise SettingError(f"--load {path}: {reason}") from None


def resume(path, **given):
    """The settings of a checkpoint, except those given anew: train(resume("a.pt", seed=1))."""
    try:
        settings = kept(read_checkpoint(path)["config"])
        return Config(**settings | given | {"load": path})
    except TypeError as error:
        raise SettingError(f"--load {path}: {error}") from None


def restore(config, agent, optimizer, envs):
    """Fills agent, optimizer and reward statistics. Returns beta, env_step and history."""
    checkpoint = read_checkpoint(config.load)
    try:
        agent.load_state_dict(checkpoint["agent"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        if config.normalize_reward:
            for name, value in checkpoint["reward_stats"].items():
                setattr(envs.return_rms, name, np.float64(value))
        loaded = checkpoint["agent"] | checkpoint["optimizer"]
        for name, x in (agent.state_dict() | optimizer.state_dict()).items():
            if isinstance(x, torch.Tensor):
                fits = loaded[name].dtype == x.dtype and loaded[name].shape == x.shape
                assert fits and x.isfinite().all(), f"{name} is damaged"
        beta, env_step = checkpoint["beta"], checkpoint["env_step"]
        stats = [float(value) for value in checkpoint["reward_stats"].values()]
        assert 1 <= beta <= 1e4 and np.isfinite(stats).all(), "some numbers are out of range"
        assert isinstance(env_step, int) and env_step >= 0, "env_step must be a whole number"
        return beta, env_step, [(int(step), float(score)) for step, score in checkpoint["history"]]
    except Exception as error:  # a damaged file can fail in any way
        reason = " ".join(str(error).split())
        raise SettingError(f"--load {config.load}: does not fit these settings: {reason}") from None


@one_thread()
def evaluate(agent, env_id, episodes=100, greedy=True, seed=0, envs=None):
    """Plays fresh episodes and returns their scores, (episodes,).

    Without a time limit, an episode stops after 10,000 steps. envs may be vector environments of
    your own: each plays one episode, and all are closed at the end.
    """
    if envs is None:
        envs = make_envs(env_id, episodes)
    envs = prepare(envs)
    limit = max(10_000, getattr(envs.spec, "max_episode_steps", None) or 0)
    obs, _ = envs.reset(seed=derive_seed(seed, 2**32 - 1))  # unlike any seed of training
    scores = np.zeros(envs.num_envs)
    playing = np.ones(envs.num_envs, bool)  # False once the first episode has ended
    for _ in range(limit):
        action = agent.act(obs, greedy)
        obs, reward, terminated, truncated, _ = envs.step(action)
        scores[playing] += reward[playing]
        playing[terminated | truncated] = False
        if not playing.any():
            break
    envs.close()
    return scores


def main():
    """Trains with the settings of the command line, then evaluates the agent."""
    parser = ArgumentParser(usage=SUPPRESS, allow_abbrev=False)
    for spec in fields(Config):
        options = {"action": BooleanOptionalAction} if spec.type is bool else {"type": spec.type}
        default = f"default: {spec.default!r}"
        if spec.name in ELSEWHERE:
            default += f"; on other tasks: {ELSEWHERE[spec.name]!r}"
        parser.add_argument(f"--{spec.name.replace('_', '-')}", default=SUPPRESS, **options,
                            help=f"{spec.metadata['help']} ({default})")
    # In a notebook, sys.argv belongs to the kernel: use the defaults.
    in_a_notebook = "__file__" not in globals()
    given = vars(parser.parse_args([] if in_a_notebook else None))

    received = []  # signals that asked this run to stop

    def stop(number, frame):
        received.append(number)
        raise KeyboardInterrupt

    handlers = {}  # those before this run
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # background jobs ignore Ctrl-C
            handlers[number] = signal.signal(number, stop)
    try:
        if PROCESSES > 1:
            torch.distributed.init_process_group("gloo")
            if RANK > 0:
                sys.stdout = open(os.devnull, "w")
        if given.get("load"):
            config = resume(given["load"], **given)
        elif given.get("env_id", Config.env_id) == Config.env_id:
            config = Config(**given)
        else:
            config = Config(**ELSEWHERE | given)
        if config.render and RANK == 0:  # a trial: a missing screen should not cost the training
            window = make_envs(config.env_id, 1, "human")
            window.reset()
            window.close()
        agent, _ = train(config)
        if received:  # stopped while training: no evaluation
            raise KeyboardInterrupt
        if config.eval_episodes > 0:
            for greedy in (True, False):
                scores = evaluate(agent, config.env_id, config.eval_episodes, greedy, config.seed)
                print(f"{'greedy' if greedy else 'sampled'} evaluation: {scores.mean():.2f} over "
                      f"{config.eval_episodes} episodes", flush=True)
        if config.render and RANK == 0:
            evaluate(agent, config.env_id, envs=make_envs(config.env_id, 1, "human"))
        if config.save and RANK == 0:  # was the last checkpoint written? stderr says why not
            exists = os.path.exists(config.save)
            if not exists or read_checkpoint(config.save)["env_step"] < config.total_steps:
                sys.exit(1)
    except (SettingError, FloatingPointError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.exit(128 + received[0])  # the exit status of a program that this signal ended
    except BrokenPipeError:  # whoever read the output has gone, as with `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # a notebook needs them again


if __name__ == "__main__":
    main()
