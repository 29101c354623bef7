"""The third way of use: a whole script pasted into a cell of a real Jupyter kernel."""

import re

import nbformat
from ablations import source
from conftest import PPO, SCRIPTS
from nbclient import NotebookClient


def cells_of(name, path):
    """What a user does with a script in a notebook, cell by cell."""
    script, keep = source(name), name in PPO
    for setting, value in (("total_steps", "2_000"), ("eval_episodes", "3")):  # the cell trains when it is run
        script, changes = re.subn(rf"({setting}: int = )[\d_]+", rf"\g<1>{value}", script)
        assert changes == 1
    resume = f"Config(**torch.load({path!r})['config'] | dict(load={path!r}, total_steps=2_500))"
    return {
        "reset": "%reset -f",  # forgets the script before
        "script": script,
        "train": f"agent, history = train(Config(total_steps=1_500, seed=3{f', save={path!r}' if keep else ''}))",
        "plot": "import matplotlib.pyplot as plt\nplt.plot(*zip(*history));",
        "evaluate": "float(evaluate(agent, make_envs(Config.env_id, 5)).mean())",
        "resume": f"_, longer = train({resume})\n"
                  "print(longer[:len(history)] == history, history[-1][0] < longer[-1][0])" if keep else "",
        "mistake": "Config(gamma=7)\nprint('constructed')\ntrain(Config(gamma=7))",
        # The stop button sends SIGINT.
        "stop": "import signal, threading\n"
                "threading.Timer(0.4, signal.raise_signal, [signal.SIGINT]).start()\n"
                "agent, history = train(Config(total_steps=10**8))\n"
                "print('returned', float(evaluate(agent, make_envs(Config.env_id, 2)).mean()))",
    }


def check_outputs(name, outputs):
    errors = {key: [output for output in cell if output["output_type"] == "error"] for key, cell in outputs.items()}
    assert [key for key, found in errors.items() if found] == ["mistake"], outputs
    texts = {key: "".join(output.get("text", "") for output in cell) for key, cell in outputs.items()}
    assert texts["script"].count("average score of the last 20") >= 2 and texts["script"].count("evaluation: ") == 1
    assert "evaluation" not in texts["train"]
    assert any("image/png" in output.get("data", {}) for output in outputs["plot"])
    assert re.fullmatch(r"-?\d+\.\d+", outputs["evaluate"][0]["data"]["text/plain"])
    assert name not in PPO or texts["resume"].endswith("True True\n")
    assert texts["mistake"] == "constructed\n" and errors["mistake"][0]["ename"] == "ValueError"
    assert errors["mistake"][0]["evalue"] == "--gamma 7.0: must be from 0 to 1"
    assert re.search(r"^stopped at step [\d,]+\nreturned -?\d", texts["stop"], re.M), texts["stop"]


def test_a_script_in_a_cell_trains_plots_evaluates_saves_resumes_and_stops(tmp_path):
    """All scripts in turn, in one kernel that forgets each before the next."""
    cells = {name: cells_of(name, str(tmp_path / f"{name}.pt")) for name in SCRIPTS}
    texts = [text for named in cells.values() for text in named.values()]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts])
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    outputs = iter(cell["outputs"] for cell in notebook.cells)
    found = {name: {key: next(outputs) for key in named} for name, named in cells.items()}
    for name in SCRIPTS:
        check_outputs(name, found[name])
