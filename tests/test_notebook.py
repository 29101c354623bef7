"""The third way of use: a whole script pasted into a cell of a real Jupyter kernel, imported or run there; IPython."""

import re
import subprocess
import sys

import nbformat
from conftest import PPO, ROOT, SCRIPTS, source
from nbclient import NotebookClient


def cells_of(name, folder):
    """What a user does with a script in a notebook, cell by cell."""
    script = re.sub(r"(total_steps: int = )[\d_]+", r"\g<1>2_000", source(name))  # the cell trains when it is run
    (folder / f"{name}.py").write_text(script, encoding="utf-8")
    save, resume = (f", save='{name}.pt'", f", load='{name}.pt'") if name in PPO else ("", "")
    return {
        "reset": "%reset -f",  # forgets the script before
        "above": "from __future__ import annotations",  # holds for all cells below
        "import": f"from {name} import *\nmain()",
        "run": f"%run -i {name}.py --total-steps 1_500 --eval-episodes 2",
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
    cells = {name: cells_of(name, tmp_path) for name in SCRIPTS}
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
        assert "of 2,000" in texts["import"] and "over 20 episodes" in texts["import"]
        assert "of 1,500" in texts["run"] and "over 2 episodes" in texts["run"]
        assert "greedy evaluation: " in texts["script"] and "evaluation" not in texts["train"]
        assert any("image/png" in output.get("data", {}) for output in found["plot"])
        assert name not in PPO or re.match(r"resumed at step 1,.*\nstep [12],", texts["resume"])
        assert re.search(r"stopped at step [\d,]+\nreturned \d", texts["stop"])


def test_ipython_reads_the_flags_that_follow():
    words = f"-m IPython {ROOT / 'ppo_discrete.py'} -- --total-steps 250 --eval-episodes 2"
    out = subprocess.check_output([sys.executable, *words.split()], text=True)
    assert "of 250 " in out and "over 2 episodes" in out
