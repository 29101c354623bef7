"""The third way of use: a whole script pasted into a cell of a real Jupyter kernel."""

import re

import nbformat
from conftest import PPO, SCRIPTS, source
from nbclient import NotebookClient


def cells_of(name):
    """What a user does with a script in a notebook, cell by cell."""
    script = re.sub(r"(total_steps: int = )[\d_]+", r"\g<1>2_000", source(name))  # the cell trains when it is run
    save, resume = (f", save='{name}.pt'", f", load='{name}.pt'") if name in PPO else ("", "")
    return {
        "reset": "%reset -f",  # forgets the script before
        "above": "from __future__ import annotations",  # holds for all cells below
        "script": script,
        "train": f"agent, history = train(Config(total_steps=1_000, seed=3{save}))",
        "plot": "import matplotlib.pyplot as plt\nplt.plot(*zip(*history));",
        "resume": f"agent, history = train(Config(total_steps=2_500{resume}))",
        "mistake": "train(Config(env_id='Nonsense-v0'))",
        "stop": "import signal, threading\n"  # as the stop button does
                "threading.Timer(0.4, signal.raise_signal, [signal.SIGINT]).start()\n"
                "agent, history = train(Config(total_steps=10**8))\n"
                "print('returned', len(history))",
    }


def test_a_script_in_a_cell_trains_plots_resumes_and_stops(tmp_path):
    """All scripts in turn, in one kernel that forgets each before the next."""
    cells = {name: cells_of(name) for name in SCRIPTS}
    texts = [text for named in cells.values() for text in named.values()]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts])
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True,
                   resources={"metadata": {"path": tmp_path}}).execute()
    outputs = iter(cell["outputs"] for cell in notebook.cells)
    for name, named in cells.items():
        found = {key: next(outputs) for key in named}
        errors = [key for key, cell in found.items() for output in cell if output["output_type"] == "error"]
        texts = {key: "".join(output.get("text", "") for output in cell) for key, cell in found.items()}
        assert errors == ["mistake"], (name, found)
        assert "greedy evaluation: " in texts["script"] and "evaluation" not in texts["train"]
        assert any("image/png" in output.get("data", {}) for output in found["plot"])
        assert name not in PPO or re.match(r"step [12],", texts["resume"])
        assert re.search(r"stopped at step [\d,]+\nreturned \d", texts["stop"])
