"""A short form of ``make chaos``: some of everything."""

from __future__ import annotations

import pytest

from chaos import faults
from chaos.campaigns import Campaign, run

ALL = Campaign(
    "everything",
    (faults.kill_child, faults.kill_tree, faults.deploy, faults.cut_broker, faults.half_open),
    times=4,
    open_runs=6,
)


@pytest.mark.timeout(240)
def test_agents_outlive_faults_of_several_kinds() -> None:
    verdict = run(ALL, seed=6)

    assert not verdict.problems, "\n".join(verdict.problems)
    assert verdict.faults == 4
    assert verdict.runs >= 6
