"""The PPO scripts on tasks they were not written for, beside stable-baselines3: one row of flags for all tasks.

`python tests/benchmark.py --tasks` measures them all, `--tasks Taxi-v4` those named. Each run trains and then plays
100 fresh episodes with the likeliest actions. stable-baselines3's PPO has its default settings, 8 environments of
256 steps, and VecNormalize where the RL Zoo uses it. Both run in turn, in one torch thread. Their speed is measured
first, three times over 20,480 steps of each task. What stands in the CSV already is not measured again.
"""

import importlib
import time

import gymnasium as gym
from peer import middle

SPEED_SEEDS, SEEDS = [0, 1, 2], [600, 601, 602]
ROWS = {
    "ppo_discrete": "--num-envs 8 --num-steps 128 --num-minibatches 8 --epochs 10 --learning-rate 1e-3 --gamma 0.995 "
    "--gae-lambda 0.95 --entropy-coef 0.01 --hidden-layers 2 --hidden-size 64 --normalize-reward --reward-scale 1",
    "ppo_continuous": "--num-envs 16 --num-steps 128 --num-minibatches 32 --epochs 8 --learning-rate 5e-4 "
    "--max-grad-norm 0.5 --gamma 0.99 --gae-lambda 0.95 --init-log-std 0 --activation tanh --hidden-size 64 "
    "--obs-std 1 --normalize-reward --reward-scale 1",
}
TASKS = {
    "ppo_discrete": {"CartPole-v1": 50_000, "Acrobot-v1": 100_000, "MountainCar-v0": 150_000,
                     "LunarLander-v3": 300_000, "Taxi-v4": 300_000, "FrozenLake-v1": 150_000},
    "ppo_continuous": {"Pendulum-v1": 100_000, "MountainCarContinuous-v0": 100_000,
                       "InvertedDoublePendulum-v5": 200_000, "BipedalWalker-v3": 500_000,
                       "HalfCheetah-v5": 500_000, "Walker2d-v5": 500_000},
}
VEC_NORMALIZE = {"Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "InvertedDoublePendulum-v5",
                 "BipedalWalker-v3", "HalfCheetah-v5", "Walker2d-v5"}


def train_sb3(task, steps, seed):
    """Trains stable-baselines3's PPO. Returns its steps per second, and a function that plays 100 greedy episodes."""
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
    start = time.perf_counter()
    model.learn(steps)
    speed = steps / (time.perf_counter() - start)
    return speed, lambda: evaluate_policy(model, fresh, 100, deterministic=True)[0]


def measure_task(train_ours, program, name, task, seed):
    """The score of a program on a task, or its speed where the seed is one of those for speed, as a row of the CSV."""
    steps = 20_480 if seed in SPEED_SEEDS else TASKS[name][task]
    if program == "sb3":
        speed, evaluate = train_sb3(task, steps, seed)
    else:
        flags = f"--env-id {task} --total-steps {steps} {ROWS[name]}"
        importlib.import_module(name)  # here, and the task's own in the next line: as for SB3, no import is timed
        gym.make(task).close()
        start = time.perf_counter()
        module, config, agent, _ = train_ours(name, flags, seed)
        speed = steps / (time.perf_counter() - start)
        evaluate = lambda: module.evaluate(agent, task, 100, seed=config.seed).mean()
    row = {"program": program, "script": name, "task": task, "seed": seed}
    result = {"steps_per_second": round(speed)} if seed in SPEED_SEEDS else {"greedy": round(float(evaluate()), 2)}
    return row | {"steps_per_second": "", "greedy": ""} | result


def task_table(rows):
    """For each task the median score of both programs, the worst in brackets, and their median steps per second."""
    lines = ["| script | task | steps | our score, median (worst) | SB3's | our steps/s | SB3's | time per step |",
             "|---|---|---|---|---|---|---|---|"]
    for name, tasks in TASKS.items():
        for task, steps in tasks.items():
            scores, speeds = [], []
            for program in ("ours", "sb3"):
                mine = [row for row in rows if row["task"] == task and row["program"] == program]
                greedy = [float(row["greedy"]) for row in mine if row["greedy"] != ""]
                speed = [float(row["steps_per_second"]) for row in mine if row["steps_per_second"] != ""]
                digits = 2 if task == "FrozenLake-v1" else 1
                if greedy and speed:
                    speeds.append(middle(speed))
                    scores.append(f"{middle(greedy):,.{digits}f} ({min(greedy):,.{digits}f})")
            if len(scores) == 2:
                cells = [f"`{name}.py`", task, f"{steps:,}", *scores, *(f"{speed:,.0f}" for speed in speeds),
                         f"{speeds[1] / speeds[0]:.2f}"]
                lines.append(f"| {' | '.join(cells)} |")
    return lines
