"""The time from Enter to solved: of all scripts, and of other programs in turn with the PPO scripts."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

SOLVED = {"CartPole-v1": 475, "Pendulum-v1": -200}
PPO_TASKS = {"ppo_discrete": "CartPole-v1", "ppo_continuous": "Pendulum-v1"}
TASK_OF = PPO_TASKS | {"reinforce": "CartPole-v1", "actor_critic": "CartPole-v1"}
PROGRAMS = ("ours", "sb3")
# Other programs, unchanged, with their own settings: the file for each task, and the flag of its seed.
FILES = {
    ("cleanrl", "ppo_discrete"): ("cleanrl_ppo.py", "--seed"),
    ("cleanrl", "ppo_continuous"): ("cleanrl_ppo_continuous_action.py", "--env-id Pendulum-v1 --seed"),
    ("minimalrl", "ppo_discrete"): ("minimalrl_ppo.py", ""),  # it is not seeded
}


def solved_at(history, threshold):
    """The env_step at which the average of the last 20 episodes first reached the threshold, or None."""
    scores = [score for _, score in history]
    for end in range(20, len(scores) + 1):
        if threshold is not None and sum(scores[end - 20 : end]) / 20 >= threshold:
            return history[end - 1][0]
    return None


class StopWhenSolved(gym.vector.VectorWrapper):
    """Ends the training, as Ctrl-C would, once the average score of the last 20 episodes reaches a threshold.

    It keeps a history of its own: a script that is stopped within a rollout has not yet noted the rollout's episodes.
    REINFORCE resets before each update, and counts only the first episode of each environment after a reset, when the
    longest of these has ended.
    """

    def __init__(self, env, threshold):
        super().__init__(env)
        self.threshold, self.env_step, self.solved = threshold, 0, False
        self.history, self.firsts = [], []  # (env_step, score) of all episodes, and of each environment's first ones

    def reset(self, *, seed=None, options=None):
        self.totals, self.playing = np.zeros(self.num_envs), np.ones(self.num_envs, bool)
        self.first_scores = {}  # by environment
        if self.env_step:  # the other scripts do not reset any more once they have begun to play
            self.history = self.firsts
        return super().reset(seed=seed, options=options)

    def step(self, actions):
        obs, reward, terminated, truncated, info = super().step(actions)
        self.env_step += self.num_envs
        self.totals = np.where(self.playing, self.totals + reward, 0)  # else this step only reset the environment
        over = self.playing & (terminated | truncated)
        self.playing = ~over
        for i in np.flatnonzero(over):
            score = float(self.totals[i])
            if self.history is not self.firsts:
                self.history.append((self.env_step, score))
            if len(self.first_scores) < self.num_envs:
                self.first_scores.setdefault(i, score)
                if len(self.first_scores) == self.num_envs:
                    self.firsts += [(self.env_step, self.first_scores[n]) for n in range(self.num_envs)]
        if over.any() and solved_at(self.history[-19 - self.num_envs :], self.threshold):
            self.solved = True
            raise KeyboardInterrupt
        return obs, reward, terminated, truncated, info


def middle(values):
    values = sorted(float("inf") if value is None else value for value in values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def count(steps):
    return "never" if steps == float("inf") else f"{steps:,.0f}"


def train_sb3(name, seed, steps=200_000, stop=True):
    """One run of stable-baselines3's PPO with the RL Zoo's settings for the script's task."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    task, history = TASK_OF[name], []

    class Callback(BaseCallback):
        def _on_step(self):
            for info in self.locals["infos"]:
                if "episode" in info:
                    history.append((self.num_timesteps, info["episode"]["r"]))
            return not (stop and solved_at(history[-20:], SOLVED[task]))

    if name == "ppo_discrete":
        model = PPO("MlpPolicy", make_vec_env(task, 8, seed=seed), n_steps=32, batch_size=256, n_epochs=20,
                    gamma=0.98, gae_lambda=0.8, ent_coef=0.0, learning_rate=lambda left: 0.001 * left,
                    clip_range=lambda left: 0.2 * left, seed=seed, device="cpu")
        steps = min(steps, 100_000)
    else:
        model = PPO("MlpPolicy", make_vec_env(task, 4, seed=seed), n_steps=1024, n_epochs=10, gamma=0.9,
                    gae_lambda=0.95, ent_coef=0.0, learning_rate=0.001, clip_range=0.2, use_sde=True,
                    sde_sample_freq=4, seed=seed, device="cpu")
    model.learn(steps, callback=Callback())
    return history


def child(train_ours, who, name, seed):
    """What a process of its own does for --peer: prints the steps to solve."""
    history = train_sb3(name, seed) if who == "sb3" else train_ours(name, "", seed, stop=True)[-1]
    print(solved_at(history, SOLVED[TASK_OF[name]]))


def measure_peer(who, name, seed, folder, python):
    """A row of the CSV. folder has the files of FILES; CleanRL's need an older gymnasium, and so a python of their own."""
    here = Path(__file__).parent
    if (who, name) in FILES:
        file, flags = FILES[who, name]
        command = [python if who == "cleanrl" else sys.executable, here / "meter.py", SOLVED[TASK_OF[name]],
                   500_000 if name == "ppo_discrete" else 200_000, folder.absolute() / file, *flags.split(),
                   *([seed] if flags else [])]
    else:
        command = [sys.executable, here / "benchmark.py", "--child", who, name, seed]
    with tempfile.TemporaryDirectory() as scratch:  # CleanRL leaves its logs where it runs
        start = time.perf_counter()
        out = subprocess.run([str(word) for word in command], check=True, cwd=scratch, capture_output=True, text=True,
                             env=os.environ | {"OMP_NUM_THREADS": "1"}).stdout.split()[-1]
        seconds = round(time.perf_counter() - start, 2)
    return {"program": who, "task": name, "seed": seed, "solved_at_step": None if out == "None" else int(out),
            "seconds": seconds}


def peer_table(rows):
    """Seconds go to the end where a run did not solve its task; shares are medians over the runs made in turn."""
    lines = ["| task | program | solved | median steps | worst | seconds until solved, median (all) | our share of them |",
             "|---|---|---|---|---|---|---|"]
    programs = dict.fromkeys(row["program"] for row in rows)
    for name in TASK_OF:
        mine = {who: [row for row in rows if (row["program"], row["task"]) == (who, name)] for who in programs}
        for who in programs if mine["ours"] else ():
            if not mine[who]:
                continue
            steps = [float("inf") if row["solved_at_step"] is None else row["solved_at_step"] for row in mine[who]]
            seconds = [row["seconds"] for row in mine[who]]
            shares = [row["seconds"] / other["seconds"] for row, other in zip(mine["ours"], mine[who])]
            cells = [name, who, f"{sum(step < float('inf') for step in steps)}/{len(steps)}", count(middle(steps)),
                     count(max(steps)), f"{middle(seconds):.1f} ({', '.join(f'{s:.1f}' for s in seconds)})",
                     f"{middle(shares):.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines
