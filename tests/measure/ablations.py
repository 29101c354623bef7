"""What each detail of the scripts buys, and what each classic mistake costs, measured by editing their text.

`python tests/measure/benchmark.py --ablate` measures them all, `--ablate detached` those with that word in their name.
Each run is a copy of a script in which a piece or two of its text were replaced; all else is as it stands.
"""

import importlib.util
import re
import sys
import tempfile
from pathlib import Path

from peer import count, middle

ROOT = Path(__file__).resolve().parents[2]
PPO = ("ppo_discrete", "ppo_continuous")
SEEDS = list(range(10))
FLAGS = {"ppo_continuous": "--total-steps 50000"}  # half a run tells enough, in half the time
EDITS = []  # (name, scripts, [(old text, new text), ...])
WHOSE = {
    "the paper": ["no clip"],
    "the paper on GAE": ["advantages leak over ends of episodes"],
    "common practice": [
        "orthogonal initial weights", "torch's own initial weights", "no factor 0.01 at the policy's output",
        "gradient's norm not clipped", "Adam's ε 1e-5", "constant learning rate", "observations not scaled",
        "rewards not scaled", "advantages not normalised", "one environment", "minibatches not shuffled",
        "values clipped, too"],
    "this project": ["observations measured from 0", "reset step learned from"],
    "theory": [
        "target not detached", "no baseline", "truncation taken for termination", "targets estimated anew by each epoch",
        "log-probability of the clipped action", "entropy with the wrong sign, coefficient 0.01",
        "all episodes from the same starts"],
    "a setting": ["γ 0.98, as on Pendulum", "γ 0.995, as on CartPole"],
}


def edit(name, scripts, *pairs):
    EDITS.append((name, scripts, pairs))


edit("as it is", (*PPO, "actor_critic", "reinforce"))
# Details off
CRITIC = "        self.critic = mlp(obs_dim, config.hidden_size, 1)\n"
edit("orthogonal initial weights", ("ppo_discrete",),
     (CRITIC, CRITIC + """        for network in (self.policy, self.critic):
            for layer in network[::2]:  # the Linear ones
                nn.init.orthogonal_(layer.weight, 2**0.5)
                nn.init.zeros_(layer.bias)
"""))
edit("torch's own initial weights", ("ppo_continuous",),
     ("nn.init.orthogonal_(layer.weight, 2**0.5)", "pass"), ("nn.init.zeros_(layer.bias)", "pass"))
edit("no factor 0.01 at the policy's output", PPO, ("self.policy[-1].weight *= 0.01", "pass"))
edit("gradient's norm not clipped", PPO, ("agent.parameters(), config.max_grad_norm,", "agent.parameters(), np.inf,"))
edit("Adam's ε 1e-5", PPO, ("config.learning_rate, fused=True", "config.learning_rate, eps=1e-5, fused=True"))
edit("constant learning rate", PPO, ("config.learning_rate * remaining", "config.learning_rate"))
edit("observations not scaled", PPO, ("(2 * (obs - self.centre) / self.rms).clamp(-10, 10)", "obs"))
edit("observations measured from 0", PPO,
     ("torch.as_tensor(first_obs).float().mean(0)", "torch.zeros(first_obs.shape[1])"))
edit("rewards not scaled", PPO, ("NormalizeReward(envs, config.gamma)", "envs"))
edit("rewards not scaled", ("actor_critic",), ("buffer.reward / (20 * rms)", "buffer.reward"))
edit("advantages not normalised", PPO,
     ("advantage = advantage - advantage.mean()", "pass"),
     ("advantage = advantage / (advantage.std(correction=0) + 1e-8)", "pass"))
edit("no clip", PPO, ("ratio.clamp(1 - clip_eps, 1 + clip_eps)", "ratio"))
edit("one environment", PPO, ("num_envs: int = 5", "num_envs: int = 1"))
edit("minibatches not shuffled", PPO, ("torch.randperm(B)", "torch.arange(B)"))
edit("γ 0.98, as on Pendulum", ("ppo_discrete",), ("gamma: float = 0.995", "gamma: float = 0.98"))
edit("γ 0.995, as on CartPole", ("ppo_continuous",), ("gamma: float = 0.98", "gamma: float = 0.995"))
MINIBATCH = "            obs, action, old_log_prob, advantage, return_ = [x[mb] for x in batch]\n"
edit("values clipped, too", PPO,
     (MINIBATCH, f"{MINIBATCH}            ppo_loss.old_value = return_ - advantage\n"),
     ("(value - return_).square().mean()",
      "torch.max((value - return_) ** 2, (ppo_loss.old_value - return_ + (value - ppo_loss.old_value).clamp("
      "-clip_eps, clip_eps)) ** 2).mean()"))
# Classic mistakes
edit("target not detached", ("actor_critic",), ("target = target.detach()", "pass"))
edit("no baseline", ("reinforce",), ("return_ - baseline", "return_"))
edit("truncation taken for termination", PPO,
     ("value[1:] * ~terminated", "value[1:] * ~done[1:]"))
edit("advantages leak over ends of episodes", PPO,
     ("advantage[t + 1] * ~done[t + 1]", "advantage[t + 1]"))
edit("reset step learned from", PPO, ("valid = ~buffer.done[:-1]", "valid = torch.ones_like(buffer.terminated)"))
UPDATE, EPOCHS = "kl, entropy = update(", "    for _ in range(config.epochs):\n"
edit("targets estimated anew by each epoch", PPO,
     (UPDATE, f"update.buffer = buffer; {UPDATE}"),
     (EPOCHS, f"{EPOCHS}        batch = batch[:3] + make_batch(update.buffer, agent, config)[3:]\n"))
edit("log-probability of the clipped action", ("ppo_continuous",),
     ("agent.act(self.obs[t])", "agent.act(self.obs[t]).clip(-1, 1)"))
edit("entropy with the wrong sign, coefficient 0.01", PPO,
     ("- entropy_coef * entropy", "+ entropy_coef * entropy"),
     ("entropy_coef: float = 0.0 ", "entropy_coef: float = 0.01 "))
# Each environment's next episode begins as if it were its first; torch.initial_seed() is the run's seed.
ENDED = "                finished += [(ended_at, float(score)) for score in scores[ended]]\n"
edit("all episodes from the same starts", ("ppo_discrete",),
     (ENDED, f"{ENDED}                envs.unwrapped.np_random = np.random.default_rng(1000 * torch.initial_seed())\n"))
edit("all episodes from the same starts", ("ppo_continuous",),
     (ENDED, ENDED + """                for i, env in enumerate(envs.unwrapped.envs):
                    env.unwrapped.np_random = np.random.default_rng(1000 * torch.initial_seed() + i)
"""))


def replaced(text, pairs):
    """The text with its edits; each old text has to be there exactly once."""
    for old, new in pairs:
        if text.count(old) != 1:
            raise ValueError(f"there {text.count(old)} times, not once: {old!r}")
        text = text.replace(old, new)
    return text


def source(script):
    return (ROOT / f"{script}.py").read_text(encoding="utf-8")


def edited_text(script, pairs):
    """The text of a script with its edits."""
    return replaced(source(script), pairs)


def apply_diff(text, diff):
    """The text with a diff of README in it: its hunks, with a line @@ between them, are edits.

    An empty line belongs to the text around the change, as if a space stood before it.
    """
    pairs = []
    for hunk in diff.split("@@\n"):
        lines = [line if line.strip() else " \n" for line in hunk.splitlines(keepends=True)]
        pairs.append(["".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +")])
    return replaced(text, pairs)


def recipe(word):
    """The only diff of README that contains a word."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    diffs = [diff for diff in re.findall(r"^```diff\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if word in diff]
    if len(diffs) != 1:
        raise ValueError(f"README.md has {len(diffs)} diffs with {word!r}, not one")
    return diffs[0]


def module_of(text, name):
    """A text as a new module, from a file of its own, which goes when the module goes."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name, f"{name}_edited.py")
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    module.folder = folder
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def ablation_table(rows):
    """For each edit and script: the solved runs, their median steps, and the mean of the greedy scores in the end."""
    scripts = list(dict.fromkeys(row["program"] for row in rows))
    whose = {name: owner for owner, names in WHOSE.items() for name in names}
    lines = ["| edit | whose detail | " + " | ".join(f"`{script}.py`: solved, median steps, score" for script in scripts)
             + " |", "|---" * (len(scripts) + 2) + "|"]
    for name in dict.fromkeys(row["flags"] for row in rows):
        cells = [name, whose.get(name, "")]
        for script in scripts:
            mine = [row for row in rows if (row["program"], row["flags"]) == (script, name)]
            steps = [int(row["solved_at_step"]) if row["solved_at_step"] else None for row in mine]
            score = sum(float(row["greedy"]) for row in mine) / max(len(mine), 1)
            solved = sum(step is not None for step in steps)
            cells.append(f"{solved}/{len(mine)}, {count(middle(steps))}, {score:.1f}" if mine else "")
        lines.append(f"| {' | '.join(cells)} |")
    return lines
