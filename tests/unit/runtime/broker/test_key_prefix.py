"""A Redis broker that several programs share: kombu can add a prefix to its keys."""

from __future__ import annotations

import pytest
from kombu import Connection

from celery_ckpt.runtime.broker.unacked import Unacked
from tests.support.workers.broker import RedisBroker


@pytest.mark.parametrize("prefix", ["", "shared:"])
def test_the_message_of_a_dead_worker_is_found_and_restored(broker: RedisBroker, prefix: str) -> None:
    options = {"global_keyprefix": prefix}
    with (
        Connection(broker.url(), transport_options=options) as watching,
        Connection(broker.url(), transport_options=options) as dead,
    ):
        queue = dead.SimpleQueue("agents")
        queue.put("a task", headers={"ckpt_recorded": True})
        tag = queue.get(timeout=60).delivery_tag
        unacked = Unacked(watching)

        assert unacked.untouched_for(-10, 60) == [tag]
        assert unacked.headers(tag)["ckpt_recorded"] is True
        assert unacked.restore(tag)
        assert unacked.untouched_for(-10, 60) == []
        assert not unacked.restore(tag)
        assert broker.queue_length(f"{prefix}agents") == 1
