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

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ["ppo_discrete", "ppo_continuous", "reinforce", "actor_critic"]
FILES = [f"test_{part}.py" for part in ("update", "estimates", "losses", "training", "checkpoints", "interface")]
# Learning takes long, and that two scripts have the same text says nothing about whether the text is right.
LEFT_OUT = ["solves", "notebook", "readme", "the_same"]

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
replace(D, "estimates", "GAE runs on over a truncation", "~(terminated | truncated)\n    adv", "~terminated\n    adv")
replace(D, "estimates", "GAE without λ", "gamma * gae_lambda * (", "gamma * (")
replace(D, "update", "reset steps are learned from", "buffer.valid[t] = ~done", "buffer.valid[t] = True")
replace(D, "update", "a rollout starts from an old observation", "buffer.obs[0] = obs", "pass")
replace(D, "update", "observations a row late", "rollout = obs_seq[:-1],", "rollout = obs_seq[1:],")
replace(D, "update", "the critic learns the advantage", "advantage + value[:-1]  #", "advantage  #")
replace(D, "update", "rewards not scaled", "config.reward_scale * reward", "reward")
replace(D, "update", "rewards always normalized", "mean = config.normalize_reward", "mean = True")
replace(D, "update", "rewards never normalized", "mean = config.normalize_reward", "mean = False")
replace(D, "update", "another γ in the spread of returns", "NormalizeReward(envs, config.gamma)",
        "NormalizeReward(envs)")

# ---- ppo_discrete.py: observation statistics ----
SUMS = "torch.stack([b_obs.double() ** k for k in (0, 1, 2)]).sum(1)"
mutant(D, "statistics before the estimate of π_old", "update",
       ("old_pi, _ = agent(b_obs)", f"agent.obs_sums += {SUMS}; old_pi, _ = agent(b_obs)"),
       ("agent.obs_sums += sums", "pass"))
mutant(D, "statistics before the update", "update",
       ("            # Update:", f"            agent.obs_sums += {SUMS}\n            # Update:"),
       ("agent.obs_sums += sums", "pass"))
replace(D, "update", "statistics forget the last rollouts", "agent.obs_sums += sums", "agent.obs_sums.copy_(sums)")
replace(D, "update", "statistics count reset steps", "b_obs.double() ** k", "obs_seq[:-1].flatten(0, 1).double() ** k")
replace(D, "update", "statistics without being asked", "if config.normalize_obs:", "if True:")
replace(D, "update", "divided by the variance", ".clamp(min=1e-8).sqrt()", ".clamp(min=1e-8)")
replace(D, "update", "observations scaled to another spread", "(1.5 * obs / (", "(obs / (")
replace(D, "update", "first observations not as they are", "[[4e-5], [0], [9e-5]]", "[[4e-5], [0], [4e-5]]")
replace(D, "training", "constant observations divide by 0", ".clamp(min=1e-8).sqrt()", ".sqrt()")

# ---- ppo_discrete.py: loss and update ----
replace(D, "losses", "max instead of min", "torch.min(ratio", "torch.max(ratio")
replace(D, "losses", "the clip alone", "torch.min(ratio * advantage, clipped * advantage)", "clipped * advantage")
replace(D, "losses", "no clip from below", "ratio.clamp(1 - config.clip_eps, 1 +", "ratio.clamp(0, 1 +")
replace(D, "losses", "ratio upside down", "(pi.log_prob(action) - old_pi.log_prob(action))",
        "(old_pi.log_prob(action) - pi.log_prob(action))")
replace(D, "losses", "entropy made small", "** 2 - bonus)", "** 2 + bonus)")
replace(D, "losses", "critic's error not halved", "+ 0.5 * (value", "+ (value")
replace(D, "losses", "KL the wrong way round", "beta * kl_divergence(old_pi, pi)", "beta * kl_divergence(pi, old_pi)")
replace(D, "losses", "KL rewarded", "- beta * kl", "+ beta * kl")
replace(D, "update", "advantage not normalized", "(b_advantage[mb] - mean) / (std + 1e-8)", "b_advantage[mb]")
replace(D, "update", "advantage normalized over the rollout",
        "torch.std_mean(b_advantage[mb], correction=0)", "torch.std_mean(b_advantage, correction=0)")
replace(D, "update", "standard deviation of a sample", "b_advantage[mb], correction=0)", "b_advantage[mb])")
mutant(D, "π_old anew in each epoch", "update",
       ("for _ in range(config.epochs):\n", "for _ in range(config.epochs):\n                "
        "old_pi = Categorical(logits=agent(b_obs)[0].logits.detach())\n"))
replace(D, "update", "one epoch too few", "range(config.epochs)", "range(config.epochs - 1)")
replace(D, "update", "minibatches of that size instead of that number",
        ".chunk(config.num_minibatches)", ".split(config.num_minibatches)")
replace(D, "update", "minibatches not shuffled", "torch.randperm(len(b_obs))", "torch.arange(len(b_obs))")
replace(D, "update", "learning rate rises", "(1 - env_step / config.total_steps)", "(env_step / config.total_steps)")
replace(D, "update", "learning rate stays", " * (1 - env_step / config.total_steps)", "")
replace(D, "update", "β stays", 'if config.objective == "penalty":  # β', "if False:  # β")
replace(D, "update", "β adapts without the penalty", 'if config.objective == "penalty":  # β', "if True:  # β")
mutant(D, "β the wrong way", "update", ("mul_(2 if kl", "mul_(0.5 if kl"), ("0.5 if kl <", "2 if kl <"))

# ---- ppo_discrete.py: gradient step ----
replace(D, "update", "gradient not shortened", "(max_grad_norm / (norm + 1e-6)).clamp(max=1) / PROCESSES",
        "1 / PROCESSES")
replace(D, "update", "short gradients made longer", "(norm + 1e-6)).clamp(max=1)", "(norm + 1e-6))")
replace(D, "update", "steps of Adam not counted", "[agent.adam_steps]", "[torch.zeros(())]")
replace(D, "update", "another ε of Adam", "eps=1e-5", "eps=1e-8")
replace(D, "update", "another beta of Adam", "beta2=0.999", "beta2=0.99")
replace(D, "interface", "NaN gradients go through", "if not (norm * learning_rate).isfinite():", "if False:")
replace(D, "checkpoints", "each process follows its own gradient", "torch.distributed.all_reduce(grad)", "pass")
replace(D, "checkpoints", "each process has its own statistics", "torch.distributed.all_reduce(sums)", "pass")
replace(D, "checkpoints", "gradients summed over processes, not averaged", ".clamp(max=1) / PROCESSES", ".clamp(max=1)")

# ---- ppo_discrete.py: networks, seeds and counts ----
replace(D, "training", "policy not small at first", "config.activation, output_gain=0.01",
        "config.activation, output_gain=1.0")
replace(D, "training", "layers without the gain √2", "[2**0.5] *", "[1.0] *")
replace(D, "update", "activation ignored", 'nn.Tanh() if activation == "tanh" else nn.ReLU()', "nn.Tanh()")
replace(D, "training", "greedy and sampled swapped", "pi.mode if greedy else pi.sample()",
        "pi.sample() if greedy else pi.mode")
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
       ('torch.save(state, config.save + ".unfinished")', "torch.save(state, config.save)"),
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
replace(D, "checkpoints", "settings of the checkpoint win", "settings = old | {", "settings = given | old | {")
replace(D, "interface", "a misspelt setting is ignored", "        if settings:\n", "        if False:\n")
replace(D, "interface", "limits of settings not checked", "if not fits:", "if False:")

# ---- ppo_continuous.py ----
C = "ppo_continuous"
replace(C, "update", "mean instead of sum of log-probabilities", "old_pi.log_prob(action)).exp()",
        "old_pi.log_prob(action)).div(action.shape[-1]).exp()")
replace(C, "update", "actions clipped before they are stored", "= action, obs\n", "= action.clip(-1, 1), obs\n")
replace(C, "update", "actions leave the range", "(a.reshape(len(a), *space.shape) + 1) / 2, space.low, space.high))",
        "(a.reshape(len(a), *space.shape) + 1) / 2, -np.inf, np.inf))")
replace(C, "update", "actions fill half the range", "(a.reshape(len(a), *space.shape) + 1) / 2",
        "a.reshape(len(a), *space.shape) / 2")
replace(C, "update", "observations not shifted", "obs = (obs - mean) / (", "obs = obs / (")
replace(C, "update", "observations not clipped", "10.0 if config.normalize_obs else np.inf", "np.inf")
replace(C, "training", "observations always clipped", "10.0 if config.normalize_obs else np.inf", "10.0")
replace(C, "update", "σ not learned", "self.log_std = nn.Parameter(", "self.log_std = nn.Buffer(")
replace(C, "update", "σ² for σ", "self.log_std.exp()", "(2 * self.log_std).exp()")
replace(C, "training", "--init-log-std ignored", ", config.init_log_std)", ", 0.0)")
replace(C, "update", "π_old with the new σ", "old_pi.stddev[mb]", "agent.log_std.exp().expand(len(mb), -1)")
replace(C, "update", "γ and λ swapped", CALL, CALL.replace("gamma, gae_lambda", "gae_lambda, gamma"))
replace(C, "update", "terminated and truncated swapped", CALL,
        CALL.replace("terminated, truncated", "truncated, terminated"))
replace(C, "update", "reset steps are learned from", "buffer.valid[t] = ~done", "buffer.valid[t] = True")
replace(C, "update", "statistics forget the last rollouts", "agent.obs_sums += sums", "agent.obs_sums.copy_(sums)")
replace(C, "update", "advantage not normalized", "(b_advantage[mb] - mean) / (std + 1e-8)", "b_advantage[mb]")
replace(C, "update", "β stays", 'if config.objective == "penalty":  # β', "if False:  # β")
replace(C, "update", "the entropy bonus is forgotten", "** 2 - bonus)", "** 2)")
replace(C, "training", "greedy and sampled swapped", "pi.mode if greedy else pi.sample()",
        "pi.sample() if greedy else pi.mode")
replace(C, "checkpoints", "Adam's memory not saved", "(nn.Buffer(0 * agent.weights) for", "(0 * agent.weights for")
replace(C, "checkpoints", "a resumed run plays the same episodes", "([config.seed, RANK, env_step])",
        "([config.seed, RANK, 0])")

# ---- reinforce.py ----
R = "reinforce"
replace(R, "estimates", "no baseline", "difference = return_ - baseline", "difference = return_")
replace(R, "estimates", "the baseline is the mean over time", "return_.mean(1, keepdim=True)",
        "return_.mean(0, keepdim=True)")
replace(R, "estimates", "differences not divided by their spread", "difference / (", "difference + 0 * (")
replace(R, "estimates", "a single episode has no baseline", "else return_[valid].mean()", "else 0")
replace(R, "estimates", "returns from the first step on", "for t in reversed(range(len(reward)))",
        "for t in range(len(reward))")
replace(R, "update", "returns without discount", "compute_returns(reward, config.gamma)", "compute_returns(reward, 1)")
replace(R, "update", "rewards after the end count", "reward * playing, playing))", "reward, playing))")
replace(R, "update", "steps after the end are learned from", "reward * playing, playing))",
        "reward * playing, np.ones_like(playing)))")
replace(R, "update", "second episodes in the scores", "ended = playing & (terminated | truncated)",
        "ended = terminated | truncated")
replace(R, "update", "truncated episodes do not end", "ended = playing & (terminated | truncated)",
        "ended = playing & terminated")
replace(R, "update", "the same episodes in each update", "obs, _ = envs.reset()", "obs, _ = envs.reset(seed=seed)")
replace(R, "update", "observations a row late", "rollout.append((obs,", "rollout.append((next_obs,")
replace(R, "update", "bad actions made likelier", "-(log_prob * weight).mean()", "(log_prob * weight).mean()")
replace(R, "update", "sum instead of mean over the steps", "-(log_prob * weight).mean()", "-(log_prob * weight).sum()")
replace(R, "update", "learning rate rises", "(1 - env_step / config.total_steps)", "(env_step / config.total_steps)")
replace(R, "update", "statistics forget the last episodes", "agent.obs_sums += torch", "agent.obs_sums[:] = torch")
mutant(R, "statistics before the update", "update",
       ("            pi = agent(b_obs)\n", f"            agent.obs_sums += {SUMS}\n            pi = agent(b_obs)\n"),
       (f"                agent.obs_sums += {SUMS}\n            if", "                pass\n            if"))
replace(R, "update", "steps of one environment counted", "env_step + config.num_envs", "env_step + 1")
replace(R, "update", "observations scaled to another spread", "(1.5 * obs / (", "(obs / (")
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
replace(A, "update", "reset steps are learned from", "buffer.valid[t] = ~done", "buffer.valid[t] = True")
replace(A, "update", "a rollout starts from an old observation", "buffer.obs[0] = obs", "pass")
replace(A, "update", "gradient not shortened", "descend(agent, loss.mean(), learning_rate, config.max_grad_norm)",
        "descend(agent, loss.mean(), learning_rate)")
replace(A, "update", "statistics count reset steps", "[obs_seq[:-1][valid].double() ** k",
        "[obs_seq[:-1].flatten(0, 1).double() ** k")
replace(A, "update", "learning rate stays", " * (1 - env_step / config.total_steps)", "")
replace(A, "checkpoints", "checkpoint written in place", 'torch.save(state, config.save + ".unfinished")',
        'torch.save(state, config.save); torch.save(state, config.save + ".unfinished")')
replace(A, "checkpoints", "Adam's count not saved", "nn.Buffer(torch.zeros((), device=config.device))",
        "torch.zeros((), device=config.device)")
replace(A, "training", "evaluation plays the episodes of the training", "[seed, 2**32 - 1]", "[seed, 0, 0]")


def mutated(script, edits):
    """The text of a script with its edits; each old text has to be there exactly once."""
    text = (ROOT / f"{script}.py").read_text()
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"{script}.py has {text.count(old)} times, not once: {old!r}")
        text = text.replace(old, new)
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
