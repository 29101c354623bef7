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
# Learning takes long, and where the same text stands or how wide it is says nothing about whether it is right.
LEFT_OUT = ["solves", "is_solved", "harder_tasks", "readme", "tutorial", "the_same", "its_three_libraries"]

MUTANTS = []  # (script, what is wrong, the file of the test that may notice first, [(old text, new text), ...])


def mutant(script, bug, finder, *edits):
    MUTANTS.append((script, bug, f"test_{finder}.py", edits))


def replace(script, finder, bug, old, new):
    mutant(script, bug, finder, (old, new))


def each(scripts, finder, bug, old, new):
    for script in scripts:
        replace(script, finder, bug, old, new)


D, C, R, A = SCRIPTS
PPO = [D, C]

# ---- ppo_discrete.py: the estimates ----
GAE = """compute_gae(rollout.reward, value, rollout.terminated,
                                        rollout.truncated, config.gamma, config.gae_lambda)"""
SWAPPED_ENDS = GAE.replace("terminated", "other").replace("truncated", "terminated").replace("other", "truncated")
each(PPO, "update", "γ and λ swapped", "config.gamma, config.gae_lambda)", "config.gae_lambda, config.gamma)")
each(PPO, "update", "terminated and truncated swapped", GAE, SWAPPED_ENDS)
replace(D, "update", "truncated stored as terminated", "buffer.terminated[t] = terminated",
        "buffer.terminated[t] = truncated")
replace(D, "estimates", "bootstrap from the same state", "gamma * value[1:]", "gamma * value[:-1]")
replace(D, "estimates", "bootstrap behind a terminal state", "value[1:] * ~terminated", "value[1:]")
replace(D, "estimates", "no bootstrap behind a truncated episode",
        "value[1:] * ~terminated", "value[1:] * ~(terminated | truncated)")
replace(D, "estimates", "GAE runs on over a truncation", "continues = ~(terminated | truncated)",
        "continues = ~terminated")
replace(D, "estimates", "GAE without λ", "gamma * gae_lambda * advantage", "gamma * advantage")
replace(D, "estimates", "GAE without γ", "gamma * gae_lambda * advantage", "gae_lambda * advantage")
replace(D, "estimates", "the first step's error alone", "for t in reversed(range(len(reward)))",
        "for t in range(len(reward))")
each(PPO, "update", "reset steps are learned from", "buffer.valid[t] = ~done", "buffer.valid[t] = True")
replace(D, "update", "the mask is dropped", "valid = rollout.valid", "valid = torch.ones_like(rollout.valid)")
replace(D, "update", "the step after a truncation taken for a real one", "done = terminated | truncated",
        "done = terminated")
replace(D, "update", "a rollout starts from an old observation", "buffer.obs[0] = obs", "pass")
replace(D, "update", "observations a row late", "rollout.obs[:-1][valid]", "rollout.obs[1:][valid]")
replace(D, "update", "the critic learns the advantage", "b_return = (advantage + value[:-1])[valid]", "b_return = b_advantage")
replace(D, "update", "rewards not scaled", "config.reward_scale * reward", "reward")
NORMALIZE = "    if config.normalize_reward:  # the outermost"
replace(D, "update", "rewards always normalized", NORMALIZE, NORMALIZE.replace("config.normalize_reward", "True"))
replace(D, "update", "rewards never normalized", NORMALIZE, NORMALIZE.replace("config.normalize_reward", "False"))
replace(D, "update", "another γ in the spread of returns", "NormalizeReward(envs, config.gamma)",
        "NormalizeReward(envs)")

# ---- ppo_discrete.py: the scale of the observations ----
LEARN = "            agent.scale.update(b_obs)"
EARLY = {
    "before the estimate of π_old": ("                b_old_log_prob =", "    " + LEARN),
    "before the update": ("            for _ in range(config.epochs):\n", LEARN),
    "in every epoch": ("                for mb in", "    " + LEARN),
    "before the KL is measured": ("            with torch.no_grad():\n                log_ratio", LEARN),
}
for when, (place, line) in EARLY.items():
    mutant(D, f"scale updated {when}", "update", (LEARN, "            pass"), (place, f"{line}\n{place}"))
each(PPO, "update", "scale never updated", LEARN.strip(), "pass")
replace(D, "update", "scale updated twice", LEARN, f"{LEARN}\n{LEARN}")
each(PPO, "update", "scale updated with reset steps", LEARN.strip(),
        "agent.scale.update(rollout.obs[:-1].flatten(0, 1))")
for sum_, of in {"count": "len(obs)", "sum": "obs.sum(0)", "sum_of_squares": "obs.square().sum(0)"}.items():
    each(SCRIPTS, "update", f"the scale's {sum_} forgets the last rollouts", f"self.{sum_} += {of}", f"self.{sum_}[:] = {of}")
COUNT = "self.count = nn.Buffer(torch.zeros(1, dtype=torch.float64))"
SUM = "self.sum = nn.Buffer(torch.zeros(obs_dim, dtype=torch.float64))"
SQUARES = SUM.replace("sum", "sum_of_squares")
SHIFT, UNIT = "self.shift = nn.Buffer(torch.zeros(obs_dim))", "self.divisor = nn.Buffer(torch.ones(obs_dim))"
for what, buffer in {"count": COUNT, "sum": SUM, "squares": SQUARES, "shift": SHIFT, "unit": UNIT}.items():
    replace(D, "checkpoints", f"the scale's {what} not saved", buffer, buffer.replace("nn.Buffer(", "(", 1))
replace(D, "training", "sums of the scale in single precision", SQUARES, SQUARES.replace("float64", "float32"))
replace(D, "update", "divided by the variance", "std / self.target_std", "variance / self.target_std")
replace(D, "update", "divided by the root of the mean square", "self.sum_of_squares / self.count - mean**2",
        "self.sum_of_squares / self.count")
replace(D, "update", "--obs-std ignored", "std / self.target_std", "std / 2")
replace(D, "update", "std of the scale ignored", "std / self.target_std", "std")
each(PPO, "update", "observations not clipped", ".clamp(-10, 10)", "")
replace(D, "update", "first observations not as they are", UNIT, UNIT.replace("ones(obs_dim)", "full((obs_dim,), 2.0)"))
replace(D, "training", "the variance may be 0", ".clamp(min=1e-8)", "")
SHIFTED = "self.shift.copy_(mean - new_mean)"
NEAR = "mean.clamp(-2 * std, 2 * std)"
each([D, R, A], "training", "far features not shifted", SHIFTED, "pass")
replace(D, "training", "all features centred", SHIFTED, "self.shift.copy_(mean)")
each([D, R, A], "training", "shifted at every update", "if first:", "if True:")
replace(D, "training", "shifted later, not at first", "first = self.count == 0", "first = self.count > 0")
replace(D, "training", "very far features are moved to 2, too", "new_mean[mean.abs() > 10 * std] = 0", "pass")
replace(D, "training", "features are very far at 5", "> 10 * std", "> 5 * std")
replace(D, "training", "far features are moved to 1", NEAR, "mean.clamp(-std, std)")
replace(D, "training", "features are far in scaled units", NEAR, "mean.clamp(-2 * self.divisor, 2 * self.divisor)")
replace(D, "training", "features below 0 are never very far", "mean.abs() > 10", "mean > 10")
replace(D, "training", "features below 0 are never far", NEAR, "mean.clamp(max=2 * std)")
replace(D, "training", "the shift is what may be left", SHIFTED, "self.shift.copy_(new_mean)")
each([D, R, A], "training", "shift added", "(obs - self.shift)", "(obs + self.shift)")
replace(D, "training", "shift in other units", "(obs - self.shift) / self.divisor", "obs / self.divisor - self.shift")
replace(D, "training", "the policy sees raw observations", "self.policy(self.scale(obs))", "self.policy(obs)")
replace(D, "training", "the critic sees raw observations", "self.critic(self.scale(obs))", "self.critic(obs)")
replace(D, "training", "acts on raw observations", "pi = self.pi(obs)\n", "pi = Categorical(logits=self.policy(obs))\n")

# ---- ppo_discrete.py: loss and update ----
replace(D, "losses", "max instead of min", "torch.min(ratio", "torch.max(ratio")
MIN = "torch.min(ratio * advantage, clipped_ratio * advantage)"
replace(D, "losses", "the clip alone", MIN, "clipped_ratio * advantage")
replace(D, "losses", "no clip", MIN, "ratio * advantage")
replace(D, "losses", "no clip from below", "ratio.clamp(1 - config.clip_eps,", "ratio.clamp(0,")
replace(D, "losses", "no clip from above", "1 + config.clip_eps)", "torch.inf)")
replace(D, "losses", "ratio upside down", "pi.log_prob(action) - old_log_prob", "old_log_prob - pi.log_prob(action)")
replace(D, "losses", "bad actions made likelier", "policy_loss = -surrogate", "policy_loss = surrogate")
replace(D, "losses", "entropy made small", "- config.entropy_coef * entropy", "+ config.entropy_coef * entropy")
each(PPO, "losses", "entropy forgotten", " - config.entropy_coef * entropy", "")
replace(D, "losses", "critic's error not halved", "0.5 * value_loss", "value_loss")
replace(D, "losses", "the critic does not learn", " + 0.5 * value_loss", "")
replace(D, "losses", "KL of the loss the wrong way round", "kl = ratio - 1 - log_ratio",
        "kl = ratio * log_ratio - ratio + 1")
replace(D, "losses", "KL rewarded", "- beta * kl", "+ beta * kl")
replace(D, "losses", "penalty without β", "- beta * kl", "- kl")
replace(D, "losses", "always the clip", 'if config.objective == "clip":', "if True:")
replace(D, "losses", "always the penalty", 'if config.objective == "clip":', "if False:")
replace(D, "update", "losses reported under each other's names",
        '{"policy_loss": policy_loss, "value_loss": value_loss,',
        '{"policy_loss": value_loss, "value_loss": policy_loss,')

NORMAL = "(b_advantage[mb] - mean) / (std + 1e-8)"
each(PPO, "update", "advantage not normalized", NORMAL, "b_advantage[mb]")
replace(D, "update", "advantage not centred", NORMAL, "b_advantage[mb] / (std + 1e-8)")
replace(D, "update", "advantage not scaled", NORMAL, "b_advantage[mb] - mean")
replace(D, "update", "advantage normalized over the rollout",
        "torch.std_mean(b_advantage[mb], correction=0)", "torch.std_mean(b_advantage, correction=0)")
replace(D, "update", "standard deviation of a sample", "b_advantage[mb], correction=0)", "b_advantage[mb])")
ARGUMENTS = {"pi": "agent.pi(b_obs[mb])", "value": "agent.value(b_obs[mb])", "action": "b_action[mb]",
             "old_log_prob": "b_old_log_prob[mb]", "advantage": "(b_advantage[mb] -", "return_": "b_return[mb]"}
for argument, text in ARGUMENTS.items():  # the first is an error of shapes, the second could pass unseen
    replace(D, "update", f"{argument} of all steps, not the minibatch's", text, text.replace("[mb]", ""))
    replace(D, "update", f"{argument} of other steps of the minibatch", text, text.replace("[mb]", "[mb.flip(0)]"))
EPOCHS = "            for _ in range(config.epochs):\n"
replace(D, "update", "π_old anew in each epoch", EPOCHS,
        f"{EPOCHS}                b_old_log_prob = agent.pi(b_obs).log_prob(b_action).detach()\n")
replace(D, "update", "one epoch too few", "range(config.epochs)", "range(config.epochs - 1)")
SPLIT, ORDER = ".tensor_split(config.num_minibatches)", "torch.randperm(len(b_obs))"
replace(D, "update", "minibatches of that size instead of that number", SPLIT, ".split(config.num_minibatches)")
replace(D, "update", "fewer minibatches than asked for", SPLIT, ".chunk(config.num_minibatches)")
replace(D, "update", "minibatches not shuffled", ORDER, "torch.arange(len(b_obs))")
replace(D, "update", "minibatches drawn with repetitions", ORDER, "torch.randint(len(b_obs), (len(b_obs),))")
replace(D, "update", "each epoch in the same order", f"{EPOCHS}                order = {ORDER}\n",
        f"            order = {ORDER}\n{EPOCHS}")
REMAINING = "remaining = 1 - env_step / config.total_steps"
each([D, R, A], "update", "learning rate rises", REMAINING, "remaining = env_step / config.total_steps")
replace(D, "update", "learning rate stays", '= rate * remaining', '= rate')
replace(D, "update", "learning rate falls faster and faster", "= rate * remaining", '= group["lr"] * remaining')
replace(D, "update", "target KL stays above", "kl > 1.5 * target_kl:", "kl > 1.5 * config.target_kl:")
replace(D, "training", "target KL stays below", "kl < target_kl / 1.5:", "kl < config.target_kl / 1.5:")
DOUBLE, HALVE = "beta = min(2 * beta, 1e4)", "beta = max(beta / 2, 1.0)"
each(PPO, "update", "β never rises", DOUBLE, "pass")
replace(D, "update", "β never falls", HALVE, "pass")
replace(D, "training", "β falls below 1", HALVE, "beta = beta / 2")
replace(D, "training", "β has no upper limit", DOUBLE, "beta = 2 * beta")
mutant(D, "β the wrong way", "update", (DOUBLE, "beta = beta / 2"), (HALVE, "beta = 2 * beta"))
replace(D, "update", "β moves with the clip", 'if config.objective == "penalty":', "if True:")
replace(D, "update", "β rises at any KL above the target", "if kl > 1.5 * target", "if kl > target")

# ---- ppo_discrete.py: what a user sees ----
replace(D, "update", "the KL upside down", "log_prob(b_action) - b_old_log_prob",
        "log_prob(b_action).neg() + b_old_log_prob")
replace(D, "update", "the KL is a mean of log-ratios", "(ratio - 1 - log_ratio).mean()", "(-log_ratio).mean()")
replace(D, "update", "the KL that is reported is another", '"kl": kl.item()', '"kl": log_ratio.square().mean().item()')
replace(D, "update", "the KL that is printed is another", "{metrics['kl']:.2g}", "{metrics['clipped_fraction']:.2g}")
replace(D, "update", "clipped fraction with another limit", ".abs() > config.clip_eps", ".abs() > 2 * config.clip_eps")
replace(D, "update", "clipped fraction counts one side", "(ratio - 1).abs() >", "(ratio - 1) >")
replace(D, "update", "explained variance upside down", "(error_var / return_var)",
        "(return_var / error_var)")
replace(D, "update", "unexplained variance", "1 - (error_var", "(error_var")
each(SCRIPTS, "update", "average of the last 10 episodes", "history[-20:]", "history[-10:]")
replace(D, "update", "never more than 20 episodes", '"episode": len(history)', '"episode": len(scores)')
replace(D, "update", "another entropy printed", "{metrics['entropy']:.2g}", "{metrics['value_loss']:.2g}")
each([D, R], "update", "steps of one environment printed", 'f"step {env_step:,}  episode',
        'f"step {env_step // N:,}  episode')
each([D, R], "training", "ten reports a run", "config.total_steps / 20", "config.total_steps / 10")
replace(D, "training", "no report of the end", "env_step >= next_report or env_step >= config.total_steps", "env_step >= next_report")
replace(D, "checkpoints", "steps of another run in the speed", "(env_step - first_step)", "env_step")
COUNT = "env_step += N * PROCESSES"
replace(D, "update", "steps of one environment counted", COUNT, "env_step += PROCESSES")
replace(D, "checkpoints", "steps of one process counted", COUNT, "env_step += N")
replace(D, "update", "scores of all, whoever is done", 'info["episode"]["r"][done]', 'info["episode"]["r"]')

# ---- ppo_discrete.py: gradient step and Adam ----
CLIP = "clip_grad_norm_(params, config.max_grad_norm)"
replace(D, "update", "gradient not clipped", CLIP, "clip_grad_norm_(params, torch.inf)")
replace(D, "update", "the critic's gradient not clipped", "list(agent.parameters())", "list(agent.policy.parameters())")
replace(D, "update", "short gradients made longer", CLIP, "clip_grad_norm_(params, 1e9)\n                    "
        "[p.grad.mul_(config.max_grad_norm / norm) for p in params]")
ZERO, STEP = "optimizer.zero_grad()", "optimizer.step()"
each([D, R, A], "update", "zero_grad forgotten", ZERO, "pass")
each([D, R, A], "update", "optimizer's step forgotten", STEP, "pass")
replace(D, "training", "zero_grad does nothing", "p.grad = None", "pass")
replace(D, "training", "another beta1 of Adam", "0.9 * self.mean + 0.1 * grad", "0.99 * self.mean + 0.01 * grad")
replace(D, "training", "Adam has no momentum", "0.9 * self.mean + 0.1 * grad", "grad")
replace(D, "training", "another beta2 of Adam", "0.999 * self.square + 0.001 *", "0.99 * self.square + 0.01 *")
replace(D, "training", "Adam averages the gradient's length, not its square", "0.001 * grad**2", "0.001 * grad.abs()")
replace(D, "training", "no bias correction of the mean", "self.mean / (1 - 0.9**self.steps)", "self.mean")
replace(D, "training", "no bias correction of the square", "self.square / (1 - 0.999**self.steps)", "self.square")
replace(D, "training", "bias correction with the other beta", "(1 - 0.9**self.steps)", "(1 - 0.999**self.steps)")
replace(D, "training", "Adam's steps not counted", "self.steps += 1", "self.steps = 1")
replace(D, "training", "ε under the root", "(square_hat.sqrt() + self.eps)", "(square_hat + self.eps).sqrt()")
replace(D, "training", "no root", "(square_hat.sqrt() + self.eps)", "(square_hat + self.eps)")
replace(D, "training", "Adam's ε ignored", "self.eps = eps", "self.eps = 1e-8")
each(SCRIPTS, "update", "another ε of Adam", "eps=1e-5)", "eps=1e-8)")
replace(D, "training", "Adam goes uphill", "p -= part", "p += part")
mutant(D, "Adam's learning rate stays", "training", ("self.eps = eps", "self.eps, self.lr = eps, lr"),
       ('self.param_groups[0]["lr"]', "self.lr"))
replace(D, "training", "a gradient that never came is not noticed", "if all(p.grad is None for p in self.params):", "if False:")
replace(D, "training", "every parameter must have a gradient", "if all(p.grad is None", "if any(p.grad is None")
replace(D, "training", "new weights do not reach the parameters", "p -= part", "p = p - part")
for part in ("mean", "square"):
    replace(D, "checkpoints", f"Adam's {part} not resumed", f'self.{part}.copy_(state["{part}"])', "pass")
    replace(D, "checkpoints", f"Adam's {part} not saved", f'"{part}": self.{part},', f'"{part}": 0 * self.{part},')
replace(D, "checkpoints", "Adam's steps not resumed", 'self.steps = state["steps"]', "pass")
replace(D, "checkpoints", "Adam's steps not saved", '"steps": self.steps}', '"steps": 1}')
replace(D, "checkpoints", "Adam's steps not checked", 'assert isinstance(state["steps"], int) and state["steps"] >= 0, "steps is damaged"', "pass")
replace(D, "checkpoints", "shapes of tensors not compared", " and loaded[name].shape == x.shape", "")
each([D, A], "interface", "a gradient that is not finite goes through", "if not norm.isfinite():", "if False:")
replace(R, "interface", "a loss that is not finite goes through", "if not loss.isfinite():", "if False:")
each([D, C, R, A], "interface", "observations that are not finite go through", '        check_finite("observation", obs)\n', "")
each([D, R, A], "interface", "rewards that are not finite go through", 'check_finite("reward", reward)', "pass")

# ---- ppo_discrete.py: several processes and threads ----
AVERAGE = "average(*[p.grad for p in params if p.grad is not None])"
replace(D, "training", "each process follows its own gradient", AVERAGE, "pass")
mutant(D, "gradients averaged after the clip", "training", (AVERAGE, "pass"),
       (CLIP, f"{CLIP}\n                    {AVERAGE}"))
replace(D, "training", "each process has its own scale", "average(self.count, self.sum, self.sum_of_squares)", "pass")
replace(D, "training", "each process has its own β", "average(kl)", "pass")
replace(D, "checkpoints", "summed over processes, not averaged", "vector / PROCESSES", "vector")
replace(D, "checkpoints", "every process prints", "if RANK > 0:\n                sys.stdout", "if False:\n                sys.stdout")
replace(D, "checkpoints", "every process saves", "if not config.save or RANK > 0:", "if not config.save:")
each(SCRIPTS, "training", "threads not restored", "torch.set_num_threads(num_threads)", "pass")
each(SCRIPTS, "training", "as many threads as there are", "torch.set_num_threads(1)", "pass")
each(SCRIPTS, "training", "as many threads as there are in the evaluation", "@one_thread()\ndef evaluate", "def evaluate")

# ---- ppo_discrete.py: networks, seeds and environments ----
replace(D, "training", "policy not small at first", "config, output_gain=0.01)", "config, output_gain=1.0)")
replace(D, "training", "critic flat at first", "config, output_gain=1.0)", "config, output_gain=0.01)")
replace(D, "training", "layers without the gain √2", "gain=2**0.5", "gain=1.0")
replace(D, "training", "layers not orthogonal", "nn.init.orthogonal_(layer.weight, gain)", "pass")
replace(D, "training", "biases not 0", "nn.init.zeros_(layer.bias)", "pass")
replace(D, "update", "activation ignored", '{"tanh": nn.Tanh, "relu": nn.ReLU}[config.activation]', "nn.Tanh")
replace(D, "training", "always one hidden layer", "range(config.hidden_layers)", "range(1)")
SEEDS = "derive_seed(config.seed, RANK, env_step)"
replace(D, "training", "every run plays the same episodes", "= envs.reset(seed=seed)", "= envs.reset(seed=0)")
replace(D, "training", "the seed sets the weights only", SEEDS, "derive_seed(0, RANK, env_step)")
replace(D, "training", "the seed does not set the weights", "torch.manual_seed(config.seed)", "pass")
replace(D, "checkpoints", "every process plays the same episodes", SEEDS, "derive_seed(config.seed, 0, env_step)")
each(PPO, "checkpoints", "a resumed run plays the same episodes", SEEDS, "derive_seed(config.seed, RANK, 0)")
replace(D, "training", "every process draws the same actions", "torch.manual_seed(seed)", "pass")
replace(D, "training", "neighbouring seeds share episodes", "SeedSequence(numbers)", "SeedSequence(sum(numbers))")
replace(D, "training", "num_envs not taken from environments of one's own", ", num_envs=envs.num_envs)", ")")
replace(D, "interface", "env_id not taken from environments of one's own", "config, env_id=env_id, num", "config, num")
replace(D, "training", "another autoreset mode goes through", 'if envs.metadata.get("autoreset_mode") !=',
        "if False and None !=")
replace(D, "interface", "other actions go through", "if not isinstance(space, gym.spaces.Discrete) or", "if")
replace(D, "interface", "actions counted from 5 go through", " or space.start != 0", "")
replace(D, "interface", "observations not flattened", "if obs_space != gym.spaces.flatten_space(obs_space):",
        "if False:")

# ---- ppo_discrete.py: evaluation ----
EVALUATION = "agent.act(obs, greedy)"
each(SCRIPTS, "training", "the greedy evaluation samples", EVALUATION, "agent.act(obs)")
each(SCRIPTS, "training", "the sampled evaluation plays greedily", EVALUATION, "agent.act(obs, True)")
replace(D, "training", "both evaluations are greedy", "config.eval_episodes, greedy,", "config.eval_episodes, True,")
replace(D, "training", "names of the evaluations swapped", "'greedy' if greedy else", "'greedy' if not greedy else")
each([D, R], "training", "episodes of evaluation not as asked", "config.env_id, config.eval_episodes,",
        "config.env_id, 100,")
replace(D, "training", "no evaluation cannot be asked for", "if config.eval_episodes > 0:", "if True:")
replace(D, "interface", "evaluations of every run are the same", "greedy, config.seed)", "greedy)")
replace(D, "training", "the median printed for the mean", "{scores.mean():.2f}", "{np.median(scores):.2f}")
replace(D, "training", "evaluation plays the episodes of the training", "seed, 2**32 - 1)", "seed, 0, 0)")
each([R, A], "training", "evaluation plays the episodes of the training", "seed, 2**32 - 1)", "seed)")
replace(D, "training", "evaluation ignores its seed", "seed, 2**32 - 1)", "2**32 - 1)")
replace(D, "training", "evaluation counts second episodes", "scores[playing] += reward[playing]", "scores += reward")
replace(D, "training", "evaluation plays on after a truncation", "playing[terminated | truncated] = False",
        "playing[terminated] = False")
replace(D, "training", "evaluation plays on after a terminal state", "playing[terminated | truncated] = False",
        "playing[truncated] = False")
replace(D, "training", "endless evaluations end too soon", "max(10_000, ", "max(100, ")

# ---- ppo_discrete.py: checkpoints ----
replace(D, "checkpoints", "β not saved", '        "beta": beta,\n        "env_step"', '        "beta": 1.0,\n        "env_step"')
replace(D, "update", "another β in the metrics", '"beta": beta,\n                "clipped', '"beta": 1.0,\n                "clipped')
replace(D, "checkpoints", "β not loaded", "return beta, env_step, [", "return 1.0, env_step, [")
replace(D, "checkpoints", "spread of rewards not saved", '"reward_stats": {name: float(value) for name, value in stats.items()}',
        '"reward_stats": {}')
replace(D, "checkpoints", "spread of rewards not loaded", "setattr(envs.return_rms, name, np.float64(value))", "pass")
replace(D, "checkpoints", "steps not loaded", "return beta, env_step, [", "return beta, 0, [")
HISTORY = '[(int(step), float(score)) for step, score in checkpoint["history"]]'
replace(D, "checkpoints", "history not loaded", HISTORY, "[]")
replace(D, "checkpoints", "weights not loaded", 'agent.load_state_dict(checkpoint["agent"])', "pass")
each(PPO, "checkpoints", "optimizer not loaded", 'optimizer.load_state_dict(checkpoint["optimizer"])', "pass")
replace(D, "checkpoints", "weights that are not finite are loaded", " and x.isfinite().all(), f", ", f")
replace(D, "checkpoints", "tensors of another kind are loaded", "loaded[name].dtype == x.dtype and ", "")
replace(D, "checkpoints", "a β out of range is loaded", "assert 1 <= beta <= 1e4 and ", "assert ")
replace(D, "checkpoints", "a negative count of steps is loaded", " and env_step >= 0", "")
mutant(D, "checkpoint written in place", "checkpoints",
       ("torch.save(checkpoint, path)", "torch.save(checkpoint, config.save)"), ("os.replace(path, os.path.realpath(config.save))", "pass"))
replace(D, "checkpoints", "unfinished file left behind", "if os.path.exists(path):", "if False:")
replace(D, "checkpoints", "unfinished files share one name", "{os.path.realpath(path)}.{os.getpid()}.unfinished",
        "{os.path.realpath(path)}.unfinished")
replace(D, "checkpoints", "a link is replaced by a file", "os.replace(path, os.path.realpath(config.save))", "os.replace(path, config.save)")
replace(D, "checkpoints", "changed bits are not noticed", "assert archive.testzip() is None", "pass")
each([D, R], "checkpoints", "a missing screen costs the training", "            window.reset()\n", "")
each([D, R], "checkpoints", "the trial's window stays open", "            window.close()\n", "")
SAVE = "save(config, agent, optimizer, envs, beta, env_step, history)\n"
REPORT = "                " + SAVE
LAST = "f\"entropy {metrics['entropy']:.2g}\", flush=True)"
replace(D, "checkpoints", "saved only at the end", REPORT,
        REPORT.replace("save(", "if env_step >= config.total_steps: save("))
mutant(D, "printed before it is saved", "checkpoints", (REPORT, ""), (LAST, f"{LAST}\n{REPORT.rstrip()}"))
replace(D, "checkpoints", "not saved at first", f"    {SAVE[:-1]}  # even if no step is trained\n", "")
replace(D, "checkpoints", "numpy's numbers in a checkpoint", "setattr(config, name, spec.type(value))", "pass")
STOPPED = "        print(f\"stopped at step {env_step:,}\", flush=True)\n"
replace(D, "checkpoints", "not saved on Ctrl-C", f"        {SAVE}{STOPPED}", STOPPED)
replace(D, "checkpoints", "on Ctrl-C printed before it is saved", f"        {SAVE}{STOPPED}", f"{STOPPED}        {SAVE}")
replace(D, "checkpoints", "a failed save looks like a success", '["env_step"] < config.total_steps:', '["env_step"] < 0:')
replace(D, "checkpoints", "a failed save ends the run", "except (OSError, RuntimeError) as error:",
        "except KeyError as error:")
EXISTS = "if os.path.exists(config.save) and not resumed:"
replace(D, "checkpoints", "a foreign file is overwritten", EXISTS, "if False:")
replace(D, "checkpoints", "a checkpoint cannot be continued", EXISTS, "if os.path.exists(config.save):")
replace(D, "checkpoints", "one file by two names is two files",
        "os.path.realpath(config.save) == os.path.realpath(config.load)", "config.save == config.load")
replace(D, "checkpoints", "where it cannot write is found out too late", """open(unfinished(config.save), "xb").close()
            os.remove(unfinished(config.save))""", "pass")
replace(D, "checkpoints", "code in a checkpoint is run", "weights_only=True", "weights_only=False")
replace(D, "checkpoints", "a damaged file costs a traceback", "except Exception as error:  # a foreign",
        "except OSError as error:  # a foreign")
replace(D, "checkpoints", "settings of the checkpoint win", 'Config(**settings | given |', 'Config(**given | settings |')
replace(D, "checkpoints", "resume brings settings and no weights", ' | given | {"load": path})', " | given)")
replace(D, "checkpoints", "a resumed run writes where the first one did", 'single = ("save", "load",', 'single = ("load",')
replace(D, "checkpoints", "a checkpoint says where to save", 'kept(read_checkpoint(path)["config"])', 'read_checkpoint(path)["config"]')
replace(D, "checkpoints", "a resumed run takes the settings for other tasks", 'resume(given["load"], **given)',
        'resume(given["load"], **ELSEWHERE | given)')
replace(D, "checkpoints", "a setting that is none costs a traceback", "    except TypeError as error:\n        raise SettingError(f\"--load",
        "    except KeyError as error:\n        raise SettingError(f\"--load")
replace(D, "checkpoints", "a task that cannot be rendered costs a traceback", "if \"'render_mode'\" not in str(error):", "if True:")

# ---- ppo_discrete.py: signals, settings and errors ----
STATUS = "sys.exit(128 + received[0])"
each([D, R, A], "checkpoints", "Ctrl-C looks like a success", STATUS, "sys.exit(0)")
each([D, R, A], "checkpoints", "status of Ctrl-C and SIGTERM swapped", STATUS, "sys.exit(145 - received[0])")
each([D, R, A], "checkpoints", "evaluated after Ctrl-C", "if received:", "if False:")
mutant(D, "stopped without a word", "checkpoints", ('print(f"stopped at step {env_step:,}", flush=True)', "pass"))
BOTH = "(signal.SIGINT, signal.SIGTERM)"
each([D, R, A], "checkpoints", "SIGTERM ends the run at once", BOTH, "(signal.SIGINT,)")
replace(D, "checkpoints", "an ignored Ctrl-C is not ignored", "if signal.getsignal(number) != signal.SIG_IGN:",
        "if True:")
EXCEPT = "except (SettingError, FloatingPointError) as error:"
each([D, R, A], "interface", "every error costs one line", EXCEPT, "except Exception as error:")
replace(D, "interface", "every ValueError costs one line", EXCEPT, "except (ValueError, FloatingPointError) as error:")
replace(D, "interface", "numbers that are not finite cost a traceback", EXCEPT, "except SettingError as error:")
replace(D, "interface", "an environment's own error is taken for a wrong name",
        "except (gym.error.Error, ModuleNotFoundError) as error:", "except Exception as error:")
replace(D, "interface", "a wrong name costs a traceback",
        "except (gym.error.Error, ModuleNotFoundError) as error:", "except KeyError as error:")
each([D, R, A], "interface", "a broken pipe costs a traceback", "except BrokenPipeError:", "except KeyError:")
each([D, R], "interface", "settings not checked", "    check(config)\n", "")
for name, limits in {"num_steps": "(2, 1_000_000)", "epochs": "(1, 1_000_000)", "learning_rate": "(0, 1)", "gamma": "(0, 1)",
                     "gae_lambda": "(0, 1)", "max_grad_norm": "(1e-6, np.inf)", "obs_std": "(0.01, 10)",
                     "reward_scale": "(1e-6, 1e6)", "seed": "(0, 2**64 - 1)"}.items():
    replace(D, "interface", f"limits of {name} not checked", f'"{name}": {limits}', f'"{name}": (-np.inf, np.inf)')
replace(C, "interface", "limits of init_log_std not checked", '"init_log_std": (-10, 10)',
        '"init_log_std": (-np.inf, np.inf)')
replace(D, "interface", "fractions where whole numbers belong", "isinstance(value, Integral)",
        "isinstance(value, Real)")
replace(D, "interface", "words where numbers belong", "isinstance(value, Real)", "isinstance(value, (Real, str))")
replace(D, "interface", "yes and no not checked", "fits = isinstance(value, spec.type)",
        "fits = isinstance(value, spec.type) or spec.type is bool")
replace(D, "interface", "choices not checked", "fits = value in choices[name]", "fits = isinstance(value, str)")
replace(D, "interface", "number of minibatches not checked", "if not 1 <= config.num_minibatches <= fewest:",
        "if False:")
replace(D, "interface", "minibatches limited by all steps", "(config.num_steps // 2)", "config.num_steps")
replace(D, "interface", "device not checked", "torch.zeros(1, dtype=torch.float64, device=config.device).item()", "pass")
replace(D, "interface", "abbreviated flags", "allow_abbrev=False", "allow_abbrev=True")
replace(D, "interface", "a notebook's arguments are taken for ours", "[] if in_a_notebook else None", "None")
replace(D, "checkpoints", "no window", "if config.render and RANK == 0:\n            evaluate", "if False:\n            evaluate")

# ---- ppo_discrete.py: other tasks ----
each(PPO, "interface", "settings for other tasks ignored", "Config(**ELSEWHERE | given)", "Config(**given)")
replace(D, "interface", "settings for other tasks win over flags", "Config(**ELSEWHERE | given)",
        "Config(**given | ELSEWHERE)")
OWN = 'elif given.get("env_id", Config.env_id) == Config.env_id:'
replace(D, "interface", "settings for other tasks used for its own", OWN, "elif False:")
replace(D, "interface", "its own task is another if it is named", OWN, 'elif "env_id" not in given:')
replace(D, "interface", "which settings a run has is not said", "print(describe(config), flush=True)", "pass")
replace(D, "interface", "the longer words for settings", "min(descriptions, key=len)", "max(descriptions, key=len)")
replace(D, "interface", "settings compared with the wrong ones", "(ELSEWHERE)\", Config(**ELSEWHERE))",
        "(ELSEWHERE)\", Config())")
replace(D, "interface", "what was not changed is named", "and value != getattr(base, name)",
        "and value == getattr(base, name)")
replace(D, "interface", "--help is silent on other tasks", "if spec.name in ELSEWHERE:", "if False:")

# ---- ppo_continuous.py, where it differs or may come to differ ----
replace(C, "update", "mean instead of sum of log-probabilities", "log_ratio = pi.log_prob(action) - old_log_prob",
        "log_ratio = (pi.log_prob(action) - old_log_prob) / action.shape[-1]")
replace(C, "update", "log-probabilities not summed", ", 1, validate_args=False)", ", 0, validate_args=False)")
replace(C, "update", "actions clipped before they are stored", "buffer.action[t] = action",
        "buffer.action[t] = action.clip(-1, 1)")
replace(C, "update", "actions leave the range", "return np.clip(action, space.low, space.high)", "return action")
replace(C, "update", "actions fill half the range", "(action + 1) / 2", "action / 2")
replace(C, "training", "actions lose their shape", "action = action.reshape(len(action), *space.shape)", "pass")
replace(C, "interface", "a range without bounds goes through", " and space.is_bounded()", "")
replace(C, "update", "σ not learned", "self.log_std = nn.Parameter(", "self.log_std = nn.Buffer(")
replace(C, "update", "σ² for σ", "self.log_std.exp()", "(2 * self.log_std).exp()")
replace(C, "training", "--init-log-std ignored", "(action_dim,), config.init_log_std)", "(action_dim,), 0.0)")
replace(C, "update", "noise of another width", "else pi.sample()", "else pi.mean + 2 * (pi.sample() - pi.mean)")
replace(C, "update", "noise of one number", "else pi.sample()", "else pi.mean + self.log_std.exp() * torch.randn(1)")
replace(C, "training", "acts on raw observations", "pi = self.pi(obs)\n", "pi = Normal(self.policy(obs), self.log_std.exp())\n")

# ---- reinforce.py ----
replace(R, "update", "no baseline", "(return_ - baseline)[valid]", "return_[valid]")
replace(R, "update", "the baseline is the mean over time", "return_.mean(1, keepdim=True)",
        "return_.mean(0, keepdim=True)")
replace(R, "update", "differences not divided by their spread", "difference / (", "difference + 0 * (")
replace(R, "update", "standard deviation of a sample", "difference.std(correction=0)", "difference.std()")
replace(R, "update", "a single episode has no baseline", "baseline = return_.mean()  #", "baseline = 0  #")
replace(R, "estimates", "returns from the first step on", "for t in reversed(range(len(reward) - 1))",
        "for t in range(len(reward) - 1)")
replace(R, "training", "policy not small at first", "(output, 0.01)", "(output, 1.0)")
replace(R, "training", "layers without the gain √2", "(hidden, 2**0.5)", "(hidden, 1.0)")
replace(R, "update", "returns without discount", "compute_returns(rewards, config.gamma)",
        "compute_returns(rewards, 1)")
replace(R, "update", "rewards after the end count", "reward_rows.append(reward * playing)",
        "reward_rows.append(reward)")
replace(R, "update", "steps after the end are learned from", "valid_rows.append(playing.copy())",
        "valid_rows.append(np.ones_like(playing))")
replace(R, "update", "rows of valid steps share an array", "valid_rows.append(playing.copy())",
        "valid_rows.append(playing)")
each([R, A], "training", "steps counted in the type of the setting", "setattr(config, name, spec.type(value))", "pass")
FINISHED = "finished = playing & (terminated | truncated)"
replace(R, "update", "second episodes in the scores", FINISHED, "finished = terminated | truncated")
replace(R, "update", "truncated episodes do not end", FINISHED, "finished = playing & terminated")
replace(R, "update", "the same episodes in each update", "obs, _ = envs.reset()", "obs, _ = envs.reset(seed=seed)")
ROW = "obs_rows.append(obs.copy())"
mutant(R, "observations a row late", "update", (f"                {ROW}  # some environments reuse their arrays\n", ""),
       ('check_finite("reward", reward)', f'check_finite("reward", reward)\n                {ROW}'))
each([R, A], "training", "rows of observations not copied", ROW, "obs_rows.append(obs)")
replace(R, "update", "bad actions made likelier", "-(log_prob * weight).mean()", "(log_prob * weight).mean()")
replace(R, "update", "sum instead of mean over the steps", "-(log_prob * weight).mean()",
        "-(log_prob * weight).sum()")
RATE = 'optimizer.param_groups[0]["lr"] = config.learning_rate * remaining'
each([R, A], "update", "learning rate stays", RATE, "pass")
each([R, A], "update", "observations scaled to another spread", "std=2.0)", "std=1.0)")
each([R, A], "update", "observations not clipped", ".clamp(-10, 10)", "")
each([R, A], "training", "the variance may be 0", ".clamp(min=1e-8)", "")
PI = "            pi = agent.pi(valid_obs)"
OF_VALID = "agent.scale.update(valid_obs)"
mutant(R, "scale updated before the update", "update", (OF_VALID, "pass"), (PI, f"            {OF_VALID}\n{PI}"))
replace(R, "update", "scale never updated", OF_VALID, "pass")
replace(R, "update", "scale updated with steps after the end", OF_VALID, "agent.scale.update("
        "torch.as_tensor(np.concatenate(obs_rows)))")
each([R, A], "update", "steps of one environment counted", "env_step += N", "env_step += 1")
each([R, A], "training", "every run plays the same episodes", "seed = derive_seed(config.seed)",
        "seed = derive_seed(0)")
each([R, A], "training", "the seed does not set the weights", "torch.manual_seed(config.seed)", "pass")
each(SCRIPTS, "training", "greedy and sampled swapped", "pi.mode if greedy else", "pi.mode if not greedy else")
each([R, A], "training", "evaluation counts second episodes", "scores[playing] += reward[playing]", "scores += reward")

# ---- actor_critic.py ----
replace(A, "estimates", "the target follows the critic", "target.detach() - value", "target - value")
replace(A, "estimates", "bootstrap behind a terminal state", "next_value * ~terminated", "next_value")
mutant(A, "the gradient flows through ψ", "update",
       ("b_psi = psi[valid].detach()", "b_psi = psi[valid]"))
LAST_ACTION = "sampled[-1:]"
replace(A, "update", "Q of the last action played again", LAST_ACTION, "actions[-1:]")
replace(A, "update", "Q of an action drawn elsewhere", LAST_ACTION, "sampled[:1]")
replace(A, "update", "Q of the likeliest last action", LAST_ACTION, "pi.mode[-1:]")
replace(A, "update", "Q of the best action", "q_of_all_actions.gather(-1, action.unsqueeze(-1)).squeeze(-1)",
        "q_of_all_actions.amax(-1)")
replace(A, "update", "Q bootstraps from the same state", "td_error(rewards, q[:-1], q[1:],",
        "td_error(rewards, q[:-1], q[:-1],")
replace(A, "update", "V bootstraps from the same state", "td_error(rewards, v[:-1], v[1:],",
        "td_error(rewards, v[:-1], v[:-1],")
ENDED = "terminated_rows.append(terminated.copy())"
replace(A, "update", "truncated and terminated swapped", ENDED, "terminated_rows.append(truncated.copy())")
replace(A, "update", "truncated taken for terminated", ENDED, "terminated_rows.append(terminated | truncated)")
replace(A, "training", "rows of ends not copied", ENDED, "terminated_rows.append(terminated)")
for critic in "VQ":
    error = f"{critic.lower()}[1:], terminations, config.gamma)"
    replace(A, "update", f"another γ of {critic}", error, error.replace("config.gamma", "0.99"))
replace(A, "update", "advantage upside down", "(q - v)[:-1]", "(v - q)[:-1]")
replace(A, "update", "ψ a row late", "psi = q[:-1]", "psi = q[1:]")
replace(A, "update", "the wrong critic learns", "squared_error = q_error.square()", "squared_error = v_error.square()")
replace(A, "update", "V does not learn beside Q", "v_error.square() + q_error.square()", "q_error.square()")
replace(A, "update", "ψ of the critics swapped", 'if config.critic == "td":', 'if config.critic == "advantage":')
replace(A, "update", "ψ standardized with a sample's deviation", "torch.std_mean(b_psi, correction=0)", "torch.std_mean(b_psi)")
replace(A, "update", "ψ not centred", "(b_psi - mean)", "b_psi")
replace(A, "update", "ψ not divided by its spread", "- mean) / (std + 1e-8)", "- mean)")
replace(A, "update", "log-probabilities a row late", "pi.log_prob(all_actions)[:-1]", "pi.log_prob(all_actions)[1:]")
replace(A, "update", "bad actions made likelier", "-(b_log_prob * b_weight)", "(b_log_prob * b_weight)")
replace(A, "update", "critic's error not halved", "0.5 * critic_loss", "critic_loss")
replace(A, "update", "entropy made small", "- config.entropy_coef * entropy", "+ config.entropy_coef * entropy")
replace(A, "update", "reset steps are learned from", "valid_rows.append(~done)",
        "valid_rows.append(np.ones_like(done))")
replace(A, "update", "rewards not scaled", "config.reward_scale * reward", "reward")
replace(A, "update", "the last observation is missing", ROW, "obs_rows.append(obs_rows[-1])")
replace(A, "update", "gradient not clipped", "agent.parameters(), config.max_grad_norm)",
        "agent.parameters(), torch.inf)")
SEEN = "agent.scale.update(all_obs[:-1][valid])"
replace(A, "update", "scale never updated", SEEN, "pass")
replace(A, "update", "scale updated with reset steps", SEEN, "agent.scale.update(all_obs[:-1].flatten(0, 1))")
mutant(A, "scale updated before the update", "update", (SEEN, "pass"),
       ("            pi = agent.pi(all_obs)\n", f"            {SEEN}\n            pi = agent.pi(all_obs)\n"))


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
