"""The time from Enter to solved: the scripts, and those of PPO in turn with other programs, on the same seeds.

    python tests/measure/peers.py                      beside stable-baselines3 with the RL Zoo's settings
    python tests/measure/peers.py --against FOLDER     beside the scripts in another folder
    python tests/measure/peers.py --cleanrl --minimalrl --peer-files FOLDER --peer-python PYTHON

Each run is a process of its own with one thread, and ends as soon as meter.py sees its task solved. A time also
depends on what else the machine does, so only runs that were made in turn compare: one at a time, and into a new CSV.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from runs import RESULTS, ROOT, SOLVED, floats, group, parser_of, print_table, run_all, steps_cells

HERE = Path(__file__).resolve().parent
TASKS = {"ppo_discrete": "CartPole-v1", "ppo_continuous": "Pendulum-v1", "reinforce": "CartPole-v1",
         "actor_critic": "CartPole-v1"}
OURS = {"CartPole-v1": "ppo_discrete", "Pendulum-v1": "ppo_continuous"}  # that others are compared with
CLEANRL = {"ppo_discrete": "cleanrl_ppo.py", "ppo_continuous": "cleanrl_ppo_continuous_action.py"}


def run(threshold, command, python=sys.executable, limit=500_000):
    """The steps and seconds until a program has solved its task."""
    command = [python, HERE / "meter.py", threshold, limit, *command]
    with tempfile.TemporaryDirectory() as scratch:  # CleanRL leaves its logs where it runs
        start = time.perf_counter()
        answer = subprocess.run(list(map(str, command)), check=True, cwd=scratch, stdout=subprocess.PIPE, text=True,
                                env=os.environ | {"OMP_NUM_THREADS": "1"}).stdout.split()[-1]
        seconds = time.perf_counter() - start
    return {"solved_at_step": answer.replace("None", ""), "seconds": f"{seconds:.2f}"}


def programs(script, seed, options):
    """(name, arguments of run()) of each program, in turn. minimalRL takes no seed, and plays CartPole alone."""
    flags, task, files = ["--seed", seed, "--eval-episodes", 0], TASKS[script], options.peer_files.resolve()
    yield script, dict(command=[ROOT / f"{script}.py", *flags])
    if script not in OURS.values():
        return
    if options.against:
        yield str(options.against), dict(command=[options.against.resolve() / f"{script}.py", *flags])
    else:
        yield "stable-baselines3", dict(command=[HERE / "sb3.py", task, seed])
    if options.cleanrl:
        command = [files / CLEANRL[script], "--env-id", task, "--seed", seed]
        yield "CleanRL", dict(command=command, python=options.peer_python)
    if options.minimalrl and script == "ppo_discrete":
        yield "minimalRL", dict(command=[files / "minimalrl_ppo.py"])


if __name__ == "__main__":
    parser = parser_of(__doc__, [620, 629])
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="scripts to run in place of stable-baselines3")
    parser.add_argument("--cleanrl", action="store_true")
    parser.add_argument("--minimalrl", action="store_true")
    parser.add_argument("--peer-files", type=Path, default=".", help="the folder of CleanRL's and minimalRL's files")
    parser.add_argument("--peer-python", default=sys.executable, help="a python with what CleanRL requires")
    options = parser.parse_args()
    jobs = {(name, TASKS[script], seed): (run, dict(threshold=SOLVED[TASKS[script]], **arguments))
            for script in TASKS for seed in range(options.seeds[0], options.seeds[1] + 1)
            for name, arguments in programs(script, seed, options)}
    path = options.csv or RESULTS / f"{'against' if options.against else 'peers'}.csv"
    rows = run_all(jobs, path, ["program", "task", "seed", "solved_at_step", "seconds"])
    seconds = {(row["program"], row["task"], row["seed"]): float(row["seconds"]) for row in rows}
    lines = []
    for (task, program), mine in group(rows, "task", "program").items():
        shares = [seconds.get((OURS[task], task, row["seed"]), np.nan) / float(row["seconds"]) for row in mine]
        lines.append([task, program, *steps_cells(mine), f"{np.median(floats(mine, 'seconds')):.1f}",
                      f"{np.median(shares):.2f}"])
    print_table(["task", "program", "solved", "median steps", "worst", "median seconds", "our share"], lines, rows)
