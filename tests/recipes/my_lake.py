"""An environment that needs arguments and a wrapper."""

import gymnasium as gym


def make(**options):
    """FrozenLake without slipping, and with a reward of 10. options holds render_mode, if any."""
    env = gym.make("FrozenLake-v1", is_slippery=False, **options)
    return gym.wrappers.TransformReward(env, lambda reward: 10 * reward)  # or any other wrapper


gym.register("MyLake-v0", make)
