"""Runs another program unchanged, and prints the steps that it had played when CartPole or Pendulum was solved.

    python tests/measure/meter.py THRESHOLD LIMIT PROGRAM [flags]

It counts inside of gymnasium's classes, so that all programs are counted in the same place, and stands alone, as it
has to run where that program runs: with an older gymnasium, say. After LIMIT steps it prints None.
"""

import os
import runpy
import sys

import gymnasium
from gymnasium.envs.classic_control import cartpole, pendulum

_, THRESHOLD, LIMIT, PROGRAM, *FLAGS = sys.argv
steps, scores = 0, []


def stop(answer):
    print(f"\n{answer}", flush=True)
    os._exit(0)


def finish(environment):
    scores.append(environment.meter_score)
    environment.meter_score, environment.meter_steps = 0.0, 0
    if len(scores) >= 20 and sum(scores[-20:]) / 20 >= float(THRESHOLD):
        stop(steps)


def watch(environment):
    environment.meter_score, environment.meter_steps = 0.0, 0
    play, start = environment.step, environment.reset

    def step(self, action):
        global steps
        steps += 1
        result = play(self, action)
        self.meter_score += float(result[1])
        self.meter_steps += 1
        if self.meter_steps == 500:  # CartPole's time is up, after which some programs play on
            finish(self)
        if steps >= int(LIMIT):
            stop(None)
        return result

    def reset(self, *, seed=None, options=None):
        if self.meter_steps:
            finish(self)
        return start(self, seed=seed, options=options)

    environment.step, environment.reset = step, reset


if __name__ == "__main__":
    watch(cartpole.CartPoleEnv)
    watch(pendulum.PendulumEnv)
    sys.modules["gym"] = gymnasium  # its name in older programs
    sys.argv = [PROGRAM, *FLAGS]
    runpy.run_path(PROGRAM, run_name="__main__")
    stop(None)
