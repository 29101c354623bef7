"""What each detail of the scripts buys, and what each classic mistake costs, measured by editing their text.

`python tests/measure/ablations.py --processes 2` measures them all, `--only detached` those with this word in their
name. Each run is a copy of a script in which a few pieces of its text, or its flags, were replaced.
"""

from runs import RESULTS, RUN_COLUMNS, SCRIPTS, floats, group, measure, parser_of, print_table, run_all, steps_cells

PPO = ("ppo_discrete", "ppo_continuous")
ROLLOUTS = ("actor_critic", *PPO)
FACTOR = "self.policy[-1].weight *= 0.01"
EDITS = []  # (name, scripts, [(old text, new text), ...], flags)


def edit(name, scripts, *pairs, flags=""):
    EDITS.append((name, scripts, pairs, flags))


edit("as it is", SCRIPTS)
# Details left out
edit("orthogonal initial weights", PPO,
     (FACTOR, f"""for layer in [*self.policy[::2], *self.critic[::2]]:  # the Linear ones
                nn.init.orthogonal_(layer.weight, 2**0.5)
                nn.init.zeros_(layer.bias)
            {FACTOR}"""))
edit("no factor 0.01 at the policy's output", SCRIPTS, (FACTOR, "pass"))
edit("gradient's norm not clipped", SCRIPTS, flags="--max-grad-norm inf")
edit("constant learning rate", SCRIPTS, ("config.learning_rate * remaining", "config.learning_rate"))
edit("observations not scaled", SCRIPTS, ("return (2 * (obs - self.centre) / rms).clamp(-10, 10)", "return obs"))
edit("rewards not scaled", ROLLOUTS, ("NormalizeReward(envs, config.gamma)", "envs"))
edit("advantages not normalised", PPO, ("(advantage - advantage.mean()) / (advantage.std() + 1e-8)", "advantage"))
edit("advantages not normalised", ("actor_critic",), ("(psi - psi.mean()) / (psi.std() + 1e-8)", "psi"))
edit("no clip", PPO, ("ratio.clamp(1 - clip_eps, 1 + clip_eps)", "ratio"))
edit("one environment", PPO, flags="--num-envs 1")
edit("minibatches not shuffled", PPO, ("torch.randperm(len(batch[0]))", "torch.arange(len(batch[0]))"))
edit("values clipped, too", PPO,
     ("for x in batch]\n", "for x in batch]\n            ppo_loss.old_value = return_ - advantage\n"),
     ("critic_loss = (value - return_).square().mean()", """old_value = ppo_loss.old_value
    clipped_value = old_value + (value - old_value).clamp(-clip_eps, clip_eps)
    critic_loss = torch.max((value - return_).square(), (clipped_value - return_).square()).mean()"""))
edit("λ = 0", ("ppo_discrete",), flags="--gae-lambda 0")
edit("λ = 1", ("ppo_discrete",), flags="--gae-lambda 1")
edit("γ = 0.98", ("ppo_discrete",), flags="--gamma 0.98")
edit("one optimizer step per rollout", ("ppo_discrete",), flags="--epochs 1 --num-minibatches 1")
# Classic mistakes
edit("target not detached", ("actor_critic",), ("target.detach() - value", "target - value"))
edit("no baseline", ("reinforce",), ("return_ - baseline[:len(return_)]", "return_"))
edit("truncation taken for termination", ROLLOUTS,
     ("torch.as_tensor(terminated)", "torch.as_tensor(terminated | truncated)"))
edit("advantages leak over the ends of episodes", ("ppo_discrete",),  # Pendulum's end where its rollouts do
     ("advantage[t + 1] * ~done[t]", "advantage[t + 1]"))
edit("targets estimated anew by each epoch", PPO,
     ("batch = make_batch(", "update.buffer = buffer; batch = make_batch("),
     ("config.epochs):\n", "config.epochs):\n        batch[3:] = make_batch(update.buffer, agent, config)[3:]\n"))
edit("log-probability of the clipped action", ("ppo_continuous",), ("agent.act(obs)\n", "agent.act(obs).clip(-1, 1)\n"))
edit("entropy with the wrong sign, coefficient 0.01", PPO, ("- entropy_coef * entropy", "+ entropy_coef * entropy"),
     flags="--entropy-coef 0.01")


if __name__ == "__main__":
    parser = parser_of(__doc__, [0, 9])
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--script", nargs="+", choices=SCRIPTS, default=SCRIPTS)
    options = parser.parse_args()
    half = {"ppo_continuous": "--total-steps 50000"}  # half a run tells enough
    jobs = {(script, name, seed): (measure, dict(script=script, seed=seed, edits=pairs,
                                                 flags=f"{half.get(script, '')} {flags}"))
            for name, scripts, pairs, flags in EDITS if options.only in name
            for script in scripts if script in options.script
            for seed in range(options.seeds[0], options.seeds[1] + 1)}
    rows = run_all(jobs, options.csv or RESULTS / "ablations.csv", RUN_COLUMNS, options.processes)
    lines, runs = [], group(rows, "variant", "script")
    for name in dict.fromkeys(name for name, *_ in EDITS if options.only in name):
        mine = [runs.get((name, script), []) for script in SCRIPTS]
        lines.append([name, *(", ".join([*steps_cells(some), f"{floats(some, 'greedy').mean():,.1f}"]) if some else ""
                              for some in mine)])
    headings = [f"`{script}.py`" for script in SCRIPTS]
    print_table(["edit: solved, median steps, worst, greedy score", *headings], lines, rows)
