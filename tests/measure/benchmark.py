"""Measures the scripts over many seeds, and on request side by side with stable-baselines3.

    python tests/measure/benchmark.py                      every script, seeds 520 to 539
    python tests/measure/benchmark.py --script reinforce --seeds 200 201 202
    python tests/measure/benchmark.py --script actor_critic --flags "--gamma 0.99" "--gamma 0.98"
    python tests/measure/benchmark.py --script ppo_continuous --flags "--env-id HalfCheetah-v5" --csv FILE --resume
                                                           another task; what the CSV already has is kept
    python tests/measure/benchmark.py --peer sb3 --seeds 500 501
                                                           all scripts, the PPO ones in turn with SB3
    python tests/measure/benchmark.py --peer sb3 cleanrl minimalrl --peer-files FOLDER --peer-python PYTHON
                                                           the same with CleanRL and minimalRL, see peer.py
    python tests/measure/benchmark.py --ablate             with one line of a script changed (ablations.py)
    python tests/measure/benchmark.py --recipe TAXI --script ppo_discrete --flags "--env-id Taxi-v4"
                                                           with the diff of README that has the word TAXI in it;
                                                           a diff of actor_critic.py needs --script actor_critic
    python tests/measure/benchmark.py --plot               draws the pictures of README
    python tests/measure/benchmark.py --tasks              the PPO scripts and SB3 on the tasks of tasks.py

Prints a Markdown table, and writes one line for each run to a CSV in tests/results. "Solved" means that
the average of the last 20 finished training episodes reached 475 (CartPole) or -200 (Pendulum). After
the run 1,000 fresh episodes are played on these two, 100 after a change of the text, 50 on other tasks.

With --processes 2 two runs are made at a time, which changes nothing but the seconds they take. With
--peer each run is a process of its own, and its time goes from the start of the process, with all
imports, until the task is solved. Compare times only within one table: they are taken in turn, in one
torch thread each. Settings were chosen by runs on seeds below 100.
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
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import ablations  # noqa: E402
from peer import (  # noqa: E402
    FILES, PPO_TASKS, SOLVED, StopWhenSolved, child, count, measure_peer, middle, peer_table, solved_at,
    train_sb3)
from tasks import SEEDS, measure_task, scores_of, task_jobs, task_table  # noqa: E402

SCRIPTS = ("ppo_discrete", "ppo_continuous", "reinforce", "actor_critic")


def settings_of(module, flags):
    """The flags of a script, a string, as the settings of its Config."""
    types = {spec.name: spec.type for spec in fields(module.Config)}
    words, settings = shlex.split(flags), {}
    while words:
        key = words.pop(0).removeprefix("--").replace("-", "_")
        settings[key] = True if types[key] is bool else types[key](words.pop(0))
    return settings


def config_of(module, flags, **settings):
    """The settings that a script would have with these flags: those for other tasks, if --env-id names one."""
    settings |= settings_of(module, flags)
    if settings.get("env_id", module.Config.env_id) != module.Config.env_id:
        settings = getattr(module, "OTHER_TASKS", {}) | settings
    return module.Config(**settings)


def train_ours(name, flags, seed, stop=False, module=None):
    """One run of a script, or its beginning until it is solved. Returns module, config, agent, history."""
    module = module or importlib.import_module(name)
    config, make_vec, made, out = config_of(module, flags, seed=seed), gym.make_vec, [], io.StringIO()

    def watched(*args, **kwargs):
        made.append(StopWhenSolved(make_vec(*args, **kwargs), SOLVED[config.env_id]))
        return made[-1]

    with contextlib.redirect_stdout(out), mock.patch.object(gym, "make_vec", watched if stop else make_vec):
        agent, history = module.train(config)
    if "stopped at step" in out.getvalue() and not stop:
        raise KeyboardInterrupt  # Ctrl-C: train() itself returns as if the run had come to its end
    return module, config, agent, made[0].history if stop else history


def curve(history, steps):
    """The average score of the last 20 episodes after each 1,000 steps, as one word of the CSV."""
    averages = []
    for step in range(1_000, steps + 1, 1_000):
        scores = [score for env_step, score in history if env_step <= step][-20:]
        averages.append(f"{sum(scores) / len(scores):.1f}" if scores else "")
    return ";".join(averages)


def measure(name, flags, seed, change="", text=""):
    """A run of the defaults but for flags, or of a changed text, and its evaluations, as a row of the CSV.

    On other tasks the PPO scripts are also evaluated at each report, over 10 greedy episodes. That changes nothing in
    the run, as greedy play draws no random numbers of torch's.
    """
    module = ablations.module_of(text, name) if text else importlib.import_module(name)
    along = {}

    def evaluate_instead(config, agent, optimizer, envs, env_step, history):  # of saving
        if config.env_id not in SOLVED and env_step not in along:
            along[env_step] = scores_of(module, agent, config.env_id, 10, seed).mean()

    start = time.perf_counter()
    with mock.patch.object(module, "save", evaluate_instead) if hasattr(module, "save") else contextlib.nullcontext():
        _, config, agent, history = train_ours(name, flags, seed, module=module)
    row = {"program": name, "flags": change or flags, "seed": seed,
           "solved_at_step": solved_at(history, SOLVED.get(config.env_id)),
           "seconds": round(time.perf_counter() - start, 1)}
    # Pendulum's scores depend so much on the start that a hundred episodes leave an error of 9.
    episodes = 50 if config.env_id not in SOLVED else 100 if text else 1_000
    for kind in ("greedy", "sampled"):
        scores = scores_of(module, agent, config.env_id, episodes, seed, kind == "greedy")
        row[kind] = round(float(scores.mean()), 2)
    if config.env_id in SOLVED:
        row["curve"] = curve(history, config.total_steps)
    else:
        row["along"] = ";".join(f"{score:.1f}" for score in along.values())
    return row


def run(job):
    function, *arguments = job
    return function(*arguments)


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list({key: None for row in rows for key in row}))
        writer.writeheader()
        writer.writerows(rows)


def plot(seeds):
    """Draws the pictures in tests/results, and measures those curves of stable-baselines3 first that are not there."""
    import figures

    path, rows = figures.RESULTS / "curves_sb3.csv", []
    if path.exists():
        rows = list(csv.DictReader(path.open()))
    for seed in seeds:
        for name in PPO_TASKS:
            if not any(row["program"] == f"sb3 {name}" and int(row["seed"]) == seed for row in rows):
                history = train_sb3(name, seed, 100_000, stop=False)
                rows.append({"program": f"sb3 {name}", "flags": "", "seed": seed, "curve": curve(history, 100_000)})
                write_csv(path, rows)
    for draw in (figures.draw_training, figures.draw_curves, figures.draw_gae, figures.draw_clip, figures.draw_flow):
        draw()


def chance(steps):
    """By how much the medians of ten such runs differ by chance alone: 19 of 20 pairs differ by less."""
    first, second = np.median(np.random.default_rng(0).choice(steps, (2, 100_000, 10)), axis=2)
    return np.quantile(np.abs(first - second) / np.minimum(first, second), 0.95)


def table(rows):
    lines = ["| script | solved | median steps | worst | chance | greedy, mean of seeds | worst seed | sampled, mean | "
             "whole run |",
             "|---|---|---|---|---|---|---|---|---|"]
    for name, flags in dict.fromkeys((row["program"], row["flags"]) for row in rows):
        mine = [row for row in rows if (row["program"], row["flags"]) == (name, flags)]
        steps = [float(row["solved_at_step"] or "inf") for row in mine]
        cells = [f"`{f'{name}.py {flags}'.strip()}`", "-", "-", "-", "-"]
        if "--env-id" not in flags:
            cells[1:] = (f"{sum(s < float('inf') for s in steps)}/{len(mine)}", count(middle(steps)), count(max(steps)),
                         f"{chance(steps):.0%}")
        greedy, sampled = [row["greedy"] for row in mine], [row["sampled"] for row in mine]
        cells += [f"{np.mean(greedy):,.1f} ± {np.std(greedy):,.1f}", f"{min(greedy):,.1f}", f"{np.mean(sampled):,.1f}",
                  f"{middle(row['seconds'] for row in mine):,.1f} s"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines + along_table(rows)


def along_table(rows):
    """The best of the evaluations along the way, as others report them: of the mean curve, and of each run."""
    lines = ["", "| run | best point of the mean curve | its five best points | mean of each run's best |",
             "|---|---|---|---|"]
    for name, flags in dict.fromkeys((row["program"], row["flags"]) for row in rows if row.get("along")):
        scores = np.array([[float(x) for x in row["along"].split(";")]
                           for row in rows if (row["program"], row["flags"]) == (name, flags)])  # (runs, reports)
        order = scores.mean(0).argsort()
        bests = scores[:, order[-1]], scores[:, order[-5:]].mean(1), scores.max(1)  # each (runs,)
        cells = [f"{best.mean():,.1f} ± {best.std():,.1f}" for best in bests]
        lines.append(f"| `{name}.py {flags}` | {' | '.join(cells)} |")
    return lines if len(lines) > 3 else []


def machine(sb3):
    """The processor, the cores and the versions of everything that was measured."""
    from importlib.metadata import version

    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        name = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()).group(1)
    packages = ["torch", "gymnasium", "numpy"] + ["stable-baselines3"] * sb3
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{name}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", nargs="+", choices=SCRIPTS, default=SCRIPTS, help="which scripts (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(520, 540)), help="default: 520 to 539")
    parser.add_argument("--flags", nargs="+", type=str.strip, default=[""],
                        help="settings of the scripts, each string a variant to measure; a single word needs a space "
                        "before it, as ' --render', not to be taken for an option of the benchmark")
    parser.add_argument("--processes", type=int, default=1, help="how many runs at a time (default: 1)")
    parser.add_argument("--peer", nargs="+", choices=["sb3", "cleanrl", "minimalrl"],
                        help="compare the time to solve; cleanrl and minimalrl have five of the seeds")
    parser.add_argument("--peer-files", type=Path, help="a folder with the files of CleanRL and minimalRL, unchanged")
    parser.add_argument("--peer-python", help="the python of an environment with what CleanRL requires")
    parser.add_argument("--tasks", nargs="*", help="measure these tasks by name alone, or all, beside SB3")
    parser.add_argument("--ablate", nargs="?", const="", metavar="WORD", help="measure edits of the scripts' text")
    parser.add_argument("--recipe", metavar="WORD",
                        help="measure the only diff of README with this word in it, in the scripts of --script")
    parser.add_argument("--plot", action="store_true",
                        help="draw the pictures in tests/results; SB3 is measured if it lacks")
    parser.add_argument("--resume", action="store_true", help="keep the CSV's runs and make those that are missing")
    parser.add_argument("--csv", type=Path,
                        help="default: benchmark, peers, tasks, ablations or recipes, each .csv, in tests/results")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        who, name, seed = options.child
        return child(train_ours, who, name, int(seed))
    if options.plot:
        return plot(list(range(500, 520)))  # stable-baselines3's
    rows, print_table, what = [], table, "benchmark"
    jobs = [(measure, name, flags, seed)
            for name in options.script for flags in options.flags for seed in options.seeds]
    if options.peer:
        what, print_table, where = "peers", peer_table, (options.peer_files, options.peer_python)
        jobs = [(measure_peer, who, name, seed, *where)
                for name in options.script for seed in options.seeds for who in ["ours", *options.peer]
                if who == "ours" or who == "sb3" and name in PPO_TASKS
                or (who, name) in FILES and seed in options.seeds[:5]]  # these are slow
    elif options.tasks is not None:
        what, print_table, options.seeds = "tasks", task_table, SEEDS
        jobs = [(measure_task, train_ours, *job) for job in task_jobs(options.script, options.tasks)]
    elif options.ablate is not None:
        what, print_table, options.seeds = "ablations", ablations.ablation_table, ablations.SEEDS
        jobs = [(measure, name, ablations.FLAGS.get(name, ""), seed, edit, ablations.edited_text(name, pairs))
                for edit, names, pairs in ablations.EDITS if options.ablate in edit
                for name in names if name in options.script for seed in options.seeds]
    elif options.recipe:
        what, diff = "recipes", ablations.recipe(options.recipe)
        texts = {name: ablations.apply_diff(ablations.source(name), diff) for name in options.script}
        jobs = [(measure, name, flags, seed, f"--recipe {options.recipe} {flags}".strip(), texts[name])
                for _, name, flags, seed in jobs]
    if what == "peers" and options.processes > 1:
        parser.error("--processes: times can only be compared one run at a time")
    output = options.csv or ROOT / "tests" / "results" / f"{what}.csv"
    output.parent.mkdir(exist_ok=True)
    if what == "tasks" and output.exists():
        rows = list(csv.DictReader(output.open()))
        done = [(row["program"], row["script"], row["task"], int(row["seed"])) for row in rows]
        jobs = [job for job in jobs if job[2:] not in done]
    elif options.resume and output.exists():
        rows = [{key: float(x) if key in ("greedy", "sampled", "seconds") else x for key, x in row.items()}
                for row in csv.DictReader(output.open())]
        done = [(row["program"], row["flags"], int(row["seed"])) for row in rows]

        def is_done(function, name, flags, seed, change="", text=""):
            return (name, change or flags, seed) in done  # a row names an edit or a recipe in place of the flags

        jobs = [job for job in jobs if not is_done(*job)]

    pool = ProcessPoolExecutor(options.processes, get_context("spawn")) if options.processes > 1 else None
    for number, row in enumerate((pool.map if pool else map)(run, jobs), 1):
        rows.append(row)
        words = (f"{key} {value}" for key, value in row.items() if value != "" and key not in ("curve", "along"))
        print(f"[{number}/{len(jobs)}]", *words, file=sys.stderr, flush=True)
        write_csv(output, rows)
    if pool:
        pool.shutdown()
    print("\n".join(print_table(rows)))
    sb3 = any(row["program"] == "sb3" for row in rows)
    print(f"\nSeeds {min(options.seeds)} to {max(options.seeds)}; {machine(sb3)}.")


if __name__ == "__main__":
    main()
