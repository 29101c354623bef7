"""Measures the scripts over many seeds, and on request side by side with stable-baselines3.

    python tests/benchmark.py                              every script, seeds 300 to 319
    python tests/benchmark.py --script reinforce --seeds 200 201 202
    python tests/benchmark.py --script actor_critic --flags "--critic q" "--critic advantage"
    python tests/benchmark.py --script ppo_continuous --seeds 0 1 2 --flags "--env-id HalfCheetah-v5 ..."
    python tests/benchmark.py --peer sb3                   the PPO scripts and SB3 in turn, seed by seed
    python tests/benchmark.py --interrupt-at 8000          every run stopped there by SIGTERM, and resumed
    python tests/benchmark.py --parallel --seeds 0 1 2     torchrun against one process, async against sync

Prints Markdown tables, and writes one line for each run to a CSV beside this file; what the scripts print
meanwhile goes to a .log beside that. "Solved" means that the average of the last 20 finished training
episodes reached 475 (CartPole) or -200 (Pendulum). After the run 1,000 fresh episodes are played on these
two, 100 on other tasks. Times are training alone, without imports, in one torch thread; compare them by
their ratio in one run. The settings were chosen by runs on the seeds 0 to 89.
"""

import argparse
import contextlib
import csv
import importlib
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import gymnasium  # noqa: E402
import torch  # noqa: E402

SCRIPTS = ("ppo_discrete", "ppo_continuous", "reinforce", "actor_critic")
SOLVED = {"CartPole-v1": 475, "Pendulum-v1": -200}
# SB3's CartPole settings in the RL Zoo, as flags of ppo_discrete.py; its networks have two layers of 64.
ZOO_CARTPOLE = dict(
    num_envs=8, num_steps=32, minibatch_size=256, epochs=20, gamma=0.98, gae_lambda=0.8, learning_rate=0.001,
    clip_eps=0.2, max_grad_norm=0.5, reward_scale=1.0, hidden_layers=2, hidden_size=64,
)  # fmt: skip


class Watch:
    """Notes when, in steps and in seconds, the average of the last 20 episodes reached the threshold."""

    def __init__(self, threshold):
        self.threshold, self.start, self.scores = threshold, time.perf_counter(), []
        self.step = self.seconds = None

    def episode(self, env_step, score):
        self.scores.append(score)
        if self.threshold is not None and self.step is None and len(self.scores) >= 20 and np.mean(self.scores[-20:]) >= self.threshold:
            self.step, self.seconds = env_step, time.perf_counter() - self.start


class Stop(Exception):
    pass


def task_of(name, settings):
    """The environment that a script trains on with these settings."""
    return importlib.import_module(name).Config(**settings).env_id


def train_ours(name, seed, stop_when_solved=False, interrupt_at=None, **settings):
    """One run of a script, or its beginning. Returns a row of results, and the agent."""
    module = importlib.import_module(name)
    watch = Watch(SOLVED.get(task_of(name, settings)))

    class Watched(module.Run):
        def __init__(self, config, agent, optimizer):
            super().__init__(config, agent, optimizer)
            watch.start = self.start

        def report(self, *measure):
            if interrupt_at is not None and self.env_step >= interrupt_at:
                os.kill(os.getpid(), signal.SIGTERM)
            super().report(*measure)
            for step, score in self.history[len(watch.scores) :]:
                watch.episode(step, score)
            watch.total = self.env_step
            if stop_when_solved and watch.step is not None:
                raise Stop

    plain, module.Run = module.Run, Watched
    agent = None
    try:
        agent, _ = module.train(module.Config(seed=seed, **settings))
    except (Stop, KeyboardInterrupt):
        if interrupt_at is None and not stop_when_solved:
            raise
    finally:
        module.Run = plain
    seconds = time.perf_counter() - watch.start
    row = {"program": name, "seed": seed, "solved_at_step": watch.step, "solved_at_second": watch.seconds,
           "steps": watch.total, "seconds": seconds}  # fmt: skip
    return row, agent


def settings_of(name, flags):
    """The flags of a script, a string, as the settings of its Config."""
    types = {spec.name: spec.type for spec in fields(importlib.import_module(name).Config)}
    words, settings = shlex.split(flags), {}
    while words:
        key = words.pop(0).removeprefix("--").replace("-", "_")
        if key.startswith("no_"):
            settings[key.removeprefix("no_")] = False
        else:
            settings[key] = True if types[key] is bool else types[key](words.pop(0))
    return settings


def measure(name, flags, seed, interrupt_at=None):
    """A run, of the defaults but for the flags, on request interrupted and resumed, and its evaluations."""
    settings = settings_of(name, flags)
    if interrupt_at is None:
        row, agent = train_ours(name, seed, **settings)
    else:
        with tempfile.TemporaryDirectory() as folder:
            kept = str(Path(folder, "kept.pt"))
            train_ours(name, seed, interrupt_at=interrupt_at, save=kept, **settings)
            row, agent = train_ours(name, seed, load=kept, **settings)
    env_id = task_of(name, settings)
    # Pendulum's scores depend so much on the start that a hundred episodes leave an error of 9.
    episodes = 1_000 if env_id in SOLVED else 100
    for greedy in (True, False):
        returns = importlib.import_module(name).evaluate(agent, env_id, episodes, greedy, seed=10_000_000 + 1_000 * seed)
        row["greedy" if greedy else "sampled"] = float(returns.mean())
    return row | {"flags": flags}


def train_sb3(name, seed, steps=200_000, stop_when_solved=True):
    """One run of stable-baselines3's PPO with the RL Zoo's settings for the script's task."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    watch = Watch(SOLVED[task_of(name, {})])

    class Callback(BaseCallback):
        def _on_training_start(self):
            watch.start = time.perf_counter()

        def _on_step(self):
            for info in self.locals["infos"]:
                if "episode" in info:
                    watch.episode(self.num_timesteps, info["episode"]["r"])
            return not (stop_when_solved and watch.step is not None)

    if name == "ppo_discrete":
        model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 8, seed=seed), n_steps=32, batch_size=256, n_epochs=20,
                    gamma=0.98, gae_lambda=0.8, ent_coef=0.0, learning_rate=lambda left: 0.001 * left,
                    clip_range=lambda left: 0.2 * left, seed=seed, device="cpu")  # fmt: skip
        steps = min(steps, 100_000)
    else:
        model = PPO("MlpPolicy", make_vec_env("Pendulum-v1", 4, seed=seed), n_steps=1024, n_epochs=10, gamma=0.9,
                    gae_lambda=0.95, ent_coef=0.0, learning_rate=0.001, clip_range=0.2, use_sde=True,
                    sde_sample_freq=4, seed=seed, device="cpu")  # fmt: skip
    model.learn(steps, callback=Callback())
    return {"program": f"sb3 {name}", "seed": seed, "solved_at_step": watch.step, "solved_at_second": watch.seconds,
            "steps": model.num_timesteps, "seconds": time.perf_counter() - watch.start}  # fmt: skip


def speed(*command):
    """Steps per second in the last progress line of a command."""
    out = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return float(re.findall(r"^100%.*\(([\d,]+) steps/s", out, re.M)[-1].replace(",", ""))


def measure_parallel(seeds):
    """Two processes against one with the same settings each, and environments in processes against in turn."""
    alone = ("ppo_continuous.py",)
    both = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *alone)
    # One gradient step in an epoch of a long rollout: the processes rarely wait for each other.
    large = ("--num-envs", "16", "--num-steps", "2000", "--minibatch-size", "32000")
    humanoid = ("--env-id", "Humanoid-v5", "--num-envs", "8", "--num-steps", "250", "--epochs", "2",
                "--minibatch-size", "500", "--normalize-obs")  # fmt: skip
    torchrun = "one process, `torchrun` with two"
    lines = ["| what | flags | steps/s | steps/s | ratio, median (all) |", "|---|---|---|---|---|"]
    for what, flags, *cases in (  # a case: the command, its steps, flags of its own
        (torchrun, (), (alone, 60_000), (both, 120_000)),
        (torchrun, large, (alone, 256_000), (both, 512_000)),
        (torchrun, humanoid, (alone, 20_000), (both, 40_000)),
        ("`sync`, `async`", humanoid, (alone, 20_000, "--vectorization", "sync"), (alone, 20_000, "--vectorization", "async")),
    ):
        pairs = []
        for seed in seeds:
            pair = []
            for command, steps, *own in cases:
                pair.append(speed(*command, *flags, *own, "--total-steps", str(steps), "--seed", str(seed)))
                print(f"{what} {' '.join(flags)} seed {seed}: {pair[-1]:,.0f} steps/s", file=sys.stderr, flush=True)
            pairs.append(pair)
        ratios = [two / one for one, two in pairs]
        lines.append(
            f"| {what} | `{' '.join(flags) or 'none'}` | {np.median([a for a, _ in pairs]):,.0f} | "
            f"{np.median([b for _, b in pairs]):,.0f} | {np.median(ratios):.2f} ({', '.join(f'{r:.2f}' for r in ratios)}) |"
        )
    return lines


def report(rows, number, of):
    row = rows[-1]
    numbers = ", ".join(f"{key} {value:,.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in list(row.items())[2:] if value != "")
    print(f"[{number}/{of}] {row['program']} seed {row['seed']}: {numbers}", file=sys.stderr, flush=True)


def steps_and_spread(rows, key):
    """The median and the greatest of a column, where None, for never, is beyond all numbers."""
    values = [row[key] if row[key] is not None else np.inf for row in rows]
    return np.median(values), max(values)


def count(steps):
    return "never" if np.isinf(steps) else f"{steps:,.0f}"


def learning_table(rows):
    lines = ["| script | solved | median steps to solve | worst | greedy, mean of seeds | worst seed | sampled, mean | median seconds to solve | whole run |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, flags in dict.fromkeys((row["program"], row["flags"]) for row in rows):
        mine = [row for row in rows if (row["program"], row["flags"]) == (name, flags)]
        cells = ["-"] * 3
        if task_of(name, settings_of(name, flags)) in SOLVED:
            median, worst = steps_and_spread(mine, "solved_at_step")
            cells = [f"{sum(row['solved_at_step'] is not None for row in mine)}/{len(mine)}", count(median), count(worst)]
        greedy, sampled = [row["greedy"] for row in mine], [row["sampled"] for row in mine]
        cells += [f"{np.mean(greedy):.1f}", f"{min(greedy):.1f}", f"{np.mean(sampled):.1f}"]
        cells.append(f"{steps_and_spread(mine, 'solved_at_second')[0]:.1f}" if cells[0] != "-" else "-")
        cells.append(f"{np.median([r['steps'] for r in mine]):,.0f} steps, {np.median([r['seconds'] for r in mine]):,.1f} s")
        lines.append(f"| `{name}.py{' ' * bool(flags)}{flags}` | {' | '.join(cells)} |")
    return lines


def peer_table(rows):
    lines = ["| task | program | solved | median steps | worst | median seconds to solve | seconds, ratio to SB3 |", "|---|---|---|---|---|---|---|"]
    for name, task in (("ppo_discrete", "CartPole-v1"), ("ppo_continuous", "Pendulum-v1")):
        ours, peer = ([row for row in rows if row["program"] == p] for p in (name, f"sb3 {name}"))
        if not ours or not peer:
            continue
        base, _ = steps_and_spread(peer, "solved_at_second")
        for program, mine in ((f"`{name}.py`", ours), ("SB3 PPO, RL Zoo", peer)):
            solved = sum(row["solved_at_step"] is not None for row in mine)
            median, worst = steps_and_spread(mine, "solved_at_step")
            seconds, _ = steps_and_spread(mine, "solved_at_second")
            lines.append(f"| {task} | {program} | {solved}/{len(mine)} | {count(median)} | {count(worst)} | {seconds:.2f} | {seconds / base:.3f} |")
    same = [row for row in rows if row["program"].startswith("same settings")]
    if same:
        speeds = {who: [r["steps"] / r["seconds"] for r in same if r["program"].endswith(who)] for who in ("ours", "sb3")}
        ratios = sorted(a / b for a, b in zip(speeds["ours"], speeds["sb3"]))
        lines += ["", "Environment steps per second on CartPole-v1, both with SB3's RL Zoo settings and networks: "
                  f"ppo_discrete.py {np.median(speeds['ours']):,.0f}, SB3 {np.median(speeds['sb3']):,.0f}; "
                  f"ratio {np.median(ratios):.2f} (from {ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} pairs)."]  # fmt: skip
    return lines


def processor():
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", nargs="+", choices=SCRIPTS, default=SCRIPTS, help="which scripts (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(300, 320)), help="default: 300 to 319")
    parser.add_argument("--flags", nargs="+", type=str.strip, default=[""],
                        help="settings of the scripts, each string a variant to measure; a single word needs a space "
                        "before it, as ' --no-anneal-lr', not to be taken for an option of the benchmark")  # fmt: skip
    parser.add_argument("--peer", choices=["sb3"], help="compare the time to solve, and the speed at equal settings")
    parser.add_argument("--parallel", action="store_true", help="measure torchrun and --vectorization async instead")
    parser.add_argument("--interrupt-at", type=int, metavar="STEP", help="stop each run there by SIGTERM, and resume it")
    parser.add_argument("--csv", type=Path, help="default: tests/benchmark.csv, with a peer tests/benchmark_sb3.csv")
    options = parser.parse_args()
    if options.parallel:
        print("\n".join(measure_parallel(options.seeds)))
        return
    output = options.csv or Path(__file__).with_name("benchmark" + f"_{options.peer}" * bool(options.peer) + "_interrupted" * bool(options.interrupt_at) + ".csv")

    jobs = []
    for name in options.script:
        for seed in options.seeds:
            if not options.peer:
                jobs += [partial(measure, name, flags, seed, options.interrupt_at) for flags in options.flags]
            elif name.startswith("ppo"):
                jobs.append(lambda name=name, seed=seed: train_ours(name, seed, stop_when_solved=True)[0])
                jobs.append(lambda name=name, seed=seed: train_sb3(name, seed))
    if options.peer and "ppo_discrete" in options.script:
        for seed in options.seeds:
            jobs.append(lambda seed=seed: train_ours("ppo_discrete", seed, total_steps=30_000, **ZOO_CARTPOLE)[0] | {"program": "same settings, ours"})
            jobs.append(lambda seed=seed: train_sb3("ppo_discrete", seed, 30_000, stop_when_solved=False) | {"program": "same settings, sb3"})

    rows = []
    for number, job in enumerate(jobs, 1):
        with output.with_suffix(".log").open("a" if rows else "w", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            rows.append(job())
        report(rows, number, len(jobs))
        with output.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0] | rows[-1]))
            writer.writeheader()
            writer.writerows(rows)

    versions = f"Python {platform.python_version()}, torch {torch.__version__}, gymnasium {gymnasium.__version__}, numpy {np.__version__}"
    if options.peer:
        import stable_baselines3

        versions += f", stable-baselines3 {stable_baselines3.__version__}"
    print("\n".join(peer_table(rows) if options.peer else learning_table(rows)))
    print(f"\nSeeds {min(options.seeds)} to {max(options.seeds)}; {processor()}, {os.cpu_count()} cores; {versions}.")


if __name__ == "__main__":
    main()
