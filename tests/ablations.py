"""What each detail of the scripts buys, and what each classic mistake costs, measured by editing their text.

`python tests/benchmark.py --ablate` measures them all, `--ablate detached` those with that word in their name. Each
run is a copy of a script in which one piece of text was replaced; all else is as it stands.
"""

import importlib.util
import tempfile
from pathlib import Path

from peer import count, middle

ROOT = Path(__file__).resolve().parent.parent
PPO = ("ppo_discrete", "ppo_continuous")
SEEDS = list(range(10))
FLAGS = {"ppo_continuous": "--total-steps 50000"}  # half a run tells enough, in half the time
EDITS = []  # (name, scripts, [(old text, new text), ...])


def edit(name, scripts, *pairs):
    EDITS.append((name, scripts, pairs))


edit("as it is", (*PPO, "actor_critic", "reinforce"))
# Details off
edit("no orthogonal initialisation", PPO, ("nn.init.orthogonal_(layer.weight, gain)", "pass"))
edit("gradient's norm not clipped", PPO,
     ("clip_grad_norm_(params, config.max_grad_norm)", "clip_grad_norm_(params, np.inf)"))
edit("Adam's ε 1e-8", PPO, ("eps=1e-5", "eps=1e-8"))
edit("constant learning rate", PPO, ("= rate * remaining", "= rate"))
edit("observations not scaled", PPO, ("((obs - self.shift) / self.divisor).clamp(-10, 10)", "obs"))
edit("rewards not scaled", PPO, ("config.reward_scale * reward", "reward"))
edit("advantages not normalised", PPO, ("(b_advantage[mb] - mean) / (std + 1e-8)", "b_advantage[mb]"))
edit("no clip", PPO, ("ratio.clamp(1 - config.clip_eps, 1 + config.clip_eps)", "ratio"))
edit("one environment", PPO, ('num_envs: int = setting(5, "N', 'num_envs: int = setting(1, "N'))
edit("minibatches not shuffled", PPO, ("torch.randperm(len(b_obs))", "torch.arange(len(b_obs))"))
edit("γ 0.98, as on Pendulum", ("ppo_discrete",), ("gamma: float = setting(0.995", "gamma: float = setting(0.98"))
edit("γ 0.995, as on CartPole", ("ppo_continuous",), ("gamma: float = setting(0.98", "gamma: float = setting(0.995"))
edit("values clipped, too", PPO,
     ("                    loss, parts = ppo_loss(",
      "                    config.old_value = value[:-1][valid][mb]\n                    loss, parts = ppo_loss("),
     ("value_loss = (value - return_).square().mean()",
      "value_loss = torch.max((value - return_) ** 2, (config.old_value - return_ + (value - config.old_value).clamp("
      "-config.clip_eps, config.clip_eps)) ** 2).mean()"))
# Classic mistakes
edit("target not detached", ("actor_critic",), ("target.detach() - value", "target - value"))
edit("no baseline", ("reinforce",), ("(return_ - baseline)[valid]", "return_[valid]"))
edit("truncation taken for termination", PPO,
     ("value[1:] * ~terminated", "value[1:] * ~(terminated | truncated)"))
edit("advantages leak over ends of episodes", PPO,
     ("continues = ~(terminated | truncated)", "continues = torch.ones_like(terminated)"))
edit("reset step learned from", PPO, ("buffer.valid[t] = ~done", "buffer.valid[t] = True"))
edit("targets estimated anew by each epoch", PPO,
     ("            for _ in range(config.epochs):\n", """            for _ in range(config.epochs):
                with torch.no_grad():
                    value = agent.value(rollout.obs)
                advantage = compute_gae(rollout.reward, value, rollout.terminated,
                                        rollout.truncated, config.gamma, config.gae_lambda)
                b_advantage, b_return = advantage[valid], (advantage + value[:-1])[valid]
"""))
edit("log-probability of the clipped action", ("ppo_continuous",),
     ("buffer.action[t] = action", "buffer.action[t] = action.clip(-1, 1)"))
edit("entropy with the wrong sign, coefficient 0.01", PPO,
     ("- config.entropy_coef * entropy", "+ config.entropy_coef * entropy"),
     ("entropy_coef: float = setting(0.0,", "entropy_coef: float = setting(0.01,"))
HISTORY = """                    history += [(env_step, float(score)) for score in info["episode"]["r"][done]]
"""
edit("all episodes from the same starts", ("ppo_discrete",),
     (HISTORY, HISTORY + "                    envs.unwrapped.np_random = np.random.default_rng(seed)\n"))
edit("all episodes from the same starts", ("ppo_continuous",),
     (HISTORY, HISTORY + """                    for i, env in enumerate(envs.unwrapped.envs):
                        env.unwrapped.np_random = np.random.default_rng(seed + i)
"""))


def edited_text(script, pairs):
    """The text of a script with its edits; each old text has to be there exactly once."""
    text = (ROOT / f"{script}.py").read_text(encoding="utf-8")
    for old, new in pairs:
        if text.count(old) != 1:
            raise ValueError(f"{script}.py has {text.count(old)} times, not once: {old!r}")
        text = text.replace(old, new)
    return text


def edited_module(script, pairs):
    """The script as a module, with its edits."""
    text = edited_text(script, pairs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{script}_edited.py")
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def ablation_table(rows):
    """For each edit and script: the solved runs, their median steps, and the mean of the greedy scores in the end."""
    scripts = list(dict.fromkeys(row["program"] for row in rows))
    lines = ["| edit | " + " | ".join(f"`{script}.py`: solved, median steps, score" for script in scripts) + " |",
             "|---" * (len(scripts) + 1) + "|"]
    for name in dict.fromkeys(row["flags"] for row in rows):
        cells = [name]
        for script in scripts:
            mine = [row for row in rows if (row["program"], row["flags"]) == (script, name)]
            steps = [int(row["solved_at_step"]) if row["solved_at_step"] else None for row in mine]
            score = sum(float(row["greedy"]) for row in mine) / max(len(mine), 1)
            solved = sum(step is not None for step in steps)
            cells.append(f"{solved}/{len(mine)}, {count(middle(steps))}, {score:.1f}" if mine else "")
        lines.append(f"| {' | '.join(cells)} |")
    return lines
