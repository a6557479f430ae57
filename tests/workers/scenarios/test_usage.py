"""The usage of an agent on real workers: complete in the body, and counted once."""

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
ITERATIONS = 3
USED: dict[str, Any] = {"input_tokens": 1110, "output_tokens": 3, "cached_tokens": 0, "cost": 1110.0}


@pytest.mark.parametrize("ends", ["kill_tree", "term"])
def test_the_usage_is_the_same_after_a_worker_is_killed_or_replaced(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, ends: str
) -> None:
    worker = start_worker()
    ledger.hold("ask 2")
    result = spend.delay(ITERATIONS)
    ledger.wait_for_call("ask 2", 60)
    agents = Agents(celery_app)
    assert agents.status(result.id).usage.input_tokens == 10, "a call in flight is not counted"

    getattr(worker, ends)()
    if ends == "term":
        assert worker.wait_exit(60) == 0, "the held call continues when its worker is shutting down"
    ledger.let_go()
    start_worker()

    assert result.get(timeout=120) == {"answer": "answer 3", **USED, "by_model": {"big": USED}}
    until(lambda: agents.status(result.id).status == "succeeded", 30, "the end is recorded")
    assert agents.status(result.id).usage.to_dict() == {**USED, "by_model": {"big": USED}}
