"""The age of a delivery comes from the broker: the clocks of two workers may differ by hours."""

from __future__ import annotations

import time

import pytest
from kombu import Connection

from celery_ckpt.runtime.broker.unacked import Unacked
from tests.support.workers.broker import RedisBroker


@pytest.mark.parametrize("hours", [-5, 5])
def test_the_age_of_messages_is_measured_by_the_brokers_clock(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    now = time.time()
    with broker.server.client(db=broker.db) as client:
        client.zadd("unacked_index", {"touched": now - 1000, "left": now - 40})
    with Connection(broker.url()) as connection:
        # First: kombu imports modules on demand, which would keep this clock for all later tests.
        connection.connect()
        monkeypatch.setattr(time, "time", lambda: now + hours * 3600)
        unacked = Unacked(connection)
        unacked.touch(["touched", "unknown"])

        assert unacked.untouched_for(30, 90) == ["left"]
        assert unacked.untouched_for(-10, 10) == ["touched"]
