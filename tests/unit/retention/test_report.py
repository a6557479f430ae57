"""The sentence that a sweep reports."""

from __future__ import annotations

import pytest

from celery_ckpt.retention.report import PruneReport

SENTENCES = {
    "Pruned 1,204 checkpoints from 60 agents; deleted 3 agents and 12 old runs "
    "(1.2 MB; 500 agents checked).": PruneReport(500, 60, 3, 1_204, 12, 1_234_567),
    "Pruned 1 checkpoint from 1 agent; deleted 1 agent and 1 old run (1 byte; 1 agent checked).": (
        PruneReport(1, 1, 1, 1, 1, 1)
    ),
    "Would prune 2 checkpoints from 1 agent; would delete 0 agents and 0 old runs "
    "(1.0 kB; 2 agents checked).": PruneReport(2, 1, 0, 2, 0, 1_000, dry_run=True),
    "Pruned 0 checkpoints from 0 agents; deleted 0 agents and 0 old runs "
    "(0 bytes; 0 agents checked).": PruneReport(),
    "Pruned 5 checkpoints from 5 agents; deleted 0 agents and 0 old runs "
    "(1.0 GB; 5 agents checked).": PruneReport(5, 5, 0, 5, 0, 999_999_999),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_report_is_a_sentence(sentence: str) -> None:
    assert str(SENTENCES[sentence]) == sentence
