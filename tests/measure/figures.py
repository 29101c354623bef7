"""Draws README's pictures of results into tests/results: `python tests/measure/figures.py curves training`.

The curves come from the CSVs there, and training.gif from new runs.
"""

import copy
import io
import sys
import time
from contextlib import closing, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from runs import RESULTS, SOLVED, evaluate, load, read_csv

ORANGE, GREEN, PURPLE, GREY = "#d95f02", "#1b9e77", "#7570b3", "#a6a6a6"
plt.switch_backend("agg")
plt.rcParams["axes.spines.top"] = plt.rcParams["axes.spines.right"] = False
LOOKS = {"ppo_discrete": ("PPO", ORANGE), "ppo_continuous": ("PPO", ORANGE), "actor_critic": ("actor-critic", GREEN),
         "reinforce": ("REINFORCE", PURPLE)}


def write(figure, name):
    """Saves a picture with a white margin, so that it also looks right on a dark page."""
    figure.savefig(RESULTS / name, dpi=150, facecolor="white", bbox_inches="tight", pad_inches=0.15)


def draw_curves():
    """Scores over steps."""
    runs = {}
    for row in read_csv(RESULTS / "benchmark.csv"):
        points = [float(x or "nan") for x in row["curve"].split(";")]
        runs.setdefault(f"{row['script']} {row['variant']}".strip(), []).append(points)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, task, end, limits, programs in (
            (axes[0], "CartPole-v1", 60, (0, 520), ["ppo_discrete", "actor_critic", "reinforce"]),
            (axes[1], "Pendulum-v1", 99, (-1450, -100), ["ppo_continuous"])):
        for place, program in enumerate([*programs, f"stable-baselines3 {task}"]):
            name, colour = LOOKS.get(program, ("PPO of stable-baselines3", GREY))
            scores = np.array([points[:end] + [np.nan] * (end - len(points)) for points in runs[program]])
            axis.plot(range(1, end + 1), scores.T, color=colour, alpha=0.25, linewidth=0.5)
            axis.plot(range(1, end + 1), np.median(scores, 0), color=colour, linewidth=3, label=name, zorder=9 - place)
        axis.axhline(SOLVED[task], color="black", linewidth=0.8, linestyle=":", label="solved")
        axis.set(title=task, xlabel="environment steps, in thousands", ylabel="average score of 20 episodes",
                 xlim=(0, end), ylim=limits)
    counts = " or ".join(map(str, sorted({len(points) for points in runs.values()})))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False,
                  title=f"{counts} runs each. A thick line is their median, thin lines are single runs.")
    write(figure, "curves.png")


def stages(module, task, **settings):
    """A run's [(agent, env_step, seconds, score)]: before it, when last not half way to the solved task, at its end."""
    untrained, _ = module.train(module.Config(total_steps=0))
    kept, start = [(untrained, 0, 0.0)], time.process_time()  # this clock stands still while other programs run

    def keep(config, agent, optimizer, envs, env_step):  # in place of saving
        kept.append((copy.deepcopy(agent), env_step, time.process_time() - start))

    module.save = keep
    with redirect_stdout(io.StringIO()):
        module.train(module.Config(**settings))
    torch.manual_seed(0)
    act = module.ActorCritic.act
    with patch.object(module.ActorCritic, "act", lambda agent, obs, greedy: act(agent, obs)):  # as training draws
        scored = [(*moment, evaluate(module, moment[0], task, 50, seed=0).mean()) for moment in kept]
    half = (scored[0][-1] + SOLVED[task]) / 2
    learned = [score >= half for *_, score in scored[1:]] + [True]
    return scored[0], scored[learned.index(True)], scored[-1]


def play(module, task, agent, seed, steps, hold):
    """A picture of each step of an agent that plays, and whether an episode is over. The last picture is held then."""
    torch.manual_seed(seed)
    frames = []
    with closing(module.make_envs(task, 1, render_mode="rgb_array")) as envs:
        obs, _ = envs.reset(seed=seed)
        while len(frames) < steps:
            frames.append((envs.render()[0], False))
            obs, _, terminated, truncated, _ = envs.step(agent.act(obs))
            if terminated[0] or truncated[0]:  # envs already shows the next episode
                frames += [(frames[-1][0], True)] * hold
    return frames[:steps]


def draw_training(frames=75, milliseconds=60, **settings):
    """The PPO scripts' agents before training, when they have learned a little, and in the end."""
    fonts = Path(plt.matplotlib.get_data_path(), "fonts", "ttf")
    normal, bold = (ImageFont.truetype(fonts / name, 14) for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"))
    pictures = [Image.new("RGB", (680, 280), "white") for _ in range(3 * frames)]
    for x, script, task, seed, skip, part in (  # seed of the episodes, steps for each frame, part of it to show
            (20, "ppo_discrete", "CartPole-v1", 0, 3, (50, 45, 550, 345)),
            (360, "ppo_continuous", "Pendulum-v1", 3, 2, (25, 115, 475, 385))):
        module = load(script)
        for number, (agent, env_step, seconds, score) in enumerate(stages(module, task, **settings)):
            when = f"trained for {seconds:.1f} s, {env_step:,} steps" if env_step else "before training"
            played = play(module, task, agent, seed, frames * skip, hold=15 * skip)
            for picture, (frame, over) in zip(pictures[number * frames:], played[::skip]):
                draw = ImageDraw.Draw(picture)
                draw.text((x, 12), f"{task[:-3]}, {script}.py", "black", normal)
                draw.text((x, 34), when, ORANGE, bold)
                draw.text((x, 56), f"average score {score:.0f}", "black", normal)
                draw.text((x + 190, 56), "episode over" if over else "", "black", bold)
                picture.paste(Image.fromarray(frame).crop(part).resize((300, 180), Image.LANCZOS), (x, 88))
    palette = pictures[-1].quantize(32, Image.Quantize.MAXCOVERAGE)
    pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    durations = [milliseconds + 1_000 * (i % frames == frames - 1) for i in range(len(pictures))]
    pictures[0].save(RESULTS / "training.gif", save_all=True, append_images=pictures[1:], duration=durations, loop=0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ["curves", "training"]:
        globals()[f"draw_{name}"]()
