"""What measures: the lists of edits still fit the scripts."""

import pytest
from ablations import EDITS, edited_text
from conftest import SCRIPTS
from mutants import MUTANTS, mutated


def test_every_edit_of_the_ablations_fits_the_scripts():
    for _, scripts, pairs in EDITS:
        for script in scripts:
            compile(edited_text(script, pairs), script, "exec")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_planted_bug_can_be_put_in(name):
    bugs = [(bug, edits) for script, bug, _, edits in MUTANTS if script == name]
    assert len(bugs) == len({bug for bug, _ in bugs}) > 20
    for _, edits in bugs:
        assert mutated(name, edits) != edited_text(name, ())
