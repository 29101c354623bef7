"""Measures the four scripts on their own tasks over many seeds, README's recipes, and stable-baselines3.

    python tests/measure/benchmark.py --processes 2
    python tests/measure/benchmark.py --recipe NAME --flags "--critic q"
    python tests/measure/benchmark.py --sb3

Greedy scores are of 1,000 episodes, or of 200 for reinforce.py. What the CSV already has is not measured again.
"""

from runs import (
    RECIPES, RESULTS, RUN_COLUMNS, SCRIPTS, SOLVED, floats, group, measure, parser_of, print_table, run_all,
    steps_cells)

if __name__ == "__main__":
    parser = parser_of(__doc__, [600, 619])
    parser.add_argument("--script", nargs="+", choices=SCRIPTS, help="default: all, or those that the recipe changes")
    parser.add_argument("--sb3", action="store_true", help="stable-baselines3 in place of ours")
    parser.add_argument("--recipe", default="", metavar="NAME", help="apply tests/recipes/NAME.diff")
    parser.add_argument("--flags", default="", help="settings, in one string as on the command line")
    options = parser.parse_args()
    seeds = range(options.seeds[0], options.seeds[1] + 1)
    if options.sb3:
        import sb3
        jobs = {("stable-baselines3", task, seed): (sb3.measure, dict(task=task, seed=seed, episodes=1000,
                                                                      eval_envs=100))
                for task in SOLVED for seed in seeds}
    else:
        diff = (RECIPES / f"{options.recipe}.diff").read_text(encoding="utf-8") if options.recipe else ""
        scripts = options.script or [name for name in SCRIPTS if not diff or f"/{name}.py" in diff]
        variant = f"{'recipe' if diff else ''} {options.recipe} {options.flags}".strip()
        jobs = {(script, variant, seed): (measure, dict(
                    script=script, seed=seed, flags=options.flags, recipe=options.recipe,
                    episodes=200 if script == "reinforce" else 1000))  # it plays one environment, which takes long
                for script in scripts for seed in seeds}
    rows = run_all(jobs, options.csv or RESULTS / "benchmark.csv", [*RUN_COLUMNS, "curve"], options.processes)
    lines = []
    for (script, variant), mine in group(rows, "script", "variant").items():
        greedy, own_task = floats(mine, "greedy"), mine[0]["curve"]
        lines.append([f"{script} {variant}".strip(), *(steps_cells(mine) if own_task else ["", "", ""]),
                      f"{floats(mine, 'last').mean():,.1f}", f"{greedy.mean():,.1f}, {greedy.min():,.1f}"])
    print_table(["run", "solved", "median steps", "worst", "last 20 training scores",
                 "greedy: mean of seeds, worst seed"], lines, rows)
