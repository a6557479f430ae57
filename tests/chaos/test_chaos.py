"""A short form of ``make chaos``: some of everything."""

from __future__ import annotations

import pytest

from chaos import faults
from chaos.campaigns import Campaign, run
from chaos.soak import TOLERANCES, Sample, drift, soak

_MEGABYTE = 1 << 20
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


@pytest.mark.timeout(240)
def test_work_leaves_nothing_behind_in_workers_and_servers() -> None:
    verdict = soak("a short soak", seed=6, rounds=3, size=5, workers=1, warm_up=2)

    assert not verdict.problems, "\n".join([*verdict.problems, *verdict.remarks])
    assert verdict.runs > 40
    assert verdict.remarks


def test_a_soak_notices_what_grows() -> None:
    samples = [Sample(**dict.fromkeys(TOLERANCES, 4 * _MEGABYTE + n * _MEGABYTE)) for n in range(9)]

    assert len(list(drift(samples))) == len(TOLERANCES)
    assert list(drift(samples[:1] * 9)) == []
