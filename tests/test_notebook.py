"""The third way of use: a whole script pasted into a cell of a real Jupyter kernel."""

import re

import nbformat
import pytest
from conftest import ROOT, SCRIPTS
from nbclient import NotebookClient


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_in_a_cell_trains_plots_evaluates_saves_loads_and_stops(name, tmp_path):
    script = (ROOT / f"{name}.py").read_text(encoding="utf-8")
    script, changes = re.subn(r"(total_steps: int = setting\()[\d_]+", r"\g<1>6_000", script)
    assert changes == 1
    kept = repr(str(tmp_path / "kept.pt"))
    cells = [
        script,
        f"agent, history = train(Config(total_steps=3_000, seed=3, save={kept}))",
        "import matplotlib.pyplot as plt\nplt.plot(*zip(*history));",
        "evaluate(agent, Config().env_id, episodes=10).mean()",
        f"agent, history = train(Config(load={kept}, total_steps=4_000))",
        "Config(gamma=7)",
        # The stop button sends SIGINT.
        "import signal, threading\n"
        "threading.Timer(1.5, signal.raise_signal, [signal.SIGINT]).start()\n"
        "agent, history = train(Config(total_steps=10**8))\nprint('stopped after', len(history))",
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    outputs = [cell["outputs"] for cell in notebook.cells]
    errors = [[output["ename"] for output in cell if output["output_type"] == "error"] for cell in outputs]
    assert errors[:5] == [[]] * 5, outputs
    assert errors[5] == ["ValueError"] and errors[6:] == [[], []], outputs
    texts = ["".join(output.get("text", "") for output in cell) for cell in outputs]
    assert texts[0].count("average score of the last 20") >= 5 and texts[0].count("evaluation") == 2
    assert any("image/png" in output.get("data", {}) for output in outputs[2])
    assert float(re.search(r"-?[\d.]+", outputs[3][0]["data"]["text/plain"].replace("np.float64", "")).group())
    assert "stopped after" in texts[6]
