"""What measures: the edits still fit the scripts, and a task is solved when 20 scores average the threshold."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "measure"))

from ablations import EDITS  # noqa: E402
from runs import load, solved_at  # noqa: E402


@pytest.mark.parametrize("name, script, pairs", [(name, script, pairs) for name, scripts, pairs, _ in EDITS
                                                 for script in scripts])
def test_every_edit_fits_its_scripts(name, script, pairs):
    assert load(script, pairs).__doc__ == load(script).__doc__


@pytest.mark.parametrize("old", ["no such text", "agent"])
def test_an_edit_must_fit_exactly_once(old):
    with pytest.raises(ValueError, match="not once"):
        load("ppo_discrete", [(old, "")])


def test_solved_at_the_step_that_ends_the_first_20_good_episodes():
    history = [(10 * n, 0.0) for n in range(1, 6)] + [(100 + n, 500.0) for n in range(1, 31)]
    assert solved_at(history, 475) == 119  # 19 of 20 episodes have 500, which averages 475
    assert solved_at(history, 476) == 120
    assert solved_at(history[:23], 475) is None
    assert solved_at(history[5:24], 475) is None  # only 19 episodes
    assert solved_at([], 475) is None
