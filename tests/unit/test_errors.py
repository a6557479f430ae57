"""Every error says what happened, carries its facts, and crosses process boundaries."""

from __future__ import annotations

import copy
import pickle
from typing import Any, get_type_hints

import pytest

from celery_ckpt import Checkpoint, Conversation, errors
from celery_ckpt.errors import CheckpointDamaged, CheckpointError, LeaseHeld, StoreError

ERRORS = [
    found
    for found in vars(errors).values()
    if isinstance(found, type) and found.__module__ == errors.__name__
]
VALUE_ERRORS = {
    "ConfigurationError",
    "InvalidName",
    "NotJson",
    "NotACheckpoint",
    "NotAMessage",
    "NotAnExport",
    "StepResultNotJson",
}
NOT_THE_STORES = {
    *VALUE_ERRORS,
    *("CheckpointError", "NoCurrentRun", "RedactionFailed", "RunFailed", "RunLost", "RunMisused"),
    "RunStalled",
    "StepChanged",
}
FACTS: dict[type, Any] = {str: "odd {braces} ü\u2028", int: 7, float: 1.25}
EVERY_ERROR = pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)


def facts_of(kind: type[CheckpointError]) -> dict[str, Any]:
    hints = get_type_hints(kind, localns={"Checkpoint": Checkpoint})
    named = {name: FACTS[hint] for name, hint in hints.items() if hint in FACTS}
    return named or {"reason": FACTS[str]}


@EVERY_ERROR
def test_an_error_carries_the_facts_of_its_message(kind: type[CheckpointError]) -> None:
    facts = facts_of(kind)
    error = kind(**facts)
    assert {name: getattr(error, name) for name in facts} == facts
    assert str(error) == kind.template.format(**facts)


@EVERY_ERROR
@pytest.mark.parametrize("duplicate", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_pickling_to_another_process(
    kind: type[CheckpointError], duplicate: Any
) -> None:
    error = kind(**facts_of(kind))
    other = duplicate(error)
    assert type(other) is kind
    assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


@EVERY_ERROR
def test_an_error_can_be_created_from_its_message_alone_as_celery_does(
    kind: type[CheckpointError],
) -> None:
    error = kind(**facts_of(kind))
    other = kind(*error.args)
    assert (type(other), str(other)) == (kind, str(error))


@EVERY_ERROR
def test_all_errors_share_one_base_class(kind: type[CheckpointError]) -> None:
    assert issubclass(kind, CheckpointError)
    assert issubclass(kind, ValueError) == (kind.__name__ in VALUE_ERRORS)
    assert issubclass(kind, StoreError) == (kind.__name__ not in NOT_THE_STORES)


def test_creating_an_error_without_its_facts_raises_immediately() -> None:
    with pytest.raises(KeyError):
        LeaseHeld(agent_id="a")


def test_a_damage_error_carries_the_readable_checkpoints_to_another_process() -> None:
    readable = [Checkpoint.new("a", Conversation(), 1)]
    error = CheckpointDamaged(agent_id="a", checkpoint_id="c", reason="torn")
    assert error.readable == ()
    error.readable = readable
    assert pickle.loads(pickle.dumps(error)).readable == readable
