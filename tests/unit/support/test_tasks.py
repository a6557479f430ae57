"""What modules with tasks for workers do in the process of the tests, which imports them too."""

from __future__ import annotations

import pytest

from celery_ckpt import signals
from tests.support.tasks import scenarios, signal_log

#: They have receivers of signals.
MODULES = (scenarios, signal_log)


@pytest.mark.parametrize("name", signals.__all__)
def test_receivers_for_workers_are_not_connected_in_the_tests(name: str) -> None:
    """Where a receiver fails, each signal of a simulated run logs a traceback."""
    assert getattr(signals, name).send(sender=None) == []
