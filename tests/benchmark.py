"""Measures the scripts over many seeds, and on request side by side with stable-baselines3.

    python tests/benchmark.py                              every script, seeds 500 to 519
    python tests/benchmark.py --script reinforce --seeds 200 201 202
    python tests/benchmark.py --script actor_critic --flags "--critic q" "--critic advantage"
    python tests/benchmark.py --script ppo_continuous --seeds 0 1 2 --flags "--env-id HalfCheetah-v5 ..."
    python tests/benchmark.py --peer sb3 --seeds 500 501   the PPO scripts and SB3 in turn, seed by seed
    python tests/benchmark.py --tasks                      the same on twelve tasks (tests/tasks.py)

Prints a Markdown table, and writes one line for each run to a CSV in tests/results. "Solved" means that
the average of the last 20 finished training episodes reached 475 (CartPole) or -200 (Pendulum). After
the run 1,000 fresh episodes are played on these two, 100 on other tasks.

With --peer each run is a process of its own, and its time goes from the start of the process, with
all imports, until the task is solved. Compare times only within one table: they are taken in turn, in
one torch thread each. Settings were chosen by runs on seeds below 100.
"""

import argparse
import contextlib
import csv
import importlib
import io
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tasks import SEEDS, TASKS, measure_task, task_table  # noqa: E402

SCRIPTS = ("ppo_discrete", "ppo_continuous", "reinforce", "actor_critic")
SOLVED = {"CartPole-v1": 475, "Pendulum-v1": -200}
# SB3's CartPole settings in the RL Zoo, as flags of ppo_discrete.py; its networks have two layers of 64.
ZOO_CARTPOLE = (
    "--num-envs 8 --num-steps 32 --num-minibatches 1 --epochs 20 --gamma 0.98 --gae-lambda 0.8 "
    "--learning-rate 0.001 --max-grad-norm 0.5 --reward-scale 1 --hidden-layers 2 --hidden-size 64"
)


class Watch(list):
    """A history that notes at which env_step the average of its last 20 episodes reached a threshold."""

    solved_at, stop = None, False

    def __iadd__(self, pairs):
        for env_step, score in pairs:
            self.append((env_step, score))
            mean = sum(s for _, s in self[-20:]) / 20
            if self.threshold is not None and self.solved_at is None and len(self) >= 20 and mean >= self.threshold:
                self.solved_at = env_step
        if self.stop and self.solved_at is not None:
            raise KeyboardInterrupt  # which ends the training
        return self


def settings_of(module, flags):
    """The flags of a script, a string, as the settings of its Config."""
    types = {spec.name: spec.type for spec in fields(module.Config)}
    words, settings = shlex.split(flags), {}
    while words:
        key = words.pop(0).removeprefix("--").replace("-", "_")
        if key.startswith("no_"):
            settings[key.removeprefix("no_")] = False
        else:
            settings[key] = True if types[key] is bool else types[key](words.pop(0))
    return settings


def train_ours(name, flags, seed, stop=False):
    """One run of a script, or its beginning until it is solved. Returns module, config, agent, history."""
    module = importlib.import_module(name)
    config = module.Config(**{"seed": seed} | settings_of(module, flags))
    *run, history = module.set_up(config)
    watch = Watch(history)
    watch.threshold, watch.stop = SOLVED.get(config.env_id), stop
    with contextlib.redirect_stdout(io.StringIO()):
        agent, history = module.train(config, (*run, watch))
    return module, config, agent, history


def curve(history, steps):
    """The average score of the last 20 episodes after each 1,000 steps, as one word of the CSV."""
    averages = []
    for step in range(1_000, steps + 1, 1_000):
        scores = [score for env_step, score in history if env_step <= step][-20:]
        averages.append(f"{sum(scores) / len(scores):.1f}" if scores else "")
    return ";".join(averages)


def measure(name, flags, seed):
    """A run of the defaults but for the flags, and its evaluations, as a row of the CSV."""
    start = time.perf_counter()
    module, config, agent, history = train_ours(name, flags, seed)
    row = {"program": name, "flags": flags, "seed": seed, "solved_at_step": history.solved_at,
           "seconds": round(time.perf_counter() - start, 1)}
    # Pendulum's scores depend so much on the start that a hundred episodes leave an error of 9.
    episodes = 1_000 if config.env_id in SOLVED else 100
    for kind in ("greedy", "sampled"):
        returns = module.evaluate(agent, config.env_id, episodes, kind == "greedy", seed=seed)
        row[kind] = round(float(returns.mean()), 2)
    if config.env_id in SOLVED:
        row["curve"] = curve(history, config.total_steps)
    return row


def train_sb3(name, seed, steps=200_000, stop=True):
    """One run of stable-baselines3's PPO with the RL Zoo's settings for the script's task."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    watch = Watch()
    watch.threshold = 475 if name == "ppo_discrete" else -200

    class Callback(BaseCallback):
        def _on_step(self):
            for info in self.locals["infos"]:
                if "episode" in info:
                    watch.__iadd__([(self.num_timesteps, info["episode"]["r"])])
            return not (stop and watch.solved_at is not None)

    if name == "ppo_discrete":
        model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 8, seed=seed), n_steps=32, batch_size=256, n_epochs=20,
                    gamma=0.98, gae_lambda=0.8, ent_coef=0.0, learning_rate=lambda left: 0.001 * left,
                    clip_range=lambda left: 0.2 * left, seed=seed, device="cpu")
        steps = min(steps, 100_000)
    else:
        model = PPO("MlpPolicy", make_vec_env("Pendulum-v1", 4, seed=seed), n_steps=1024, n_epochs=10, gamma=0.9,
                    gae_lambda=0.95, ent_coef=0.0, learning_rate=0.001, clip_range=0.2, use_sde=True,
                    sde_sample_freq=4, seed=seed, device="cpu")
    start = time.perf_counter()
    model.learn(steps, callback=Callback())
    return watch, model.num_timesteps / (time.perf_counter() - start)


def child(who, what, name, seed):
    """What a process of its own does for --peer: prints the steps to solve, or the steps per second."""
    if who == "sb3":
        watch, speed = train_sb3(name, seed, *(() if what == "solve" else (30_000, False)))
    else:
        flags = "" if what == "solve" else f"--total-steps 30000 {ZOO_CARTPOLE}"
        importlib.import_module(name)  # before the clock starts, as for SB3
        start = time.perf_counter()
        watch = train_ours(name, flags, seed, stop=what == "solve")[-1]
        speed = 30_000 / (time.perf_counter() - start)
    print(watch.solved_at if what == "solve" else speed)


def measure_peer(who, what, name, seed):
    start = time.perf_counter()
    command = [sys.executable, __file__, "--child", who, what, name, str(seed)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    row = {"program": who, "task": name, "seed": seed}
    if what == "speed":
        return row | {"steps_per_second": round(float(out))}
    steps = None if out == "None" else int(out)
    return row | {"solved_at_step": steps, "seconds": round(time.perf_counter() - start, 2)}


def middle(values):
    values = sorted(float("inf") if value is None else value for value in values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def count(steps):
    return "never" if steps == float("inf") else f"{steps:,.0f}"


def table(rows):
    lines = ["| script | solved | median steps | worst | greedy, mean of seeds | worst seed | sampled, mean | whole run |",
             "|---|---|---|---|---|---|---|---|"]
    for name, flags in dict.fromkeys((row["program"], row["flags"]) for row in rows):
        mine = [row for row in rows if (row["program"], row["flags"]) == (name, flags)]
        steps = [row["solved_at_step"] for row in mine]
        cells = ["-"] * 3
        if not re.search("--env-id", flags):
            worst = max(float("inf") if step is None else step for step in steps)
            cells = [f"{sum(step is not None for step in steps)}/{len(steps)}", count(middle(steps)), count(worst)]
        greedy, sampled = [row["greedy"] for row in mine], [row["sampled"] for row in mine]
        cells += [f"{sum(greedy) / len(mine):,.1f}", f"{min(greedy):,.1f}", f"{sum(sampled) / len(mine):,.1f}"]
        lines.append(f"| `{f'{name}.py {flags}'.strip()}` | {' | '.join(cells)} | {middle(row['seconds'] for row in mine):,.1f} s |")
    return lines


def peer_table(rows):
    lines = ["| task | program | solved | median steps | worst | seconds until solved, median (all) | ratio to SB3 |", "|---|---|---|---|---|---|---|"]
    for name in ("ppo_discrete", "ppo_continuous"):
        mine = {who: [row for row in rows if row["program"] == who and row["task"] == name and "seconds" in row] for who in ("ours", "sb3")}
        for who in ("ours", "sb3") if mine["ours"] else ():
            steps = [row["solved_at_step"] for row in mine[who]]
            worst = max(float("inf") if step is None else step for step in steps)
            seconds = [row["seconds"] for row in mine[who]]
            lines.append(
                f"| {name} | {who} | {sum(s is not None for s in steps)}/{len(steps)} | {count(middle(steps))} | {count(worst)} | "
                f"{middle(seconds):.2f} ({', '.join(f'{s:.1f}' for s in seconds)}) | "
                f"{middle(seconds) / middle(row['seconds'] for row in mine['sb3']):.3f} |"
            )
    speeds = {who: [row["steps_per_second"] for row in rows if row["program"] == who and "steps_per_second" in row] for who in ("ours", "sb3")}
    if speeds["ours"]:
        ratios = [a / b for a, b in zip(speeds["ours"], speeds["sb3"])]
        lines += ["", "Environment steps per second on CartPole-v1, both with SB3's RL Zoo settings and networks: "
                  f"ppo_discrete.py {middle(speeds['ours']):,.0f}, SB3 {middle(speeds['sb3']):,.0f}; "
                  f"ratio {middle(ratios):.2f} ({', '.join(f'{r:.2f}' for r in ratios)})."]
    return lines


def machine(peer):
    """The processor, the cores and the versions of everything that was measured."""
    from importlib.metadata import version

    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        name = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()).group(1)
    packages = ["torch", "gymnasium", "numpy"] + ["stable-baselines3"] * bool(peer)
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{name}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", nargs="+", choices=SCRIPTS, default=SCRIPTS, help="which scripts (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(500, 520)), help="default: 500 to 519")
    parser.add_argument("--flags", nargs="+", type=str.strip, default=[""],
                        help="settings of the scripts, each string a variant to measure; a single word needs a space "
                        "before it, as ' --render', not to be taken for an option of the benchmark")
    parser.add_argument("--peer", choices=["sb3"], help="compare the time to solve, and the speed at equal settings")
    parser.add_argument("--tasks", nargs="*", help="measure one row of flags on these tasks, or all, beside SB3")
    parser.add_argument("--csv", type=Path, help="default: benchmark.csv, sb3.csv or tasks.csv in tests/results")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        who, what, name, seed = options.child
        return child(who, what, name, int(seed))
    what = "tasks" if options.tasks is not None else options.peer or "benchmark"
    output = options.csv or ROOT / "tests" / "results" / f"{what}.csv"
    output.parent.mkdir(exist_ok=True)
    rows, print_table = [], table

    if what == "tasks":
        options.seeds, print_table = SEEDS, task_table
        rows = list(csv.DictReader(output.open())) if output.exists() else []
        done = [tuple(row[key] for key in ("program", "script", "task", "seed")) for row in rows]
        jobs = [(measure_task, train_ours, who, name, task, seed) for seed in SEEDS for name in options.script
                if name in TASKS for task in TASKS[name] for who in ("ours", "sb3")
                if task in (options.tasks or TASKS[name]) and (who, name, task, str(seed)) not in done]
    elif options.peer:
        print_table = peer_table
        jobs = [(measure_peer, who, "solve", name, seed) for name in options.script if name.startswith("ppo")
                for seed in options.seeds for who in ("ours", "sb3")]
        jobs += [(measure_peer, who, "speed", "ppo_discrete", seed) for seed in options.seeds for who in ("ours", "sb3")]
    else:
        jobs = [(measure, name, flags, seed) for name in options.script for flags in options.flags for seed in options.seeds]
    for number, (function, *arguments) in enumerate(jobs, 1):
        rows.append(function(*arguments))
        print(f"[{number}/{len(jobs)}]", *(f"{key} {value}" for key, value in rows[-1].items() if value != "" and key != "curve"), file=sys.stderr, flush=True)
        with output.open("w", newline="") as file:
            writer = csv.DictWriter(file, list({key: None for row in rows for key in row}))
            writer.writeheader()
            writer.writerows(rows)
    print("\n".join(print_table(rows)))
    print(f"\nSeeds {min(options.seeds)} to {max(options.seeds)}; {machine(what != 'benchmark')}.")


if __name__ == "__main__":
    main()
