"""Draws README's pictures into tests/results: `python tests/measure/figures.py NAME...`, or all of them.

NAME is curves, training, gae, clip or rollout. The curves come from the CSVs there, and training.gif from new runs.
"""

import copy
import io
import sys
import time
from contextlib import closing, redirect_stdout
from pathlib import Path

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


def draw_gae(gamma=0.995):
    """How much each later TD error counts in an advantage."""
    k = np.arange(31)
    figure, axes = plt.subplots(1, 5, figsize=(8, 2.2), layout="constrained", sharey=True)
    titles = {0: "λ = 0:\nTD error alone", 0.5: "λ = 0.5", 0.9: "λ = 0.9", 0.97: "λ = 0.97", 1: "λ = 1:\nreturn - V(s)"}
    for axis, (gae_lambda, title) in zip(axes, titles.items()):
        axis.bar(k, (gamma * gae_lambda) ** k, color=ORANGE)
        axis.set_title(title, fontsize=10)
        axis.set(xlabel="k", xticks=[0, 10, 20, 30])
    axes[0].set(ylabel=r"weight $(\gamma\lambda)^k$ of $\delta_{t+k}$", yticks=[0, 0.5, 1])
    figure.suptitle(f"How much the TD error k steps later counts in the advantage, with γ = {gamma}", fontsize=11)
    write(figure, "gae.png")


def draw_clip():
    """The two cases of the clipped objective, with ε = 0.2. The second is the mirror image of the first."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    y = np.array([0.5, 1.2, 1.5])
    for axis, sign, left, right, title in ((axes[0], 1, "left", "right", "Â > 0: the action was good"),
                                           (axes[1], -1, "right", "left", "Â < 0: the action was bad")):
        ratio = 1 + sign * (y - 1)
        axis.plot(ratio, y, color="black", linewidth=1, linestyle=":")
        axis.plot(ratio[:2], y[:2], color=PURPLE, linewidth=2.5)
        axis.plot(ratio[1:], [1.2, 1.2], color=ORANGE, linewidth=4)
        axis.plot(1, 1, "o", color="black", markersize=5)
        axis.text(1 + 0.23 * sign, 1.16, "flat:\nno gradient", color=ORANGE, ha=left, va="top")
        axis.text(1 + 0.04 * sign, 0.93, "start: π = π_old", ha=left, va="top")
        axis.text(1 + 0.2 * sign, 1.38, "ρ Â, without clip", ha=right)
        axis.set(title=title, xlabel="ratio ρ = π(a|s) / π_old(a|s)", ylabel="objective of one step",
                 xticks=[0.8, 1, 1.2], xticklabels=["1-ε", "1", "1+ε"],
                 yticks=[0.8, 1, 1.2], yticklabels=["(1-ε) Â", "Â", "(1+ε) Â"][::sign])
    write(figure, "clip.png")


def draw_rollout():
    """One iteration of PPO."""
    figure = plt.figure(figsize=(8, 4))
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, 100), ylim=(0, 50))
    axis.axis("off")
    shades = dict(zip("abcdefgh", [PURPLE, GREEN, "#e6ab02", "#66a61e", "#1f78b4", "#a6761d", "#e7298a", "#fb9a99"]))

    def cells(x, y, letters, width=3.0):
        axis.bar(x + width * np.arange(len(letters)), 3, width, y, align="edge", color=[shades[c] for c in letters],
                 edgecolor="white", linewidth=width / 3)

    for x, y, width, height, heading in (
            (0, 0, 44, 50, "1. Collect a rollout"), (48, 40, 52, 10, "2. Estimate, once per rollout"),
            (48, 0, 52, 36, "3. Update, in several epochs")):
        axis.bar(x, height, width, y, align="edge", color="#f4f4f4", edgecolor=GREY)
        axis.text(x + 2, y + height - 2.5, heading, va="center", fontsize=9, fontweight="bold")
    for start, end, style in (((44, 45), (48, 45), "-|>"), ((74, 40), (74, 36), "-|>"), ((48, 3), (44, 3), "-|>"),
                              ((5, 23), (41, 23), "<|-|>")):
        axis.annotate("", end, start, arrowprops=dict(arrowstyle=style, color="black", shrinkA=0, shrinkB=0))
    episodes = ["aaaaabbbbbbb", "ccccccccdddd", "eeeeeeeeeeee", "fffgggggghhh"]  # time goes to the right
    for y, letters in zip((39, 34.5, 30, 25.5, 15, 10.5), (*episodes, "a", "aaa")):
        cells(5, y, letters)
    for x, y in ((20, 39), (29, 34.5), (14, 25.5), (32, 25.5), (6.5, 6)):  # ends of episodes, and the legend
        axis.vlines(x, y - 0.5, y + 3.5, color="black", linewidth=1.5)
    steps = list("".join(episodes))
    for y in (23, 17.5, 12):
        np.random.default_rng(int(y)).shuffle(steps)
        cells(58, y, steps[:24], 0.72)
        cells(79, y, steps[24:], 0.72)
        axis.plot([76.9, 97.9], [y + 1.5] * 2, "k>")
    axis.plot(51, 7.5, "k>")
    axis.text(2.5, 34.5, "N environments", rotation=90, ha="center", va="center", fontsize=9)
    for x, y, words in (
            (17, 21, "T steps each"), (16, 16.5, "a step"), (16, 12, "steps of one episode"),
            (16, 7.5, "an episode's end: the next begins"), (50, 30.5, "each time all steps, shuffled anew"),
            (50, 43, "V(s), advantage Â and the critic's target R of each step"), (61, 27.5, "a minibatch"),
            (82, 27.5, "a minibatch"), (50, 24.5, "epoch 1"), (50, 19, "epoch 2"), (50, 13.5, "epoch 3"),
            (53, 7.5, "an optimizer step from each minibatch"), (50, 3, "the new policy collects the next rollout")):
        axis.text(x, y, words, va="center", fontsize=9)
    write(figure, "rollout.png")


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
    scored = [(*moment, evaluate(module, moment[0], task, 50, seed=0, greedy=False).mean()) for moment in kept]
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
    for name in sys.argv[1:] or ["curves", "training", "gae", "clip", "rollout"]:
        globals()[f"draw_{name}"]()
