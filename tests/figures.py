"""Draws the learning curves of README from the record: `python tests/benchmark.py --plot`.

A line is the interquartile mean over seeds: the mean of the middle half (arXiv:2108.13264). Its band holds 95 % of the
interquartile means of seeds drawn anew with replacement. Thin lines are single seeds.
"""

import csv
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).resolve().parent / "results"
PANELS = {
    "CartPole-v1": (60, 475, {"ppo_discrete": "#d95f02", "actor_critic": "#1b9e77", "reinforce": "#7570b3"}),
    "Pendulum-v1": (99, -200, {"ppo_continuous": "#d95f02"}),
}


def curves(program):
    """The average scores (seeds, thousands of steps) of the default runs of a program; NaN after a run's end."""
    found = []
    for path in (RESULTS / "benchmark.csv", RESULTS / "curves_sb3.csv"):
        if path.exists():
            with path.open() as file:
                found += [row["curve"].split(";") for row in csv.DictReader(file)
                          if row["program"] == program and not row["flags"]]
    length = max(map(len, found), default=0)
    return np.array([[float(x or "nan") for x in curve] + [np.nan] * (length - len(curve)) for curve in found])


def interquartile_mean(scores):
    """(..., seeds) -> (...), the mean of the middle half of the seeds."""
    cut = scores.shape[-1] // 4
    return np.sort(scores, -1)[..., cut : scores.shape[-1] - cut].mean(-1)


def draw(path):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(0)
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", facecolor="white")
    for axis, (task, (end, solved, programs)) in zip(axes, PANELS.items()):
        script = next(iter(programs))
        for program, colour in (programs | {f"sb3 {script}": "#666666"}).items():
            scores = curves(program)[:, :end] if len(curves(program)) else curves(program)
            if not scores.size:
                continue
            steps = np.arange(1, scores.shape[1] + 1)
            drawn = rng.integers(len(scores), size=(1_000, len(scores)))
            line = interquartile_mean(scores.T)
            low, high = np.percentile(interquartile_mean(scores[drawn].transpose(0, 2, 1)), (2.5, 97.5), 0)
            name = f"{program}.py" if "sb3" not in program else "stable-baselines3"
            axis.plot(steps, scores.T, color=colour, alpha=0.15, linewidth=0.5)
            axis.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
            axis.plot(steps, line, color=colour, linewidth=2, label=f"{name} ({len(scores)} seeds)")
        axis.axhline(solved, color="black", linewidth=0.8, linestyle=":")
        axis.text(end, solved, "solved ", ha="right", va="top", fontsize=8)
        axis.set(title=task, xlabel="environment steps, in thousands", ylabel="average score of 20 episodes",
                 xlim=(0, end))
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)
