"""stable-baselines3's PPO with the RL Zoo's settings: `python sb3.py TASK SEED`, with CartPole-v1 or Pendulum-v1.

Tasks without settings here have its defaults, but 8 environments of 256 steps, and VecNormalize where the Zoo has it.
"""

import sys
import time

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

SETTINGS = {  # number of environments, steps, settings of PPO
    "CartPole-v1": (8, 100_000, dict(
        n_steps=32, batch_size=256, n_epochs=20, gamma=0.98, gae_lambda=0.8, ent_coef=0.0,
        learning_rate=lambda left: 0.001 * left, clip_range=lambda left: 0.2 * left)),
    "Pendulum-v1": (4, 200_000, dict(
        n_steps=1024, n_epochs=10, gamma=0.9, gae_lambda=0.95, ent_coef=0.0, learning_rate=0.001,
        clip_range=0.2, use_sde=True, sde_sample_freq=4))}
VEC_NORMALIZE = {"Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "InvertedDoublePendulum-v5",
                 "BipedalWalker-v3", "HalfCheetah-v5", "Walker2d-v5"}


def train(task, seed, steps=None, callback=None):
    """The trained model. callback(locals, globals) is called at each step of the vector, and has to return True."""
    num_envs, own_steps, settings = SETTINGS.get(task, (8, None, dict(n_steps=256)))
    envs = make_vec_env(task, num_envs, seed=seed)
    if task in VEC_NORMALIZE:
        envs = VecNormalize(envs)
    return PPO("MlpPolicy", envs, seed=seed, device="cpu", **settings).learn(steps or own_steps, callback)


def measure(task, seed, episodes, eval_envs, steps=None):
    """What measure() of runs.py returns."""
    from runs import training_cells  # peers.py times this file from its start, and needs nothing of runs.py

    history, start = [], time.perf_counter()

    def note_scores(variables, _):
        history.extend((variables["self"].num_timesteps, info["episode"]["r"])
                       for info in variables["infos"] if "episode" in info)
        return True

    model = train(task, seed, steps, note_scores)
    seconds, fresh = time.perf_counter() - start, make_vec_env(task, eval_envs, seed=10_000 + seed)
    if task in VEC_NORMALIZE:
        fresh = VecNormalize(fresh, training=False, norm_reward=False)
        fresh.obs_rms = model.get_vec_normalize_env().obs_rms
    return {"seconds": f"{seconds:.1f}", **training_cells(history, task, model.num_timesteps),
            "greedy": f"{evaluate_policy(model, fresh, episodes, deterministic=True)[0]:.2f}"}


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
