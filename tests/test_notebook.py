"""The third way of use: a whole script pasted into a cell of a real Jupyter kernel."""

import re

import nbformat
import pytest
from conftest import ROOT, SCRIPTS
from nbclient import NotebookClient

# (file, default settings in the cell, that the test may make the run shorter with)
SHORTER = {"ppo_discrete": 6_000, "ppo_continuous": 6_000, "reinforce": None, "actor_critic": 6_000}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_in_a_cell_trains_plots_evaluates_saves_and_loads(name, tmp_path):
    script = (ROOT / f"{name}.py").read_text(encoding="utf-8")
    if SHORTER[name]:
        script, changes = re.subn(r"(total_steps: int = setting\()[\d_]+", rf"\g<1>{SHORTER[name]}", script)
        assert changes == 1
    cells = [
        script,
        f"agent, history = train(Config(total_steps=3_000, seed=3, save={str(tmp_path / 'kept.pt')!r}))",
        "import matplotlib.pyplot as plt\nplt.plot(*zip(*history));",
        "evaluate(agent, Config().env_id, episodes=10).mean()",
        f"agent, history = train(Config(load={str(tmp_path / 'kept.pt')!r}, total_steps=4_000))",
        "Config(gamma=7)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    outputs = [cell["outputs"] for cell in notebook.cells]
    errors = [[output["ename"] for output in cell if output["output_type"] == "error"] for cell in outputs]
    assert errors == [[], [], [], [], [], ["UsageError"]], outputs
    texts = ["".join(output.get("text", "") for output in cell) for cell in outputs]
    assert texts[0].count("average score of the last 20") >= 5 and texts[0].count("evaluation") == 2
    assert "100%" in texts[1] and "steps were trained" in texts[4] and "100%" in texts[4]
    assert any("image/png" in output.get("data", {}) for output in outputs[2])
    assert float(re.search(r"-?[\d.]+", outputs[3][0]["data"]["text/plain"].replace("np.float64", "")).group())
