"""What the measuring programs share: scripts as modules, training runs, CSVs of runs, and tables."""

import csv
import datetime
import importlib.util
import io
import multiprocessing
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
RECIPES, RESULTS = ROOT / "tests" / "recipes", ROOT / "tests" / "results"
SCRIPTS = ("reinforce", "actor_critic", "ppo_discrete", "ppo_continuous")
SOLVED = {"CartPole-v1": 475, "Pendulum-v1": -200}
RUN_COLUMNS = ["script", "variant", "seed", "solved_at_step", "last", "greedy", "seconds"]


def load(script, edits=(), recipe="", folder=None):
    """The script as a fresh module, after a recipe and edits (old, new). Each old text must be there exactly once.

    All scripts are copied to the folder, or to a temporary one, before the recipe is applied there without any fuzz.
    """
    temporary = tempfile.TemporaryDirectory()
    folder = Path(folder or temporary.name).resolve()
    for name in SCRIPTS:
        shutil.copy(ROOT / f"{name}.py", folder)
    if recipe:
        subprocess.run(["patch", "-p1", "-F0", "--batch", "-si", RECIPES / f"{recipe}.diff"], cwd=folder, check=True)
    path = folder / f"{script}.py"
    text = path.read_text(encoding="utf-8")
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"{text.count(old)} times in {script}.py, not once: {old!r}")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"{script}_copy", path)
    module = importlib.util.module_from_spec(spec)
    module.temporary = temporary  # --help reads the file, so it stays as long as the module
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def evaluate(module, agent, env_id, episodes, seed):
    """The scores of fresh greedy episodes, as an array."""
    if hasattr(module, "make_env"):  # reinforce.py plays a single environment
        with closing(module.make_env(env_id)) as env:
            return module.evaluate(agent, env, episodes, seed)
    with closing(module.make_envs(env_id, episodes)) as envs:
        return module.evaluate(agent, envs, seed)


def last_20(history):
    """The mean of the last 20 scores, as a word of a CSV."""
    return f"{np.mean([score for _, score in history[-20:]]):.1f}" if history else "nan"


def solved_at(history, threshold):
    """The env_step at which the mean of the last 20 scores first reached the threshold, or None."""
    for end in range(20, len(history) + 1):
        if sum(score for _, score in history[end - 20:end]) / 20 >= threshold:
            return history[end - 1][0]
    return None


def training_cells(history, task, total_steps):
    """The columns of a CSV that tell of the scores in training. Only tasks with a threshold have a curve."""
    cells = {"last": last_20(history)}
    if task in SOLVED:
        cells["solved_at_step"] = solved_at(history, SOLVED[task])
        cells["curve"] = ";".join(last_20([pair for pair in history if pair[0] <= step])
                                  for step in range(1000, total_steps + 1, 1000))
    return cells


def measure(script, seed, flags="", edits=(), recipe="", episodes=100, along=0):
    """A training run and its greedy evaluation, as columns of a CSV. The seconds are those of the training.

    With along, as many greedy episodes are also played at each printed line. The training stays the same, as greedy
    play draws no random numbers of torch's.
    """
    module = load(script, edits, recipe)
    with patch.object(sys, "argv", [script, *flags.split(), "--seed", str(seed)]):
        config = module.read_flags()
    points, out, start = [], io.StringIO(), time.perf_counter()

    def evaluate_instead(config, agent, *_):  # of saving
        points.append(f"{evaluate(module, agent, config.env_id, along, seed).mean():.1f}")

    if along:
        module.save = evaluate_instead
    with redirect_stdout(out):
        agent, history = module.train(config)
    if "stopped at step" in out.getvalue():
        raise KeyboardInterrupt  # after Ctrl-C, train() returns as if the run were whole
    return {"seconds": f"{time.perf_counter() - start:.1f}", "along": ";".join(points),
            "greedy": f"{evaluate(module, agent, config.env_id, episodes, seed).mean():.2f}",
            **training_cells(history, config.env_id, config.total_steps)}


def parser_of(doc, seeds):
    """A command line with the options that all measuring programs have."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs=2, type=int, default=seeds, metavar=("FROM", "TO"))
    parser.add_argument("--processes", type=int, default=1, help="how many runs at a time")
    parser.add_argument("--csv", type=Path, help="a file to write or to go on with, in place of that in tests/results")
    return parser


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def run_all(jobs, path, columns, processes=1):
    """Makes the runs that a CSV lacks, and appends each at once. Returns the rows of all these runs.

    jobs is {the run's first three columns: (function, its arguments by name)}. The function returns the others.
    """
    jobs = {tuple(map(str, key)): job for key, job in jobs.items()}
    if not path.exists():
        path.write_text(",".join(columns) + "\n")
    if path.read_text().splitlines()[0] != ",".join(columns):
        raise ValueError(f"{path} has other columns: move it away, or name another file by --csv")
    done = group(read_csv(path), *columns[:3])
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,))
    try:
        futures = {pool.submit(job[0], **job[1]): key for key, job in jobs.items() if key not in done}
        for number, future in enumerate(as_completed(futures), 1):
            row = dict(zip(columns, futures[future])) | future.result()
            with path.open("a", newline="") as file:
                csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n").writerow(row)
            shown = {name: x for name, x in row.items() if name not in ("curve", "along")}
            print(f"[{number}/{len(futures)}]", shown, file=sys.stderr, flush=True)
    finally:
        for process in multiprocessing.active_children():  # after Ctrl-C, no run that waits may begin
            process.terminate()
    return [row for key, rows in group(read_csv(path), *columns[:3]).items() if key in jobs for row in rows]


def group(rows, *names):
    """{values of these columns: the rows that have them}"""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def floats(rows, name):
    """A column as an array. A task that was never solved counts as infinity."""
    return np.array([float(row[name] or "inf") for row in rows])


def steps_cells(rows):
    """How many of the runs solved their task, the median of the steps that they needed, and the worst."""
    steps = floats(rows, "solved_at_step")
    counts = [f"{x:,.0f}".replace("inf", "never") for x in (np.median(steps), steps.max())]
    return [f"{np.isfinite(steps).sum()}/{len(steps)}", *counts]


def print_table(headings, lines, rows):
    """Prints a Markdown table, and with what its rows were measured."""
    for cells in (headings, ["---"] * len(headings), *lines):
        print(f"| {' | '.join(map(str, cells))} |")
    seeds = [int(row["seed"]) for row in rows]
    cpuinfo = Path("/proc/cpuinfo")  # only Linux has it
    names = re.findall(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "gymnasium", "numpy"))
    print(f"\nSeeds {min(seeds)} to {max(seeds)}; {names[0] if names else platform.machine()}, {os.cpu_count()} cores; "
          f"Python {platform.python_version()}, {packages}; {datetime.date.today()}.")
