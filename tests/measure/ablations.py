"""What the details of the PPO scripts buy, measured by editing their text: `python tests/measure/ablations.py`.

Each run is a copy of a script in which a piece of its text was replaced, or the script with other flags.
"""

import numpy as np
from runs import RESULTS, RUN_COLUMNS, floats, group, measure, parser_of, print_table, run_all, steps_cells

DISCRETE, CONTINUOUS = PPO = ("ppo_discrete", "ppo_continuous")
EDITS = [  # name, scripts, (old text, new text) or None, flags
    ("as it is", PPO, None, ""),
    ("no clip", PPO, ("ratio.clamp(1 - clip_eps, 1 + clip_eps)", "ratio"), ""),
    ("one optimizer step per rollout", [DISCRETE], None, "--epochs 1 --num-minibatches 1"),
    ("advantages not normalised", PPO, ("(advantage - advantage.mean()) / (advantage.std() + 1e-8)", "advantage"), ""),
    ("rewards not scaled", PPO, ("NormalizeReward(envs, config.gamma)", "envs"), ""),
    ("observations not scaled", PPO, ("return (2 * (obs - self.centre) / rms).clamp(-10, 10)", "return obs"), ""),
    ("constant learning rate", PPO, ("config.learning_rate * remaining", "config.learning_rate"), ""),
    ("gradient's norm not clipped", PPO, None, "--max-grad-norm inf"),
    ("truncation taken for termination", PPO,
     ("torch.as_tensor(terminated)", "torch.as_tensor(terminated | truncated)"), ""),
    ("log-probability of the clipped action", [CONTINUOUS],
     ("pi.log_prob(self.action[t])", "pi.log_prob(self.action[t].clip_(-1, 1))"), ""),
    ("no factor 0.01 at the policy's output", PPO, ("self.policy[-1].weight *= 0.01", "pass"), ""),
    ("λ = 0", [DISCRETE], None, "--gae-lambda 0"),
    ("λ = 1", [DISCRETE], None, "--gae-lambda 1"),
]

if __name__ == "__main__":
    options = parser_of(__doc__, [0, 9]).parse_args()
    half = {CONTINUOUS: "--total-steps 50000"}  # half a run tells enough
    jobs = {(script, name, seed): (measure, dict(script=script, seed=seed, edits=[pair] if pair else [],
                                                 flags=f"{half.get(script, '')} {flags}"))
            for name, scripts, pair, flags in EDITS for script in scripts
            for seed in range(options.seeds[0], options.seeds[1] + 1)}
    rows = run_all(jobs, options.csv or RESULTS / "ablations.csv", RUN_COLUMNS, options.processes)
    lines, runs = [], group(rows, "variant", "script")
    for name, *_ in EDITS:
        mine = [runs.get((name, script), []) for script in PPO]
        lines.append([name, *(", ".join([*steps_cells(some), f"{floats(some, 'greedy').mean():,.1f}"]) if some else ""
                              for some in mine)])
    print_table(["edit", *(f"`{script}.py`: solved, median steps, worst, greedy score" for script in PPO)], lines, rows)
    for script in PPO:
        steps = floats(runs["as it is", script], "solved_at_step")
        medians = np.median(np.random.default_rng(0).choice(steps, (2, 10_000, len(steps))), axis=2)
        print(f"{script}.py: by chance alone, the median steps of {len(steps)} runs differ by up to "
              f"{np.percentile(np.abs(medians[0] / medians[1] - 1), 95):.0%} in 95 % of cases.")
