"""A few hundred of the cases of which ``make fuzz`` tries hundreds of thousands."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from traceback import format_exception
from unittest.mock import patch

import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_ckpt import Agents
from celery_ckpt.errors import CheckpointError, StoreError
from celery_ckpt.runtime.broker.envelope import envelope
from celery_ckpt.runtime.broker.publisher import publish
from celery_ckpt.testing import make_run
from tests.fuzz.audit import nothing_executed
from tests.fuzz.checks import CHECKS, run_case
from tests.fuzz.exports import EXPORT, LINES, exported, with_new_sums, with_sums
from tests.fuzz.imports import imported_into, store_with
from tests.fuzz.mutations import mangled_json
from tests.fuzz.redis_keys import AGENT, CHECKPOINT_KEYS, expect_latest, store_without

ENVELOPE = envelope(
    body=[[1], {"a": 2}, {}],
    headers={"id": "run", "task": "count", "retries": 0},
    properties={"priority": 3, "correlation_id": "run", "delivery_mode": 2},
    exchange="",
    routing_key="celery",
    serializer="json",
)


#: The checks that write files or keys of a server for each case.
SLOW = {"files", "import_command", "names", "redis", "encrypted_redis", "tables"}


@pytest.mark.parametrize("name", sorted(CHECKS.keys() - SLOW))
@settings(max_examples=100, database=None)
@given(number=st.integers(0, 2**48))
def test_malformed_input_does_no_harm(name: str, number: int) -> None:
    run_case(name, 0, number)


@pytest.mark.parametrize("name", sorted(SLOW))
@settings(max_examples=20, database=None)
@given(number=st.integers(0, 2**48))
def test_a_tampered_store_does_no_harm(name: str, number: int) -> None:
    run_case(name, 0, number)


@pytest.mark.parametrize("number", [78, 1959])
def test_an_agent_without_any_checkpoint_left_has_no_latest_one(number: int) -> None:
    run_case("encrypted_redis", 2029, number)


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_without_records_and_messages_there_is_no_latest_checkpoint(is_encrypted: bool) -> None:
    store = store_without(*CHECKPOINT_KEYS, is_encrypted=is_encrypted)
    assert store.load_latest(AGENT) is None
    expect_latest(store)


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("key", CHECKPOINT_KEYS)
def test_the_check_fails_if_nothing_is_found_while_records_or_messages_are_left(
    key: str, is_encrypted: bool
) -> None:
    store = store_without(key, is_encrypted=is_encrypted)
    with pytest.raises(CheckpointError):
        store.load_latest(AGENT)
    expect_latest(store)
    with (
        patch.object(type(store), "load_latest", return_value=None),
        pytest.raises(AssertionError, match="there is data"),
    ):
        expect_latest(store)


@settings(max_examples=100, database=None)
@given(number=st.integers(0, 2**48))
def test_a_forged_message_in_a_store_is_published_or_refused(number: int) -> None:
    with Celery("hostile", broker="memory://", set_as_current=False) as app:
        forged = json.loads(mangled_json(Random(number), ENVELOPE))
        with suppress(StoreError):
            publish(app, forged, has_begun=False)


@settings(max_examples=100, database=None)
@given(number=st.integers(0, 2**48), status=st.sampled_from(["failed", "queued"]))
def test_an_agent_with_a_forged_message_is_resumed_or_refused_and_can_be_deleted(
    number: int, status: str
) -> None:
    forged = json.loads(mangled_json(Random(number), ENVELOPE))
    run = make_run("agent", "run", status=status, delivered=status == "failed")
    try:
        run = run.model_copy(update={"envelope": forged})
    except ValueError:
        return  # no record contains that
    with Celery("hostile", broker="memory://", backend="cache+memory://", set_as_current=False) as app:
        app.conf.ckpt_store_url = "memory://"
        agents = Agents(app)
        agents.store.add_run(run)
        with suppress(StoreError):
            agents.resume("agent")
        agents.delete("agent")
        assert list(agents.names()) == []


@pytest.mark.parametrize("field", ["exchange", "routing_key"])
@pytest.mark.parametrize("forged", [7, None, ["celery"], {"a": 1}])
def test_a_message_with_a_non_text_address_is_refused_before_the_broker_is_contacted(
    field: str, forged: object
) -> None:
    with (
        Celery("hostile", broker="redis://nowhere.invalid/0", set_as_current=False) as app,
        pytest.raises(StoreError, match="its exchange or routing key is not text"),
    ):
        publish(app, {**ENVELOPE, field: forged}, has_begun=False)


def test_the_error_about_a_forged_message_does_not_show_its_arguments() -> None:
    forged = {**ENVELOPE, "text": '[["swordfish \N{SNOWMAN}"], {}, {}]', "content_encoding": "ascii"}
    with (
        Celery("hostile", broker="memory://", set_as_current=False) as app,
        pytest.raises(StoreError, match="is damaged: UnicodeEncodeError") as refused,
    ):
        publish(app, forged, has_begun=False)
    assert "swordfish" not in "".join(format_exception(refused.value))


def test_executed_code_is_detected() -> None:
    with pytest.raises(AssertionError, match="compile"), nothing_executed():
        compile("1", "here", "eval")
    with (
        pytest.raises(AssertionError, match="compile"),
        nothing_executed(),
        ThreadPoolExecutor(1) as new,
    ):
        new.submit(compile, "1", "there", "eval").result(60)


def test_code_executed_by_an_existing_thread_is_ignored() -> None:
    with ThreadPoolExecutor(1) as others:
        others.submit(str).result(60)
        with nothing_executed():
            others.submit(compile, "1", "there", "eval").result(60)


def test_an_unmodified_export_is_imported_completely() -> None:
    store = store_with()
    reported, error = imported_into(store, EXPORT)
    assert ([one.error for one in reported], error) == ([None, None], "")
    assert exported(store, "first", "second") == EXPORT


@pytest.mark.parametrize(
    ("version", "reason"), [(2, "version 2"), ("1", "not an export"), (None, "not an export")]
)
def test_an_export_of_an_unsupported_version_is_refused_immediately(
    version: object, reason: str
) -> None:
    reported, error = imported_into(
        store_with(), with_sums([("export", {"format": version}), *LINES[1:]])
    )
    assert reported == []
    assert reason in error


@pytest.mark.parametrize("depth", [500, 100_000])
def test_a_line_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    here = ("message", {"message": {"content": "HERE"}})
    lines = [here if kind == "message" else (kind, fields) for kind, fields in LINES]
    reported, error = imported_into(
        store_with(), with_new_sums(with_sums(lines).replace(b'"HERE"', nested))
    )
    assert reported == []
    assert "not JSON" in error
