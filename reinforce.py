# /// script
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]
# ///
"""REINFORCE, the first policy gradient method, in one file.

The policy π(a|s), a small network, gives the probability of each action a in state s (obs in the
code). It plays N episodes to their ends. The return G_t is the sum of the rewards r from step t on,
where a reward k steps later is multiplied by γ^k (γ ≤ 1). An action that led to more than usual
becomes more likely, and one that led to less becomes less likely. Usual is the mean of the N
episodes' returns at the same step t.

    G_t = r_t + γ G_{t+1}                              return                 [1] Eq. 3.9
    L   = -E[log π(a_t|s_t) · (G_t - b_t)/d]           REINFORCE, baseline    [1] Eq. 13.11, [2]

L is the loss to minimise, and E the mean over all steps of the N episodes. The baseline b_t is the
mean of the N returns at step t, where an episode that is over counts as 0, and d the standard
deviation of all G_t - b_t. README derives the gradient of L. In theory the term of step t is also
multiplied by γ^t. Nearly everyone leaves that out, as it works better without.

`python reinforce.py` solves CartPole after about 20,000 of 80,000 steps. The score of an episode is
the sum of its rewards, and CartPole is solved when the last 20 episodes average 475.

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd ed. (our r_t is its R_{t+1})
[2] Williams 1992, Simple statistical gradient-following algorithms, Machine Learning 8
"""

import os
import signal
import sys
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from numbers import Integral, Real

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


def setting(default, help):
    """A field of Config: its default, and what --help says about it."""
    return field(default=default, metadata={"help": help})


@dataclass
class Config:
    """Every setting of a run. Each is a flag of the command line: num_envs becomes --num-envs."""
    env_id: str = setting("CartPole-v1", "gymnasium environment with Discrete actions")
    total_steps: int = setting(80_000, "environment steps to train for")
    num_envs: int = setting(6, "N, environments; each plays one episode per update")
    learning_rate: float = setting(1e-2, "initial learning rate of Adam; it falls linearly to 0")
    gamma: float = setting(0.995, "discount of later rewards")
    hidden_size: int = setting(64, "units of the hidden layer")
    seed: int = setting(0, "the same seed, machine and versions give the same scores")
    eval_episodes: int = setting(100, "episodes of each evaluation after training; 0: none")
    render: bool = setting(False, "after training, play an episode in a window")


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


class Policy(nn.Module):
    """The policy π(a|s): a network with one hidden layer, sized from the environment's spaces."""
    def __init__(self, envs, config):
        super().__init__()
        obs_dim = envs.single_observation_space.shape[0]
        n_actions = envs.single_action_space.n
        self.scale = ObsScale(obs_dim, target_std=2.0)
        hidden = nn.Linear(obs_dim, config.hidden_size)
        output = nn.Linear(config.hidden_size, n_actions)
        # √2 is a usual gain of hidden layers. The small gain of the output layer makes all actions
        # about equally likely at first.
        for layer, gain in [(hidden, 2**0.5), (output, 0.01)]:
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        self.policy = nn.Sequential(hidden, nn.Tanh(), output)

    def pi(self, obs):
        """Observations (..., obs_dim) -> π(·|s), the distribution over the actions."""
        return Categorical(logits=self.policy(self.scale(obs)))

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim), an array -> actions (N,), sampled or the most likely ones."""
        check_finite("observation", obs)
        obs = torch.as_tensor(obs, dtype=torch.float32)
        pi = self.pi(obs)
        action = pi.mode if greedy else pi.sample()
        return action.numpy()


def compute_returns(reward, gamma):
    """The returns (T, N) of N episodes, computed backwards: G_t = r_t + γ G_{t+1}.

    reward (T, N) has a row for each step of the longest episode and a column for each episode, and
    is 0 after an episode's end.
    """
    return_ = reward.clone()
    for t in reversed(range(len(reward) - 1)):
        return_[t] = reward[t] + gamma * return_[t + 1]
    return return_


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

    envs may be vector environments of your own (see prepare). Ctrl-C ends the training early.
    Raises SettingError for a setting that cannot work, and FloatingPointError for a number that is
    not finite.
    """
    # What is called here and not defined above stands further down.
    check(config)
    torch.manual_seed(config.seed)  # for the weights
    if envs is None:
        envs = make_envs(config.env_id, config.num_envs)
    envs = prepare(envs)
    agent = Policy(envs, config)
    optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5)
    N = envs.num_envs
    env_step = 0
    history = []

    # Actions and environments have another seed than the weights. The environments are seeded only
    # once: later resets draw new starts.
    seed = derive_seed(config.seed)
    torch.manual_seed(seed)  # for the actions
    envs.reset(seed=seed)  # only seeds them: each update resets them again
    next_report = 0
    try:
        while env_step < config.total_steps:
            remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
            optimizer.param_groups[0]["lr"] = config.learning_rate * remaining

            # Collect: play one episode in each environment with the current policy. All N are
            # stepped together until no episode is left. What an environment plays after its own
            # episode is not learned from: there, valid is False.
            obs, _ = envs.reset()
            obs_rows, action_rows, reward_rows, valid_rows = [], [], [], []
            playing = np.ones(N, bool)  # False once the episode has ended
            while playing.any() and len(obs_rows) < 10_000:  # an endless episode is cut off
                action = agent.act(obs)
                obs_rows.append(obs.copy())  # some environments reuse their arrays
                action_rows.append(action)
                valid_rows.append(playing.copy())
                obs, reward, terminated, truncated, info = envs.step(action)
                check_finite("reward", reward)
                reward_rows.append(reward * playing)  # 0 after an episode's end
                env_step += N  # steps that are not learned from count, too
                finished = playing & (terminated | truncated)
                playing[finished] = False
                if finished.any():
                    scores = info["episode"]["r"][finished]
                    history += [(env_step, float(score)) for score in scores]
            rewards = torch.as_tensor(np.stack(reward_rows), dtype=torch.float32)  # (T, N)
            valid = torch.as_tensor(np.stack(valid_rows))  # (T, N), of which B are True

            # Estimate: compare each return with the baseline, the mean of the N returns at the same
            # step. On average this keeps the direction of the gradient, and it reduces the noise.
            return_ = compute_returns(rewards, config.gamma)  # (T, N)
            if N > 1:
                baseline = return_.mean(1, keepdim=True)  # (T, 1)
            else:
                baseline = return_.mean()  # a single episode is compared with its own average
            difference = (return_ - baseline)[valid]  # (B,)
            # Dividing by the standard deviation makes the update independent of the rewards' scale.
            weight = difference / (difference.std(correction=0) + 1e-8)

            # Update: compute the probabilities again, now with gradients; one optimizer step.
            valid_obs = torch.as_tensor(np.stack(obs_rows), dtype=torch.float32)[valid]
            valid_action = torch.as_tensor(np.stack(action_rows))[valid]
            pi = agent.pi(valid_obs)  # (B, obs_dim) -> B distributions
            log_prob = pi.log_prob(valid_action)
            assert log_prob.shape == weight.shape  # (B,)
            loss = -(log_prob * weight).mean()
            if not loss.isfinite():
                raise FloatingPointError("the loss is not finite: the rewards may be too large")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            agent.scale.update(valid_obs)  # only now: π above used the old scale

            # Report at most twenty times a run, and at its end. (metrics may be logged as well.)
            if env_step >= next_report or env_step >= config.total_steps:
                next_report = env_step + config.total_steps / 20
                last_scores = [score for _, score in history[-20:]]
                metrics = {
                    "episode": len(history),
                    "average_score": float(np.mean(last_scores)) if last_scores else np.nan,
                    "entropy": pi.entropy().mean().item(),
                }
                print(f"step {env_step:,}  episode {metrics['episode']:,}  average score of the "
                      f"last 20 episodes: {metrics['average_score']:.2f}  "
                      f"entropy {metrics['entropy']:.2g}", flush=True)
    except KeyboardInterrupt:  # Ctrl-C, or a notebook's stop button
        print(f"stopped at step {env_step:,}", flush=True)
    return agent, history


# ---- From here on: checks, environments, evaluation and the command line ----


class SettingError(ValueError):
    """A setting that cannot work. The message names it, and says what would be right."""


def check(config):
    """Raises SettingError for a setting that cannot work. Turns numpy's numbers into Python's."""
    # The lowest and the highest value. Other numbers may be anything from 0 to infinity.
    limits = {"num_envs": (1, 10_000), "hidden_size": (1, 10_000), "learning_rate": (0, 1),
              "gamma": (0, 1), "eval_episodes": (0, 10_000), "seed": (0, 2**64 - 1)}
    for spec in fields(config):
        name, value = spec.name, getattr(config, spec.name)
        low, high = limits.get(name, (0, np.inf))
        if spec.type is int:
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
        parser.add_argument(f"--{spec.name.replace('_', '-')}", default=spec.default, **options,
                            help=f"{spec.metadata['help']} (default: {spec.default!r})")
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
        config = Config(**given)
        if config.render:  # a trial: a missing screen should not cost the training
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
        if config.render:
            evaluate(agent, config.env_id, envs=make_envs(config.env_id, 1, "human"))
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
