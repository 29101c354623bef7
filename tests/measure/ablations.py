"""What the details of the scripts buy, measured by editing their text: `python tests/measure/ablations.py`.

Each run is a copy of a script in which pieces of its text were replaced, or the script with other flags.
"""

import numpy as np
from runs import RESULTS, RUN_COLUMNS, SCRIPTS, floats, group, measure, parser_of, print_table, run_all, steps_cells

REINFORCE, ACTOR_CRITIC, DISCRETE, CONTINUOUS = SCRIPTS
PPO, ROLLOUT = SCRIPTS[2:], SCRIPTS[1:]
EDITS = [  # name, scripts, pairs (old text, new text), flags
    ("as it is", SCRIPTS, [], ""),
    ("no clip", PPO, [("ratio.clamp(1 - clip_eps, 1 + clip_eps)", "ratio")], ""),
    ("one optimizer step per rollout", PPO, [], "--epochs 1 --num-minibatches 1"),
    ("advantages not normalised", PPO, [("(advantage - advantage.mean()) / (advantage.std() + 1e-8)", "advantage")], ""),
    ("rewards not scaled", PPO, [("NormalizeReward(envs, config.gamma)", "envs")], ""),
    ("observations not scaled", PPO, [("return (2 * (obs - self.centre) / rms).clamp(-10, 10)", "return obs")], ""),
    ("observations' running mean and deviation", SCRIPTS,
     [("        self.square_sum = nn", "        self.sum = nn.Buffer(torch.zeros_like(self.centre))\n        self.square_sum = nn"),
      ("        self.count += len(obs)\n", "        self.count += len(obs)\n        self.sum += (obs - self.centre).sum(0)\n"),
      ("rms = (self.square_sum / self.count).sqrt()", "mean = self.sum / self.count\n"
       "        rms = (self.square_sum / self.count - mean.square()).clamp(min=1e-8).sqrt()"),
      ("2 * (obs - self.centre) / rms", "2 * (obs - self.centre - mean) / rms")], ""),
    ("constant learning rate", PPO, [("remaining = 1 - env_step / config.total_steps", "remaining = 1")], ""),
    ("truncation taken for termination", ROLLOUT,
     [("torch.as_tensor(terminated)", "torch.as_tensor(terminated | truncated)")], ""),
    ("log-probability of the clipped action", [CONTINUOUS],
     [("log_prob(buffer.action)", "log_prob(buffer.action.clip_(-1, 1))")], ""),
    ("no .detach() of the target", [ACTOR_CRITIC], [("target.detach() - value", "target - value")], ""),
    ("no .detach() of the TD error", [ACTOR_CRITIC], [("delta.detach() * log_prob", "delta * log_prob")], ""),
    ("critic's rate that of the policy", [ACTOR_CRITIC], [], "--critic-learning-rate 0.002"),
]

if __name__ == "__main__":
    parser = parser_of(__doc__, [0, 9])
    parser.add_argument("--script", nargs="+", choices=SCRIPTS, default=SCRIPTS, help="default: all")
    options = parser.parse_args()
    half = {CONTINUOUS: "--total-steps 50000"}  # half a run tells enough
    jobs = {(script, name, seed): (measure, dict(script=script, seed=seed, edits=pairs,
                                                 flags=f"{half.get(script, '')} {flags}"))
            for name, scripts, pairs, flags in EDITS for script in scripts if script in options.script
            for seed in range(options.seeds[0], options.seeds[1] + 1)}
    rows = run_all(jobs, options.csv or RESULTS / "ablations.csv", RUN_COLUMNS, options.processes)
    lines, runs = [], group(rows, "variant", "script")
    for name, *_ in EDITS:
        mine = [runs.get((name, script), []) for script in options.script]
        lines.append([name, *(", ".join([*steps_cells(some), f"{floats(some, 'greedy').mean():,.1f}"]) if some else ""
                              for some in mine)])
    print_table(["edit", *(f"`{script}.py`: solved, median steps, worst, greedy score" for script in options.script)],
                lines, rows)
    for script in options.script:
        steps = floats(runs["as it is", script], "solved_at_step")
        medians = np.median(np.random.default_rng(0).choice(steps, (2, 10_000, len(steps))), axis=2)
        print(f"{script}.py: by chance alone, the median steps of {len(steps)} runs differ by up to "
              f"{np.percentile(np.abs(medians[0] / medians[1] - 1), 95):.0%} in 95 % of cases.")
