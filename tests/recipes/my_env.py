"""An environment of one's own: walk along a line to 0."""

import gymnasium as gym
import numpy as np


class Reach(gym.Env):
    """The state is the place on the line. Each step costs the distance from 0."""
    observation_space = gym.spaces.Box(-10, 10, (1,))
    action_space = gym.spaces.Discrete(3)  # left, stay, right

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random, the only source of random numbers here
        self.place = self.np_random.uniform(-5, 5, 1).astype(np.float32)
        return self.place, {}

    def step(self, action):
        self.place = np.clip(self.place + np.float32(0.5 * (action - 1)), -10, 10)
        distance = abs(self.place.item())
        terminated = distance < 0.3  # the task is really over
        truncated = False  # gymnasium sets this itself after max_episode_steps
        return self.place, -distance, terminated, truncated, {}


gym.register("Reach-v0", Reach, max_episode_steps=50)
