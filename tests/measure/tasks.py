"""The PPO scripts by name alone on tasks they were not written for, beside stable-baselines3.

    python tests/measure/tasks.py --processes 2
    python tests/measure/tasks.py --million --processes 2

Ours have the settings that --env-id alone gives. stable-baselines3's PPO has as many steps, and seeds that are lower
by 10. sb3.py tells its settings.
--million measures ours alone, but also along the way, on tasks for which others publish the scores of a million steps.
"""

import numpy as np
from runs import RESULTS, floats, group, load, measure, parser_of, print_table, run_all

TASKS = {"LunarLander-v3": "ppo_discrete", "Acrobot-v1": "ppo_discrete", "MountainCar-v0": "ppo_discrete",
         "FrozenLake-v1": "ppo_discrete", "Taxi-v4": "ppo_discrete", "BipedalWalker-v3": "ppo_continuous",
         "InvertedDoublePendulum-v5": "ppo_continuous"}
MILLION = ["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"]


def compare(options):
    """Runs the tasks, beside stable-baselines3 or along the way of a million steps."""
    million, jobs = options.million, {}
    for seed in range(options.seeds[0], options.seeds[1] + 1):
        for task in options.tasks or (MILLION if million else TASKS):
            script = TASKS.get(task, "ppo_continuous")
            steps = options.steps or (1_000_000 if million else load(script).OTHER_TASKS["total_steps"])
            jobs["ours", task, seed] = measure, dict(
                script=script, seed=seed, flags=f"--env-id {task} --total-steps {steps} {options.flags}",
                episodes=50 if million else 100, along=10 if million else 0)
            if not million:
                import sb3
                jobs["stable-baselines3", task, seed - 10] = sb3.measure, dict(
                    task=task, seed=seed - 10, episodes=100, eval_envs=8, steps=steps)
    path = options.csv or RESULTS / ("million.csv" if million else "tasks.csv")
    rows = run_all(jobs, path, ["program", "task", "seed", "greedy", "last", "seconds", "along"], options.processes)
    lines, digits = [], 0 if million else 2
    for (task,), mine in group(rows, "task").items():
        cells = [task]
        for _, some in sorted(group(mine, "program").items()):  # ours first
            greedy = floats(some, "greedy")
            error = greedy.std(ddof=1) / len(greedy) ** 0.5
            cells += [f"{greedy.mean():,.{digits}f} ± {error:,.{digits}f}", f"{greedy.min():,.{digits}f}"]
        if million:
            curve = np.sort(np.mean([[float(x) for x in row["along"].split(";")] for row in mine], axis=0))
            cells += [f"{x:,.0f}" for x in (floats(mine, "last").mean(), curve[-1], curve[-5:].mean())]
        lines.append(cells)
    others = ["stable-baselines3", "worst"]
    if million:
        others = ["last 20 training scores", "best point of the mean curve", "mean of its five best"]
    print_table(["task", "ours", "worst", *others], lines, rows)


if __name__ == "__main__":
    parser = parser_of(__doc__, [730, 734])
    parser.add_argument("--million", action="store_true", help="a million steps of ours on MuJoCo's tasks")
    parser.add_argument("--tasks", nargs="+", help="default: all")
    parser.add_argument("--steps", type=int, help="default: total_steps of OTHER_TASKS, or a million")
    parser.add_argument("--flags", default="", help="settings of ours, in one string. Name another --csv, too")
    compare(parser.parse_args())
