"""The PPO scripts on tasks they were not written for, by name alone, beside stable-baselines3 with its defaults.

`python tests/measure/benchmark.py --tasks` measures them all, `--tasks Taxi-v4` those named. A run of ours has the
settings that `--env-id` alone gives, and as many steps as the table says. stable-baselines3's PPO has its default
settings, 8 environments of 256 steps, and VecNormalize where the RL Zoo uses it. Afterwards each plays 100 fresh
episodes with the likeliest actions. What stands in the CSV already is not measured again.
"""

from contextlib import closing

import gymnasium as gym
import numpy as np
from peer import PROGRAMS

SEEDS, LONG_SEEDS = list(range(620, 628)), list(range(620, 625))
TASKS = {
    "ppo_discrete": {"Acrobot-v1": 100_000, "MountainCar-v0": 150_000,
                     "LunarLander-v3": 300_000, "Taxi-v4": 300_000, "FrozenLake-v1": 150_000},
    "ppo_continuous": {"MountainCarContinuous-v0": 100_000, "LunarLanderContinuous-v3": 300_000,
                       "InvertedDoublePendulum-v5": 200_000, "BipedalWalker-v3": 500_000,
                       "HalfCheetah-v5": 500_000, "Walker2d-v5": 500_000},
}
# stable-baselines3 takes more than two minutes for a run: fewer seeds. (Walker2d-v5 takes as long, but its runs differ
# so much that it has all seeds.)
LONG = {"LunarLander-v3", "Taxi-v4", "LunarLanderContinuous-v3", "InvertedDoublePendulum-v5", "BipedalWalker-v3",
        "HalfCheetah-v5"}
VEC_NORMALIZE = {"Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "InvertedDoublePendulum-v5",
                 "BipedalWalker-v3", "HalfCheetah-v5", "Walker2d-v5"}


def train_sb3(task, steps, seed):
    """Trains stable-baselines3's PPO. Returns its mean score over 100 greedy episodes."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    envs, fresh = make_vec_env(task, 8, seed=seed), make_vec_env(task, 8, seed=10_000 + seed)
    if task in VEC_NORMALIZE:
        envs, fresh = VecNormalize(envs), VecNormalize(fresh, training=False, norm_reward=False)
        fresh.obs_rms = envs.obs_rms
    model = PPO("MlpPolicy", envs, n_steps=256, batch_size=64, seed=seed, device="cpu")
    model.learn(steps)
    return evaluate_policy(model, fresh, 100, deterministic=True)[0]


def scores_of(module, agent, env_id, episodes, seed, greedy=True):
    """The scores of so many fresh episodes of an agent of ours."""
    with closing(module.make_envs(env_id, episodes)) as envs:
        return module.evaluate(agent, envs, greedy, seed)


def measure_task(train_ours, program, name, task, seed):
    """The greedy score of a program on a task, as a row of the CSV."""
    steps = TASKS[name][task]
    if program == "sb3":
        score = train_sb3(task, steps, seed)
    else:
        module, _, agent, _ = train_ours(name, f"--env-id {task} --total-steps {steps}", seed)
        score = scores_of(module, agent, task, 100, seed).mean()
    return {"program": program, "script": name, "task": task, "seed": seed, "greedy": round(float(score), 2)}


def task_jobs(scripts, tasks):
    """What to measure, as (program, script, task, seed): our scores first, seed by seed."""
    return [(program, name, task, seed) for program in PROGRAMS for seed in SEEDS for name in scripts
            for task in TASKS.get(name, ())
            if task in (tasks or TASKS[name]) and (task not in LONG or seed in LONG_SEEDS)]


def task_table(rows):
    """For each task the mean score of both programs with its standard error, and the worst."""
    lines = ["| script | task | steps | good score | seeds | our score | worst | SB3's score | worst |",
             "|---|---|---|---|---|---|---|---|---|"]
    for name, tasks in TASKS.items():
        for task, steps in tasks.items():
            cells, seeds = [], []
            digits = 2 if task == "FrozenLake-v1" else 1
            for program in PROGRAMS:
                greedy = [float(row["greedy"]) for row in rows if (row["task"], row["program"]) == (task, program)]
                if greedy:
                    error = np.std(greedy, ddof=1) / len(greedy) ** 0.5 if len(greedy) > 1 else np.nan
                    cells += [f"{np.mean(greedy):,.{digits}f} ± {error:,.{digits}f}", f"{min(greedy):,.{digits}f}"]
                    seeds.append(str(len(greedy)))
            if len(cells) == 4:
                good = gym.spec(task).reward_threshold
                cells = [f"`{name}.py`", task, f"{steps:,}", "" if good is None else f"{good:g}",
                         " and ".join(dict.fromkeys(seeds)), *cells]
                lines.append(f"| {' | '.join(cells)} |")
    return lines
