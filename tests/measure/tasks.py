"""The PPO scripts by name alone on tasks they were not written for, beside stable-baselines3.

    python tests/measure/tasks.py --processes 2
    python tests/measure/tasks.py --million --processes 2
    python tests/measure/tasks.py --choices --seeds 40 43 --processes 2

Ours have the settings that --env-id alone gives. stable-baselines3's PPO has as many steps, and seeds that are lower
by 5. sb3.py tells its settings.
--million measures ours alone, but also along the way, on tasks for which others publish the scores of a million steps.
--choices compares settings of ppo_continuous.py on its tasks by their shares of the scores to reach, or those of
ppo_discrete.py on one task, which --tasks names.
"""

import numpy as np
from runs import RESULTS, floats, group, load, measure, parser_of, print_table, read_csv, run_all

TASKS = {"LunarLander-v3": "ppo_discrete", "Acrobot-v1": "ppo_discrete", "MountainCar-v0": "ppo_discrete",
         "FrozenLake-v1": "ppo_discrete", "Taxi-v4": "ppo_discrete", "BipedalWalker-v3": "ppo_continuous",
         "InvertedDoublePendulum-v5": "ppo_continuous"}
MILLION = ["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"]
TO_REACH = {"Hopper-v5": 3353, "InvertedDoublePendulum-v5": 8727, "BipedalWalker-v3": 269, "Walker2d-v5": 4273,
            "HalfCheetah-v5": 5819, "Ant-v5": 3258, "Humanoid-v5": 2130}  # the best published, or stable-baselines3's
FLOOR = [("action_dim**-0.5)", "max(action_dim**-0.5, 0.37))")]
CHOICES = {  # name: flags, and edits of the script's text
    "as it is": ("", []),
    "entropy_coef 0.003": ("--entropy-coef 0.003", []),
    "entropy_coef 0.003, first σ at least 0.37": ("--entropy-coef 0.003", FLOOR),
    "learning_rate 3e-4, entropy_coef 0.003, first σ at least 0.37":
        ("--learning-rate 3e-4 --entropy-coef 0.003", FLOOR),
    "entropy_coef 0": ("--entropy-coef 0", []),
    "learning_rate 3e-4": ("--learning-rate 3e-4", []),
    "learning_rate 3e-4, 5 epochs": ("--learning-rate 3e-4 --epochs 5", []),
    "max_grad_norm 0.5": ("--max-grad-norm 0.5", []),
    "first σ at least 0.37": ("", FLOOR),
    "rollouts of 2,048 steps, 10 epochs": ("--num-steps 128 --num-minibatches 16 --epochs 10", []),
}


def choose(options):
    """Makes runs of CHOICES, and compares all that the file has of these seeds. Their number is in parentheses.

    A share is a greedy score divided by that TO_REACH. The gain is the share less that of the first setting with the
    same seed, as a mean over the seeds and then over the tasks. Its standard error is over the tasks. On a task that
    is not TO_REACH, the share is the score, and the standard error is over the seeds.
    """
    seeds, path = range(options.seeds[0], options.seeds[1] + 1), options.csv or RESULTS / "choices.csv"
    tasks = options.tasks or list(TO_REACH)
    jobs = {(name, task, seed): (measure, dict(script=TASKS.get(task, "ppo_continuous"), seed=seed, episodes=50,
                                               edits=CHOICES[name][1], flags=f"--env-id {task} {CHOICES[name][0]}"))
            for seed in seeds for task in tasks for name in options.settings or CHOICES}
    run_all(jobs, path, ["setting", "task", "seed", "greedy", "last", "seconds"], options.processes)
    divisor = TO_REACH if tasks[0] in TO_REACH else {tasks[0]: 1}
    rows = [row for row in read_csv(path) if int(row["seed"]) in seeds and row["task"] in divisor]
    share = {(row["setting"], row["task"], row["seed"]): float(row["greedy"]) / divisor[row["task"]] for row in rows}
    base, lines = next(iter(CHOICES)), []
    for (name,), mine in group(rows, "setting").items():
        by_task = {task: some for (task,), some in group(mine, "task").items()}
        means = {task: floats(some, "greedy").mean() for task, some in by_task.items()}
        gains = [[share[name, task, row["seed"]] - share[base, task, row["seed"]] for row in some
                  if (base, task, row["seed"]) in share] for task, some in by_task.items()]
        gains = gains[0] if len(divisor) == 1 else [np.mean(some) for some in gains if some]
        digits = 0 if divisor is TO_REACH else 1
        cells = [f"{means[task]:,.{digits}f} ({len(by_task[task])})" if task in means else "" for task in divisor]
        error = f" ± {np.std(gains, ddof=1) / len(gains) ** 0.5:.2f}" if len(gains) > 1 else ""
        lines.append([name, *cells, f"{np.mean(gains):.2f}{error}"])
    print_table(["setting", *divisor, "gain ± standard error"], lines, rows)


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
                jobs["stable-baselines3", task, seed - 5] = sb3.measure, dict(
                    task=task, seed=seed - 5, episodes=100, eval_envs=8, steps=steps)
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
    parser = parser_of(__doc__, [725, 729])
    parser.add_argument("--million", action="store_true", help="a million steps of ours on MuJoCo's tasks")
    parser.add_argument("--choices", action="store_true", help="settings of ppo_continuous.py for other tasks")
    parser.add_argument("--tasks", nargs="+", help="default: all")
    parser.add_argument("--settings", nargs="+", choices=CHOICES, help="of --choices, all by default")
    parser.add_argument("--steps", type=int, help="default: total_steps of OTHER_TASKS, or a million")
    parser.add_argument("--flags", default="", help="settings of ours, in one string. Name another --csv, too")
    options = parser.parse_args()
    choose(options) if options.choices else compare(options)
