"""What an agent uses, on real workers: the body sees it whole, and it is paid for once."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_ckpt import Agents
from tests.support.ledger import Ledger
from tests.support.tasks.usage import MODULE, spend
from tests.support.wait import until
from tests.support.workers.fixtures import StartWorker

pytestmark = [
    pytest.mark.configured(
        include=(MODULE,), conf={"ckpt_lease_ttl": 3, "ckpt_cost": f"{MODULE}:cost"}
    ),
    pytest.mark.usefixtures("celery_app"),
]
TURNS = 3
USED: dict[str, Any] = {"input_tokens": 1110, "output_tokens": 3, "cached_tokens": 0, "cost": 1110.0}


@pytest.mark.parametrize("ends", ["kill_tree", "term"])
def test_a_killed_or_replaced_worker_changes_no_number(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, ends: str
) -> None:
    worker = start_worker()
    ledger.hold("ask 2")
    result = spend.delay(TURNS)
    ledger.wait_for_call("ask 2", 60)
    agents = Agents(celery_app)
    assert agents.status(result.id).usage.input_tokens == 10, "a call in flight is not counted"

    getattr(worker, ends)()
    if ends == "term":
        assert worker.wait_exit(60) == 0, "it goes on once its worker knows that it is to end"
    ledger.let_go()
    start_worker()

    assert result.get(timeout=120) == {"answer": "answer 3", **USED, "by_model": {"big": USED}}
    until(lambda: agents.status(result.id).status == "succeeded", 30, "it is on record")
    assert agents.status(result.id).usage.to_dict() == {**USED, "by_model": {"big": USED}}
