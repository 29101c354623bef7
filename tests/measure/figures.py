"""Draws the pictures of README: `python tests/measure/benchmark.py --plot`.

Learning curves come from the CSVs in tests/results. training.gif shows runs of the PPO scripts with their defaults,
seed 0, which are trained here. The other pictures need no record.
"""

import contextlib
import copy
import csv
import functools
import importlib
import io
import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import matplotlib
import numpy as np
import torch
from peer import SOLVED, TASK_OF
from tasks import scores_of

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402
from PIL import Image, ImageDraw, ImageFont  # noqa: E402

RESULTS = Path(__file__).resolve().parents[1] / "results"
ORANGE, GREEN, PURPLE, GREY = "#d95f02", "#1b9e77", "#7570b3", "#a6a6a6"
plt.rcParams["axes.spines.top"] = plt.rcParams["axes.spines.right"] = False


def read(name):
    with (RESULTS / name).open() as file:
        return list(csv.DictReader(file))


def write(figure, name, dpi=150):
    """Saves a picture with a white margin, so that it also looks right on a dark page."""
    figure.savefig(RESULTS / name, dpi=dpi, facecolor="white", bbox_inches="tight", pad_inches=0.15)
    plt.close(figure)


# ---- Learning curves ----

CURVES = {  # task: thousands of steps and scores to show, and the programs
    "CartPole-v1": (60, range(0, 501, 100), {
        "ppo_discrete": ("PPO", ORANGE), "actor_critic": ("actor-critic", GREEN), "reinforce": ("REINFORCE", PURPLE),
        "sb3 ppo_discrete": ("PPO of\nstable-baselines3", GREY)}),
    "Pendulum-v1": (99, range(-1400, -199, 200), {
        "ppo_continuous": ("PPO", ORANGE), "sb3 ppo_continuous": ("PPO of\nstable-baselines3", GREY)}),
}


def default_runs(program):
    """The rows of a program's runs with its default settings."""
    return [row for row in read("benchmark.csv") + read("curves_sb3.csv")
            if row["program"] == program and not row["flags"]]


def curves(rows, end):
    """The average scores (runs, thousands of steps) of these rows; NaN after a run's end."""
    rows = [row["curve"].split(";")[:end] for row in rows]
    return np.array([[float(score or "nan") for score in row] + [np.nan] * (end - len(row)) for row in rows])


def draw_curves():
    """The scripts' names are flags on poles, which stand at the median of the steps until solved."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    runs = set()
    for axis, (task, (end, ticks, programs)) in zip(axes, CURVES.items()):
        low, high = ticks[0], ticks[-1]
        steps = np.arange(1, end + 1)
        for place, (program, (name, colour)) in enumerate(reversed(programs.items())):
            rows = default_runs(program)
            scores = curves(rows, end)
            runs.add(len(scores))
            median = np.median(scores, 0)
            axis.plot(steps, scores.T, color=colour, alpha=0.25, linewidth=0.5, zorder=1)
            axis.plot(steps, median, color=colour, linewidth=3, zorder=2 + place)
            if program.startswith("sb3"):
                level = low + 0.45 * (high - low)
                axis.text(steps[median >= level][0] + end / 30, level, name, color="#777777", va="top")
            else:
                solved = np.median([int(row["solved_at_step"]) / 1000 for row in rows])
                top = high + (0.06 + 0.08 * place) * (high - low)
                axis.plot([solved, solved], [SOLVED[task], top], color=colour, linewidth=1)
                axis.text(solved + end / 80, top, name, color=colour, va="center", fontweight="bold")
        axis.axhline(SOLVED[task], color="black", linewidth=0.8, linestyle=":")
        axis.text(0, SOLVED[task], " solved", va="bottom", fontsize=9)
        axis.set(title=task, xlabel="environment steps, in thousands", ylabel="average score of 20 episodes",
                 xlim=(0, end), ylim=(low - 0.03 * (high - low), high + 0.38 * (high - low)), yticks=ticks)
    figure.supxlabel(f"{' or '.join(map(str, sorted(runs)))} runs each. A thick line is their median, thin lines are "
                     "single runs. At 500 the thick lines cover each other.\n"
                     "A flag stands at the median of the steps until solved.", fontsize=9)
    write(figure, "curves.png")


# ---- Ideas ----

def draw_gae(gamma=0.995):
    """How much each later TD error counts in an advantage."""
    k = np.arange(31)
    figure, axes = plt.subplots(1, 5, figsize=(8, 2.2), layout="constrained", sharey=True)
    titles = {0: "λ = 0:\nTD error alone", 0.5: "λ = 0.5", 0.9: "λ = 0.9", 0.97: "λ = 0.97",
              1: "λ = 1:\nreturn - V(s)"}
    for axis, (gae_lambda, title) in zip(axes, titles.items()):
        axis.bar(k, (gamma * gae_lambda) ** k, color=ORANGE)
        axis.set_title(title, fontsize=10)
        axis.set(xlabel="k", xticks=[0, 10, 20, 30])
    axes[0].set(ylabel=r"weight $(\gamma\lambda)^k$ of $\delta_{t+k}$", yticks=[0, 0.5, 1])
    figure.suptitle(f"How much the TD error k steps later counts in the advantage, with γ = {gamma}", fontsize=11)
    write(figure, "gae.png")


def draw_clip(eps=0.2):
    """The two cases of the clipped objective."""
    ratio = np.linspace(0.5, 1.5, 201)
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for axis, advantage, side in zip(axes, (1, -1), ("left", "right")):
        flat = np.array([1 + eps, 1.5] if advantage > 0 else [0.5, 1 - eps])
        end = 1 + eps * advantage  # where the clip begins
        axis.plot(ratio, ratio * advantage, color="black", linewidth=1, linestyle=":")
        axis.plot(ratio, np.minimum(ratio * advantage, np.clip(ratio, 1 - eps, 1 + eps) * advantage), color=PURPLE,
                  linewidth=2.5)
        axis.plot(flat, [end * advantage] * 2, color=ORANGE, linewidth=4)
        axis.plot(1, advantage, "o", color="black", markersize=5)
        axis.text(end + 0.03 * advantage, end * advantage - 0.04, "flat:\nno gradient", color=ORANGE, ha=side, va="top")
        axis.text(1 + 0.04 * advantage, advantage - 0.07, "start: π = π_old", ha=side, va="top")
        axis.text(end, end * advantage + 0.18, "ρ Â, without clip", ha="right" if side == "left" else "left")
        axis.set(title="Â > 0: the action was good" if advantage > 0 else "Â < 0: the action was bad",
                 xlabel="ratio ρ = π(a|s) / π_old(a|s)", ylabel="objective of one step",
                 xticks=[1 - eps, 1, 1 + eps], xticklabels=["1-ε", "1", "1+ε"],
                 yticks=np.array([1 - eps, 1, 1 + eps]) * advantage, yticklabels=["(1-ε) Â", "Â", "(1+ε) Â"])
    write(figure, "clip.png")


def draw_flow(T=12, ends=((4,), (7,), (), (2, 8)), epochs=("epoch 1", "epoch 2", "epoch 3")):
    """One iteration of PPO. ends: the steps that end an episode, for each environment."""
    figure = plt.figure(figsize=(8, 4.4))
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, 100), ylim=(0, 55))
    axis.axis("off")

    def box(x, y, width, height, colour, **style):
        axis.add_patch(plt.Rectangle((x, y), width, height, **{"facecolor": colour, "edgecolor": "white"} | style))

    def text(x, y, words, **style):
        axis.text(x, y, words, **{"va": "center", "fontsize": 9} | style)

    def arrow(*points, style="-|>"):
        axis.plot(*zip(*points[:-1]), color="black", linewidth=1.5, solid_capstyle="butt")
        axis.annotate("", points[-1], points[-2], arrowprops={
            "arrowstyle": style, "color": "black", "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0})

    for x, y, width, height, heading in (
            (0, 9, 44, 46, "1. Collect a rollout"), (48, 45, 52, 10, "2. Estimate, once per rollout"),
            (48, 9, 52, 32, "3. Update, in several epochs")):
        box(x, y, width, height, "#f4f4f4", edgecolor=GREY)
        text(x + 2, y + height - 2.5, heading, fontweight="bold")
    arrow((44, 50), (48, 50))
    arrow((74, 45), (74, 41))
    arrow((74, 9), (74, 4), (22, 4), (22, 9))
    text(48, 2, "the new policy collects the next rollout", ha="center")

    # 1. Time goes to the right, and each episode has a colour.
    masked = {"hatch": "//////", "edgecolor": GREY, "linewidth": 0}
    shades = iter([PURPLE, GREEN, "#e6ab02", "#66a61e", "#1f78b4", "#a6761d", "#e7298a", "#fb9a99"])
    steps = []
    for row, episode_ends in enumerate(ends):
        y, shade, reset = 45 - 4 * row, next(shades), False
        for t in range(T):
            box(5 + 3 * t, y, 3, 3, "white" if reset else shade, **masked if reset else {})
            steps += [] if reset else [shade]
            reset = t in episode_ends
            shade = next(shades) if reset else shade
    text(2.5, 40.5, "N environments", rotation=90, ha="center")
    arrow((23, 30), (5, 30))
    arrow((23, 30), (41, 30))
    text(23, 28, "T steps each", ha="center")
    for y, cells, words in ((21, 1, "a step"), (17, 3, "steps of one episode"), (13, 0, "only a reset: masked")):
        for x in range(cells):
            box(5 + 3 * x, y, 3, 3, PURPLE)
        if not cells:
            box(5, y, 3, 3, "white", **masked)
        text(16, y + 1.5, words)

    # 2. and 3. The same steps, in another order in each epoch.
    text(50, 48, "V(s), advantage Â and the critic's target R of each valid step")
    rng = np.random.default_rng(0)
    for row, epoch in enumerate(epochs):
        y = 28 - 5.5 * row
        text(50, y + 1.5, epoch)
        for x, minibatch in zip((58, 79), np.array_split(rng.permutation(len(steps)), 2)):
            for i, step in enumerate(minibatch):
                box(x + 0.72 * i, y, 0.72, 3, steps[step], linewidth=0.3)
            axis.plot(x + 0.72 * len(minibatch) + 1.6, y + 1.5, ">", color="black")
    text(50, 35.5, "each time all valid steps, shuffled anew")
    for x in (66, 87):
        text(x, 32.5, "a minibatch", ha="center")
    axis.plot(59, 12.5, ">", color="black")
    text(61, 12.5, "an optimizer step from each minibatch")
    write(figure, "flow.png")


# ---- What was trained ----

@functools.cache
def moments(script):
    """Copies of the agent of a run with default settings, before training and when it would save a checkpoint.

    With each come the env_step and the seconds that led to it. The clock is the processor's own, which stands still
    while other programs run.
    """
    module, kept = importlib.import_module(script), []

    def keep(config, agent, optimizer, envs, env_step, history):
        kept.append(SimpleNamespace(
            agent=copy.deepcopy(agent), env_step=env_step, seconds=time.process_time() - start))

    with mock.patch.object(module, "save", keep), contextlib.redirect_stdout(io.StringIO()):
        for steps in (0, module.Config.total_steps):  # with 0 steps, train() saves the agent as it begins
            start = time.process_time()
            module.train(module.Config(total_steps=steps))
    return kept


def score(script, moment):
    """The average score in 50 fresh episodes, with actions drawn as in training."""
    module = importlib.import_module(script)
    torch.manual_seed(0)
    return scores_of(module, moment.agent, TASK_OF[script], 50, seed=0, greedy=False).mean()


def stages(script):
    """The moment before training, the last one that is not yet half way to the solved task, and the end; and scores."""
    first, *others = moments(script)
    begin = score(script, first)
    half = (begin + SOLVED[TASK_OF[script]]) / 2
    scored = ((moment, score(script, moment)) for moment in others)
    early = [(first, begin), *itertools.takewhile(lambda pair: pair[1] < half, scored)]
    return early[0], early[-1], (others[-1], score(script, others[-1]))


def play(script, agent, seed, steps, hold):
    """A picture of each step, and whether it ends an episode, of an agent that plays; ends are held."""
    envs = importlib.import_module(script).make_envs(
        TASK_OF[script], 1, vectorization_mode="sync", render_mode="rgb_array")
    torch.manual_seed(seed)
    obs, _ = envs.reset(seed=seed)
    frames = [(envs.render()[0], False)]
    while len(frames) < steps:
        obs, _, terminated, truncated, _ = envs.step(agent.act(obs))
        over = bool(terminated[0] | truncated[0])
        frames += [(envs.render()[0], over)] * (hold if over else 1)
    envs.close()
    return frames[:steps]


PANELS = {  # script: title, seed of the episodes, steps for each frame, the part of the picture to show
    "ppo_discrete": ("CartPole, ppo_discrete.py", 0, 3, (50, 45, 550, 345)),
    "ppo_continuous": ("Pendulum, ppo_continuous.py", 3, 2, (25, 115, 475, 385)),
}


def draw_training(frames=75, milliseconds=60):
    """The PPO scripts' agents before training, when they have learned a little, and in the end."""
    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")
    normal, bold = (ImageFont.truetype(fonts / name, 14) for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"))
    pictures = [Image.new("RGB", (680, 280), "white") for _ in range(3 * frames)]
    for x, (script, (title, seed, skip, part)) in zip((20, 360), PANELS.items()):
        for number, (moment, average) in enumerate(stages(script)):
            when = f"trained for {moment.seconds:.1f} s, {moment.env_step:,} steps"
            played = play(script, moment.agent, seed, frames * skip, hold=15 * skip)
            for picture, (frame, over) in zip(pictures[number * frames :], played[::skip]):
                draw = ImageDraw.Draw(picture)
                draw.text((x, 12), title, "black", normal)
                draw.text((x, 34), when if number else "before training", ORANGE, bold)
                draw.text((x, 56), f"average score {average:.0f}", "black", normal)
                picture.paste(Image.fromarray(frame).crop(part).resize((300, 180), Image.LANCZOS), (x, 88))
                if over:
                    draw.text((x + 190, 56), "episode over", "black", bold)
    palette = pictures[-1].quantize(32, Image.Quantize.MAXCOVERAGE)
    pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    durations = [milliseconds + 1_000 * (i % frames == frames - 1) for i in range(len(pictures))]
    pictures[0].save(RESULTS / "training.gif", save_all=True, append_images=pictures[1:], duration=durations, loop=0)
