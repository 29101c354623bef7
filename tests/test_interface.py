"""What a user meets: the files, the command line, a run, and the mistakes."""

import ast
import inspect
import io
import re
import sys
import tomllib
from dataclasses import fields

import gymnasium as gym
import numpy as np
import pytest
from ablations import source
from conftest import PPO, ROOT, SCRIPTS, Recount, edited, load, marked, network_of, parse_line, register, run_main, spy
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.wrappers.vector import TransformReward

ALLOWED = {"torch", "gymnasium", "numpy"}
DISCRETE = [name for name in SCRIPTS if name != "ppo_continuous"]


# ---- The files ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_needs_nothing_but_its_three_libraries(name):
    text = source(name)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for top in (n.split(".")[0] for n in names):
                assert (top in ALLOWED or top in sys.stdlib_module_names) and top not in SCRIPTS
    assert max(map(len, text.splitlines())) <= 100


SAME = {
    (*SCRIPTS,): "ObsScale",
    (*PPO, "actor_critic"): "evaluate",
    (*PPO,): "compute_gae ppo_loss make_batch update train Adam report save load evaluate main read_flags",
    ("ppo_discrete", "actor_critic"): "mlp ActorCritic RolloutBuffer",
    ("reinforce", "actor_critic"): "main read_flags",
}


def test_what_scripts_share_is_the_same_text_in_each():
    texts = {}
    for name in SCRIPTS:
        for node in ast.parse(source(name)).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                texts[name, node.name] = ast.get_source_segment(source(name), node)
    for names, titles in SAME.items():
        for title in titles.split():
            assert len({texts[name, title] for name in names}) == 1, title
    assert len({re.search(r"    @torch.no_grad.*?\n\n\n", source(name), re.S).group() for name in DISCRETE}) == 1  # act


def requirements():
    return (ROOT / "requirements.txt").read_text().split()


def test_requirements_are_pinned():
    lines = requirements()
    assert [re.split(r"[=\[]", line)[0] for line in lines] == ["torch", "gymnasium", "numpy"]
    assert all(re.fullmatch(r"[a-z]+(\[[a-z-]+\])?==[\d.]+", line) for line in lines)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_brings_its_requirements_along(name):
    """As the specification of inline script metadata reads them."""
    block = r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
    (found,) = re.finditer(block, source(name))
    lines = found["content"].splitlines(keepends=True)
    metadata = tomllib.loads("".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    assert found["type"] == "script" and found.start() == 0
    assert metadata["dependencies"] == requirements()


# ---- Settings ----


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_tells_every_setting_with_its_comment_and_default(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    status, out, err = run_main(load(name), monkeypatch, capsys, "--help")
    assert (status, err) == (0, "") and out.isascii()
    assert out.splitlines()[0] == source(name).split('"""')[1].splitlines()[0] and "in one file" in out.splitlines()[0]
    written = re.findall(r"^    (\w+): (\w+) = (\S+)  # (.+)$", source(name), re.M)
    assert [setting for setting, *_ in written] == [spec.name for spec in fields(load(name).Config)]
    for setting, kind, default, comment in written:
        default = ast.literal_eval(default)
        assert type(default).__name__ == kind and getattr(load(name).Config(), setting) == default
        flag, about = setting.replace("_", "-"), re.escape(f"{comment} (default: {default!r})")
        assert re.search(rf"^ +--{flag}[ ,].*\n?.*{about}$", out, re.M), setting
    if name in PPO:
        values = [f"{setting} {value}" for setting, value in load(name).OTHER_TASKS.items()]
        assert out.splitlines()[-1] == f"The defaults for any other --env-id: {', '.join(values)}."


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_line_arrives_when_it_is_printed(name, monkeypatch):
    """In a file or a pipe, too, which hold back what is not flushed."""
    module, arrived, lines = load(name), io.BytesIO(), []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(arrived))
    monkeypatch.setattr(sys, "argv", f"{name}.py --env-id {marked(name)} --total-steps 40 --eval-episodes 2".split())
    for function in ("report", "evaluate"):
        spy(monkeypatch, module, function, lambda *_: lines.append(arrived.getvalue().count(b"\n")))
    module.main()
    assert lines == list(range(1, len(lines) + 1))


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("default", [True, False])
def test_a_setting_of_a_copy_is_a_flag_with_or_without_a_comment(default, name, monkeypatch, capsys):
    line, truth = "    seed: int = 0", f"    two_by_two: bool = {default}  # whether to\n"
    module = edited(name, (line, f"{truth}    tries: int = 3\n    share: float = 0.5  # 50 % of % {{s}}\n{line}"))
    for flags, expected in (([], default), (["--two-by-two"], True), (["--no-two-by-two"], False)):
        assert config_of_main(module, monkeypatch, capsys, *flags).two_by_two is expected
    status, out, err = run_main(module, monkeypatch, capsys, "--help")
    assert (status, err) == (0, "") and "--tries" in out and "50 % of % {s} (default: 0.5)" in out


def config_of_main(module, monkeypatch, capsys, *arguments):
    """The settings that the command line hands to train()."""
    class Seen(Exception):
        pass

    def train(config):
        raise Seen(config)

    with monkeypatch.context() as patch, pytest.raises(Seen) as seen:
        patch.setattr(module, "train", train)
        run_main(module, patch, capsys, *arguments)
    return seen.value.args[0]


@pytest.mark.parametrize("name", SCRIPTS)
def test_flags_set_the_config(name, monkeypatch, capsys):
    module = load(name)
    for arguments, expected in [
        ([], {}),
        (["--gamma", "0.5"], {"gamma": 0.5}),
        (["--seed=12", "--total-steps", "7"], {"seed": 12, "total_steps": 7}),
        (["--eval-episodes", "0", "--env-id", module.Config.env_id], {"eval_episodes": 0}),
        *([(["--render", "--clip-eps", "1"], {"render": True, "clip_eps": 1.0})] if name in PPO else []),
        *([(["--init-log-std", "-0.5"], {"init_log_std": -0.5})] if name == "ppo_continuous" else []),
    ]:
        assert config_of_main(module, monkeypatch, capsys, *arguments) == module.Config(**expected)


@pytest.mark.parametrize("name", PPO)
def test_another_task_takes_its_settings_by_its_name_alone(name, monkeypatch, capsys):
    module, task = load(name), marked(name)
    other = module.Config(env_id=task, **module.OTHER_TASKS)
    assert other != module.Config(env_id=task)
    assert config_of_main(module, monkeypatch, capsys, "--env-id", task) == other
    # What is given on the command line wins, also where it is the default of the script's own task.
    steps, rate = module.Config.total_steps, module.Config.learning_rate
    given = config_of_main(module, monkeypatch, capsys, "--env-id", task, "--total-steps", steps,
                           "--learning-rate", rate, "--num-envs", "3")
    expected = module.OTHER_TASKS | dict(total_steps=steps, learning_rate=rate, num_envs=3)
    assert given == module.Config(env_id=task, **expected)


# ---- A run ----


@pytest.mark.parametrize("size", [1, 1e-6])
@pytest.mark.parametrize("name", SCRIPTS)
def test_command_line_trains_prints_and_evaluates(name, size, wrap, monkeypatch, capsys):
    """Also where scores are tiny. The agent as trained plays greedily, in episodes of its own."""
    module, acts, agents, seeds = load(name), [], [], []
    made = wrap(lambda env: Recount(TransformReward(env, lambda reward: size * reward)))
    agent_class = network_of(name)
    spy(monkeypatch, Recount, "reset", lambda _, env, seed=None, options=None: seeds.append(seed))
    spy(monkeypatch, module, "train", lambda result, _: agents.append(str(result[0].state_dict())))
    spy(monkeypatch, agent_class, "act", lambda _, agent, obs, greedy=False: acts.append(
        (len(made), greedy, len(agents) and str(agent.state_dict()))))
    words = ["--env-id", marked(name), "--total-steps", "1000", "--seed", "3"]
    words += ["--num-envs", "4", "--num-steps", "10"] if name != "reinforce" else []
    words += ["--num-minibatches", "5", "--hidden-size", "8", "--epochs", "1"] if name in PPO else []
    status, out, err = run_main(module, monkeypatch, capsys, *words, "--eval-episodes", "5")
    assert (status, err) == (None, "") and out.isascii()
    assert [envs.num_envs for envs in made] == [1, 6 if name == "reinforce" else 4, 5]  # the first is only a trial
    assert set(acts) == {(2, False, 0), (3, True, agents[0])}
    assert [seed for seed in seeds if seed is not None] == [3_000, 3_500]
    *printed, before, last = out.splitlines()
    lines = [parse_line(line) for line in printed]
    assert 12 <= len(lines) <= 21 and lines[-1].step >= 1_000 and {line.total for line in lines} == {1_000}
    assert {line.kl is None for line in lines} == {name not in PPO} and 0 < abs(lines[-1].average) < 9 * size
    firsts, totals = [None] * 5, np.zeros(5)  # the score of each environment's first episode
    for _, reward, terminated, truncated, _ in made[-1].rows:
        totals += reward
        for i in np.flatnonzero(terminated | truncated):
            firsts[i] = totals[i] if firsts[i] is None else firsts[i]
    assert before == "evaluating in 5 environments"
    mean = float(re.fullmatch(r"greedy evaluation: (\S+) over 5 episodes", last)[1])
    assert mean == pytest.approx(np.mean(firsts), rel=1e-4)
    if size == 1:  # without evaluation, all else is the same
        status, shorter, err = run_main(module, monkeypatch, capsys, *words, "--eval-episodes", "0")
        assert (status, err) == (None, "") and shorter.splitlines() == printed


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_evaluation_says_how_many_environments_it_makes(name, wrap, monkeypatch, capsys):
    """Before it makes them, as it may take long."""
    said = []

    def note(env):
        said.append((env.num_envs, capsys.readouterr().out))
        return env

    wrap(note)
    status, out, err = run_main(load(name), monkeypatch, capsys, "--env-id", marked(name), "--total-steps", "0")
    number = 20 if name in PPO else 100  # the PPO scripts have other defaults for other tasks
    assert said[-1] == (number, f"evaluating in {number} environments\n")
    assert (status, err) == (None, "") and re.fullmatch(rf"greedy evaluation: \S+ over {number} episodes\n", out)


@pytest.mark.parametrize("name", SCRIPTS)
def test_in_a_notebook_the_kernels_arguments_are_not_ours(name, monkeypatch, capsys):
    module = load(name)
    monkeypatch.delattr(module, "__file__")  # as in a cell
    monkeypatch.setattr(inspect, "getsource", lambda cell: 1 / 0)  # nor is there a source to read
    assert config_of_main(module, monkeypatch, capsys, "-f", "/tmp/kernel-1.json") == module.Config()


class Odd(gym.Env):
    """A user's own environment. It calls act(place, itself) where it is made, reset, stepped and closed."""

    metadata = {"render_modes": ["human"], "render_fps": 1_000_000}
    observation_space = Box(-1, 1, (2,), np.float32)

    def __init__(self, actions, act=lambda *_: None, space=observation_space, reward=1.0, far=None, render_mode=None):
        self.action_space, self.act, self.reward, self.far = actions, act, reward, far
        self.observation_space, self.render_mode = space, render_mode
        act("init", self)

    def observe(self):
        return self.observation_space.sample() if self.far is None else self.far

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.act("reset", self)
        return self.observe(), {}

    def step(self, action):
        self.act("step", self)
        return self.observe(), self.reward, False, False, {}

    def render(self):
        pass

    def close(self):
        self.act("close", self)


@pytest.fixture
def odd():
    """odd(script, ...) registers an Odd environment with such actions, for this test alone; returns its id."""
    names = []

    def register_one(name, **how):
        actions = Box(-1, 1, (1,), np.float32) if name == "ppo_continuous" else Discrete(2)
        names.append(f"Odd{len(names)}-v0")
        gym.register(names[-1], lambda **render: Odd(actions, **how, **render), max_episode_steps=5)
        return names[-1]

    yield register_one
    for name in names:
        gym.registry.pop(name)


def few_steps(name):
    """The flags of a run that is as short and has as few environments as can be."""
    sizes = ["--num-steps", "8"] if name != "reinforce" else []
    sizes += ["--num-minibatches", "1", "--epochs", "1"] if name in PPO else []
    return ["--num-envs", "1" if name != "reinforce" else "2", "--total-steps", "40", "--eval-episodes", "1", *sizes]


@pytest.mark.parametrize("space, size", [
    (Discrete(16), 16),
    (Dict(place=Box(-1, 1, (2,), np.float32), light=Discrete(3)), 5),
    (Tuple([Discrete(3), Discrete(2)]), 5),
    (Box(0, 255, (2, 3, 4), np.uint8), 24),
])
@pytest.mark.parametrize("name", SCRIPTS)
def test_observations_that_are_no_flat_vectors_are_flattened(name, space, size, odd, quiet):
    module, env_id = load(name), odd(name, space=space)
    sizes = {} if name == "reinforce" else {"num_steps": 10}
    agent, history = module.train(module.Config(env_id=env_id, total_steps=100, **sizes))
    assert history and next(agent.policy.parameters()).shape[1] == size
    assert module.evaluate(agent, module.make_envs(env_id, 4)).tolist() == [5.0] * 4


ENDINGS = {"its end": (None, None), "Ctrl-C": ("step", KeyboardInterrupt), "an error": ("step", OSError),
           "an error at first": ("reset", OSError)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_environments_that_are_refused_are_closed(name, wrap):
    made = wrap()
    with pytest.raises(gym.error.Error, match="actions must be"):
        load(name).make_envs("MultiDiscrete-v0", 2)
    assert made[0].unwrapped.closed


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", SCRIPTS)
def test_all_environments_are_closed_whatever_ends_the_run(name, ending, odd, wrap, monkeypatch, capsys):
    """No more of them are ever open than are needed. What wrap() returns keeps them from being closed as garbage."""
    most, is_open, calls, (place, error) = 2 if name == "reinforce" else 1, [], [], ENDINGS[ending]

    def act(where, env):
        if where == "init":
            assert len(is_open) < most
            is_open.append(env)
        if where == "close":
            is_open.remove(env)
        calls.append(where)
        if where == place and (where, calls.count(where)) in (("step", 3), ("reset", 1)):
            raise error("the user's own")

    env_id, made = odd(name, act=act), wrap(lambda env: env)
    words = ["--env-id", env_id, *few_steps(name)] + ["--render"] * (name in PPO)
    if error is OSError:
        with pytest.raises(OSError, match="the user's own"):
            run_main(load(name), monkeypatch, capsys, *words)
        assert len(made) == 2
    else:
        status, out, err = run_main(load(name), monkeypatch, capsys, *words)
        assert (status, err, len(made)) == (None, "", 4 if name in PPO else 3)
        assert ("stopped at step" in out) == (ending == "Ctrl-C")
    assert is_open == [] and calls.count("init") == calls.count("close") > 1


@pytest.mark.parametrize("fault, words", [
    ({"reward": np.array([1.0])}, "reward returned by .step"),
    ({"reward": None}, "reward returned by .step"),
    ({"far": np.zeros(3, np.float32)}, "obs returned by the .reset"),
])
@pytest.mark.parametrize("name", SCRIPTS)
def test_gymnasium_names_the_fault_of_an_environment(name, fault, words, odd, monkeypatch, capsys):
    level, env_id = gym.logger.min_level, odd(name, **fault)
    with pytest.warns(UserWarning, match=words), pytest.raises((ValueError, RuntimeError)):
        run_main(load(name), monkeypatch, capsys, "--env-id", env_id, *few_steps(name))
    assert gym.logger.min_level == level == 30


# ---- Mistakes ----

COMMON = [
    ("--env-id", "Nonsense-v0", "Nonsense"),
    ("--env-id", "no_such_module:CartPole-v1", "no_such_module"),
    ("--env-id", "HalfCheetah-v2", "gymnasium-robotics"),  # an ImportError of gymnasium
    ("--env-id", "LunarLander-v2", "LunarLander-v3"),  # as in older tutorials
    ("--env-id", "", "--env-id"),
    ("--env-id", "MultiDiscrete-v0", "MultiDiscrete"),
    ("--total-steps", "-1", "must be from 0 to"),
    ("--total-steps", "1e5", "invalid int"),
    ("--num-envs", "0", "--num-envs 0: must be from"),
    ("--num-envs", "2.5", "invalid int"),
    ("--learning-rate", "nan", "must be from 0 to"),
    ("--gamma", "1.01", "must be from 0 to 1"),
    ("--hidden-size", "0", "must be from 1 to"),
    ("--seed", "-1", "must be from 0 to"),
    ("--seed", "18446744073709551616", "must be from 0 to"),
    ("--eval-episodes", "-1", "must be from 0 to"),
    ("--gama", "0.9", "--gama"),
    ("--gam", "0.9", "--gam"),
    ("stray", "argument", "stray argument"),
]
ROLLOUT = [
    ("--num-steps", "1", "must be from 2 to"),
    ("--entropy-coef", "nan", "must be from 0 to"),
    ("--max-grad-norm", "0", "must be from 1e-06 to"),
]
ONLY_PPO = [
    ("--num-minibatches", "0", "must be from 1 to"),
    ("--num-minibatches", "999999", "must be from 1 to"),
    ("--epochs", "0", "must be from 1 to"),
    ("--gae-lambda", "1.5", "must be from 0 to 1"),
    ("--clip-eps", "-0.2", "must be from 0 to"),
    ("--load", "no-such-file.pt", "--load no-such-file.pt: missing, or not a checkpoint of this script"),
    ("--load", "tests", "--load tests: missing, or not a checkpoint of this script"),
    ("--load", "README.md", "not a checkpoint of this script"),
    *(("--save", path, "must be a new file") for path in ("README.md", "tests", "no/such/folder.pt", "README.md/x.pt")),
]
BOXES = dict(  # what ppo_continuous.py does not play
    Unbounded=Box(-np.inf, np.inf, (2,), np.float32), Above=Box(0, np.inf, (2,), np.float32),
    Below=Box(np.array([-1, -np.inf], np.float32), np.ones(2, np.float32)), Integers=Box(0, 10, (1,), np.int64),
    Matrix=Box(-1, 1, (2, 3), np.float32), OneByOne=Box(-1, 1, (1, 1), np.float32), Scalar=Box(-1, 1, (), np.float32),
)
for key in BOXES:
    register(f"Box{key}-v0", BOXES[key])
WRONG_ACTIONS = [("--env-id", "Pendulum-v1", "ppo_continuous.py"), ("--env-id", "FromMinus1-v0", "start=-1")]
OF = {
    "ppo_discrete": ROLLOUT + ONLY_PPO + WRONG_ACTIONS,
    "ppo_continuous": ROLLOUT + ONLY_PPO + [
        ("--env-id", "CartPole-v1", "ppo_discrete.py"), ("--init-log-std", "nan", "must be from"),
        ("--init-log-std", "11", "must be from -10 to 10"), ("--activation", "elu", "must be relu or tanh"),
        *(("--env-id", f"Box{key}-v0", "a bounded Box, a vector of floats") for key in BOXES),
    ],
    "actor_critic": ROLLOUT + [("--critic", "v", "--critic"), ("--save", "x", "--save")] + WRONG_ACTIONS,
    "reinforce": [("--num-envs", "1", "must be from 2 to"), ("--load", "x", "--load")] + WRONG_ACTIONS,
}


@pytest.mark.filterwarnings("error::DeprecationWarning", "error::UserWarning")  # a terminal shows them as well
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_mistake_costs_one_line_and_status_2(name, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(load(name), "train", lambda config: pytest.fail("it trains"))
    for key, value, remedy in COMMON + OF[name]:
        status, out, err = run_main(load(name), monkeypatch, capsys, key, value)
        assert (status, out, err.count("\n")) == (2, "", 1), (key, value, err)
        assert err.startswith(f"{name}.py: error: ") and remedy in err, (key, value, err)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_mistakes_in_python_are_value_errors(name, monkeypatch, capsys):
    module = load(name)
    wrong = {"gamma": 1.5, "num_envs": 0, "total_steps": -1, "learning_rate": float("nan"), "seed": "x"}
    wrong |= {"save": str(ROOT / "README.md"), "num_minibatches": 61} if name == "ppo_discrete" else {}
    for setting, value in wrong.items():
        for call in (module.check, module.train):
            with pytest.raises(ValueError):
                call(module.Config(**{setting: value}))
    with pytest.raises(gym.error.Error, match="Nonsense"):
        module.train(module.Config(env_id="Nonsense-v0"))
    small = {} if name == "reinforce" else {"num_steps": np.int8(8)}
    config = module.Config(num_envs=np.int8(64), gamma=1, learning_rate=np.float32(0.5), **small)
    module.check(config)  # 64 * 4 would be 0 as an int8
    assert (config.num_envs, config.gamma, config.learning_rate) == (64, 1, 0.5)
    assert [type(getattr(config, spec.name)) for spec in fields(config)] == [spec.type for spec in fields(config)]
    monkeypatch.setattr(module, "check", lambda config: {}["a mistake in a copy"])  # keeps its traceback
    with pytest.raises(KeyError, match="a mistake in a copy"):
        run_main(module, monkeypatch, capsys)


@pytest.mark.parametrize("error", [KeyError, ValueError, OSError, RuntimeError])
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_error_of_the_environments_own_keeps_its_traceback(name, error, odd, monkeypatch, capsys):
    for place in ("init", "reset", "step"):

        def act(where, env, place=place):
            if where == place:
                raise error("the user's own")

        with pytest.raises(error, match="the user's own"):
            run_main(load(name), monkeypatch, capsys, "--env-id", odd(name, act=act), *few_steps(name))
