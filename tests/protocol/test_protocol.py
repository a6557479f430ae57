"""The order of writes, explored: the real code, step by step, with every possible deviation."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from tests.protocol.access import SteppingUnacked
from tests.protocol.scenarios import PLANS, Scenario, explore, failure_report
from tests.protocol.schedules import alternatives
from tests.protocol.world import machine_clock
from tests.protocol.wrong_orders import BROKEN

#: How many deviations are combined. A depth of 2 takes minutes.
DEPTH = int(os.environ.get("CKPT_MODEL_DEPTH", "1"))


@pytest.fixture(autouse=True)
def stepping_broker() -> Iterator[None]:
    with (
        patch("celery_ckpt.runtime.broker.publisher.Unacked", SteppingUnacked),
        # The tracer's reports about exceptions are not read.
        patch(
            "celery.app.trace.ExceptionInfo",
            lambda *_, **__: SimpleNamespace(exception=None, traceback=""),
        ),
        patch("celery_ckpt.runtime.worker.watchdog.system_clock", machine_clock),
        patch("celery_ckpt.runtime.worker.watchdog.is_known_dead", lambda owner: False),
        patch("celery_ckpt.runtime.attempt.start.is_known_dead", lambda owner: False),
    ):
        yield


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PLANS)
def test_the_invariants_hold_for_every_interleaving_up_to_the_depth(name: str) -> None:
    scenario = Scenario(name)
    assert explore(scenario, DEPTH, scenario.given) > 20


@pytest.mark.parametrize("name", PLANS)
def test_the_invariants_hold_for_random_combinations_of_four_deviations(name: str) -> None:
    scenario, chance = Scenario(name), random.Random(20261116)
    for _ in range(20 * DEPTH):
        deviations: dict[int, str] = {**scenario.given}
        for _ in range(4):
            execution = scenario.run(deviations)
            assert not execution.world.wrong, failure_report(execution, deviations)
            behind = list(alternatives(execution, max(deviations, default=-1)))
            if not behind:
                break
            number, what = chance.choice(behind)
            deviations[number] = what


@pytest.mark.parametrize("what", BROKEN)
def test_a_wrong_order_of_operations_is_detected(what: str) -> None:
    (name, instead), plan, given, found = BROKEN[what]
    with patch(name, instead):
        scenario = Scenario(plan, given)
        with pytest.raises(AssertionError, match=found):
            explore(scenario, 1, scenario.given)
