"""Runs another program unchanged, and prints the steps that it had played when CartPole or Pendulum was solved.

    python tests/measure/meter.py THRESHOLD LIMIT PROGRAM [flags]

Solved means that the last 20 finished episodes averaged THRESHOLD. After LIMIT steps it prints None. It counts inside
of gymnasium's classes, so that all programs are counted in the same place. It stands alone, since it also has to run
with an older gymnasium.
"""

import os
import runpy
import sys

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import cartpole, pendulum

_, THRESHOLD, LIMIT, PROGRAM, *FLAGS = sys.argv
steps, scores = 0, []


def count(episode, reward, terminated, time_limit):
    """Counts a step of an episode, which is a list: its score and its length so far."""
    global steps
    steps += 1
    episode[0] += float(reward)
    episode[1] += 1
    if terminated or episode[1] == time_limit:
        scores.append(episode[0])
        episode[:] = 0.0, 0
    solved = len(scores) >= 20 and sum(scores[-20:]) / 20 >= float(THRESHOLD)
    if solved or steps >= int(LIMIT):
        print(f"\n{steps if solved else None}", flush=True)
        os._exit(0)


def watch(environment, time_limit):
    """Counts the steps of a class. The time limit is given here, as a wrapper outside of the class sets it."""
    play, start = environment.step, environment.reset

    def step(self, action):
        over = getattr(self, "prev_done", [False])  # where a vector of environments only resets
        result = play(self, action)
        for episode, resets, *answer in zip(self.meter, over, *map(np.atleast_1d, result[1:3])):
            if not resets:
                count(episode, *answer, time_limit)
        return result

    def reset(self, *args, **kwargs):
        self.meter = [[0.0, 0] for _ in range(getattr(self, "num_envs", 1))]
        return start(self, *args, **kwargs)

    environment.step, environment.reset = step, reset


watch(cartpole.CartPoleEnv, 500)
watch(cartpole.CartPoleVectorEnv, 500)
watch(pendulum.PendulumEnv, 200)
sys.modules["gym"] = gymnasium  # its name in older programs
sys.argv = [PROGRAM, *FLAGS]
runpy.run_path(PROGRAM, run_name="__main__")
print("\nNone")
