"""Draws the pictures of README: `python tests/benchmark.py --plot`.

Learning curves and ablations come from the CSVs in tests/results. A line or point is the interquartile mean over seeds,
the mean of the middle half (arXiv:2108.13264). Its band holds 95 % of the interquartile means of seeds drawn anew with
replacement. Thin lines are single seeds. The pictures of ideas need no record: they are computed, or trained for, here.
"""

import contextlib
import csv
import io
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402

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


def band(scores, rng):
    """(..., seeds) -> the interquartile mean (...), and the two ends (2, ...) of its 95 % bootstrap interval."""
    drawn = scores[..., rng.integers(scores.shape[-1], size=(1_000, scores.shape[-1]))]
    return interquartile_mean(scores), np.percentile(interquartile_mean(drawn), (2.5, 97.5), -1)


def finish(figure, name, dpi=150):
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / name, dpi=dpi, facecolor="white")
    plt.close(figure)


def draw_curves():
    rng = np.random.default_rng(0)
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for axis, (task, (end, solved, programs)) in zip(axes, PANELS.items()):
        script = next(iter(programs))
        for program, colour in (programs | {f"sb3 {script}": "#666666"}).items():
            scores = curves(program)[:, :end]
            steps = np.arange(1, scores.shape[1] + 1)
            line, (low, high) = band(scores.T, rng)
            name = f"{program}.py" if "sb3" not in program else "stable-baselines3"
            axis.plot(steps, scores.T, color=colour, alpha=0.15, linewidth=0.5)
            axis.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
            axis.plot(steps, line, color=colour, linewidth=2, label=f"{name} ({len(scores)} seeds)")
        axis.axhline(solved, color="black", linewidth=0.8, linestyle=":")
        axis.text(0, solved, " solved", va="bottom", fontsize=8)
        axis.set(title=task, xlabel="environment steps, in thousands", ylabel="average score of 20 episodes",
                 xlim=(0, end))
        axis.legend(frameon=False, loc="lower right")
    finish(figure, "curves.png", dpi=125)


def draw_ideas():
    """The clipped objective by the sign of the advantage, and what weight GAE gives to later TD errors."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    ratio, eps = np.linspace(0.5, 1.5, 201), 0.2
    for axis, advantage in zip(axes, (1, -1)):
        clipped = np.clip(ratio, 1 - eps, 1 + eps) * advantage
        objective = np.minimum(ratio * advantage, clipped)
        flat = ratio > 1 + eps if advantage > 0 else ratio < 1 - eps
        axis.plot(ratio, ratio * advantage, color="#666666", linestyle=":", label="ρ Â")
        axis.plot(ratio, clipped, color="#1b9e77", linestyle="--", label="clip(ρ, 1-ε, 1+ε) Â")
        axis.plot(ratio, objective, color="#7570b3", linewidth=2.5, label="the smaller one")
        axis.plot(ratio[flat], objective[flat], color="#d95f02", linewidth=5, label="flat: no gradient")
        axis.set(title="Â > 0: better than usual" if advantage > 0 else "Â < 0: worse than usual", xlabel="ratio ρ",
                 xticks=[1 - eps, 1, 1 + eps], xticklabels=["1-ε", "1", "1+ε"], yticks=[])
        axis.legend(frameon=False, fontsize=8, loc="upper left" if advantage > 0 else "lower left")
    for gae_lambda, colour in zip((0, 0.5, 0.9, 0.97, 1), plt.get_cmap("viridis")(np.linspace(0, 0.9, 5))):
        axes[2].plot((0.995 * gae_lambda) ** np.arange(41), "o-", color=colour, markersize=2, label=f"λ = {gae_lambda}")
    axes[2].set(title="GAE: from TD error to return", xlabel="k, steps ahead", ylabel="weight (γλ)ᵏ of δ at t + k")
    axes[2].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    finish(figure, "ideas.png")


def optimal_pendulum(angle, speed, gamma, iterations=400):
    """The best value and torque of gymnasium's Pendulum on a grid (angles, speeds), by value iteration."""
    torque = np.linspace(-2, 2, 21)
    a, w, u = np.meshgrid(angle, speed, torque, indexing="ij")
    reward = -(a**2 + 0.1 * w**2 + 0.001 * u**2)
    w = np.clip(w + (15 * np.sin(a) + 3 * u) * 0.05, -8, 8)
    # Where the next state lies between four points of the grid; angles go round.
    i, j = (a + 0.05 * w - angle[0]) / (angle[1] - angle[0]), (w - speed[0]) / (speed[1] - speed[0])
    i0, j0 = np.floor(i).astype(int), np.minimum(j.astype(int), len(speed) - 2)
    di, dj, n = i - i0, j - j0, len(angle)
    value = np.zeros((n, len(speed)))
    for _ in range(iterations):
        q = reward + gamma * (
            (1 - di) * ((1 - dj) * value[i0 % n, j0] + dj * value[i0 % n, j0 + 1])
            + di * ((1 - dj) * value[(i0 + 1) % n, j0] + dj * value[(i0 + 1) % n, j0 + 1]))
        value = q.max(-1)
    return value, torque[q.argmax(-1)]


def draw_pendulum():
    """What ppo_continuous.py has learned about Pendulum, beside what is best, and how it plays."""
    import gymnasium as gym
    import ppo_continuous as ppo
    import torch

    config = ppo.Config()
    with contextlib.redirect_stdout(io.StringIO()):
        agent, _ = ppo.train(config)
    angle, speed = np.linspace(-np.pi, np.pi, 180, endpoint=False), np.linspace(-8, 8, 161)
    a, w = np.meshgrid(angle, speed, indexing="ij")
    obs = np.stack([np.cos(a), np.sin(a), w], -1).astype(np.float32)
    with torch.no_grad():
        pi, value = agent(torch.as_tensor(obs))
    learned = value.numpy() / config.reward_scale, 2 * pi.mean[..., 0].clamp(-1, 1).numpy()
    figure, axes = plt.subplots(2, 2, figsize=(8, 5.2), layout="constrained", sharex=True, sharey=True)
    for column, (title, pair) in enumerate(
            {"learned": learned, "optimal": optimal_pendulum(angle, speed, config.gamma)}.items()):
        for row, (name, scale) in enumerate({"value V(s)": ("magma", -250, 0), "torque": ("RdBu", -2, 2)}.items()):
            colours, low, high = scale
            image = axes[row, column].imshow(pair[row].T, colours, origin="lower", aspect="auto", vmin=low, vmax=high,
                                             extent=(-180, 180, -8, 8))
            axes[row, column].set(title=f"{name}, {title}", xticks=[-180, -90, 0, 90, 180])
            if column == 1:
                figure.colorbar(image, ax=axes[row])
    for axis in (*axes[1], *axes[:, 0]):
        axis.set(xlabel="angle from upright (°)" if axis in axes[1] else "",
                 ylabel="angular speed (rad/s)" if axis in axes[:, 0] else "")
    finish(figure, "pendulum.png", dpi=100)

    env = gym.make("Pendulum-v1", render_mode="rgb_array")
    obs, _ = env.reset(seed=34)  # hanging down
    frames = []
    for step in range(80):
        if step % 8 == 0:
            frames.append(env.render()[50:450:2, 50:450:2])
        obs, *_ = env.step(2 * np.clip(agent.act(obs[None], greedy=True)[0], -1, 1))
    env.close()
    plt.imsave(RESULTS / "frames.png", np.concatenate(frames, 1))


def draw_ablations():
    """What every edit of the scripts' text does to the steps until solved, and to the final score."""
    rng = np.random.default_rng(0)
    with (RESULTS / "ablations.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["program"].startswith("ppo")]
    names = list(dict.fromkeys(row["flags"] for row in rows))
    figure, axes = plt.subplots(1, 4, figsize=(10, 6), layout="constrained", sharey=True)
    for program, task, end, scores, (left, right) in (
            ("ppo_discrete", "CartPole-v1", 30, (0, 530), axes[:2]),
            ("ppo_continuous", "Pendulum-v1", 50, (-400, -120), axes[2:])):
        for y, name in enumerate(names):
            mine = [row for row in rows if (row["program"], row["flags"]) == (program, name)]
            if not mine:
                continue
            colour = "black" if name == "as it is" else "#d95f02"
            # A run that never solved its task counts as if it had done so at its end.
            steps = np.array([float(row["solved_at_step"] or 1_000 * end) / 1_000 for row in mine])
            for axis, values in ((left, steps), (right, np.array([float(row["greedy"]) for row in mine]))):
                line, (low, high) = band(values, rng)
                axis.plot([low, high], [y, y], color=colour, linewidth=6, alpha=0.3)
                axis.plot(line, y, "o", color=colour)
            unsolved = sum(not row["solved_at_step"] for row in mine)
            if unsolved:
                left.annotate(f"{unsolved}/{len(mine)} unsolved", (0.3, y - 0.1), fontsize=7)
            if line < scores[0]:
                right.annotate(f"← {line:.0f}", (scores[0], y - 0.1), fontsize=7)
        left.set(title=task, xlabel="1,000 steps to solve", xlim=(0, 1.05 * end))
        right.set(title=task, xlabel="final score", xlim=scores)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    for axis in axes:
        axis.grid(axis="both", alpha=0.3)
    finish(figure, "ablations.png")
