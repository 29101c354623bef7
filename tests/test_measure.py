"""What measures: the edits still fit the scripts, and a task is solved when 20 scores average the threshold."""

import pytest
from ablations import EDITS
from runs import load, solved_at


@pytest.mark.parametrize("name, program, pairs", [
    (name, program, pairs) for name, programs, pairs, _ in EDITS if pairs for program in programs])
def test_every_edit_fits_its_scripts(name, program, pairs):
    assert load(program, pairs).__doc__ == load(program).__doc__


def test_solved_at_the_step_that_ends_the_first_20_good_episodes():
    history = [(10 * n, 0.0) for n in range(1, 6)] + [(100 + n, 500.0) for n in range(1, 31)]
    assert solved_at(history, 475) == 119  # 19 of 20 episodes have 500, which averages 475
    assert solved_at(history, 476) == 120
    assert solved_at(history[5:24], 475) is None  # only 19 episodes
