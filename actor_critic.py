# /// script
# dependencies = ["torch==2.13.0", "gymnasium[classic-control]==1.4.0", "numpy==2.4.6"]
# ///
"""Actor-critic, in one file: with TD errors, with Q, or with the advantage.

The policy π(a|s), or actor, gives the probability of action a in state s. The return is the sum of
the rewards r still to come, where a reward k steps later is multiplied by γ^k. The critic learns to
predict it: V(s) is the expected return from state s, and Q(s, a) the same if the first action is a.
Every few steps, actor and critic learn from one loss, in which each action has a weight ψ_t and the
critic an error δ_t:

    L = -E[ψ_t log π(a_t|s_t)] + ½ E[δ_t²] - c E[H(π(·|s_t))]

    --critic td         ψ_t = δ_t                   δ_t = r_t + γ V(s_{t+1}) - V(s_t)
    --critic q          ψ_t = Q(s_t, a_t)           δ_t = r_t + γ Q(s_{t+1}, a_{t+1}) - Q(s_t, a_t)
    --critic advantage  ψ_t = Q(s_t, a_t) - V(s_t)  both δ_t above, their squares added

E is the mean over the steps of an update. In each, ψ_t is first shifted and scaled to mean 0 and
standard deviation 1, so that actions with a ψ_t above the mean become more likely, and the others
less likely. H, the entropy of the distribution π(·|s), is large where the policy is undecided, and
c is its weight. In a terminal state V and Q count as 0. No gradient flows through ψ_t, nor through
the critics' targets r_t + γ V(s_{t+1}) and r_t + γ Q(s_{t+1}, a_{t+1}). In the latter, a_{t+1} is
drawn from the policy in s_{t+1}.

With the true Q as ψ_t, minimising the first term follows the gradient of the expected return, but
for its scale and a factor γ^t, which is left out here as in reinforce.py ([1] Sec. 13.2). V is the
mean of Q over the policy's actions. As V does not depend on the action, subtracting it leaves the
gradient unchanged on average and reduces the noise ([1] Sec. 13.4). Q - V is the advantage. The δ_t
of V, the temporal difference (TD) error, estimates it without Q ([1] Sec. 13.5). The δ_t of Q is
that of SARSA ([1] Eq. 6.7).

`python actor_critic.py` solves CartPole after about 18,500 of 100,000 steps. The score of an
episode is the sum of its rewards, and CartPole is solved when the last 20 episodes average 475.
With Q alone, --critic q --gamma 0.99 --max-grad-norm 0.2 is the most reliable choice.

[1] Sutton and Barto 2018, Reinforcement Learning: An Introduction, 2nd ed. (our r_t is its R_{t+1})
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
    total_steps: int = setting(100_000, "environment steps to train for")
    num_envs: int = setting(4, "N, environments played side by side")
    num_steps: int = setting(8, "T, steps of each environment per update")
    learning_rate: float = setting(5e-3, "initial learning rate of Adam; it falls linearly to 0")
    max_grad_norm: float = setting(1.0, "clip the gradient to this norm; inf: never")
    gamma: float = setting(0.995, "discount of later rewards")
    critic: str = setting("td", "td, q or advantage: what the weight ψ of an action is")
    entropy_coef: float = setting(0.01, "c, the weight of the entropy bonus")
    reward_scale: float = setting(0.05, "learn from the rewards times this number")
    hidden_layers: int = setting(1, "hidden layers of each network")
    hidden_size: int = setting(64, "units of each hidden layer")
    activation: str = setting("tanh", "tanh or relu, after each hidden layer")
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
    """The policy π(a|s) and the critics V(s) and Q(s, a), sized from the environment's spaces."""
    def __init__(self, envs, config):
        super().__init__()
        obs_dim = envs.single_observation_space.shape[0]
        n_actions = envs.single_action_space.n
        self.scale = ObsScale(obs_dim, target_std=2.0)
        # Outputs near 0 make all actions about equally likely at first.
        self.policy = mlp(obs_dim, n_actions, config, output_gain=0.01)
        self.v_critic = mlp(obs_dim, 1, config, output_gain=1.0)
        self.q_critic = mlp(obs_dim, n_actions, config, output_gain=1.0)  # --critic td ignores it

    def pi(self, obs):
        """Observations (..., obs_dim) -> π(·|s), the distribution over the actions."""
        return Categorical(logits=self.policy(self.scale(obs)))

    def v(self, obs):
        """Observations (..., obs_dim) -> values V(s), of shape (...)."""
        return self.v_critic(self.scale(obs)).squeeze(-1)

    def q(self, obs, action):
        """Observations (..., obs_dim) and actions (...) -> values Q(s, a), of shape (...)."""
        q_of_all_actions = self.q_critic(self.scale(obs))  # (..., n_actions)
        # From each row, pick the entry of its action.
        return q_of_all_actions.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def act(self, obs, greedy=False):
        """Observations (N, obs_dim), an array -> actions (N,), sampled or the most likely ones."""
        check_finite("observation", obs)
        obs = torch.as_tensor(obs, dtype=torch.float32)
        pi = self.pi(obs)
        action = pi.mode if greedy else pi.sample()
        return action.numpy()


def td_error(reward, value, next_value, terminated, gamma):
    """The error δ_t = r_t + γ V(s_{t+1}) - V(s_t), or the same with Q. All tensors are (T, N)."""
    assert reward.shape == value.shape == next_value.shape == terminated.shape
    # Nothing follows a terminal state. After a truncation, next_value still stands for the rest.
    target = reward + gamma * next_value * ~terminated
    return target.detach() - value  # the critic moves to the target, not the target to the critic


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
    agent = ActorCritic(envs, config)
    optimizer = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5)
    N = envs.num_envs
    env_step = 0
    history = []

    # Actions and environments have another seed than the weights. The environments are seeded only
    # once: later resets draw new starts.
    seed = derive_seed(config.seed)
    torch.manual_seed(seed)  # for the actions
    obs, _ = envs.reset(seed=seed)
    done = np.zeros(N, bool)
    next_report = 0
    try:
        while env_step < config.total_steps:
            remaining = 1 - env_step / config.total_steps  # falls from 1 to 0
            optimizer.param_groups[0]["lr"] = config.learning_rate * remaining

            # Collect: play T steps with the current policy.
            obs_rows = [obs.copy()]  # some environments reuse their arrays
            action_rows, reward_rows, terminated_rows, valid_rows = [], [], [], []
            for _ in range(config.num_steps):
                valid_rows.append(~done)  # after an episode's end, this step only resets
                action = agent.act(obs)
                obs, reward, terminated, truncated, info = envs.step(action)
                check_finite("reward", reward)
                obs_rows.append(obs.copy())  # row t + 1 is what step t led to
                action_rows.append(action)
                reward_rows.append(config.reward_scale * reward)  # a small V is learned faster
                terminated_rows.append(terminated.copy())
                done = terminated | truncated
                env_step += N
                if done.any():
                    history += [(env_step, float(score)) for score in info["episode"]["r"][done]]
            check_finite("observation", obs)  # the last one; act has checked the others

            all_obs = torch.as_tensor(np.stack(obs_rows), dtype=torch.float32)  # (T+1, N, obs_dim)
            actions = torch.as_tensor(np.stack(action_rows))  # (T, N)
            rewards = torch.as_tensor(np.stack(reward_rows), dtype=torch.float32)  # (T, N)
            terminations = torch.as_tensor(np.stack(terminated_rows))  # (T, N)
            valid = torch.as_tensor(np.stack(valid_rows))  # (T, N), of which B are True

            # Estimate: the policy again, now with gradients, the critics' errors, and ψ, the weight
            # of each action. Row T, the state after the last step, serves the targets only. Its
            # action, for Q(s_T, a_T), is drawn here and not played.
            pi = agent.pi(all_obs)
            sampled = pi.sample()  # (T+1, N)
            all_actions = torch.cat([actions, sampled[-1:]])  # (T+1, N)
            v = agent.v(all_obs)  # (T+1, N)
            q = agent.q(all_obs, all_actions)  # (T+1, N)
            v_error = td_error(rewards, v[:-1], v[1:], terminations, config.gamma)  # (T, N)
            q_error = td_error(rewards, q[:-1], q[1:], terminations, config.gamma)
            if config.critic == "td":
                psi = v_error
                squared_error = v_error.square()
            elif config.critic == "q":
                psi = q[:-1]
                squared_error = q_error.square()
            else:
                psi = (q - v)[:-1]
                squared_error = v_error.square() + q_error.square()

            # Update: one optimizer step, from the B valid steps, whose arrays are marked with b_.
            # ψ is centred: where rewards are positive, so is Q, and without centring every action
            # would become more likely. It is divided by its standard deviation, so that the
            # policy's loss does not depend on the rewards' scale.
            b_psi = psi[valid].detach()  # (B,)
            std, mean = torch.std_mean(b_psi, correction=0)
            b_weight = (b_psi - mean) / (std + 1e-8)
            b_log_prob = pi.log_prob(all_actions)[:-1][valid]
            assert b_log_prob.shape == b_weight.shape
            policy_loss = -(b_log_prob * b_weight).mean()
            critic_loss = squared_error[valid].mean()
            entropy = pi.entropy()[:-1][valid].mean()
            loss = policy_loss + 0.5 * critic_loss - config.entropy_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm)
            if not norm.isfinite():
                raise FloatingPointError("the gradient is not finite; a smaller --learning-rate "
                                         "may help")
            optimizer.step()
            agent.scale.update(all_obs[:-1][valid])  # only now: π above used the old scale

            # Report about twenty times a run, and at its end. (metrics may be logged as well.)
            if env_step >= next_report or env_step >= config.total_steps:
                next_report = env_step + config.total_steps / 20
                scores = [score for _, score in history[-20:]]
                metrics = {
                    "episode": len(history),
                    "average_score": float(np.mean(scores)) if scores else np.nan,
                    "policy_loss": policy_loss.item(),
                    "critic_loss": critic_loss.item(),
                    "entropy": entropy.item(),
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
    limits = {
        "num_envs": (1, 10_000), "num_steps": (2, 1_000_000), "hidden_layers": (0, 100),
        "hidden_size": (1, 10_000), "eval_episodes": (0, 10_000),
        "learning_rate": (0, 1), "max_grad_norm": (1e-6, np.inf), "gamma": (0, 1),
        "entropy_coef": (0, 1000), "reward_scale": (1e-6, 1e6), "seed": (0, 2**64 - 1),
    }
    choices = {"critic": ["td", "q", "advantage"], "activation": ["tanh", "relu"]}
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
