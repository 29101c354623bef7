"""Do the tests notice bugs? `python tests/mutants.py` puts one after the other into the scripts and looks.

Each mutant is a copy of the scripts with one bug in it: a line or two of one script changed. It is killed if
a test fails, and has survived if all pass. Words after the command choose the mutants that have them in
their names: `python tests/mutants.py reinforce seed`. With --tests test_update.py only that file is run.
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

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = D, C, R, A = ["ppo_discrete", "ppo_continuous", "reinforce", "actor_critic"]
FILES = [f"test_{part}.py" for part in ("update", "estimates", "losses", "training", "checkpoints", "interface")]
# Learning takes long, and where the same text stands or how wide it is says nothing about whether it is right.
LEFT_OUT = ["solve", "learned_on", "readme", "recipe", "tutorial", "ablations", "is_the_same_text",
            "its_three_libraries"]
MUTANTS = []  # (script, what is wrong, the file of the test that may notice first, [(old text, new text), ...])


def mutant(script, bug, finder, *edits):
    MUTANTS.append((script, bug, f"test_{finder}.py", edits))


def replace(script, finder, bug, old, new):
    mutant(script, bug, finder, (old, new))


def each(scripts, finder, bug, old, new):
    for script in scripts:
        replace(script, finder, bug, old, new)


# ---- ppo_discrete.py: the scale of the observations ----
replace(D, "update", "--obs-std ignored", "ObsScale(obs_dim, config.obs_std)", "ObsScale(obs_dim, 2.0)")
for part in ("count = nn.Buffer(torch.zeros(1))", "mean = nn.Buffer(torch.zeros(obs_dim))",
             "std = nn.Buffer(torch.full((obs_dim,), target_std))", "shift = nn.Buffer(torch.zeros(obs_dim))"):
    replace(D, "training", f"the scale's {part.split()[0]} not saved", f"self.{part}", f"self.{part}.detach()")
replace(D, "training", "first observations not as they are", "full((obs_dim,), target_std)", "ones(obs_dim)")
replace(D, "update", "shift added", "(obs - self.shift)", "(obs + self.shift)")
replace(D, "update", "observations not limited", ".clamp(-10, 10)", "")
replace(D, "update", "deviation of a sample", "torch.var_mean(obs, 0, correction=0)", "torch.var_mean(obs, 0)")
replace(D, "update", "the scale's count forgets", "self.count += len(obs)", "self.count[:] = len(obs)")
replace(D, "update", "new observations count as one", "weight = len(obs) / self.count", "weight = 1 / self.count")
replace(D, "update", "the mean follows the newest", "self.mean += weight * change", "self.mean += change")
replace(D, "update", "a mean that moves adds no variance", "self.std**2 + weight * change**2", "self.std**2")
replace(D, "training", "the variance may be 0", "var.clamp(min=1e-8)", "var")
replace(D, "update", "shifted at every update", "if weight == 1:", "if True:")
replace(D, "training", "far features are moved to 1", "(-2 * self.std, 2 * self.std)", "(-self.std, self.std)")
replace(D, "training", "features below 0 are never far", "clamp(-2 * self.std, 2", "clamp(-2e9 * self.std, 2")
replace(D, "training", "features are very far at 5", "> 10 * self.std", "> 5 * self.std")

# ---- ppo_discrete.py: networks, actions and the rollout ----
replace(D, "training", "layers without the gain √2", "(layer.weight, 2**0.5)", "(layer.weight)")
replace(D, "training", "biases not 0", "nn.init.zeros_(layer.bias)", "pass")
replace(D, "training", "nothing between the layers", "nn.Tanh()]", "nn.Identity()]")
replace(D, "training", "tanh behind the output", "nn.Sequential(*layers[:-1])", "nn.Sequential(*layers)")
replace(D, "training", "always one hidden layer", "[config.hidden_size] * config.hidden_layers", "[config.hidden_size]")
each([D, C, A], "training", "policy not small at first", "output_gain=0.01)", "output_gain=1.0)")
replace(D, "training", "critic small at first", "*hidden, 1], output_gain=1.0)", "*hidden, 1], output_gain=0.01)")
each(SCRIPTS, "update", "the policy sees raw observations", "self.policy(self.scale(obs))", "self.policy(obs)")
replace(D, "update", "the critic sees raw observations", "self.critic(self.scale(obs))", "self.critic(obs)")
replace(D, "training", "greedy and sampled swapped", "pi.mode if greedy else", "pi.mode if not greedy else")
replace(D, "training", "every run plays the same episodes", "envs.reset(seed=seed)", "envs.reset(seed=0)")
replace(D, "update", "a rollout starts from an old observation", "self.obs[0] = self.obs[T]", "pass")
VALID = "~(self.terminated[t - 1] | self.truncated[t - 1])"
replace(D, "update", "reset steps are learned from", VALID, "True")
replace(D, "update", "the step behind a truncation taken for a real one", VALID, "~self.terminated[t - 1]")
replace(D, "update", "a rollout's first step taken for a real one", VALID, f"{VALID} | (t == 0)")
replace(D, "update", "other actions stored than played", "envs.step(self.action[t])", "envs.step(1 - self.action[t])")
replace(D, "update", "episodes end in steps of one environment", "env_step += N", "env_step += 1")
replace(D, "update", "scores of all, whoever is done", '["r"][info["_episode"]]', '["r"]')

# ---- ppo_discrete.py: the advantages and the loss ----
replace(D, "estimates", "shapes of the estimate not compared", " == value[1:].shape", "")
replace(D, "estimates", "bootstrap from the same state", "gamma * value[1:]", "gamma * value[:-1]")
replace(D, "estimates", "bootstrap behind a terminal state", "value[1:] * ~terminated", "value[1:]")
replace(D, "estimates", "no bootstrap behind a truncation", "* ~terminated -", "* ~(terminated | truncated) -")
replace(D, "estimates", "GAE crosses a truncation", "continues = ~(terminated | truncated)", "continues = ~terminated")
replace(D, "estimates", "GAE's last row is V", "torch.zeros_like(value)", "value.clone()")
replace(D, "estimates", "forwards in time", "in reversed(range(len(reward))):", "in range(len(reward)):")
replace(D, "estimates", "GAE without λ", "gamma * gae_lambda *", "gamma *")
replace(D, "losses", "ratio upside down", "pi.log_prob(action) - old_log_prob", "old_log_prob - pi.log_prob(action)")
for part in ("value", "advantage", "return_"):
    replace(D, "losses", f"shape of {part} not compared", f" == {part}.shape", "")
replace(D, "losses", "KL the wrong way round", "(ratio - 1 - log_ratio)", "(ratio * log_ratio - ratio + 1)")
replace(D, "losses", "no clip from below", "ratio.clamp(1 - clip_eps,", "ratio.clamp(0,")
replace(D, "losses", "no clip from above", "1 + clip_eps)", "torch.inf)")
replace(D, "losses", "max instead of min", "torch.min(ratio", "torch.max(ratio")
replace(D, "losses", "the critic's error not halved", "0.5 * value_loss", "value_loss")
replace(D, "losses", "entropy made small", "- entropy_coef * entropy", "+ entropy_coef * entropy")
replace(A, "update", "entropy made small", "- config.entropy_coef * entropy", "+ config.entropy_coef * entropy")
WEIGHT = "config.entropy_coef * (2 * remaining - 1)"
replace(D, "update", "the entropy's weight does not fall", WEIGHT, "config.entropy_coef")
replace(D, "update", "the entropy's weight falls only to 0", WEIGHT, "config.entropy_coef * remaining")
replace(D, "losses", "KL and entropy swapped", "return loss, kl, entropy", "return loss, entropy, kl")

# ---- ppo_discrete.py: the optimizer and the training, with what is alike in the others ----
for part in ("add_param_group", "state_dict", "load_state_dict", "step"):
    replace(D, "training", f"torch's compiler used by {part}", f"optim.Adam.{part}.__wrapped__", f"optim.Adam.{part}")
each([D, R, A], "interface", "settings not checked", "    check(config)\n    envs", "    envs")
replace(D, "update", "rewards not scaled", "NormalizeReward(envs, config.gamma)", "envs")
replace(D, "update", "another γ in the spread of the returns", "Reward(envs, config.gamma)", "Reward(envs)")
each([D, R, A], "training", "the seed does not set the weights", "torch.manual_seed(config.seed)", "pass")
each([D, R, A], "update", "another ε of Adam", "eps=1e-5", "eps=1e-8")
replace(D, "training", "neighbouring seeds share episodes", "seed=1000 * config.seed", "seed=config.seed")
replace(D, "checkpoints", "a resumed run plays the same episodes", "* config.seed + env_step", "* config.seed")
each([D, R, A], "update", "learning rate rises", "remaining = 1 - env_step", "remaining = env_step")
each([D, R, A], "update", "learning rate stays", "= config.learning_rate * remaining", "= config.learning_rate")
each([D, A], "update", "only the last rollout's episodes", "history += buffer", "history = buffer")
each([D, A], "update", "steps of one environment counted", "+= config.num_envs * config.num", "+= config.num")
replace(D, "update", "ends swapped", "terminated, truncated, valid =", "truncated, terminated, valid =")
replace(D, "update", "γ and λ swapped", "config.gamma, config.gae_lambda)", "config.gae_lambda, config.gamma)")
each([D, A], "update", "observations a row late", "b_obs = obs[:-1][valid]", "b_obs = obs[1:][valid]")
each([D, R, A], "update", "actions of other steps", "action[valid]", "action[valid].flip(0)")
replace(D, "update", "advantages of other steps", "= advantage[valid]", "= advantage[valid].flip(0)")
replace(D, "update", "the critic learns the advantage", "b_advantage + value[:-1][valid]", "b_advantage")
replace(D, "update", "π_old of other steps", ".log_prob(b_action)", ".log_prob(b_action).flip(0)")
replace(D, "update", "one epoch too few", "range(config.epochs)", "range(config.epochs - 1)")
replace(D, "update", "minibatches not shuffled", "torch.randperm(len(b_obs))", "torch.arange(len(b_obs))")
EPOCHS = "            for _ in range(config.epochs):\n"
replace(D, "update", "fewer minibatches than asked for", ".tensor_split(config", ".chunk(config")
replace(D, "update", "advantage not centred", "(b_advantage[mb] - mean)", "b_advantage[mb]")
replace(D, "training", "a minibatch of one step divides by 0", "(std + 1e-8)", "std")
replace(D, "update", "advantage normalised over the rollout", "std_mean(b_advantage[mb],", "std_mean(b_advantage,")
for part in ("pi(b_obs", "value(b_obs", "b_action", "b_old_log_prob", "mb_advantage, b_return"):
    replace(D, "update", f"{part.split('(')[0]} of other steps of the minibatch", f"{part}[mb]", f"{part}[mb.flip(0)]")
each([D, R, A], "update", "zero_grad forgotten", "agent.zero_grad()", "pass")
each([D, R, A], "update", "optimizer's step forgotten", "optimizer.step()", "pass")
each([D, A], "update", "gradient not clipped", "(), config.max_grad_norm", "(), torch.inf")
replace(D, "update", "the critic's gradient not clipped", "agent.parameters(), c", "agent.policy.parameters(), c")
each([D, A], "training", "a gradient of NaN goes through", "error_if_nonfinite=True", "error_if_nonfinite=False")
SEEN = "            agent.scale.update(b_obs)"
each([D, A], "update", "scale never updated", SEEN.strip(), "pass")
each([D, A], "update", "scale updated with reset steps", "scale.update(b_obs)", "scale.update(obs[:-1].flatten(0, 1))")
mutant(D, "scale updated too early", "update", (SEEN, ""), (EPOCHS, f"{SEEN}\n{EPOCHS}"))
each([D, R, A], "update", "average of the last 10 episodes", "history[-20:]", "history[-10:]")
each([D, R, A], "training", "no report of the end", " or env_step >= config.total_steps:", ":")
SAVE = "save(config, agent, optimizer, envs, env_step, history)\n"
replace(D, "checkpoints", "saved only at the end", f"                {SAVE}", "")
replace(D, "checkpoints", "not saved on Ctrl-C", f"    {SAVE}    return", "    return")
each([D, R, A], "training", "Ctrl-C costs a traceback", "except KeyboardInterrupt:", "except KeyError:")

# ---- ppo_discrete.py: checkpoints ----
for part, new in {"agent": "agent.state_dict()", "optimizer": "optimizer.state_dict()", "returns": "{}",
                  "env_step": "0", "history": "[]"}.items():
    replace(D, "checkpoints", f"{part} not loaded", f'checkpoint["{part}"]', new)
replace(D, "checkpoints", "code in a checkpoint is run", '"], weights_only=True)', '"], weights_only=False)')
for part in ("save", "load", "eval_episodes", "render"):
    replace(D, "checkpoints", f"a checkpoint keeps --{part}", "if key not in", f'if key == "{part}" or key not in')
mutant(D, "checkpoint written in place", "checkpoints", ('}, f"{config.save}.tmp")', "}, config.save)"),
       ('os.replace(f"{config.save}.tmp", config.save)', "pass"))
replace(D, "interface", "a foreign file is overwritten", "not os.path.exists(config.save) and os.access", "os.access")
replace(D, "interface", "no folder to write to is found out too late", ' and os.access(f"{folder}/", os.W_OK)', "")
replace(D, "checkpoints", "a checkpoint cannot be continued", " and config.save != config.load and not", " and not")
replace(D, "checkpoints", "saving here refused", 'config.save) or "."', 'config.save) or "/none"')
replace(D, "interface", "a file taken for a folder", 'os.access(f"{folder}/"', "os.access(folder")
replace(D, "checkpoints", "settings of the checkpoint win", '["config"] | given', '["config"]')
replace(D, "checkpoints", "no window", ', render_mode="human"', "")

# ---- ppo_discrete.py: settings, environments, evaluation and command line, with what is alike in the others ----
for script, limits in {D: "num_envs=1 num_steps=2 epochs=1 max_grad_norm=1e-6 obs_std=0.01 gamma=1 gae_lambda=1",
                       C: "num_minibatches=1 init_log_std=-10 init_log_std=10", R: "num_envs=2"}.items():
    for limit in limits.split():
        replace(script, "interface", f"limit {limit} forgotten", f"{limit},", "")
replace(D, "training", "minibatches limited by all steps", "(config.num_steps // 2)", "config.num_steps")
each([D, R], "interface", "numbers may be below 0", "(spec.name, 0)", "(spec.name, -1)")
each([D, R], "interface", "numbers may be infinite", "1_000_000_000", "float('inf')")
each([D, R], "interface", "NaN goes through", "not low <= value <= high", "value < low or value > high")
each([D, R], "interface", "numpy's numbers stay", "setattr(config, spec.name, value)", "pass")
each([D, R, A], "interface", "other actions go through", "not isinstance(space, gym.spaces.Discrete)", "False")
each([D, R, A], "interface", "actions that begin elsewhere go through", " or space.start != 0", "")
replace(D, "interface", "observations not flattened", "envs = FlattenObservation(envs)", "pass")
each([D, R, A], "interface", "a warning stands before the line", "    gym.logger.min_level = 40", "    pass")
each([D, R], "training", "evaluation plays episodes of the training", "1000 * seed + 500", "1000 * seed")
each([D, R], "training", "evaluation samples", "agent.act(obs, greedy)", "agent.act(obs)")
replace(D, "training", "evaluation counts second episodes", "scores += reward * playing", "scores += reward")
replace(D, "training", "evaluation plays on after a truncation", "&= ~(terminated | truncated)", "&= ~terminated")
replace(D, "interface", "a notebook's arguments are taken for ours", "[] if in_a_notebook else None", "None")
replace(D, "interface", "abbreviated flags", "allow_abbrev=False", "allow_abbrev=True")
OTHER, OWN = "given = OTHER_TASKS | given", 'elif given.get("env_id", Config.env_id) != Config.env_id:'
replace(D, "interface", "settings for other tasks ignored", OTHER, "pass")
replace(D, "interface", "settings for other tasks win over flags", OTHER, "given = given | OTHER_TASKS")
replace(D, "interface", "settings for other tasks used for its own", OWN, 'elif "env_id" in given:')
replace(D, "interface", "a wrong setting costs a traceback", "    except ValueError as error:", "    except FileNotFoundError as error:")
replace(D, "interface", "a mistake in check is taken for a foreign file",
        "        config = Config(**given)\n", "        config = Config(**given)\n        check(config)\n")
replace(D, "interface", "a foreign file costs a traceback", "except Exception:", "except KeyError:")
replace(D, "interface", "every error is taken for a wrong name", "(gym.error.Error, ImportError)", "Exception")
replace(D, "interface", "a task that has moved costs a traceback", "ImportError)", "ModuleNotFoundError)")
replace(D, "training", "no evaluation cannot be asked for", "if config.eval_episodes:", "if True:")
each([D, R], "training", "evaluations of every run are the same", ", seed=config.seed)", ")")

# ---- ppo_continuous.py, where it differs ----
replace(C, "update", "log-probabilities not summed", ", 1, validate_args=False)", ", 0, validate_args=False)")
replace(C, "update", "--activation ignored", "[config.activation]", '["tanh"]')
replace(C, "update", "the entropy's weight falls only to -c", "(3 * remaining - 2)", "(2 * remaining - 1)")
replace(C, "update", "σ not learned", "self.log_std = nn.Parameter(", "self.log_std = nn.Buffer(")
replace(C, "update", "σ the same for any number of components", " - 0.5 * np.log(action_dim)", "")
replace(C, "training", "--init-log-std ignored", "(action_dim,), config.init_log_std -", "(action_dim,), 0.5 -")
replace(C, "update", "σ² for σ", "self.log_std.exp()", "(2 * self.log_std).exp()")
replace(C, "update", "actions stored as clipped", "agent.act(self.obs[t])", "agent.act(self.obs[t]).clip(-1, 1)")
replace(C, "update", "actions leave the range", "return np.clip(action, space.low, space.high)", "return action")
replace(C, "update", "actions not counted from the lower bound", "action = space.low + (", "action = (")
replace(C, "interface", "other words for --activation", 'config.activation not in ("relu", "tanh")', "False")
replace(C, "interface", "other actions go through", "if not isinstance(space, gym.spaces.Box) or not", "if not")
replace(C, "interface", "a range without bounds goes through", " or not space.is_bounded()", "")

# ---- reinforce.py ----
replace(R, "update", "the scale's count forgets", "self.count += len(obs)", "self.count[:] = len(obs)")
replace(R, "update", "scaled by the mean size", "obs.square().mean(0)", "obs.abs().mean(0)")
replace(R, "training", "the mean square may be 0", "(self.mean_square + 1e-8)", "self.mean_square")
replace(R, "update", "observations not limited", ".clamp(-10, 10)", "")
replace(R, "training", "the hidden layer without the gain √2", "(hidden, 2**0.5)", "(hidden, 1.0)")
replace(R, "training", "policy not small at first", "(output, 0.01)", "(output, 1.0)")
replace(R, "training", "biases not 0", "nn.init.zeros_(layer.bias)", "pass")
replace(R, "update", "stops with the first episode", "while playing.any()", "while playing.all()")
replace(R, "training", "endless episodes end too soon", "len(rows) < 10_000", "len(rows) < 1_000")
replace(R, "training", "observations not copied", "obs.astype(np.float32)", "obs.astype(np.float32, copy=False)")
replace(R, "update", "rewards after the end count", "np.float32(reward * playing)", "np.float32(reward)")
STILL = "playing = playing & ~(terminated | truncated)"
replace(R, "update", "rows of valid steps share an array", STILL, "playing &= ~(terminated | truncated)")
replace(R, "update", "second episodes are played, too", STILL, "playing = ~(terminated | truncated)")
replace(R, "update", "truncated episodes do not end", STILL, "playing = playing & ~terminated")
replace(R, "update", "always the first observation", "        obs = next_obs\n", "")
replace(R, "estimates", "forwards in time", "in reversed(range(len(reward) - 1)):", "in range(len(reward) - 1):")
replace(R, "estimates", "returns without discount", "gamma * return_[t + 1]", "return_[t + 1]")
each([R, A], "training", "every run plays the same episodes", "seed=1000 * config.seed)", "seed=0)")
replace(R, "update", "the same episodes in each update", "    obs, _ = envs.reset()", "    obs, _ = envs.reset(seed=0)")
replace(R, "update", "episodes end in steps of one environment", "config.num_envs * valid.sum(0)", "valid.sum(0)")
replace(R, "update", "scores not in order of time", "history += sorted(", "history += list(")
replace(R, "update", "steps after the end do not count", "valid.numel()", "int(valid.sum())")
replace(R, "update", "no baseline", "(return_ - baseline)[valid]", "return_[valid]")
replace(R, "update", "who is done is left out of the baseline", "return_.mean(1, keepdim=True)",
        "return_.sum(1, keepdim=True) / valid.sum(1, keepdim=True)")
replace(R, "update", "differences not divided by their spread", "difference / (", "difference + 0 * (")
each([R, A], "training", "no ε beside the spread", "std(correction=0) + 1e-8)", "std(correction=0))")
replace(R, "update", "observations of other steps", "agent.pi(obs[valid])", "agent.pi(obs[valid].flip(0))")
replace(R, "update", "bad actions made likelier", "-(log_prob * weight).mean()", "(log_prob * weight).mean()")
replace(R, "training", "a loss of NaN goes through", "if not loss.isfinite():", "if False:")
replace(R, "update", "scale updated too early", "pi = agent", "agent.scale.update(obs[valid]); pi = agent")
replace(R, "update", "scale never updated", "agent.scale.update(obs[valid])", "pass")

# ---- actor_critic.py ----
for critic, outputs in ("v", "1]"), ("q", "n_actions]"):
    line = f"self.{critic}_critic = mlp([obs_dim, config.hidden_size, {outputs}, output_gain="
    replace(A, "training", f"{critic} small at first", f"{line}1.0", f"{line}0.01")
    replace(A, "update", f"{critic} sees raw numbers", f"{critic}_critic(self.scale(obs))", f"{critic}_critic(obs)")
    replace(A, "update", f"{critic} bootstraps from the same state", f", {critic}[1:]", f", {critic}[:-1]")
replace(A, "update", "Q of the best action", "gather(-1, action.unsqueeze(-1)).squeeze(-1)", "amax(-1)")
replace(A, "estimates", "bootstrap behind a terminal state", "next_value * ~terminated", "next_value")
replace(A, "estimates", "the target follows the critic", "target.detach() - value", "target - value")
replace(A, "update", "Q of the last action played again", "agent.pi(obs[-1:]).sample()", "action[-1:]")
replace(A, "update", "actions a row late", "torch.cat([action, last_action])", "torch.cat([last_action, action])")
replace(A, "update", "no critic is V alone", 'if config.critic == "td":', "if False:")
replace(A, "update", "no critic is Q alone", 'if config.critic == "q":', "if False:")
replace(A, "update", "advantage upside down", "q[:-1] - v[:-1], v", "v[:-1] - q[:-1], v")
replace(A, "update", "V does not learn beside Q", "v_error.square() + q_error.square()", "q_error.square()")
replace(A, "update", "ends swapped", "buffer.terminated, buffer.valid", "buffer.truncated, buffer.valid")
replace(A, "update", "rewards not scaled", "config.reward_scale * reward", "reward")
replace(A, "update", "the gradient flows through ψ", "psi[valid].detach()", "psi[valid]")
replace(A, "update", "ψ not centred", "(b_psi - b_psi.mean())", "b_psi")
replace(A, "update", "scale updated too early", "pi = agent", "agent.scale.update(b_obs); pi = agent")
replace(A, "update", "bad actions made likelier", "-(b_log_prob * b_weight)", "(b_log_prob * b_weight)")
replace(A, "update", "the critic learns from reset steps", "squared_error[valid].mean()", "squared_error.mean()")
replace(A, "interface", "other words for --critic", 'config.critic not in ("td", "q", "advantage")', "False")


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
