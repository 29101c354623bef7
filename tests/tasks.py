"""The PPO scripts on tasks they were not written for, beside stable-baselines3: one row of flags for all tasks.

`python tests/benchmark.py --tasks` measures them all, `--tasks Taxi-v4` those named. Each run trains and then plays
100 fresh episodes with the likeliest actions. stable-baselines3's PPO has its default settings, 8 environments of
256 steps, and VecNormalize where the RL Zoo uses it. Both run in turn, in one torch thread; the speed is that of the
training. What stands in the CSV already is not measured again.
"""

import time

SEEDS = [600, 601, 602]
ROWS = {
    "ppo_discrete": "--num-envs 8 --num-steps 128 --num-minibatches 8 --epochs 10 --learning-rate 1e-3 --gamma 0.99 "
    "--gae-lambda 0.95 --entropy-coef 0.01 --hidden-layers 2 --hidden-size 64 --normalize-reward --reward-scale 1",
    "ppo_continuous": "--num-envs 8 --num-steps 256 --num-minibatches 16 --learning-rate 5e-4 --gamma 0.99 "
    "--gae-lambda 0.95 --init-log-std 0 --activation tanh --hidden-size 64 --normalize-reward --reward-scale 1",
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
    """Steps per second and the mean return of 100 greedy episodes of stable-baselines3's PPO."""
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
    return speed, evaluate_policy(model, fresh, 100, deterministic=True)[0]


def measure_task(train_ours, program, name, task, seed):
    """A run of one program on a task, as a row of the CSV."""
    steps = TASKS[name][task]
    if program == "sb3":
        speed, score = train_sb3(task, steps, seed)
    else:
        start = time.perf_counter()
        module, _, agent, _ = train_ours(name, f"--env-id {task} --total-steps {steps} {ROWS[name]}", seed)
        speed = steps / (time.perf_counter() - start)
        score = module.evaluate(agent, task, 100, seed=seed).mean()
    return {"program": program, "script": name, "task": task, "seed": seed,
            "steps_per_second": round(speed), "greedy": round(float(score), 2)}


def task_table(rows):
    """For each task the median of both programs, all seeds in brackets, and how many steps a second they did."""
    lines = ["| script | task | steps | our score, median (all) | SB3's | our steps/s | SB3's | time per step |",
             "|---|---|---|---|---|---|---|---|"]
    for name, tasks in TASKS.items():
        for task, steps in tasks.items():
            mine = {who: [r for r in rows if r["task"] == task and r["program"] == who] for who in ("ours", "sb3")}
            if not (mine["ours"] and mine["sb3"]):
                continue
            scores, speeds = [], []
            for program in ("ours", "sb3"):
                greedy = sorted(float(row["greedy"]) for row in mine[program])
                scores.append(f"{greedy[len(greedy) // 2]:,.1f} ({', '.join(f'{score:,.1f}' for score in greedy)})")
                speed = sorted(float(row["steps_per_second"]) for row in mine[program])
                speeds.append(speed[len(speed) // 2])
            cells = [f"`{name}.py`", task, f"{steps:,}", *scores, *(f"{speed:,.0f}" for speed in speeds),
                     f"{speeds[1] / speeds[0]:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines
