"""A short form of ``make chaos``: a sample of every kind of fault."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.chaos import faults
from tests.chaos.campaigns import Campaign, run
from tests.chaos.evidence import examined
from tests.chaos.judge import Verdict
from tests.chaos.soak import TOLERANCES, Sample, drift, soak

_MEGABYTE = 1 << 20
ALL = Campaign(
    "everything",
    (faults.kill_child, faults.kill_tree, faults.deploy, faults.cut_broker, faults.half_open),
    times=4,
    open_runs=6,
)


@pytest.mark.timeout(240)
def test_agents_survive_several_kinds_of_faults() -> None:
    verdict = run(ALL, seed=6)

    assert not verdict.problems, "\n".join(verdict.problems)
    assert verdict.faults == 4
    assert verdict.runs >= 6


@pytest.mark.timeout(240)
def test_agents_leave_no_leaks_in_workers_and_servers() -> None:
    verdict = soak("a short soak", seed=6, rounds=3, size=5, workers=1, warm_up=2)

    assert not verdict.problems, "\n".join([*verdict.problems, *verdict.remarks])
    assert verdict.runs > 40
    assert verdict.remarks


def test_a_failed_campaign_keeps_its_logs_with_the_stacks_of_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wrong, clean = Verdict("wrong", 6), Verdict("clean", 6)

    with examined(wrong, workers=1):
        raise RuntimeError("a broken promise, for the test")
    with examined(clean, workers=0):
        pass

    (left,) = tmp_path.iterdir()
    assert wrong.problems == ["RuntimeError: a broken promise, for the test"]
    assert str(left) in wrong.remarks[0]
    assert "most recent call first" in (left / "worker1.log").read_text()


def test_a_soak_test_detects_growth() -> None:
    samples = [Sample(**dict.fromkeys(TOLERANCES, 4 * _MEGABYTE + n * _MEGABYTE)) for n in range(9)]

    assert len(list(drift(samples))) == len(TOLERANCES)
    assert list(drift(samples[:1] * 9)) == []
