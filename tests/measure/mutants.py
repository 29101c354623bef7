"""Do the tests notice bugs? `python tests/measure/mutants.py` puts one after the other into the scripts and looks.

Each mutant is a copy of the scripts with one bug in it: a line or two of one script changed. It is killed if
a test fails, and has survived if all pass. Words after the command choose the mutants that have them in
their names: `python tests/measure/mutants.py reinforce seed`. With --tests test_update.py only that file is run.
Text that stands in several scripts gets its bugs in one of them.
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

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = D, C, R, A = ["ppo_discrete", "ppo_continuous", "reinforce", "actor_critic"]
FILES = [f"test_{part}.py" for part in ("update", "estimates", "losses", "training", "checkpoints", "interface")]
# Learning takes long, and where the same text stands or how wide it is says nothing about whether it is right. For
# this reason test_readme.py, whose recipes fit the text as it stands, is not among the files.
LEFT_OUT = ["planted", "solve", "is_the_same_text", "its_three_libraries"]
MUTANTS = []  # (script, what is wrong, the file of the test that may notice first, [(old text, new text), ...])


def mutant(script, bug, finder, *edits):
    MUTANTS.append((script, bug, f"test_{finder}.py", edits))


def replace(script, finder, bug, old, new):
    mutant(script, bug, finder, (old, new))


def each(scripts, finder, bug, old, new):
    for script in scripts:
        replace(script, finder, bug, old, new)


# ---- ppo_discrete.py: the scale of the observations, which is the same text in all ----
CENTRE = "torch.as_tensor(first_obs).float().mean(0)"
for part, begin in {"centre": CENTRE, "sum_of_squares": "torch.full_like(self.centre, 1e-8)",
                    "count": "torch.tensor(0.0)", "rms": "torch.ones_like(self.centre)"}.items():
    replace(D, "checkpoints", f"the scale's {part} not saved", f"nn.Buffer({begin})", begin)
replace(D, "training", "the centre is 0", CENTRE, "torch.zeros(first_obs.shape[1])")
replace(D, "training", "the centre is the first environment's", CENTRE, "torch.as_tensor(first_obs).float()[0]")
replace(D, "training", "the centre moves", "self.count += len(obs)",
        "self.count += len(obs)\n        self.centre += 0.1 * (obs - self.centre).mean(0)")
replace(D, "training", "the first unit is not 1", "torch.ones_like(self.centre)", "2 * torch.ones_like(self.centre)")
replace(D, "training", "the unit stays 1", "self.rms = (self.sum_of_squares / self.count).sqrt()", "pass")
replace(D, "training", "the unit may be 0", "torch.full_like(self.centre, 1e-8)", "torch.zeros_like(self.centre)")
replace(D, "training", "the count begins with an observation", "torch.tensor(0.0)", "torch.tensor(1.0)")
replace(D, "training", "centre added", "2 * (obs - self.centre)", "2 * (obs + self.centre)")
replace(D, "training", "scaled to 1", "(2 * (obs - self.centre)", "((obs - self.centre)")
replace(D, "training", "divided by the mean square", "(self.sum_of_squares / self.count).sqrt()",
        "(self.sum_of_squares / self.count)")
replace(D, "training", "observations not limited", ".clamp(-10, 10)", "")
replace(D, "training", "observations limited to 5", ".clamp(-10, 10)", ".clamp(-5, 5)")
SQUARES = "(obs - self.centre).square().sum(0)"
replace(D, "training", "squares about 0", SQUARES, "obs.square().sum(0)")
replace(D, "training", "sizes for squares", SQUARES, "(obs - self.centre).abs().sum(0)")
replace(D, "training", "new observations count as one", SQUARES, "(obs - self.centre).square().mean(0)")
replace(D, "training", "all features have one unit", SQUARES, "(obs - self.centre).square().sum(0).mean()")
replace(D, "training", "the sum of squares forgets", "self.sum_of_squares +=", "self.sum_of_squares[:] =")
replace(D, "training", "the scale's count forgets", "self.count += len(obs)", "self.count.fill_(len(obs))")
replace(D, "training", "the count is of updates", "self.count += len(obs)", "self.count += 1")

# ---- ppo_discrete.py: networks, actions and the rollout ----
POLICY = "mlp(obs_dim, config.hidden_size, n_actions)"
replace(D, "training", "nothing between the layers", POLICY, f"nn.Sequential(*{POLICY}[::2])")
replace(D, "training", "the critic's hidden size is fixed", "mlp(obs_dim, config.hidden_size, 1)",
        "mlp(obs_dim, 32, 1)")
replace(D, "training", "hidden layers shared by both", "mlp(obs_dim, config.hidden_size, 1)",
        "nn.Sequential(*self.policy[:-1], nn.Linear(config.hidden_size, 1))")
replace(D, "training", "values limited to 1", "self.critic(self.scale(obs))", "self.critic(self.scale(obs)).tanh()")
each(SCRIPTS, "training", "policy not small at first", "self.policy[-1].weight *= 0.01", "pass")
each(SCRIPTS, "update", "the policy sees raw observations", "self.policy(self.scale(obs))", "self.policy(obs)")
each([D, A], "update", "the critic sees raw observations", "self.critic(self.scale(obs))", "self.critic(obs)")
each([D, R], "training", "greedy and sampled swapped", "pi.mode if greedy else", "pi.mode if not greedy else")
replace(D, "interface", "actions only for floats", "torch.as_tensor(obs).float())\n        action",
        "torch.as_tensor(obs))\n        action")
each([D, R, A], "training", "every run begins with the same episodes", "seed=1000 * config.seed)", "seed=0)")
replace(D, "training", "the episodes of all runs are the same", "obs, _ = envs.reset()", "obs, _ = envs.reset(seed=0)")
replace(D, "update", "the first observation is 0", "self.obs[T] = torch.as_tensor(obs)", "pass")
replace(D, "update", "a rollout starts from an old observation", "self.obs[0] = self.obs[T]", "pass")
each([D, A], "update", "a rollout's first step taken for a real one", "self.done[0] = self.done[T]", "pass")
replace(D, "update", "an end of an earlier rollout stays", "self.done[t + 1] = torch", "self.done[t + 1] |= torch")
replace(D, "update", "done a row early", "self.done[t + 1] = torch", "self.done[t] = torch")
replace(D, "update", "a truncation is no end", "torch.as_tensor(terminated | truncated)", "torch.as_tensor(terminated)")
replace(D, "update", "a termination is no end", "torch.as_tensor(terminated | truncated)", "torch.as_tensor(truncated)")
replace(D, "update", "a truncation is kept as a termination", "torch.as_tensor(terminated)\n",
        "torch.as_tensor(terminated | truncated)\n")
replace(D, "update", "actions of other environments", "torch.as_tensor(action)", "torch.as_tensor(action).flip(0)")
replace(D, "update", "rewards of other environments", "torch.as_tensor(reward)", "torch.as_tensor(reward).flip(0)")
replace(D, "update", "episodes end in steps of one environment", "(t + 1) * N  #", "t + 1  #")
replace(D, "update", "scores of all, whoever is done", "scores[ended]", "scores")
replace(D, "update", "lengths taken for scores", '["episode"]["r"]', '["episode"]["l"]')

# ---- ppo_discrete.py: the advantages and the loss ----
for part in "terminated", "value[1:]", "done[1:]":
    replace(D, "estimates", f"shape of {part} not compared", f" == {part}.shape", "")
replace(D, "estimates", "bootstrap from the same state", "gamma * value[1:]", "gamma * value[:-1]")
replace(D, "estimates", "bootstrap behind a terminal state", "value[1:] * ~terminated", "value[1:]")
replace(D, "estimates", "no bootstrap behind a truncation", "* ~terminated -", "* ~done[1:] -")
replace(D, "estimates", "GAE crosses a truncation", "* ~done[t + 1]", "* ~terminated[t]")
replace(D, "estimates", "GAE crosses all ends", " * ~done[t + 1]", "")
replace(D, "estimates", "GAE stops a step late", "* ~done[t + 1]", "* ~done[t]")
replace(D, "estimates", "GAE's last row is V", "torch.zeros_like(value)", "value.clone()")
replace(D, "estimates", "forwards in time", "in reversed(range(len(reward))):", "in range(len(reward)):")
replace(D, "estimates", "GAE without λ", "gamma * gae_lambda *", "gamma *")
replace(D, "estimates", "GAE without γ", "gamma * gae_lambda *", "gae_lambda *")
replace(D, "losses", "ratio upside down", "pi.log_prob(action) - old_log_prob", "old_log_prob - pi.log_prob(action)")
for part in ("value", "advantage", "return_"):
    replace(D, "losses", f"shape of {part} not compared", f" == {part}.shape", "")
replace(D, "losses", "KL the wrong way round", "(ratio - 1 - log_ratio)", "(ratio * log_ratio - ratio + 1)")
replace(D, "losses", "no clip from below", "ratio.clamp(1 - clip_eps,", "ratio.clamp(0,")
replace(D, "losses", "no clip from above", "1 + clip_eps)", "torch.inf)")
replace(D, "losses", "max instead of min", "torch.min(ratio", "torch.max(ratio")
replace(D, "losses", "the critic's error not halved", "0.5 * critic_loss", "critic_loss")
each([D, A], "losses", "entropy made small", "- entropy_coef * entropy", "+ entropy_coef * entropy")
WEIGHT = "config.entropy_coef * (2 * remaining - 1)"
replace(D, "update", "the entropy's weight does not fall", WEIGHT, "config.entropy_coef")
replace(D, "update", "the entropy's weight falls only to 0", WEIGHT, "config.entropy_coef * remaining")
replace(D, "losses", "KL and entropy swapped", "return loss, kl, entropy", "return loss, entropy, kl")

# ---- ppo_discrete.py: the batch and the update, with what is alike in the others ----
each([D, A], "update", "observations a row late", "obs = buffer.obs[:-1]", "obs = buffer.obs[1:]")
replace(D, "update", "π_old of other steps", ".log_prob(buffer.action)", ".log_prob(buffer.action).flip(0)")
replace(D, "update", "ends swapped", "buffer.terminated, buffer.done,",
        "buffer.done[1:] & ~buffer.terminated, buffer.done,")
replace(D, "update", "γ and λ swapped", "config.gamma, config.gae_lambda)", "config.gae_lambda, config.gamma)")
replace(D, "update", "the critic learns the advantage", "return_ = advantage + value[:-1]", "return_ = advantage")
replace(D, "update", "targets from the next value", "return_ = advantage + value[:-1]",
        "return_ = advantage + value[1:]")
replace(D, "update", "advantage and target swapped", "old_log_prob, advantage, return_)]",
        "old_log_prob, return_, advantage)]")
replace(D, "update", "gradient flows through the batch", "@torch.no_grad()\ndef make_batch", "def make_batch")
each([D, A], "update", "reset steps are learned from", "~buffer.done[:-1]  #", "~(buffer.done[:-1] & False)  #")
each([D, A], "update", "last steps of episodes left out", "~buffer.done[:-1]  #", "~buffer.done[1:]  #")
replace(D, "update", "one epoch too few", "range(config.epochs)", "range(config.epochs - 1)")
replace(D, "update", "minibatches not shuffled", "torch.randperm(B)", "torch.arange(B)")
EPOCHS, SHUFFLE = "    for _ in range(config.epochs):\n", "    order = torch.randperm(B)\n"
replace(D, "update", "every epoch in the same order", f"{EPOCHS}    {SHUFFLE}", f"{SHUFFLE}{EPOCHS}")
replace(D, "update", "fewer minibatches than asked for", ".tensor_split(config", ".chunk(config")
CENTRED, SPREAD = "advantage - advantage.mean()", "advantage.std(correction=0)"
replace(D, "update", "advantage not centred", CENTRED, "advantage")
replace(D, "update", "advantage not divided by its deviation", f"advantage / ({SPREAD} + 1e-8)", "advantage")
replace(D, "training", "a minibatch of one step divides by 0", f"({SPREAD} + 1e-8)", SPREAD)
replace(D, "update", "deviation of a sample", SPREAD, "advantage.std()")
mutant(D, "advantage normalised over the rollout", "update", (CENTRED, "advantage - batch[3].mean()"),
       (SPREAD, "batch[3].std(correction=0)"))
replace(D, "update", "pi of other steps of the minibatch", "pi = agent.pi(obs)", "pi = agent.pi(obs.flip(0))")
replace(D, "update", "value of other steps of the minibatch", "value = agent.value(obs)",
        "value = agent.value(obs.flip(0))")
CALL = "= ppo_loss(pi, value, action, old_log_prob, advantage, return_,"
for part in ("action", "old_log_prob", "advantage", "return_"):
    replace(D, "update", f"{part} of other steps of the minibatch", CALL, CALL.replace(part, f"{part}.flip(0)"))
each([D, R, A], "update", "zero_grad forgotten", "agent.zero_grad()", "pass")
each([D, R, A], "update", "optimizer's step forgotten", "optimizer.step()", "pass")
each([D, R, A], "update", "gradient not clipped", "(), config.max_grad_norm", "(), torch.inf")
each([D, A], "training", "the critic's gradient not clipped", "agent.parameters(), config.m",
     "agent.policy.parameters(), config.m")
each([D, R, A], "training", "a gradient of NaN goes through", "error_if_nonfinite=True", "error_if_nonfinite=False")
replace(D, "update", "only the first minibatch of each epoch", "    return kl, entropy",
        "            break\n    return kl, entropy")
for script, new, everything, early in ((D, "batch[0]", "buffer.obs[:-1].flatten(0, 1)", "kl, entropy = update("),
                                       (R, "obs", "episodes[0].flatten(0, 1)", "pi = agent.pi(obs)"),
                                       (A, "obs", "buffer.obs[:-1].flatten(0, 1)", "pi = agent.pi(obs)")):
    seen = f"agent.scale.include({new})"
    replace(script, "update", "scale never updated", seen, "pass")
    replace(script, "update", "scale updated with reset steps", seen, f"agent.scale.include({everything})")
    mutant(script, "scale updated too early", "update", (seen, "pass"), (early, f"{seen}; {early}"))

# ---- ppo_discrete.py: the optimizer and the training, with what is alike in the others ----
for method in "add_param_group", "state_dict", "load_state_dict":
    replace(D, "training", f"torch's compiler used by {method}", f" = optim.Adam.{method}.__wrapped__",
            f" = optim.Adam.{method}")
replace(D, "training", "torch's compiler used by step", "torch.no_grad()(optim.Adam.step.__wrapped__)",
        "optim.Adam.step")
each([D, R, A], "interface", "settings not checked", "    check(config)\n    with", "    with")
replace(D, "update", "rewards not scaled", "NormalizeReward(envs, config.gamma)", "envs")
replace(D, "update", "another γ in the spread of the returns", "Reward(envs, config.gamma)", "Reward(envs)")
each([D, R, A], "training", "the seed does not set the weights", "torch.manual_seed(config.seed)", "pass")
replace(D, "update", "another ε of Adam", "config.learning_rate, fused=True",
        "config.learning_rate, eps=1e-5, fused=True")
each([R, A], "update", "another ε of Adam", "lr=config.learning_rate)", "lr=config.learning_rate, eps=1e-5)")
each([D, R, A], "training", "neighbouring seeds share episodes", "seed=1000 * config.seed", "seed=config.seed")
each([D, R, A], "update", "learning rate rises", "remaining = 1 - env_step", "remaining = env_step")
each([D, R, A], "update", "learning rate stays", "= config.learning_rate * remaining", "= config.learning_rate")
each([D, A], "update", "only the last rollout's episodes", "history += buffer", "history = buffer")
each([D, A], "update", "steps of one environment counted", "+= config.num_envs * config.num", "+= config.num")
TRAINED = "make_envs(config.env_id, config.num_envs)"
for script in (D, R, A):
    left_open = f"with closing({TRAINED}) as envs:", f"for envs in [{TRAINED}]:"
    mutant(script, "environments stay open", "interface", left_open)
    mutant(script, "environments of a failed run stay open", "interface", left_open,
           ("    return agent, history", "    envs.close()\n    return agent, history"))
each([D, R, A], "training", "no report of the end", " or env_step >= config.total_steps:", ":")
replace(D, "training", "a report of every update", "env_step >= next_report or", "True or")
replace(D, "training", "the first report comes late", "next_report = env_step\n", "next_report = env_step + 1_000\n")
SAVE = "save(config, agent, optimizer, envs, env_step, history)  #"
replace(D, "checkpoints", "saved only at the end", f"{SAVE} if", "pass  # if")
replace(D, "checkpoints", "not saved on Ctrl-C", f"{SAVE} once", "pass  # once")
each([D, R, A], "training", "Ctrl-C costs a traceback", "except KeyboardInterrupt:", "except KeyError:")

# ---- What all scripts print ----
each([D, R, A], "training", "average of the last 10 episodes", "history[-20:]", "history[-10:]")
each([D, R, A], "training", "episodes of the average counted", "{len(history):,}", "{len(scores):,}")
replace(D, "training", "an average of no episodes", 'if scores else "no episode yet"', 'if True else ""')
replace(D, "training", "the average rounded", "{np.mean(scores):.6g}", "{np.mean(scores):.2g}")
replace(D, "training", "a part taken for all steps", "of {config.total_steps:,}", "of {env_step:,}")
replace(D, "training", "the entropy printed for the KL", "kl {kl:.2g}", "kl {entropy:.2g}")
replace(A, "training", "the entropy printed is another", "    return entropy\n", "    return 2 * entropy\n")
each([D, R], "training", "the best episode is the evaluation", "{scores.mean():.6g}", "{scores.max():.6g}")
replace(D, "interface", "nothing said before the evaluation",
        'print(f"evaluating in {config.eval_episodes} environments", flush=True)', "pass")

# ---- ppo_discrete.py: checkpoints ----
for part, new in {"agent": "agent.state_dict()", "optimizer": "optimizer.state_dict()", "returns": "{}",
                  "env_step": "0", "history": "[]"}.items():
    replace(D, "checkpoints", f"{part} not loaded", f'checkpoint["{part}"]', new)
SEED = "seed = 1000 * config.seed + env_step"
replace(D, "checkpoints", "a resumed run draws the same numbers", SEED, "seed = 1000 * config.seed")
replace(D, "checkpoints", "resumed runs of all seeds are the same", SEED, "seed = env_step")
replace(D, "checkpoints", "a resumed run plays the same episodes", "    envs.reset(seed=seed)\n", "")
replace(D, "checkpoints", "a resumed run draws the same actions", "    torch.manual_seed(seed)\n", "")
replace(D, "checkpoints", "fewer than no steps are left", "max(config.total_steps - env_step, 0)",
        "config.total_steps - env_step")
for where in ("config", "given"):
    replace(D, "checkpoints", f"code in a checkpoint of {where} is run", f"{where}.load, weights_only=True",
            f"{where}.load, weights_only=False")
OWN = '(save="", load="", render=False)'
replace(D, "checkpoints", "a checkpoint keeps --save", OWN, '(load="", render=False)')
replace(D, "checkpoints", "a checkpoint keeps --load", OWN, '(save="", render=False)')
replace(D, "checkpoints", "a checkpoint keeps --render", OWN, '(save="", load="")')
replace(D, "checkpoints", "a checkpoint loses --eval-episodes", OWN,
        '(save="", load="", render=False, eval_episodes=100)')
mutant(D, "checkpoint written in place", "checkpoints", ('checkpoint, f"{config.save}.tmp")',
       "checkpoint, config.save)"),
       ('os.replace(f"{config.save}.tmp", config.save)', "pass"))
replace(D, "checkpoints", "a foreign file is overwritten", 'open(config.save, "x")', 'open(config.save, "a")')
replace(D, "checkpoints", "the place to save to not checked", "if config.save and config.save != config.load:",
        "if False:")
replace(D, "checkpoints", "a checkpoint cannot be continued", "if config.save and config.save != config.load:",
        "if config.save:")
replace(D, "checkpoints", "the check leaves an empty file", "        os.remove(config.save)\n", "")
replace(D, "interface", "no folder to write to costs a traceback", "    except OSError as error:",
        "    except FileExistsError as error:")
replace(D, "checkpoints", "no window", ', render_mode="human"', "")
WINDOW, EVALUATED = "make_envs(config.env_id, 1, **how)", "make_envs(config.env_id, config.eval_episodes)"
replace(D, "interface", "the window stays open", f"with closing({WINDOW}) as envs:", f"for envs in [{WINDOW}]:")

# ---- ppo_discrete.py: settings, environments, evaluation and command line, with what is alike in the others ----
for script, limits in {D: "num_envs=1, num_steps=2, epochs=1, num_minibatches=1, gamma=1, gae_lambda=1,",
                       R: "num_envs=2,", A: "num_envs=1, num_steps=2,"}.items():
    for limit in limits.split():
        replace(script, "interface", f"limit {limit[:-1]} forgotten", f"{limit} ", "")
for script in (D, R, A):
    replace(script, "interface", "limit hidden_size=1 forgotten", "hidden_size=1)", ")")
each([R, A], "interface", "limit gamma=1 forgotten", "dict(gamma=1)", "dict()")
replace(D, "interface", "too many minibatches go through", ", num_minibatches=most)", ")")
replace(D, "training", "minibatches limited by all steps", "(int(config.num_steps) // 2)", "int(config.num_steps)")
each([D, R], "interface", "numbers may be below 0", "lowest.get(field.name, 0)", "lowest.get(field.name, -1)")
each([D, R], "interface", "numbers may be infinite", "1_000_000_000", "float('inf')")
each([D, R], "interface", "NaN goes through", "not low <= value <= high", "(value < low or value > high)")
each([D, R], "interface", "numpy's numbers stay", "setattr(config, field.name, value)", "pass")
each([D, R, A], "interface", "other actions go through", "not isinstance(space, gym.spaces.Discrete)", "False")
each([D, R, A], "interface", "actions that begin elsewhere go through", " or space.start != 0", "")
each([D, R], "interface", "refused environments stay open", "        envs.close()\n        raise gym",
     "        raise gym")
replace(D, "interface", "observations not flattened", "envs = FlattenObservation(envs)", "pass")
each([D, R, A], "interface", "a warning stands before the line", 'warnings.simplefilter("ignore", DeprecationWarning)',
     "pass")
each([D, R], "interface", "the trial's environment stays open", "make_envs(config.env_id, 1).close()",
     "make_envs(config.env_id, 1)")
each([D, R, A], "interface", "the evaluation's environments stay open", f"with closing({EVALUATED}) as envs:",
     f"for envs in [{EVALUATED}]:")
each([D, R], "training", "evaluation plays episodes of the training", "1000 * seed + 500", "1000 * seed")
each([D, R], "training", "evaluation samples", "agent.act(obs, greedy)", "agent.act(obs)")
replace(D, "training", "evaluation counts second episodes", "scores += reward * playing", "scores += reward")
replace(D, "training", "evaluation plays on after a truncation", "&= ~(terminated | truncated)", "&= ~terminated")
replace(D, "training", "endless episodes are left too soon", "range(10_000)", "range(1_000)")
each([D, R, A], "training", "evaluations of every run are the same", "evaluate(agent, envs, seed=config.seed)",
     "evaluate(agent, envs)")
each([D, R, A], "training", "no evaluation cannot be asked for", "if config.eval_episodes:", "if True:")
replace(D, "interface", "a notebook's arguments are taken for ours", '"__file__" not in globals()', "False")
replace(D, "interface", "abbreviated flags", "allow_abbrev=False", "allow_abbrev=True")
each([D, R], "interface", "flags without defaults", "default=field.default, ", "")
replace(D, "interface", "--render wants a word", "dict(action=BooleanOptionalAction) if field.type is bool else ", "")
replace(D, "interface", "flags with underscores", 'flag = field.name.replace("_", "-")\n        parser',
        "flag = field.name\n        parser")
replace(D, "interface", "a per cent sign breaks the help", '.replace("%", "%%")', "")
replace(D, "interface", "the help begins with the whole text", "__doc__.splitlines()[0]", "__doc__")
replace(D, "interface", "the help tells no defaults", " (default: {field.default!r})", "")
replace(D, "interface", "the help tells no settings for other tasks", 'epilog=f"The', 'epilog="" and f"The')
OTHER, ELSE = "parser.set_defaults(**OTHER_TASKS)", "    elif given.env_id != Config.env_id:"
PARSED = "Config(**vars(parser.parse_args()))"
KEPT = 'parser.set_defaults(**vars(Config(**checkpoint["config"])))'
replace(D, "interface", "settings for other tasks ignored", OTHER, "pass")
replace(D, "interface", "settings for other tasks win over flags", PARSED,
        "Config(**vars(parser.parse_args()) | (OTHER_TASKS if given.env_id != Config.env_id else {}))")
replace(D, "interface", "settings for other tasks used for its own", ELSE, "    else:")
replace(D, "checkpoints", "settings for other tasks win over a checkpoint", ELSE, ELSE.replace("elif", "if"))
replace(D, "checkpoints", "settings of the checkpoint ignored", KEPT, 'Config(**checkpoint["config"])')
mutant(D, "settings of the checkpoint win", "checkpoints",
       (PARSED, PARSED.replace("parse_args())", "parse_args()) | kept")),
       ("    given = parser.parse_args()\n", "    given, kept = parser.parse_args(), {}\n"),
       (KEPT, f"{KEPT}\n            own = (\"save\", \"load\", \"render\")\n            kept = "
              'checkpoint["config"] | {key: getattr(given, key) for key in own}'))
replace(D, "checkpoints", "foreign settings go through", KEPT, 'parser.set_defaults(**checkpoint["config"])')
replace(D, "checkpoints", "a foreign file costs a traceback", "except Exception:", "except KeyError:")
each([D, R, A], "interface", "a wrong setting costs a traceback", "    except ValueError as error:",
     "    except FileNotFoundError as error:")
replace(D, "interface", "every error is taken for a wrong name", "(gym.error.Error, ImportError)", "Exception")
replace(D, "interface", "a task that has moved costs a traceback", "ImportError)", "ModuleNotFoundError)")

# ---- ppo_continuous.py, where it differs ----
replace(C, "update", "log-probabilities not summed", "Independent(Normal(mean, std), 1)",
        "Independent(Normal(mean, std), 0)")
replace(C, "training", "one hidden layer fewer",
        "        nn.Linear(hidden_size, hidden_size),\n        activation(),\n", "")
ACTIVATION = "[config.activation]"
replace(C, "update", "--activation ignored", ACTIVATION, '["relu"]')
replace(C, "update", "activations swapped", ACTIVATION, '["tanh" if config.activation == "relu" else "relu"]')
replace(C, "interface", "any activation goes through", 'config.activation not in ("relu", "tanh")', "False")
replace(C, "update", "σ not learned", "self.log_std = nn.Parameter(", "self.log_std = nn.Buffer(")
replace(C, "update", "σ the same for any number of components", " / np.sqrt(action_dim)", "")
replace(C, "training", "--init-log-std ignored", "np.exp(config.init_log_std)", "np.exp(0.5)")
replace(C, "interface", "limit init_log_std=-10 forgotten", "init_log_std=-10, ", "")
replace(C, "interface", "limit init_log_std=10 forgotten", "init_log_std=10, ", "")
replace(C, "update", "σ² for σ", "self.log_std.exp()", "(2 * self.log_std).exp()")
replace(C, "update", "actions stored as clipped", "agent.act(self.obs[t])", "agent.act(self.obs[t]).clip(-1, 1)")
replace(C, "training", "actions leave the range", "return np.clip(action, space.low, space.high)", "return action")
replace(C, "training", "actions not counted from the lower bound", "action = space.low + (", "action = (")
replace(C, "training", "actions reach half of the range", "(action + 1) / 2", "(action + 1) / 4")
replace(C, "interface", "other actions go through", "isinstance(space, gym.spaces.Box) and len(space.shape) == 1",
        "len(space.shape) == 1")
replace(C, "interface", "tables of actions go through", " and len(space.shape) == 1", "")
replace(C, "interface", "a range without bounds goes through", "space.is_bounded() and ", "")
replace(C, "interface", "whole numbers go through", " and space.dtype in (np.float32, np.float64)", "")

# ---- reinforce.py ----
replace(R, "update", "stops with the first episode", "while playing.any()", "while playing.all()")
replace(R, "training", "endless episodes are left too soon", "len(all_obs) < 10_000", "len(all_obs) < 1_000")
replace(R, "training", "observations not copied", "torch.tensor(obs).float()", "torch.as_tensor(obs).float()")
replace(R, "update", "observations a row late", "envs.step(action)\n",
        "envs.step(action)\n        all_obs[-1] = torch.tensor(obs).float()\n")
replace(R, "update", "actions of other environments", "torch.tensor(action)", "torch.tensor(action).flip(0)")
replace(R, "update", "rewards after the end count", "torch.tensor(reward).float() * playing",
        "torch.tensor(reward).float()")
STILL, ENDED = "playing = playing & ~ended", "torch.tensor(terminated | truncated)"
replace(R, "update", "rows of valid steps share an array", STILL, "playing &= ~ended")
replace(R, "update", "second episodes are played, too", STILL, "playing = ~ended")
replace(R, "update", "truncated episodes do not end", ENDED, "torch.tensor(terminated)")
replace(R, "update", "always the first observation", "obs, reward, terminated", "_, reward, terminated")
replace(R, "estimates", "forwards in time", "in reversed(range(len(reward) - 1)):", "in range(len(reward) - 1):")
replace(R, "estimates", "returns without discount", "gamma * return_[t + 1]", "return_[t + 1]")
replace(R, "update", "--gamma ignored", "(reward, config.gamma)", "(reward, 1.0)")
replace(R, "update", "the same episodes in each update", "    obs, _ = envs.reset()", "    obs, _ = envs.reset(seed=0)")
replace(R, "update", "episodes end where their update begins", "[(env_step, score)", "[(env_step - reward.numel(), score)")
replace(R, "update", "episodes end an update later", "[(env_step, score)", "[(env_step + reward.numel(), score)")
replace(R, "update", "scores of steps", "reward.sum(0).tolist()", "reward.sum(1).tolist()")
replace(R, "update", "scores without the first step", "reward.sum(0).tolist()", "reward[1:].sum(0).tolist()")
replace(R, "update", "steps of one environment counted", "reward.numel()", "len(reward)")
replace(R, "update", "steps after the end do not count", "reward.numel()", "int(episodes[3].sum())")
replace(R, "losses", "no baseline", "return_ - baseline", "return_")
replace(R, "losses", "one baseline for all steps", "return_.mean(1, keepdim=True)", "return_.mean()")
replace(R, "losses", "who is done is left out of the baseline", "return_.mean(1, keepdim=True)",
        "return_.sum(1, keepdim=True) / valid.sum(1, keepdim=True)")
replace(R, "losses", "differences not divided by their deviation", "difference / (", "difference + 0 * (")
replace(R, "update", "observations of other steps", "agent.pi(obs)", "agent.pi(obs.flip(0))")
replace(R, "update", "actions of other steps", "pi.log_prob(action)", "pi.log_prob(action.flip(0))")
replace(R, "losses", "differences of other steps", "(return_ - baseline)[valid]", "(return_ - baseline)[valid].flip(0)")
replace(R, "losses", "bad actions made likelier", "-(log_prob * weight).mean()", "(log_prob * weight).mean()")
replace(R, "losses", "shapes of the loss not compared", "log_prob.shape == weight.shape", "True")
replace(R, "training", "the entropy of the first step", "pi.entropy().mean()", "pi.entropy()[0]")

# ---- actor_critic.py ----
for part in "value", "next_value", "terminated":
    replace(A, "estimates", f"shape of {part} not compared", f" == {part}.shape", "")
replace(A, "estimates", "bootstrap behind a terminal state", "next_value * ~terminated", "next_value")
replace(A, "estimates", "the target follows the critic", "target = target.detach()", "pass")
replace(A, "estimates", "no discount", "gamma * next_value", "next_value")
replace(A, "update", "bootstrap from the same state", "value[:-1], value[1:],", "value[:-1], value[:-1],")
replace(A, "update", "no bootstrap behind a truncation", "buffer.terminated, config", "buffer.done[1:], config")
replace(A, "update", "TD errors of other steps", "delta[valid], config", "delta[valid].flip(0), config")
replace(A, "update", "actions of other steps", "action[valid]", "action[valid].flip(0)")
replace(A, "losses", "the gradient flows through ψ", "psi = delta.detach()", "psi = delta")
replace(A, "losses", "ψ not centred", "(psi - psi.mean())", "psi")
replace(A, "losses", "ψ not divided by its deviation", "(psi - psi.mean()) / (psi.std(correction=0) + 1e-8)",
        "psi - psi.mean()")
each([R, A], "training", "no ε beside the deviation", "std(correction=0) + 1e-8)", "std(correction=0))")
each([R, A], "losses", "deviation of a sample", "std(correction=0)", "std()")
replace(A, "losses", "shapes of the loss not compared", "log_prob.shape == psi.shape", "True")
replace(A, "losses", "bad actions made likelier", "-(log_prob * psi)", "(log_prob * psi)")
replace(A, "losses", "the critic's error not halved", "0.5 * critic_loss", "critic_loss")
RMS = "(reward_squares / reward_count).sqrt()"
replace(A, "update", "rewards not scaled", "buffer.reward / (20 * rms)", "buffer.reward")
replace(A, "update", "rewards scaled to 1", "(20 * rms)", "rms")
replace(A, "update", "rewards divided by the mean square", RMS, "(reward_squares / reward_count)")
replace(A, "update", "rewards' sizes for squares", "buffer.reward.square()", "buffer.reward.abs()")
replace(A, "update", "rewards about their mean", "buffer.reward.square()",
        "(buffer.reward - buffer.reward.mean()).square()")
replace(A, "update", "the rewards' sum forgets", "reward_squares += ", "reward_squares = ")
replace(A, "update", "the rewards' count forgets", "reward_count += ", "reward_count = ")
replace(A, "update", "reset steps count as rewards", "(~buffer.done[:-1]).sum()", "buffer.reward.numel()")
mutant(A, "rewards counted too late", "update", (f"rms = {RMS}", "pass"),
       ("reward_squares += ", "rms = (reward_squares / reward_count) ** 0.5; reward_squares += "))
replace(A, "training", "rewards of 0 divide by 0", "reward_squares = torch.tensor(1e-8)", "reward_squares = torch.tensor(0.0)")


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
            Path(folder, f"{script}.py").write_text(text, encoding="utf-8")
        others = [other for other in SCRIPTS if script and other != script]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "-k",
                   " and ".join(f"not {word}" for word in LEFT_OUT + others), *[f"tests/{file}" for file in files]]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return "TIMEOUT"
        if done.returncode == 0:
            return "SURVIVED"
        noticed = re.search(r"^(?:FAILED|ERROR|!+) (?:tests/)?(\S+)", done.stdout, re.MULTILINE)
        if done.returncode not in (1, 2) or not noticed:  # 2: Ctrl-C
            raise RuntimeError(f"pytest did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return noticed[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutants that have all these words in their names")
    parser.add_argument("--tests", nargs="+", metavar="FILE", default=FILES, help="only these files of tests")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at a time")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for the tests of a mutant")
    parser.add_argument("--check", action="store_true", help="only see whether each bug can be put in")
    args = parser.parse_args()
    chosen = [m for m in MUTANTS if all(word in f"{m[0]}: {m[1]}" for word in args.words)]
    texts = {(script, bug): mutated(script, edits) for script, bug, _, edits in MUTANTS}
    if len(texts) != len(MUTANTS):
        raise ValueError("two mutants have the same name")
    if args.check:
        sys.exit(print(f"{len(MUTANTS)} mutants can be put in"))
    if (unchanged := run_tests("", "", args.tests, 4 * args.timeout)) != "SURVIVED":
        sys.exit(f"The scripts as they are: {unchanged}. First they have to pass.")

    def test(mutant):
        script, bug, finder, _ = mutant
        start = time.perf_counter()
        files = sorted(args.tests, key=lambda file: file != finder)  # the others only if it finds nothing
        fate = run_tests(script, texts[script, bug], files, args.timeout)
        print(f"{f'{script}: {bug}':<68} {time.perf_counter() - start:4.0f} s  {fate}", flush=True)
        return fate

    with ThreadPoolExecutor(args.jobs) as pool:
        fates = list(pool.map(test, chosen))
    left = [f"    {m[0]}: {m[1]} ({fate})" for m, fate in zip(chosen, fates) if fate in ("SURVIVED", "TIMEOUT")]
    print(f"{len(chosen) - len(left)} of {len(chosen)} mutants killed" + ("; not:" if left else ""), *left, sep="\n")
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
