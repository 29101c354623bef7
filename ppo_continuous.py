# /// script
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]
# ///
"""PPO (Proximal Policy Optimization) for continuous actions, in one file.

The policy π(a|s) gives the probability of action a in state s, which the code calls obs. The critic
V(s) predicts the return, which is the sum of the rewards r that follow. A reward k steps later is
multiplied by γ^k.

Here an action consists of real numbers, so π(a|s) is a probability density. It is a Gaussian. A
network gives its mean. The logarithm of its standard deviation σ is learned, too.

PPO repeats two things. First the policy plays N copies of an environment for T steps. These steps
are called a rollout. Then the policy and the critic learn from the rollout, in several passes over
its steps. The passes are called epochs. π_old and V_old are the policy and the critic before the
first pass.

    δ_t = r_t + γ V_old(s_{t+1}) - V_old(s_t)         TD error            [1] Eq. 12
    Â_t = δ_t + γλ Â_{t+1}                            advantage           [1] Eq. 11, [2] Eq. 16
    R_t = Â_t + V_old(s_t)                            target of V
    ρ_t = π(a_t|s_t) / π_old(a_t|s_t)                 probability ratio   [1] Sec. 3
    L   = -E[min(ρ_t Â_t, clip(ρ_t, 1-ε, 1+ε) Â_t)]   loss of the policy  [1] Eq. 7
          + ½ E[(V(s_t) - R_t)²]                      loss of the critic  [1] Eq. 9
          - c E[H(π(·|s_t))]                          entropy bonus       [1] Eq. 9

TD error: if the episode terminated at step t, nothing follows, and V_old(s_{t+1}) counts as 0. If
    it was truncated, as its time was up, V_old(s_{t+1}) stands for the rewards that would have
    followed.
Advantage: V_old(s_t) predicts the average return. Â_t estimates how much better the return is
    after action a_t. This is generalized advantage estimation (GAE). Beyond the end of an episode
    or of the rollout, Â counts as 0. With λ = 0, Â_t is δ_t, which takes one reward and leaves the
    rest to the critic. With λ = 1, the V_old in the middle cancel:
        δ_t + γ δ_{t+1} = r_t + γ r_{t+1} + γ² V_old(s_{t+2}) - V_old(s_t)
    That trusts the critic less, but is noisier. λ lies in between.
Target of V: Â_t estimates the return minus V_old(s_t), so R_t estimates the return. V learns small
    numbers best, so train() has all rewards scaled first.
Ratio: the gradient of ρ_t is ρ_t ∇ log π. At the first optimizer step after a rollout, ρ_t is 1,
    and PPO learns as actor-critic does, with Â_t for δ_t. Later, an action that π would play twice
    as often as π_old did counts twice.
Loss: E is the mean over a minibatch, which is a random part of the steps. Its Â_t are shifted and
    scaled to mean 0 and standard deviation 1.
Clip: the steps of π_old tell little about a policy that is far from π_old. So if Â_t > 0, a ratio
    above 1+ε brings no further gain. If Â_t < 0, a ratio below 1-ε brings none.
Minimum: suppose that Â_t < 0 and the ratio is above 1+ε, because learning from other steps has
    raised it. The clipped term is flat there. But ρ_t Â_t is smaller, so the minimum takes it, and
    the ratio can fall again. Likewise, the ratio can rise again if Â_t > 0 and it is below 1-ε.
Entropy: H is a measure of how undecided the policy is. Its bonus keeps the policy trying all
    actions for longer. Here c is 0. On other tasks, c falls during a run from entropy_coef to its
    negative, so that the policy decides in the end.

In Pendulum, a torque swings a pendulum up and holds it. An episode has 200 steps. Each step has a
cost, which grows with the distance from upright. `python ppo_continuous.py` solves Pendulum
(average score -200) after about 16,000 of 99,000 steps.

[1] Schulman et al. 2017, Proximal Policy Optimization Algorithms, arXiv:1707.06347
[2] Schulman et al. 2016, Generalized Advantage Estimation, arXiv:1506.02438
"""

import inspect
import os
import re
import warnings
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from contextlib import closing
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers.vector import (
    FlattenObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TransformAction,
)
from torch import nn, optim
from torch.distributions import Independent, Normal

torch.set_num_threads(1)  # networks this small are computed faster in a single thread


@dataclass
class Config:
    """The settings of a run. Each is a flag, too: num_envs is --num-envs."""
    env_id: str = "Pendulum-v1"  # gymnasium environment with a Box of real-valued, bounded actions
    total_steps: int = 99_000  # environment steps to train for
    num_envs: int = 5  # N, environments played side by side
    num_steps: int = 200  # T, steps of each environment per rollout
    epochs: int = 10  # passes over each rollout
    num_minibatches: int = 8  # minibatches per epoch, each for one optimizer step
    learning_rate: float = 1e-3  # initial learning rate of Adam; it falls linearly to 0
    max_grad_norm: float = 1.0  # a longer gradient is shortened to this, lest it ruin the policy
    gamma: float = 0.98  # discount of later rewards; below 1 if no episode ever terminates
    gae_lambda: float = 0.9  # lambda: 0 trusts the critic most, 1 the rewards
    clip_eps: float = 0.2  # epsilon, clip of the probability ratio
    entropy_coef: float = 0.0  # c at first; c falls linearly to the negative of this
    init_log_std: float = 0.5  # log of the first sigma; n numbers begin with sigma / root n each
    hidden_size: int = 128  # units of each network's hidden layers
    activation: str = "relu"  # relu or tanh
    seed: int = 0  # the same seed, machine and versions give the same scores
    save: str = ""  # checkpoint to write: during the run, at its end, on Ctrl-C
    load: str = ""  # checkpoint to go on from; on the command line, its settings are used
    eval_episodes: int = 100  # episodes to evaluate, each in an environment of its own; 0: none
    render: bool = False  # after training, play an episode in a window


class ObsScale(nn.Module):
    """Scales each feature of the observations, as networks learn best from numbers of about 1 or 2.

    A scaled feature is 2 · (feature - centre) / rms. The 2 was found by trying. The centre is the
    mean of the N observations at the first reset. The centre never moves, as that would shift the
    inputs that a network has learned from. rms is the root mean square of feature - centre so far.
    rms does change, but soon hardly at all.
    """
    def __init__(self, first_obs):
        super().__init__()
        # A Buffer is saved with the network, but the optimizer does not change it.
        self.centre = nn.Buffer(torch.as_tensor(first_obs).float().mean(0))
        self.rms = nn.Buffer(torch.ones_like(self.centre))  # until the first include()
        self.sum_of_squares = nn.Buffer(torch.full_like(self.centre, 1e-8))  # so rms is never 0
        self.count = nn.Buffer(torch.tensor(0.0))

    def forward(self, obs):
        """Observations (..., obs_dim) -> scaled ones, clipped at ±10, as outliers do harm."""
        return (2 * (obs - self.centre) / self.rms).clamp(-10, 10)

    def include(self, obs):
        """Includes more observations (any number, obs_dim) in rms."""
        self.sum_of_squares += (obs - self.centre).square().sum(0)
        self.count += len(obs)
        self.rms = (self.sum_of_squares / self.count).sqrt()  # nn.Module keeps rms a Buffer


def mlp(size_in, hidden_size, size_out, activation):
    """A network (..., size_in) -> (..., size_out) with two hidden layers."""
    network = nn.Sequential(
        nn.Linear(size_in, hidden_size),
        activation(),
        nn.Linear(hidden_size, hidden_size),
        activation(),
        nn.Linear(hidden_size, size_out),
    )
    for layer in network[::2]:  # the Linear ones
        # Orthogonal weights keep a signal's length. √2 makes up for what ReLU takes away, and stays
        # with tanh and in the last layer, too.
        nn.init.orthogonal_(layer.weight, 2**0.5)
        nn.init.zeros_(layer.bias)
    return network


class ActorCritic(nn.Module):
    """The policy π(a|s) and the critic V(s): two networks without a common layer."""
    def __init__(self, envs, config, first_obs):
        super().__init__()
        obs_dim = first_obs.shape[1]
        action_dim = envs.single_action_space.shape[0]  # of each of the N environments
        self.scale = ObsScale(first_obs)
        activation = {"relu": nn.ReLU, "tanh": nn.Tanh}[config.activation]
        self.policy = mlp(obs_dim, config.hidden_size, action_dim, activation)
        self.critic = mlp(obs_dim, config.hidden_size, 1, activation)
        with torch.no_grad():
            self.policy[-1].weight *= 0.01  # at first all means are about 0
        # The length of a noise vector of n numbers grows as √n. Dividing σ by √n makes all noise
        # together as large as with one number. σ is the same in all states.
        std = np.exp(config.init_log_std) / np.sqrt(action_dim)
        self.log_std = nn.Parameter(torch.full((action_dim,), np.log(std)))

    def pi(self, obs):
        """Observations (..., obs_dim) -> the distribution π(·|s) over the actions."""
        mean = self.policy(self.scale(obs))  # (..., action_dim)
        std = self.log_std.exp()
        # Independent(..., 1) adds up the log-densities of the numbers that make an action.
        return Independent(Normal(mean, std), 1)

    def value(self, obs):
        """Observations (..., obs_dim) -> values V(s), of shape (...)."""
        return self.critic(self.scale(obs)).squeeze(-1)

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim) -> actions (N, action_dim), a numpy array.

        The actions are sampled, or with greedy they are the means. -1 stands for the environment's
        lower bound and 1 for its upper bound. The environments of make_envs() clip what is beyond.
        """
        pi = self.pi(torch.as_tensor(obs).float())
        action = pi.mode if greedy else pi.sample()
        return action.numpy()


class RolloutBuffer:
    """A rollout: T steps of N environments. The first dimension is time.

    obs[t] is what the agent sees before step t, and obs[t + 1] is what it sees afterwards. done[t]
    tells that obs[t] is the last one of an episode. This is what it looks like if an episode
    terminates in step 1, which leads to its last observation, obs[2]:

        t                0                1                2                3
        obs[t]           first episode    first episode    its last obs     second episode
        terminated[t]    False            True             False            False
        done[t]          False            False            True             False

    gymnasium uses step 2 only to reset the environment. It ignores the action and gives no reward,
    so nothing is learned from this step.
    """
    def __init__(self, envs, T):
        N, obs_dim = envs.observation_space.shape  # of all N environments together
        self.obs = torch.zeros(T + 1, N, obs_dim)
        self.done = torch.zeros(T + 1, N).bool()
        # Actions are kept as drawn, not clipped, as π gives the density of what was drawn.
        self.action = torch.zeros(T, *envs.action_space.shape)  # (T, N, action_dim)
        self.reward = torch.zeros(T, N)
        self.terminated = torch.zeros(T, N).bool()
        obs, _ = envs.reset()  # no seed: this continues the random numbers that train() seeded
        self.obs[T] = torch.as_tensor(obs)  # collect() copies row T to row 0 and goes on

    def collect(self, envs, agent, env_step):
        """Plays T steps. Returns (env_step, score) of each episode that ended."""
        T, N = self.reward.shape
        finished = []
        self.obs[0] = self.obs[T]
        self.done[0] = self.done[T]
        for t in range(T):
            action = agent.act(self.obs[t])
            obs, reward, terminated, truncated, info = envs.step(action)
            self.action[t] = torch.as_tensor(action)
            self.reward[t] = torch.as_tensor(reward)
            self.terminated[t] = torch.as_tensor(terminated)
            self.obs[t + 1] = torch.as_tensor(obs)
            self.done[t + 1] = torch.as_tensor(terminated | truncated)
            if "episode" in info:  # make_envs() adds this to a step in which an episode ends
                ended = info["_episode"]  # (N,), True where an episode ended
                scores = info["episode"]["r"]  # (N,), gymnasium calls a score "r"
                ended_at = env_step + (t + 1) * N  # all N environments step together
                finished += [(ended_at, float(score)) for score in scores[ended]]
        return finished


def compute_gae(reward, value, terminated, done, gamma, gae_lambda):
    """Generalized advantage estimates Â (T, N), computed backwards in time ([1] Eq. 11).

    reward and terminated (T, N) belong to the steps. value and done (T+1, N) belong to obs. Unless
    step t only resets, value[t + 1] is of the same episode, even at its end.
    """
    assert reward.shape == terminated.shape == value[1:].shape == done[1:].shape
    # At a step that only resets, delta means nothing, and make_batch() leaves it out.
    delta = reward + gamma * value[1:] * ~terminated - value[:-1]
    advantage = torch.zeros_like(value)  # (T+1, N): the last row, beyond the rollout, stays 0
    for t in reversed(range(len(reward))):
        # Where step t ended an episode, step t+1 only resets, so Â_{t+1} counts as 0.
        advantage[t] = delta[t] + gamma * gae_lambda * advantage[t + 1] * ~done[t + 1]
    return advantage[:-1]


def ppo_loss(pi, value, action, old_log_prob, advantage, return_, clip_eps, entropy_coef):
    """The loss L, the KL divergence and the entropy of a minibatch. return_ is R_t."""
    log_ratio = pi.log_prob(action) - old_log_prob
    ratio = log_ratio.exp()
    assert ratio.shape == value.shape == advantage.shape == return_.shape
    # For the report: an estimate of the KL divergence, which tells how far π is from π_old.
    kl = (ratio - 1 - log_ratio).mean()
    clipped_ratio = ratio.clamp(1 - clip_eps, 1 + clip_eps)
    policy_loss = -torch.min(ratio * advantage, clipped_ratio * advantage).mean()
    critic_loss = (value - return_).square().mean()
    entropy = pi.entropy().mean()
    loss = policy_loss + 0.5 * critic_loss - entropy_coef * entropy
    return loss, kl, entropy


@torch.no_grad()
def make_batch(buffer, agent, config):
    """Returns the B steps to learn from: obs (B, obs_dim), action, log π_old(a|s), Â_t and R_t."""
    obs = buffer.obs[:-1]  # (T, N, obs_dim)
    old_log_prob = agent.pi(obs).log_prob(buffer.action)  # π is still π_old
    value = agent.value(buffer.obs)  # (T+1, N)
    advantage = compute_gae(
        buffer.reward, value, buffer.terminated, buffer.done, config.gamma, config.gae_lambda)
    return_ = advantage + value[:-1]
    valid = ~buffer.done[:-1]  # (T, N): False where a step only resets
    return [x[valid] for x in (obs, buffer.action, old_log_prob, advantage, return_)]


def update(agent, optimizer, batch, entropy_coef, config):
    """Learns from a batch. Returns the KL and the entropy of the last minibatch."""
    B = len(batch[0])
    for _ in range(config.epochs):
        order = torch.randperm(B)
        for mb in order.tensor_split(config.num_minibatches):  # the indices of a minibatch
            obs, action, old_log_prob, advantage, return_ = [x[mb] for x in batch]
            advantage = advantage - advantage.mean()
            # With correction=0, the deviation of a single step is 0, and not nan.
            advantage = advantage / (advantage.std(correction=0) + 1e-8)
            pi = agent.pi(obs)
            value = agent.value(obs)
            loss, kl, entropy = ppo_loss(pi, value, action, old_log_prob, advantage, return_,
                                         config.clip_eps, entropy_coef)
            agent.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(
                agent.parameters(), config.max_grad_norm, error_if_nonfinite=True)
            optimizer.step()
    return kl, entropy


def train(config):
    """Trains an agent. Returns it and its history: (env_step, score) of each finished episode.

    Ctrl-C ends it early. Raises ValueError (a setting that cannot work), gymnasium.error.Error (an
    environment that cannot be made) or RuntimeError (a gradient that is not finite).
    """
    check(config)
    with closing(make_envs(config.env_id, config.num_envs)) as envs:
        # NormalizeReward keeps a sum S of each environment's rewards since its last termination.
        # Each step makes it γ S + r, like a return that looks back. So the standard deviation of S
        # so far is about that of returns. All rewards are divided by it. At first it is small, so a
        # few rewards come out large. That does little harm. Scores are not scaled.
        envs = NormalizeReward(envs, config.gamma)
        torch.manual_seed(config.seed)
        # The environments get the seeds 1000 * seed, 1000 * seed + 1 and so on, so that runs with
        # different seeds share none. These first observations are only for ObsScale.
        first_obs, _ = envs.reset(seed=1000 * config.seed)
        agent = ActorCritic(envs, config, first_obs)
        # This Adam takes the same steps as torch's, only faster. Its class is further down.
        optimizer = Adam(agent.parameters(), lr=config.learning_rate, fused=True)
        env_step, history = 0, []
        if config.load:
            env_step, history = load(config, agent, optimizer, envs)
        buffer = RolloutBuffer(envs, config.num_steps)
        next_report = env_step
        try:
            while env_step < config.total_steps:
                remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
                optimizer.param_groups[0]["lr"] = config.learning_rate * remaining
                entropy_coef = config.entropy_coef * (2 * remaining - 1)  # try things, then decide

                history += buffer.collect(envs, agent, env_step)
                env_step += config.num_envs * config.num_steps
                batch = make_batch(buffer, agent, config)
                kl, entropy = update(agent, optimizer, batch, entropy_coef, config)
                agent.scale.include(batch[0])  # obs, and only now, as a new scale changes the ratio

                if env_step >= next_report or env_step >= config.total_steps:
                    next_report = env_step + config.total_steps / 20
                    report(config, env_step, history, kl, entropy)
                    save(config, agent, optimizer, envs, env_step, history)  # if --save is given
        except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
            print(f"stopped at step {env_step:,}")
    save(config, agent, optimizer, envs, env_step, history)  # once more, for Ctrl-C
    return agent, history


# ---- From here on: speed, other tasks, checks, environments, checkpoints, evaluation, flags ----


torch.distributions.Distribution.set_default_validate_args(False)  # unchecked, they are faster


class Adam(optim.Adam):
    """optim.Adam without its decorators, which would take a second to import torch's compiler."""
    add_param_group = optim.Adam.add_param_group.__wrapped__
    state_dict = optim.Adam.state_dict.__wrapped__
    load_state_dict = optim.Adam.load_state_dict.__wrapped__
    step = torch.no_grad()(optim.Adam.step.__wrapped__)


# The command line takes these settings for any --env-id but the default one. In Python, write
# Config(**OTHER_TASKS | dict(env_id="HalfCheetah-v5")).
OTHER_TASKS = dict(
    total_steps=1_000_000,
    num_envs=16,
    num_steps=64,
    epochs=8,
    learning_rate=4e-4,
    gamma=0.99,
    gae_lambda=0.95,
    clip_eps=0.1,
    entropy_coef=0.015,
    init_log_std=0.0,
    hidden_size=64,
    activation="tanh",
    eval_episodes=20,
)


def check(config):
    """Raises ValueError for a setting that cannot work. Turns numpy's numbers into Python's."""
    lowest = dict(num_envs=1, num_steps=2, epochs=1, num_minibatches=1, max_grad_norm=1e-6,
                  init_log_std=-10, hidden_size=1)
    # At worst, every second step only resets. No minibatch may be empty even then.
    most = int(config.num_envs) * (int(config.num_steps) // 2)
    highest = dict(gamma=1, gae_lambda=1, init_log_std=10, num_minibatches=most)
    for field in fields(config):
        value = field.type(getattr(config, field.name))  # load() refuses numpy's numbers
        setattr(config, field.name, value)
        low = lowest.get(field.name, 0)
        high = highest.get(field.name, 1_000_000_000)
        if field.type in (int, float) and not low <= value <= high:
            flag = field.name.replace("_", "-")
            raise ValueError(f"--{flag} {value}: must be from {low} to {high}")
    if config.activation not in ("relu", "tanh"):
        raise ValueError(f"--activation {config.activation}: must be relu or tanh")
    if config.save and config.save != config.load:
        try:
            open(config.save, "x").close()  # "x" creates a new file, or fails
        except OSError as error:
            raise ValueError("--save must be a new file in a folder that can be written to, or the "
                             f"one to --load: {error}")
        os.remove(config.save)


def make_envs(env_id, num_envs, **options):
    """Vector environments: flat observations, actions from -1 to 1, scores in info."""
    envs = gym.make_vec(env_id, num_envs, **options)
    space = envs.single_action_space
    is_vector = isinstance(space, gym.spaces.Box) and len(space.shape) == 1
    if not (is_vector and space.is_bounded() and space.dtype in (np.float32, np.float64)):
        envs.close()
        raise gym.error.Error("actions must be a bounded Box, a vector of floats (Discrete: "
                              f"ppo_discrete.py): {space}")

    def to_range(action):  # -1 becomes the lower bound, 1 the upper; clips what is beyond
        action = space.low + (space.high - space.low) * (action + 1) / 2
        return np.clip(action, space.low, space.high)

    envs = TransformAction(envs, to_range)
    envs = FlattenObservation(envs)  # images, dictionaries and tuples, too
    return RecordEpisodeStatistics(envs)


def report(config, env_step, history, kl, entropy):
    """Prints a line, about twenty times a run."""
    scores = [score for _, score in history[-20:]]
    average = f"{np.mean(scores):.6g}" if scores else "no episode yet"
    print(f"step {env_step:,} of {config.total_steps:,}  episode {len(history):,}  average score "
          f"of the last 20 episodes: {average}  kl {kl:.2g}  entropy {entropy:.2g}", flush=True)


def save(config, agent, optimizer, envs, env_step, history):
    """Writes a checkpoint under another name, then renames it: a crash spares the last one."""
    if not config.save:
        return
    checkpoint = {
        "config": vars(config) | dict(save="", load="", render=False),  # these are each run's own
        "agent": agent.state_dict(),
        "optimizer": optimizer.state_dict(),
        # NormalizeReward's mean, var and count, as numbers of Python's, which load() accepts
        "returns": {name: float(x) for name, x in vars(envs.return_rms).items()},
        "env_step": env_step,
        "history": history,
    }
    torch.save(checkpoint, f"{config.save}.tmp")
    os.replace(f"{config.save}.tmp", config.save)


def load(config, agent, optimizer, envs):
    """Restores the checkpoint config.load. Returns its env_step and history."""
    # With weights_only, a stranger's file cannot run code.
    checkpoint = torch.load(config.load, weights_only=True, map_location="cpu")
    agent.load_state_dict(checkpoint["agent"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    vars(envs.return_rms).update(checkpoint["returns"])
    env_step = checkpoint["env_step"]
    seed = 1000 * config.seed + env_step  # other episodes and actions than the run began with
    envs.reset(seed=seed)
    torch.manual_seed(seed)
    left = max(config.total_steps - env_step, 0)
    print(f"resumed at step {env_step:,} with new episodes: --total-steps leaves {left:,} to train")
    return env_step, checkpoint["history"]


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
    in_a_notebook = "__file__" not in globals()
    config = Config() if in_a_notebook else read_flags()
    agent, _ = train(config)
    if config.eval_episodes:
        print(f"evaluating in {config.eval_episodes} environments", flush=True)
        with closing(make_envs(config.env_id, config.eval_episodes)) as envs:
            scores = evaluate(agent, envs, seed=config.seed)
        print(f"greedy evaluation: {scores.mean():.6g} over {len(scores)} episodes")
    if config.render:
        how = dict(vectorization_mode="sync", render_mode="human")  # "sync": CartPole needs it
        with closing(make_envs(config.env_id, 1, **how)) as envs:
            evaluate(agent, envs)


def read_flags():
    """Returns the settings of the command line. A mistake costs one line and exit status 2."""
    others = ", ".join(f"{name} {value}" for name, value in OTHER_TASKS.items())
    parser = ArgumentParser(description=__doc__.splitlines()[0], usage=SUPPRESS, allow_abbrev=False,
                            epilog=f"The defaults for any other --env-id: {others}.")
    comments = dict(re.findall(r"(\w+): .*# (.*)", inspect.getsource(Config)))  # by setting
    for field in fields(Config):
        kind = dict(action=BooleanOptionalAction) if field.type is bool else dict(type=field.type)
        text = f"{comments.get(field.name)} (default: {field.default!r})".replace("%", "%%")
        flag = field.name.replace("_", "-")
        parser.add_argument(f"--{flag}", default=field.default, help=text, **kind)
    given = parser.parse_args()
    if given.load:
        try:
            checkpoint = torch.load(given.load, weights_only=True, map_location="cpu")
            parser.set_defaults(**vars(Config(**checkpoint["config"])))
        except Exception:  # torch.load raises many kinds of error
            parser.error(f"--load {given.load}: missing, or not a checkpoint of this script")
    elif given.env_id != Config.env_id:
        parser.set_defaults(**OTHER_TASKS)
    config = Config(**vars(parser.parse_args()))  # once more, with these defaults
    try:
        check(config)
    except ValueError as error:
        parser.error(error)
    warnings.simplefilter("ignore", DeprecationWarning)  # lest warnings stand above an error
    try:
        make_envs(config.env_id, 1).close()
    except (gym.error.Error, ImportError) as error:
        parser.error(f"--env-id {config.env_id}: {error}")
    return config


if __name__ == "__main__":
    main()
