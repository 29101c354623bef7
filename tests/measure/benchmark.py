"""Measures the four scripts on their own tasks over many seeds, README's recipes, and stable-baselines3.

    python tests/measure/benchmark.py --processes 2
    python tests/measure/benchmark.py --recipe NAME --flags "--critic q --gamma 0.99"
    python tests/measure/benchmark.py --sb3

What the CSV already has is not measured again.
"""

import time

import numpy as np
from runs import (
    RECIPES, RESULTS, RUN_COLUMNS, SCRIPTS, SOLVED, floats, group, measure, parser_of, print_table, run_all, steps_cells,
    training_cells)


def measure_sb3(task, seed, episodes):
    """What measure() returns, for stable-baselines3 with the RL Zoo's settings."""
    import sb3
    from stable_baselines3.common.evaluation import evaluate_policy

    history, start = [], time.perf_counter()

    def note_scores(variables, _):
        history.extend((variables["self"].num_timesteps, info["episode"]["r"])
                       for info in variables["infos"] if "episode" in info)
        return True

    model = sb3.train(task, seed, note_scores)
    seconds, fresh = time.perf_counter() - start, sb3.make_vec_env(task, 100, seed=10_000 + seed)
    return {"seconds": f"{seconds:.1f}", **training_cells(history, task, model.num_timesteps),
            "greedy": f"{evaluate_policy(model, fresh, episodes, deterministic=True)[0]:.2f}"}


if __name__ == "__main__":
    parser = parser_of(__doc__, [560, 579])
    parser.add_argument("--script", nargs="+", choices=SCRIPTS, help="default: all, or those that the recipe changes")
    parser.add_argument("--sb3", action="store_true", help="stable-baselines3 in place of ours")
    parser.add_argument("--recipe", default="", metavar="NAME", help="apply tests/recipes/NAME.diff")
    parser.add_argument("--flags", default="", help="settings, in one string as on the command line")
    parser.add_argument("--episodes", type=int, default=1000, help="greedy episodes after each run")
    options = parser.parse_args()
    diff = (RECIPES / f"{options.recipe}.diff").read_text(encoding="utf-8") if options.recipe else ""
    scripts = options.script or [name for name in SCRIPTS if not diff or f"/{name}.py" in diff]
    variant = f"{'recipe' if diff else ''} {options.recipe} {options.flags}".strip()
    jobs = {(script, variant, seed): (measure, dict(script=script, seed=seed, flags=options.flags,
                                                    recipe=options.recipe, episodes=options.episodes))
            for script in scripts for seed in range(options.seeds[0], options.seeds[1] + 1)}
    if options.sb3:
        jobs = {("stable-baselines3", task, seed): (measure_sb3, dict(task=task, seed=seed, episodes=options.episodes))
                for task in SOLVED for seed in range(options.seeds[0], options.seeds[1] + 1)}
    rows = run_all(jobs, options.csv or RESULTS / "benchmark.csv", [*RUN_COLUMNS, "curve"], options.processes)
    lines = []
    for (script, variant), mine in group(rows, "script", "variant").items():
        greedy, own_task = floats(mine, "greedy"), mine[0]["curve"]
        lines.append([f"{script} {variant}".strip(), *(steps_cells(mine) if own_task else ["", "", ""]),
                      f"{floats(mine, 'last').mean():,.1f}", f"{greedy.mean():,.1f} ± {greedy.std():,.1f}",
                      f"{greedy.min():,.1f}", f"{np.median(floats(mine, 'seconds')):,.1f}"])
    print_table(["program", "solved", "median steps", "worst", "last 20 scores", "greedy, mean of seeds", "worst seed",
                 "median seconds of training"], lines, rows)
