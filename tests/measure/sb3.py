"""stable-baselines3's PPO with the RL Zoo's settings: `python sb3.py TASK SEED`, with CartPole-v1 or Pendulum-v1."""

import sys

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

SETTINGS = {  # number of environments, steps, settings of PPO
    "CartPole-v1": (8, 100_000, dict(
        n_steps=32, batch_size=256, n_epochs=20, gamma=0.98, gae_lambda=0.8, ent_coef=0.0,
        learning_rate=lambda left: 0.001 * left, clip_range=lambda left: 0.2 * left)),
    "Pendulum-v1": (4, 200_000, dict(
        n_steps=1024, n_epochs=10, gamma=0.9, gae_lambda=0.95, ent_coef=0.0, learning_rate=0.001,
        clip_range=0.2, use_sde=True, sde_sample_freq=4))}


def train(task, seed, callback=None):
    """The trained model. callback(locals, globals) is called at each step of the vector, and has to return True."""
    num_envs, steps, settings = SETTINGS[task]
    envs = make_vec_env(task, num_envs, seed=seed)
    return PPO("MlpPolicy", envs, seed=seed, device="cpu", **settings).learn(steps, callback)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
