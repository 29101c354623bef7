"""Do the tests notice bugs? `python tests/mutants.py` puts one after the other into the scripts and looks.

Each mutant is a copy of the scripts with one bug in it: a line or two of one script changed. It is killed if
a test fails, and has survived if all pass. Words after the command choose the mutants that have them in
their names: `python tests/mutants.py reinforce seed`. With --tests test_update.py only that file is run.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ablations import edited_text

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ["ppo_discrete", "ppo_continuous", "reinforce", "actor_critic"]
FILES = [f"test_{part}.py" for part in ("update", "estimates", "losses", "training", "checkpoints", "interface")]
# Learning takes long, and that two scripts have the same text says nothing about whether the text is right.
LEFT_OUT = ["solves", "notebook", "readme", "written_down", "tutorial", "the_same"]

MUTANTS = []  # (script, what is wrong, the file of the test that may notice first, [(old text, new text), ...])


def mutant(script, bug, finder, *edits):
    MUTANTS.append((script, bug, f"test_{finder}.py", edits))


def replace(script, finder, bug, old, new):
    mutant(script, bug, finder, (old, new))


# ---- ppo_discrete.py: the estimates ----
D = "ppo_discrete"
CALL = "advantage = compute_gae(reward, value, terminated, truncated, gamma, gae_lambda)"
replace(D, "update", "γ and λ swapped", CALL, CALL.replace("gamma, gae_lambda", "gae_lambda, gamma"))
replace(D, "update", "terminated and truncated swapped", CALL,
        CALL.replace("terminated, truncated", "truncated, terminated"))
replace(D, "estimates", "bootstrap from the same state", "gamma * value[1:]", "gamma * value[:-1]")
replace(D, "estimates", "bootstrap behind a terminal state", "value[1:] * ~terminated", "value[1:]")
replace(D, "estimates", "no bootstrap behind a truncated episode",
        "value[1:] * ~terminated", "value[1:] * ~(terminated | truncated)")
replace(D, "estimates", "GAE runs on over a truncation", "goes_on = ~(terminated | truncated)", "goes_on = ~terminated")
replace(D, "estimates", "GAE without λ", "gamma * gae_lambda * (", "gamma * (")
replace(D, "update", "reset steps are learned from", "buffer.valid[t] = ~done", "buffer.valid[t] = True")
replace(D, "update", "a rollout starts from an old observation", "buffer.obs[0] = obs", "pass")
replace(D, "update", "observations a row late", "rollout = obs_seq[:-1],", "rollout = obs_seq[1:],")
replace(D, "update", "the critic learns the advantage", "advantage + value[:-1]  #", "advantage  #")
replace(D, "update", "rewards not scaled", "config.reward_scale * reward", "reward")
replace(D, "update", "rewards always normalized", "    if config.normalize_reward:\n", "    if True:\n")
replace(D, "update", "rewards never normalized", "    if config.normalize_reward:\n", "    if False:\n")
replace(D, "update", "another γ in the spread of returns", "NormalizeReward(envs, config.gamma)",
        "NormalizeReward(envs)")

# ---- ppo_discrete.py: observation statistics ----
LEARN = "            agent.update_statistics(b_obs, config.obs_std)  # only now: so far all had one scale\n"
mutant(D, "statistics before the estimate of π_old", "update",
       ("                b_old_log_prob =", "                agent.update_statistics(b_obs, config.obs_std)\n                b_old_log_prob ="),
       (LEARN, ""))
mutant(D, "statistics before the update", "update",
       ("            # Update:", "            agent.update_statistics(b_obs, config.obs_std)\n            # Update:"), (LEARN, ""))
replace(D, "update", "statistics never learned", LEARN, "")
replace(D, "update", "statistics forget the last rollouts", "self.obs_sums += sums", "self.obs_sums.copy_(sums)")
replace(D, "update", "statistics count reset steps", "agent.update_statistics(b_obs,",
        "agent.update_statistics(obs_seq[:-1].flatten(0, 1),")
replace(D, "update", "divided by the variance", ".clamp(min=1e-8).sqrt()", ".clamp(min=1e-8)")
replace(D, "update", "divided by the root of the mean square", "(mean_square - mean**2)", "mean_square")
replace(D, "update", "observations scaled to another spread", ".sqrt() / obs_std", ".sqrt() / 2")
replace(D, "update", "observations not clipped", ".clamp(-10, 10)", "")
replace(D, "update", "first observations not as they are", "torch.ones(obs_dim)", "torch.full((obs_dim,), 2.0)")
replace(D, "training", "the policy plays on raw observations", "self.policy(self.normalize(obs)).softmax", "self.policy(obs).softmax")
replace(D, "training", "constant observations divide by 0", ".clamp(min=1e-8).sqrt()", ".sqrt()")

# ---- ppo_discrete.py: loss and update ----
replace(D, "losses", "max instead of min", "torch.min(\n", "torch.max(\n")
CLIPPED = "ratio.clamp(1 - config.clip_eps, 1 + config.clip_eps) * advantage"
replace(D, "losses", "the clip alone", f"torch.min(\n        ratio * advantage, {CLIPPED})", CLIPPED)
replace(D, "losses", "no clip from below", "ratio.clamp(1 - config.clip_eps, 1 +", "ratio.clamp(0, 1 +")
replace(D, "losses", "ratio upside down", "pi.log_prob(action) - old_log_prob", "old_log_prob - pi.log_prob(action)")
replace(D, "losses", "entropy made small", "surrogate.mean() - (", "surrogate.mean() + (")
replace(D, "losses", "entropy forgotten", "config.entropy_coef > 0 else 0", "False else 0")
replace(D, "losses", "critic's error not halved", "0.5 * nn.functional.mse", "nn.functional.mse")
replace(D, "losses", "KL the wrong way round", "(ratio - 1 - log_ratio)", "(ratio * log_ratio - ratio + 1)")
replace(D, "training", "β falls below 1", "clamp_(1, 1e4)", "clamp_(0, 1e4)")
replace(D, "losses", "KL rewarded", "- beta * (ratio", "+ beta * (ratio")
replace(D, "update", "advantage not normalized", "(b_advantage[mb] - mean) / (std + 1e-8)", "b_advantage[mb]")
replace(D, "update", "advantage normalized over the rollout",
        "torch.std_mean(b_advantage[mb], correction=0)", "torch.std_mean(b_advantage, correction=0)")
replace(D, "update", "standard deviation of a sample", "b_advantage[mb], correction=0)", "b_advantage[mb])")
mutant(D, "π_old anew in each epoch", "update",
       ("for _ in range(config.epochs):\n", "for _ in range(config.epochs):\n                "
        "b_old_log_prob = agent(b_obs)[0].log_prob(b_action).detach()\n"))
replace(D, "update", "one epoch too few", "range(config.epochs)", "range(config.epochs - 1)")
replace(D, "update", "minibatches of that size instead of that number",
        ".chunk(config.num_minibatches)", ".split(config.num_minibatches)")
replace(D, "update", "minibatches not shuffled", "torch.randperm(len(b_obs))", "torch.arange(len(b_obs))")
replace(D, "update", "learning rate rises", "left = 1 - env_step", "left = env_step")
replace(D, "update", "learning rate stays", "config.learning_rate * left", "config.learning_rate")
replace(D, "training", "target KL stays", "config.target_kl * left else", "config.target_kl else")
replace(D, "training", "target KL below stays", "config.target_kl * left / 1.5", "config.target_kl / 1.5")
replace(D, "update", "β stays", "mul_(2 if kl > 1.5 * config.target_kl * left else", "mul_(1 if True else")
replace(D, "update", "the KL upside down", "(log_ratio.exp() - 1 - log_ratio)", "(1 + log_ratio - log_ratio.exp())")
mutant(D, "β the wrong way", "update", ("mul_(2 if kl", "mul_(0.5 if kl"), ("0.5 if kl <", "2 if kl <"))

# ---- ppo_discrete.py: gradient step ----
replace(D, "update", "gradient not shortened", "min(1, max_grad_norm / (norm + 1e-6)) / PROCESSES",
        "1 / PROCESSES")
replace(D, "update", "short gradients made longer", "min(1, max_grad_norm / (norm + 1e-6))", "(max_grad_norm / (norm + 1e-6))")
replace(D, "update", "steps of Adam not counted", "[agent.adam_steps]", "[torch.zeros(())]")
replace(D, "update", "another ε of Adam", "eps=1e-5", "eps=1e-8")
replace(D, "update", "another beta of Adam", "beta2=0.999", "beta2=0.99")
replace(D, "interface", "NaN gradients go through", "if not np.isfinite(norm * learning_rate):", "if False:")
replace(D, "checkpoints", "each process follows its own gradient", "all_reduce(grad)", "pass")
replace(D, "checkpoints", "each process has its own statistics", "all_reduce(sums)", "pass")
replace(D, "training", "gradients summed over processes, not averaged", "1e-6)) / PROCESSES", "1e-6))")
replace(D, "training", "each process has its own β", "            all_reduce(kl)\n", "")

# ---- ppo_discrete.py: networks, seeds and counts ----
replace(D, "training", "policy not small at first", "config.activation, output_gain=0.01",
        "config.activation, output_gain=1.0")
replace(D, "training", "layers without the gain √2", "[2**0.5] *", "[1.0] *")
replace(D, "update", "activation ignored", 'nn.Tanh() if activation == "tanh" else nn.ReLU()', "nn.Tanh()")
replace(D, "training", "greedy and sampled swapped", "probs.argmax(-1) if greedy", "probs.argmax(-1) if not greedy")
replace(D, "training", "every run plays the same episodes", "envs.reset(seed=seed)", "envs.reset(seed=0)")
replace(D, "training", "the seed sets the weights only", "([config.seed, RANK, env_step])", "([0, RANK, env_step])")
replace(D, "training", "the seed does not set the weights", "torch.manual_seed(config.seed)", "pass")
replace(D, "checkpoints", "every process plays the same episodes", "([config.seed, RANK, env_step])",
        "([config.seed, 0, env_step])")
replace(D, "checkpoints", "a resumed run plays the same episodes", "([config.seed, RANK, env_step])",
        "([config.seed, RANK, 0])")
replace(D, "training", "evaluation plays the episodes of the training", "[seed, 2**32 - 1]", "[seed, 0, 0]")
replace(D, "training", "evaluation ignores its seed", "[seed, 2**32 - 1]", "[2**32 - 1]")
replace(D, "training", "evaluation counts second episodes", "returns += reward * playing", "returns += reward")
replace(D, "training", "evaluation plays on after a truncation", "playing &= ~(terminated | truncated)",
        "playing &= ~terminated")
replace(D, "update", "steps of one environment counted", "env_step + N * PROCESSES", "env_step + PROCESSES")
replace(D, "update", "scores of all, whoever is done", 'info["episode"]["r"][done]', 'info["episode"]["r"]')
replace(D, "interface", "NaN observations go through", "if not (np.abs(obs) < 1e38).all():", "if False:")

# ---- ppo_discrete.py: checkpoints and exit ----
replace(D, "checkpoints", "Adam's memory not saved", "(nn.Buffer(0 * agent.weights) for", "(0 * agent.weights for")
replace(D, "checkpoints", "Adam's count not saved", "nn.Buffer(torch.zeros((), device=config.device))",
        "torch.zeros((), device=config.device)")
replace(D, "checkpoints", "spread of rewards not loaded", 'agent.reward_stats.update(checkpoint["reward_stats"])',
        "pass")
replace(D, "checkpoints", "steps not loaded", 'int(checkpoint["env_step"])', "0")
replace(D, "checkpoints", "weights not loaded", 'agent.load_state_dict(checkpoint["agent"])', "pass")
mutant(D, "checkpoint written in place", "checkpoints",
       ('reward_stats=stats), config.save + ".unfinished")', "reward_stats=stats), config.save)"),
       ('os.replace(config.save + ".unfinished", config.save)', "pass"))
replace(D, "checkpoints", "saved only at the end", "min(next_report, config.total_steps)", "config.total_steps")
replace(D, "checkpoints", "not saved on Ctrl-C", "save(config, agent, env_step, history)\n        agent.status = 130",
        "agent.status = 130")
replace(D, "checkpoints", "Ctrl-C looks like a success", "agent.status = 130", "pass")
replace(D, "checkpoints", "a failed save looks like a success", "agent.status = 1\n", "pass\n")
replace(D, "checkpoints", "a failed save ends the run", "except (OSError, RuntimeError) as error:",
        "except KeyError as error:")
replace(D, "checkpoints", "another run overwritten", '"ab" if config.save == config.load else "xb"', '"ab"')
replace(D, "checkpoints", "SIGTERM ends the run at once", "signal.signal(signal.SIGTERM, signal.default_int_handler)",
        "pass")
replace(D, "checkpoints", "code in a checkpoint is run", 'torch.load(path, map_location="cpu", weights_only=True)',
        'torch.load(path, map_location="cpu", weights_only=False)')
mutant(D, "settings of the checkpoint win", "checkpoints",
       ("settings = old | {", "settings = given | {"), ('"device": "cpu"} | given', '"device": "cpu"} | old'))
replace(D, "interface", "a misspelt setting is ignored", "        if settings:\n", "        if False:\n")
replace(D, "interface", "limits of settings not checked", "if not (value in words", "if False and (value in words")

# ---- ppo_continuous.py ----
C = "ppo_continuous"
replace(C, "update", "mean instead of sum of log-probabilities", "log_ratio = pi.log_prob(action) - old_log_prob",
        "log_ratio = (pi.log_prob(action) - old_log_prob) / action.shape[-1]")
replace(C, "update", "actions clipped before they are stored", "= action, obs\n", "= action.clip(-1, 1), obs\n")
replace(C, "update", "actions leave the range", "(a.reshape(len(a), *space.shape) + 1) / 2, space.low, space.high))",
        "(a.reshape(len(a), *space.shape) + 1) / 2, -np.inf, np.inf))")
replace(C, "update", "actions fill half the range", "(a.reshape(len(a), *space.shape) + 1) / 2",
        "a.reshape(len(a), *space.shape) / 2")
replace(C, "update", "observations not clipped", ".clamp(-10, 10)", "")
replace(C, "update", "σ not learned", "self.log_std = nn.Parameter(", "self.log_std = nn.Buffer(")
replace(C, "update", "σ² for σ", "Normal(self.policy(obs), self.log_std.exp()", "Normal(self.policy(obs), (2 * self.log_std).exp()")
replace(C, "training", "--init-log-std ignored", ", config.init_log_std)", ", 0.0)")
replace(C, "update", "noise of another width", "self.log_std.exp() * torch.randn", "2 * self.log_std.exp() * torch.randn")
replace(C, "update", "γ and λ swapped", CALL, CALL.replace("gamma, gae_lambda", "gae_lambda, gamma"))
replace(C, "update", "terminated and truncated swapped", CALL,
        CALL.replace("terminated, truncated", "truncated, terminated"))
replace(C, "update", "reset steps are learned from", "buffer.valid[t] = ~done", "buffer.valid[t] = True")
replace(C, "update", "statistics forget the last rollouts", "self.obs_sums += sums", "self.obs_sums.copy_(sums)")
replace(C, "update", "advantage not normalized", "(b_advantage[mb] - mean) / (std + 1e-8)", "b_advantage[mb]")
replace(C, "update", "β stays", "mul_(2 if kl > 1.5 * config.target_kl * left else", "mul_(1 if True else")
replace(C, "update", "the entropy bonus is forgotten", "config.entropy_coef > 0 else 0", "False else 0")
replace(C, "training", "greedy and sampled swapped", "0 if greedy else", "0 if not greedy else")
replace(C, "checkpoints", "Adam's memory not saved", "(nn.Buffer(0 * agent.weights) for", "(0 * agent.weights for")
replace(C, "checkpoints", "a resumed run plays the same episodes", "([config.seed, RANK, env_step])",
        "([config.seed, RANK, 0])")

# ---- reinforce.py ----
R = "reinforce"
replace(R, "update", "no baseline", "(return_ - baseline)[valid]", "return_[valid]")
replace(R, "update", "the baseline is the mean over time", "return_.mean(1, keepdim=True)",
        "return_.mean(0, keepdim=True)")
replace(R, "update", "differences not divided by their spread", "difference / (", "difference + 0 * (")
replace(R, "update", "a single episode has no baseline", "else return_.mean()", "else 0")
replace(R, "estimates", "returns from the first step on", "for t in reversed(range(len(reward) - 1))",
        "for t in range(len(reward) - 1)")
replace(R, "training", "policy not small at first", "(self.policy[2], 0.01)", "(self.policy[2], 1.0)")
replace(R, "update", "returns without discount", "compute_returns(reward, config.gamma)", "compute_returns(reward, 1)")
replace(R, "update", "rewards after the end count", "np.float32(reward * playing)", "np.float32(reward)")
replace(R, "update", "steps after the end are learned from", "np.float32(reward * playing), playing))",
        "np.float32(reward * playing), np.ones_like(playing)))")
replace(R, "update", "second episodes in the scores", "ended = playing & (terminated | truncated)",
        "ended = terminated | truncated")
replace(R, "update", "truncated episodes do not end", "ended = playing & (terminated | truncated)",
        "ended = playing & terminated")
replace(R, "update", "the same episodes in each update", "obs, _ = envs.reset()", "obs, _ = envs.reset(seed=seed)")
replace(R, "update", "observations a row late", "rollout.append((np.float32(obs),", "rollout.append((np.float32(next_obs),")
replace(R, "update", "bad actions made likelier", "-(log_prob * weight).mean()", "(log_prob * weight).mean()")
replace(R, "update", "sum instead of mean over the steps", "-(log_prob * weight).mean()", "-(log_prob * weight).sum()")
replace(R, "update", "learning rate rises", "(1 - env_step / config.total_steps)", "(env_step / config.total_steps)")
replace(R, "update", "statistics forget the last episodes", "self.obs_sums += torch", "self.obs_sums[:] = torch")
mutant(R, "statistics before the update", "update",
       ("            pi = agent(b_obs)\n", "            agent.update_statistics(b_obs)\n            pi = agent(b_obs)\n"),
       (LEARN.replace(", config.obs_std", ""), ""))
replace(R, "update", "steps of one environment counted", "env_step + N", "env_step + 1")
replace(R, "update", "observations scaled to another spread", ".sqrt() / 2", ".sqrt()")
replace(R, "interface", "NaN observations go through", "if not (np.abs(obs) < 1e38).all():", "if False:")
replace(R, "checkpoints", "not saved on Ctrl-C", "save(config, agent, env_step, history)\n        agent.status = 130",
        "agent.status = 130")
replace(R, "checkpoints", "a resumed run plays the same episodes", "([config.seed, 0, env_step])",
        "([config.seed, 0, 0])")

# ---- actor_critic.py ----
A = "actor_critic"
replace(A, "estimates", "the target follows the critic", "target.detach() - value", "target - value")
replace(A, "estimates", "bootstrap behind a terminal state", "next_value * ~terminated", "next_value")
replace(A, "update", "the gradient flows through ψ", "[config.critic].detach()", "[config.critic]")
replace(A, "update", "Q of the last action played again", "[action, pi.sample()[-1:]]", "[action, action[-1:]]")
replace(A, "update", "Q of an action drawn elsewhere", "pi.sample()[-1:]", "pi.sample()[:1]")
replace(A, "update", "Q of the likeliest last action", "pi.sample()[-1:]", "pi.mode[-1:]")
replace(A, "update", "Q bootstraps from the same state", "td_error(reward, q[:-1], q[1:]",
        "td_error(reward, q[:-1], q[:-1]")
replace(A, "update", "V bootstraps from the same state", "td_error(reward, v[:-1], v[1:]",
        "td_error(reward, v[:-1], v[:-1]")
replace(A, "update", "truncated taken for terminated in V", "v[1:], terminated, config", "v[1:], truncated, config")
replace(A, "update", "truncated taken for terminated in Q", "q[1:], terminated, config", "q[1:], truncated, config")
replace(A, "update", "advantage upside down", "(q - v)[:-1]", "(v - q)[:-1]")
replace(A, "update", "ψ a row late", '"q": q[:-1]', '"q": q[1:]')
replace(A, "update", "the wrong critics learn", '(config.critic != "q") *', '(config.critic != "td") *')
replace(A, "update", "ψ standardized with a sample's deviation", "torch.std_mean(psi[valid], correction=0)",
        "torch.std_mean(psi[valid])")
replace(A, "update", "critic's error not halved", "0.5 * squared_error[valid]", "squared_error[valid]")
replace(A, "update", "entropy made small", "- config.entropy_coef * entropy", "+ config.entropy_coef * entropy")
replace(A, "update", "reset steps are learned from", "valid = ~done", "valid = np.ones_like(done)")
replace(A, "update", "rewards not scaled", "config.reward_scale * reward", "reward")
replace(A, "update", "the last observation is missing", "obs_seq.append(np.float32(obs))", "obs_seq.append(obs_seq[-1])")
replace(A, "update", "gradient not shortened", "descend(agent, loss.mean(), learning_rate, config.max_grad_norm)",
        "descend(agent, loss.mean(), learning_rate)")
replace(A, "update", "statistics count reset steps", "update_statistics(obs_seq[:-1][valid])",
        "update_statistics(obs_seq[:-1].flatten(0, 1))")
replace(A, "update", "learning rate stays", " * (1 - env_step / config.total_steps)", "")
mutant(A, "checkpoint written in place", "checkpoints",
       ('history=history), config.save + ".unfinished")', "history=history), config.save)"),
       ('os.replace(config.save + ".unfinished", config.save)', "pass"))
replace(A, "checkpoints", "Adam's count not saved", "nn.Buffer(torch.zeros((), device=config.device))",
        "torch.zeros((), device=config.device)")
replace(A, "training", "evaluation plays the episodes of the training", "[seed, 2**32 - 1]", "[seed, 0, 0]")


def mutated(script, edits):
    """The text of a script with a bug in it, which still has to be Python."""
    text = edited_text(script, edits)
    compile(text, f"{script}.py", "exec")
    return text


def run_tests(script, text, files, timeout):
    """Runs the tests of a script with another text, or of all scripts as they are; returns who noticed."""
    with tempfile.TemporaryDirectory(prefix="mutant") as folder:
        for path in [*ROOT.glob("*.py"), *ROOT.glob("*.md"), *ROOT.glob("*.txt"), ROOT / ".pytest.ini"]:
            shutil.copy(path, folder)
        shutil.copytree(ROOT / "tests", Path(folder, "tests"), ignore=shutil.ignore_patterns("__pycache__", "*.csv"))
        if text:
            Path(folder, f"{script}.py").write_text(text)
        others = [other for other in SCRIPTS if script and other != script]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=no"]
        command += ["-k", " and ".join(f"not {word}" for word in LEFT_OUT + others)]
        command += [f"tests/{file}" for file in files]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return "TIMEOUT"
        if done.returncode == 0:
            return "SURVIVED"
        noticed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", done.stdout, re.MULTILINE)
        if done.returncode != 1 or not noticed:
            raise RuntimeError(f"pytest did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return noticed[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutants that have all these words in their names")
    parser.add_argument("--tests", action="append", metavar="FILE", help="only this file of tests, or a few")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at a time")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for the tests of a mutant")
    args = parser.parse_args()
    args.tests = args.tests or FILES

    texts = {(script, bug): mutated(script, edits) for script, bug, _, edits in MUTANTS}
    if len(texts) != len(MUTANTS):
        raise ValueError("two mutants have the same name")
    chosen = [m for m in MUTANTS if all(word in f"{m[0]}: {m[1]}" for word in args.words)]
    unchanged = run_tests("", "", args.tests, 4 * args.timeout)
    if unchanged != "SURVIVED":
        sys.exit(f"The scripts as they are: {unchanged}. First they have to pass.")

    def test(mutant):
        script, bug, finder, _ = mutant
        start = time.perf_counter()
        files = sorted(args.tests, key=lambda file: file != finder)  # the others only if it finds nothing
        fate = run_tests(script, texts[script, bug], files, args.timeout)
        seconds = time.perf_counter() - start
        print(f"{f'{script}: {bug}':<68} {seconds:4.0f} s  {fate}", flush=True)
        return fate

    with ThreadPoolExecutor(args.jobs) as pool:
        fates = list(pool.map(test, chosen))
    left = [f"    {m[0]}: {m[1]} ({fate})" for m, fate in zip(chosen, fates) if fate in ("SURVIVED", "TIMEOUT")]
    print(f"{len(chosen) - len(left)} of {len(chosen)} mutants killed" + ("; not:" if left else ""), *left, sep="\n")
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
