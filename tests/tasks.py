"""The PPO scripts on tasks they were not written for: one row of flags for all, beside stable-baselines3.

`python tests/benchmark.py --tasks` measures every task, or those named after it. Each run trains, then plays
100 fresh episodes with the likeliest actions. stable-baselines3's PPO has its default settings, 8 environments
of 256 steps, and VecNormalize where the RL Zoo uses it. Runs of ours and of SB3 come in turn, in one torch
thread each; seconds are those of the training alone.
"""

import contextlib
import importlib
import io
import time

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
