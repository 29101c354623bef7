"""REINFORCE, the first policy gradient method, in one file.

A policy π(a|s) gives the probability of action a in state s, and plays N whole episodes. Then the
return G_t says how much reward r came after each step t. What counts is whether that was more or less
than in the other episodes: actions that were followed by more become more likely, the others less.

    G_t = r_t + γ G_{t+1}                                     return               [1] Eq. 3.9
    L   = - mean log π(a_t|s_t) (G_t - b_t) / σ               REINFORCE, baseline  [1] Eq. 13.11, [2]

γ discounts the future; the baseline b_t is the mean of G_t over the N episodes; σ is the spread of the
differences. The gradient of L is, up to sign and scale, an estimate of that of E[G_0].

Run:  python reinforce.py        (--help lists every setting)
See:  the average score of 20 episodes passes 475 after about 25,000 steps, in seconds; at the end the
      greedy policy scores 500.0, the most there is (median and all of 20 seeds)

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd edition
[2] Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement
    learning, Machine Learning 8
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]
# ///

import argparse
import contextlib
import difflib
import io
import math
import numbers
import os
import signal
import sys
import time
from dataclasses import dataclass, field, fields

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import RecordVideo
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import distributed as dist
from torch import nn

SCRIPT = "reinforce.py"


def setting(default, help, low=None, high=None, choices=None):
    """A field of Config: its default, a few words of help, its least and greatest value, or its choices."""
    return field(default=default, metadata={"help": help, "limits": (low, high, choices)})


@dataclass
class Config:
    """Every setting of a run. The command line is made from it: num_envs becomes --num-envs."""

    env_id: str = setting("CartPole-v1", "gymnasium environment with Discrete actions")
    total_steps: int = setting(80_000, "environment steps to train for", 0, 10**12)
    num_envs: int = setting(6, "N, environments side by side, one episode of each per update", 1, 10**5)
    learning_rate: float = setting(1e-2, "step size of Adam", 1e-8, 1.0)
    anneal_lr: bool = setting(True, "let the learning rate fall linearly to 0")
    gamma: float = setting(0.995, "γ, discount of future rewards", 0.0, 1.0)
    adam_eps: float = setting(1e-5, "ε of Adam, without which tiny gradients make full steps", 1e-12, 1.0)
    normalize_obs: bool = setting(True, "scale observations to variance 1")
    hidden_layers: int = setting(1, "hidden layers of the network", 0, 100)
    hidden_size: int = setting(64, "units of each hidden layer", 1, 10**5)
    activation: str = setting("tanh", "between the layers", choices=("tanh", "relu"))
    seed: int = setting(0, "same seed, machine and versions: same scores", 0, 2**31 - 1)
    device: str = setting("cpu", "where torch computes: cpu, cuda or mps")
    vectorization: str = setting("auto", "sync: in turn; async: a process each", choices=("auto", "sync", "async"))
    save: str = setting("", "file to keep the run in, on the way, at the end and on Ctrl-C")
    load: str = setting("", "file that --save wrote, to go on from")
    render: bool = setting(False, "at the end show three episodes in a window")
    video: str = setting("", "folder to film three episodes into at the end")

    def __post_init__(self):
        check_settings(self)


def mlp(sizes, activation, output_gain):
    """A network (..., sizes[0]) -> (..., sizes[-1]), with tanh or relu between its linear layers."""
    layers = []
    for size_in, size_out in zip(sizes[:-1], sizes[1:]):
        linear = nn.Linear(size_in, size_out)
        nn.init.orthogonal_(linear.weight, math.sqrt(2))  # √2 keeps a signal's size through the layers
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh() if activation == "tanh" else nn.ReLU()]
    nn.init.orthogonal_(linear.weight, output_gain)
    return nn.Sequential(*layers[:-1])  # nothing follows the output


class Policy(nn.Module):
    """The policy π(a|s): a network, sized from the environment's spaces."""

    def __init__(self, envs, config):
        super().__init__()
        self.device = torch.device(config.device)
        obs_dim, action_space = envs.single_observation_space.shape[0], envs.single_action_space
        if not isinstance(action_space, gym.spaces.Discrete):
            raise UsageError(
                f"--env-id {config.env_id}: this script needs Discrete actions, not {action_space}; "
                "for Box actions use ppo_continuous.py"
            )
        self.first_action = int(action_space.start)  # Discrete actions need not count from 0
        # Used for its running variance of the observations, which is saved with the weights.
        self.obs_norm = nn.BatchNorm1d(obs_dim, affine=False, momentum=None)
        sizes = [obs_dim] + [config.hidden_size] * config.hidden_layers
        # A policy output near 0 makes all actions about equally likely at first.
        self.policy = mlp([*sizes, int(action_space.n)], config.activation, output_gain=0.01)
        self.to(self.device)

    def normalize(self, obs):
        """obs (..., obs_dim), each number scaled to variance 1, but not shifted to mean 0.

        Were it shifted, a policy that lets the cart drift would see the mean drift along, and the cart in
        the middle of its track: one run in thirty then never learned to stay there.
        """
        return obs / (self.obs_norm.running_var + 1e-5).sqrt()

    def update_obs_stats(self, obs):
        """Takes a batch (B, obs_dim) into the running mean and variance."""
        if len(obs) > 1:  # one observation has no variance
            self.obs_norm(obs)
        average([self.obs_norm.running_mean, self.obs_norm.running_var])

    def forward(self, obs):
        """obs (..., obs_dim), normalized -> logits of π(·|obs) (..., n_actions)."""
        return self.policy(obs)

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """obs, an array (N, obs_dim) -> actions (N,): sampled from π, or the likeliest."""
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.device)
        logits = self(self.normalize(obs))
        if not greedy:  # with Gumbel noise added, the greatest logit is a sample from π (a softmax of logits)
            logits = logits - torch.empty_like(logits).exponential_().log()
        return logits.argmax(-1)

    def to_env(self, action):
        """Actions (N,) as an array that the environment understands."""
        return action.cpu().numpy() + self.first_action


class RolloutBuffer:
    """T steps of N environments. Time comes first: row t holds step t of all environments."""

    def __init__(self, T, N, obs_dim):
        self.obs = np.zeros((T + 1, N, obs_dim), np.float32)  # row t + 1 is what step t led to
        self.action = np.zeros((T, N), np.int64)
        self.reward = np.zeros((T, N), np.float32)
        self.terminated = np.zeros((T, N), bool)
        self.truncated = np.zeros((T, N), bool)
        self.valid = np.zeros((T, N), bool)  # False after the end of the environment's episode

    def add(self, t, action, next_obs, reward, terminated, truncated, valid):
        self.action[t], self.obs[t + 1], self.reward[t] = action, next_obs, reward
        self.terminated[t], self.truncated[t], self.valid[t] = terminated, truncated, valid

    def tensors(self, device):
        """obs (T+1, N, obs_dim); action, reward, terminated, truncated and valid, each (T, N)."""
        return (torch.as_tensor(array, device=device) for array in vars(self).values())


def compute_returns(rewards, terminated, truncated, gamma):
    """Monte-Carlo returns G_t = r_t + γ G_{t+1} up to the end of each episode. All (T, N)."""
    assert rewards.shape == terminated.shape == truncated.shape
    goes_on = ~(terminated.bool() | truncated.bool())
    returns = torch.zeros_like(rewards)
    return_ = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        return_ = rewards[t] + gamma * (goes_on[t] * return_)
        returns[t] = return_
    return returns


def standardize(returns, valid):
    """How much better an episode went on from step t than the N together: (G_t - b_t) / σ, shape (T, N).

    The mean b_t over the episodes is a baseline, where one that is over counts as G_t = 0. What the
    others got does not depend on this one's action a_t, so that subtracting it takes away noise and leaves
    the expected gradient; that its own G_t is in the mean only makes the gradient (N-1)/N as long. The
    spread σ of the differences makes the step's size independent of the rewards' scale.
    """
    returns = returns * valid
    baseline = returns.mean(1, keepdim=True) if returns.shape[1] > 1 else returns[valid].mean()
    difference = returns - baseline
    # correction=0: a single step has no spread, and gets 0 instead of NaN.
    return difference / (difference[valid].std(correction=0) + 1e-8)


def reinforce_loss(logits, action, weight):
    """The loss L to minimise, averaged over steps: logits (B, n_actions), action and weight (B,)."""
    assert action.shape == weight.shape
    log_prob = logits.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)  # log π(a|s)
    return -(log_prob * weight).mean()


def train(config):
    """Trains an agent; returns it and its history, (env_step, episode_return) for each episode.

    env_step counts the steps of all environments. Raises UsageError for a setting that cannot work.
    """
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)  # at these sizes more threads only wait for each other
    N = config.num_envs
    envs = make_envs(config.env_id, N, config.vectorization)
    if not envs.spec.max_episode_steps:
        raise UsageError(f"--env-id {config.env_id}: REINFORCE needs a time limit, to learn from whole episodes")
    agent = Policy(envs, config)
    weights = as_one_vector(agent)
    optimizer = torch.optim.Adam([weights], lr=config.learning_rate, eps=config.adam_eps, fused=True)
    buffer = RolloutBuffer(envs.spec.max_episode_steps, N, envs.single_observation_space.shape[0])
    run = Run(config, agent, optimizer)  # counts, prints, saves; with --load it has begun already

    envs.reset(seed=run.seed)  # seeded only here: again, and all episodes would start alike
    while run.env_step < config.total_steps:
        if config.anneal_lr:
            optimizer.param_groups[0]["lr"] = config.learning_rate * (1 - run.env_step / config.total_steps)

        # Collect: play one episode in each environment with the current policy.
        obs, _ = envs.reset()
        buffer.obs[0] = obs
        t, done, playing = 0, np.zeros(N, bool), np.ones(N, bool)
        while playing.any():
            action = agent.act(obs)
            obs, reward, terminated, truncated, info = envs.step(agent.to_env(action))
            # An environment that is done plays on while others are not: those steps teach nothing.
            buffer.add(t, action.cpu(), obs, reward, terminated, truncated, valid=playing)
            run.env_step += run.processes * int((~done).sum())  # a step that only resets does not count
            done = terminated | truncated
            playing &= ~done
            t += 1
            if done.any():
                run.history += [(run.env_step, float(score)) for score in info["episode"]["r"][done]]

        # Estimate: how well each action was followed up, compared with the other episodes.
        obs_seq, action, reward, terminated, truncated, valid = (x[:t] for x in buffer.tensors(agent.device))
        returns = compute_returns(reward, terminated, truncated, config.gamma)
        weight = standardize(returns, valid)

        # Update: one gradient step; the next episodes are played by the new policy.
        loss = reinforce_loss(agent(agent.normalize(obs_seq[valid])), action[valid], weight[valid])
        if not loss.isfinite():
            raise UsageError(f"--learning-rate {config.learning_rate}: training diverged; lower it")
        weights.grad.zero_()
        loss.backward()
        average([weights.grad])  # over processes, if there are more
        optimizer.step()
        if config.normalize_obs:  # only now: the update saw what the policy saw
            agent.update_obs_stats(obs_seq[valid])
        run.report()
    envs.close()
    return agent, run.history


# ---- From here on the four scripts are the same: checks, environments, checkpoints, the command line ----


class UsageError(ValueError):
    """A setting that cannot work. Its message names the setting and says what would work."""


def check_settings(config):
    """Raises UsageError for a setting of the wrong type, out of range, or not on this machine."""
    for spec in fields(config):
        value, low, high, choices = getattr(config, spec.name), *spec.metadata["limits"]
        flag = f"--{spec.name.replace('_', '-')} {value}"
        kind = {int: numbers.Integral, float: numbers.Real}.get(spec.type, spec.type)
        if not isinstance(value, kind):
            raise UsageError(f"{flag}: must be of type {spec.type.__name__}")
        if low is not None and not low <= value <= high:  # NaN is in no range
            raise UsageError(f"{flag}: must be between {low} and {high}")
        if choices and value not in choices:
            raise UsageError(f"{flag}: must be one of {', '.join(choices)}")
        setattr(config, spec.name, spec.type(value))  # numpy's numbers become Python's
    try:
        torch.zeros(1, device=config.device).item()
    except (RuntimeError, AssertionError):
        raise UsageError(f"--device {config.device}: not on this machine; use cpu") from None


class RefuseNaN(gym.vector.VectorWrapper):
    """Stops a run whose environment returns NaN or infinity, before anything is learned from it."""

    def reset(self, **options):
        obs, info = self.env.reset(**options)
        return self.finite(obs), info

    def step(self, actions):
        obs, reward, *rest = self.env.step(actions)
        return self.finite(obs), self.finite(reward), *rest

    def finite(self, numbers):
        if not math.isfinite(numbers.sum()):  # a sum is finite if all its terms are, and takes half the time
            raise UsageError("--env-id: the environment returned NaN or infinity, not finite numbers")
        return numbers


def make_envs(env_id, num_envs, vectorization="auto"):
    """Copies of an environment that step together and report each finished episode in info."""
    mode = None if vectorization == "auto" else vectorization  # None: a native vector version, if there is one
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN) if mode == "async" else None
    try:
        envs = gym.make_vec(env_id, num_envs=num_envs, vectorization_mode=mode)
    except (gym.error.Error, ImportError) as error:
        raise UsageError(f"--env-id {env_id}: {str(error).splitlines()[0]}") from None
    finally:
        if on_interrupt:  # the processes of async inherited "ignore": Ctrl-C is for this one alone
            signal.signal(signal.SIGINT, on_interrupt)
    obs_space = envs.single_observation_space
    if not (isinstance(obs_space, gym.spaces.Box) and len(obs_space.shape) == 1):
        raise UsageError(f"--env-id {env_id}: all four scripts need a flat Box observation, not {obs_space}")
    assert envs.metadata["autoreset_mode"] == gym.vector.AutoresetMode.NEXT_STEP
    return RefuseNaN(RecordEpisodeStatistics(envs))


def average(tensors):
    """Replaces tensors by their means over the processes that torchrun started; alone, does nothing."""
    if dist.is_initialized():
        tensors = list(tensors)
        means = torch.cat([x.flatten() for x in tensors])  # one message instead of many
        dist.all_reduce(means)
        means /= dist.get_world_size()
        for x, mean in zip(tensors, means.split([x.numel() for x in tensors])):
            x.copy_(mean.view_as(x))


def as_one_vector(agent):
    """Lays the agent's weights side by side in one Parameter (n,), and their gradients in its .grad.

    Each layer goes on working with its part. Clipping, averaging and stepping then take one operation
    instead of one for each layer: with networks this small, operations are what takes the time.
    """
    parameters = list(agent.parameters())
    weights = nn.Parameter(nn.utils.parameters_to_vector(parameters).detach())
    weights.grad = torch.zeros_like(weights)
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part, grad in zip(parameters, weights.data.split(sizes), weights.grad.split(sizes)):
        parameter.data, parameter.grad = part.view_as(parameter), grad.view_as(parameter)
    return weights


class Run:
    """What a run needs besides learning: it counts, prints, saves, stops, and goes on from a checkpoint.

    env_step: steps so far, of all environments of all processes. history: a pair (env_step,
    episode_return) for each finished episode of this process. seed: the one for its environments.
    """

    def __init__(self, config, agent, optimizer):
        self.config, self.agent, self.optimizer = config, agent, optimizer
        self.env_step, self.history, self.interrupted, self.handlers = 0, [], False, {}
        self.rank, self.processes = 0, 1
        if dist.is_initialized():
            self.rank, self.processes = dist.get_rank(), dist.get_world_size()
        folder = os.path.dirname(config.save) or "."
        if config.save and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
            raise UsageError(f"--save {config.save}: cannot write to the folder {folder}; make it, or choose another")
        if os.path.isdir(config.save):
            raise UsageError(f"--save {config.save}: cannot be a folder; give a file's name")
        if config.save != config.load and os.path.exists(config.save):
            raise UsageError(f"--save {config.save}: exists; --load {config.save} to go on from it, or another name")
        if config.load:
            self.restore()
        self.seed = config.seed + self.env_step + 10**6 * self.rank  # new episodes, not the first ones again
        if self.rank > 0:
            torch.manual_seed(self.seed)
        self.start_step, self.start, self.parts = self.env_step, time.perf_counter(), 0
        with contextlib.suppress(ValueError):  # outside the main thread signals cannot be caught
            for number in (signal.SIGINT, signal.SIGTERM) if self.env_step < config.total_steps else ():
                self.handlers[number] = signal.signal(number, self.interrupt)

    def interrupt(self, number, frame):
        """On Ctrl-C or SIGTERM: finish the rollout, save, stop. The second time: stop at once."""
        self.interrupted = True
        signal.signal(number, self.handlers.pop(number))

    def report(self, measure=dict):
        """After each rollout: at every twentieth of the run, or if interrupted, prints and saves.

        measure() is called for each printed line; it returns further numbers to print, by name.
        """
        state = torch.tensor([self.env_step, self.interrupted], dtype=torch.float64)
        average([state])  # processes end together
        self.env_step, stop, total = int(state[0]), bool(state[1] > 0), self.config.total_steps
        parts = min(20 * self.env_step // total, 20)
        if parts > self.parts or stop:
            self.parts = parts
            scores = [score for _, score in self.history[-20:]]
            mean = f"{np.mean(scores):.1f}" if scores else "none yet"
            speed = (self.env_step - self.start_step) / (time.perf_counter() - self.start)
            print(
                f"{5 * parts:3d}%  step {self.env_step:,}  episode {len(self.history):,}  "
                f"average score of the last 20 episodes: {mean}  "
                f"({speed:,.0f} steps/s, {max(total - self.env_step, 0) / speed:,.0f} s left)",
                *(f" {name} {float(value):.2g}" for name, value in measure().items()),
                flush=True,
            )
            if self.config.save and self.rank == 0:
                self.save()
        if stop or self.env_step >= total:
            for number, handler in self.handlers.items():
                signal.signal(number, handler)
        if stop:
            raise KeyboardInterrupt

    def save(self):
        """Writes a checkpoint. The old one is replaced at once, when the new one is whole on the disk."""
        contents = io.BytesIO()
        torch.save({
            "script": SCRIPT, "config": vars(self.config), "env_step": self.env_step, "history": self.history,
            "agent": self.agent.state_dict(), "optimizer": self.optimizer.state_dict(), "rng": torch.get_rng_state(),
        }, contents)  # fmt: skip
        path, unfinished = self.config.save, f"{self.config.save}.unfinished"
        try:
            with open(unfinished, "wb") as file:
                file.write(contents.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except OSError as error:  # no reason to lose the run
            print(f"--save {path}: not saved at step {self.env_step:,}: {error.strerror}", file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                os.remove(unfinished)

    def restore(self):
        """Takes over the weights, the optimizer, the counts and the random state of --load's checkpoint."""
        path, checkpoint = self.config.load, read_checkpoint(self.config.load)
        for name in ("env_id", "hidden_layers", "hidden_size", "activation", "obs_clip"):
            saved, wanted = checkpoint["config"].get(name), getattr(self.config, name, None)
            flag = name.replace("_", "-")
            if saved != wanted:
                raise UsageError(f"--{flag} {wanted}: {path} was saved with --{flag} {saved}")
        try:
            self.agent.load_state_dict(checkpoint["agent"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            self.optimizer.param_groups[0]["lr"] = self.config.learning_rate
            torch.set_rng_state(checkpoint["rng"])
            self.env_step, self.history = int(checkpoint["env_step"]), list(checkpoint["history"])
        except Exception as error:
            raise UsageError(f"--load {path}: does not fit this script: {str(error).splitlines()[0]}") from None
        print(f"{path}: {self.env_step:,} steps were trained; new episodes begin", flush=True)


def read_checkpoint(path):
    """The contents of a file that Run.save wrote: tensors and plain values; no code in it is run."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        script, _ = checkpoint.get("script"), checkpoint["config"]["env_id"]
    except OSError as error:
        raise UsageError(f"--load {path}: {error.strerror}") from None
    except Exception:  # a damaged or foreign file can fail in any way
        raise UsageError(f"--load {path}: damaged, or not a file that --save wrote") from None
    if script != SCRIPT:
        raise UsageError(f"--load {path}: was saved by {script}; load it there")
    return checkpoint


def evaluate(agent, env_id, episodes=100, greedy=True, seed=1_000_000):
    """The returns (episodes,) of fresh episodes, played with the likeliest actions or sampled ones."""
    envs = make_envs(env_id, episodes)
    obs, _ = envs.reset(seed=seed)
    returns, playing = np.zeros(episodes), np.ones(episodes, bool)
    while playing.any():  # each environment's first episode counts: all of them, long or short
        obs, reward, terminated, truncated, _ = envs.step(agent.to_env(agent.act(obs, greedy)))
        returns += reward * playing
        playing &= ~(terminated | truncated)
    envs.close()
    return returns


def make_screens(config):
    """The environments that --render and --video ask for."""
    if config.video and os.path.isdir(config.video) and os.listdir(config.video):
        raise UsageError(f"--video {config.video}: holds files already; choose a new folder")
    try:
        screens = [gym.make(config.env_id, render_mode="human")] if config.render else []
        if config.video:
            film = gym.make(config.env_id, render_mode="rgb_array")
            screens.append(RecordVideo(film, config.video, episode_trigger=lambda episode: True))
        return screens
    except (gym.error.Error, ImportError, OSError, TypeError, ValueError) as error:
        raise UsageError(f"--render or --video: {str(error).splitlines()[0]}") from None


def watch(env, agent, episodes=3):
    """Plays episodes with the likeliest actions, for eyes."""
    try:
        for _ in range(episodes):
            obs, _ = env.reset()
            done = False
            while not done:
                obs, _, terminated, truncated, _ = env.step(agent.to_env(agent.act(obs[None], greedy=True))[0])
                done = terminated or truncated
        env.close()
    except Exception as error:  # without a screen, each renderer fails in its own way
        raise UsageError(f"--render or --video: {error}") from None


def main():
    """Trains with the settings of the command line, then evaluates over 100 fresh episodes."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage=argparse.SUPPRESS,  # so that a mistake costs one line
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=52, width=140),
    )
    flags = []
    for spec in fields(Config):
        how = {"type": spec.type, "metavar": spec.type.__name__.upper()}
        if spec.type is bool:
            how = {"action": argparse.BooleanOptionalAction}  # --anneal-lr and --no-anneal-lr
        default = "none" if spec.default == "" else spec.default
        how |= {"default": spec.default, "help": f"{spec.metadata['help']} (default: {default})"}
        flags += parser.add_argument(f"--{spec.name.replace('_', '-')}", **how).option_strings

    def parse():
        # In a notebook's cell, which is no file, the arguments are the kernel's, not the user's.
        settings, unknown = parser.parse_known_args(None if "__file__" in globals() else [])
        if unknown:
            close = difflib.get_close_matches(unknown[0].split("=")[0], flags, n=1, cutoff=0.7)
            parser.error(f"{unknown[0]}: unknown; " + (f"did you mean {close[0]}?" if close else "--help shows all"))
        return vars(settings)

    try:
        settings = parse()
        if settings["load"]:  # its settings hold where the command line gives no others
            for name, value in read_checkpoint(settings["load"])["config"].items():
                if name not in ("save", "load", "render", "video", "device", "vectorization"):
                    parser.set_defaults(**{name: value})
            settings = parse()
        config = Config(**settings)
        if dist.is_torchelastic_launched():  # by torchrun
            dist.init_process_group("gloo")
            if dist.get_rank() > 0:  # one process shows, and tells
                config.render, config.video = False, ""
                sys.stdout = sys.stderr = open(os.devnull, "w")
        screens = make_screens(config)
        agent, _ = train(config)
        for greedy in (True, False):
            returns = evaluate(agent, config.env_id, greedy=greedy, seed=1_000_000 + 100 * config.seed)
            kind = "greedy" if greedy else "sampled"
            print(f"{kind} evaluation: {returns.mean():.1f} ± {returns.std():.1f} over {len(returns)} fresh episodes")
        for screen in screens:
            watch(screen, agent)
    except UsageError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        parser.exit(130, "stopped\n")  # the status of a program that Ctrl-C ended


if __name__ == "__main__":
    main()
