"""``ckpt_redact``: what it removes is stored nowhere, and does not change how an agent resumes."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from traceback import format_exception
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject

from celery_ckpt import (
    AfterToolCall,
    AgentRun,
    Agents,
    Conversation,
    EveryN,
    Message,
    agent_task,
)
from celery_ckpt.errors import ConfigurationError, RedactionFailed
from celery_ckpt.records import RunStatus
from celery_ckpt.run.control_flow import HandOff
from celery_ckpt.run.redaction import Redaction
from celery_ckpt.runtime.settings import Settings
from celery_ckpt.testing import crash_everywhere
from celery_ckpt.testing.simulation import SimulatedRun
from tests.support.ledger import Ledger
from tests.support.tasks import redaction
from tests.support.tasks.redaction import MODULE, SECRET
from tests.support.workers.broker import Broker
from tests.support.workers.fixtures import StartWorker

CALLS: Counter[str] = Counter()
STRATEGIES = (AfterToolCall(), EveryN(2))


def app_with(redact: Any) -> Celery:
    app = Celery("redacting", set_as_current=False)
    app.conf.update(ckpt_store_url="memory://", ckpt_redact=redact)
    return app


def redact(value: Any, what: str) -> Any:
    """Count how often it is called for each message and step. It must be called once for each."""
    if "unspeakable" in str(value):
        raise KeyError(value)
    text = json.dumps(value).replace(SECRET, "<gone>")
    return json.loads(text.replace("gone>", "gone!>") if what in ("message", "step") else text)


app = app_with(redact)


def model(run: AgentRun, conversation: Conversation) -> dict[str, Any]:
    CALLS[f"llm {run.iteration}"] += 1
    arguments = json.dumps({"n": run.iteration})
    call = {"id": f"c{run.iteration}", "type": "function"}
    return {
        "role": "assistant",
        "content": f"{SECRET} in iteration {run.iteration}, after {conversation.messages[-1].text}",
        "tool_calls": [{**call, "function": {"name": "tool", "arguments": arguments}}],
    }


def tool(n: int) -> dict[str, Any]:
    CALLS[f"tool {n}"] += 1
    return {"found": f"{SECRET} {n}"}


def look(what: str) -> str:
    CALLS["look"] += 1
    return f"{what} is {SECRET}"


@agent_task(app=app)
def careless(run: AgentRun, manual: bool) -> list[Any]:
    """Put the secret wherever possible, and make calls with the redacted values."""
    if not run.resumed:
        run.conversation.append(Message.user(f"my password is {SECRET}"))
    run.state["before"] = run.step("before", look, SECRET)
    for n in run.iterations(limit=3):
        run.metadata["who"] = SECRET
        run.state["now"] = f"{SECRET} {n}"
        reply = run.llm(model, run, run.conversation)
        for call in reply.tool_calls:
            run.state["found"] = run.tool(call, tool)["found"]
        run.step("state", look, run.state["now"])
        run.step("message", look, reply)
        if manual and n == 2:
            run.checkpoint(note=SECRET)
            run.step("after", look, run.state["now"])
        if n == 2 and not manual:
            kept = run.conversation.messages
            run.conversation.replace([Message.user(f"in short: {SECRET}"), *kept[-2:]])
    run.conversation = run.conversation.with_system_prompt(f"never say {SECRET}")
    return [run.state, run.conversation.digest]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("manual", [False, True])
def test_a_redacted_agent_ends_the_same_wherever_it_is_killed(strategy: Any, manual: bool) -> None:
    careless.strategy = strategy
    report = crash_everywhere(careless, (manual,))
    assert SECRET not in json.dumps(report.result)
    assert "<gone!>" in json.dumps(report.result)
    assert report.kills == 2 * report.writes


def test_redaction_causes_no_recorded_call_to_be_repeated() -> None:
    careless.strategy = EveryN(1)
    CALLS.clear()
    report = crash_everywhere(careless, (False,))
    lives = 1 + report.kills + report.hand_offs
    # Each simulated run but the first was interrupted once: at most the one call in flight was
    # repeated.
    assert sum(CALLS.values()) <= lives * 13 + lives


def test_a_directly_called_body_sees_the_same_redacted_values() -> None:
    state, _ = careless(False)
    assert state["before"] == "<gone!> is <gone!>"


def raising(value: Any, what: str) -> Any:
    raise ValueError(f"what about {value}")


@pytest.mark.parametrize(
    ("redact", "says"),
    [
        (raising, r"failed on a message: it raised ValueError \(in raising, .*n.py:\d+\). Nothing"),
        (lambda value, what: None, "returned a NoneType instead of an object"),
        (
            lambda value, what: {"x": b""},
            r"it returned something that is not JSON \(message.x is of type bytes",
        ),
    ],
)
def test_nothing_is_stored_if_the_redaction_fails(redact: Any, says: str) -> None:
    conversation = Conversation()
    Redaction(redact).adopt(conversation)

    with pytest.raises(RedactionFailed, match=says) as failed:
        conversation.append(Message.user(SECRET))

    assert SECRET not in "".join(format_exception(failed.value)), (
        "Celery's log does not contain it either"
    )
    assert len(conversation) == 0


@agent_task(app=app)
def stuck(run: AgentRun, value: Any) -> None:
    run.state["kept"] = value
    raise HandOff("the worker is shutting down")


@pytest.mark.parametrize(
    ("value", "reason"), [({1}, "of type set"), ("unspeakable", "raised KeyError")]
)
def test_a_hand_off_that_cannot_be_saved_fails_the_run_and_does_not_loop_forever(
    value: Any, reason: str
) -> None:
    life = SimulatedRun(stuck._get_current_object(), (value,), {})
    with pytest.raises((ValueError, RedactionFailed), match=reason):
        life.finish()
    assert life.end()["status"] is RunStatus.FAILED


@agent_task(app=app)
def rejecting(run: AgentRun, reason: str) -> None:
    raise Reject(reason)


@pytest.mark.parametrize(
    ("reason", "kept"), [(f"not {SECRET}", "rejected: not <gone>"), ("unspeakable", "rejected")]
)
def test_the_reason_a_body_rejects_its_message_for_is_redacted(reason: str, kept: str) -> None:
    life = SimulatedRun(rejecting._get_current_object(), (reason,), {})
    with pytest.raises(Reject):
        life.finish()
    [run] = life.store.runs("crash_everywhere")
    assert (run.status, run.error) == (RunStatus.FAILED, kept)


@agent_task(app=Celery("keeping", set_as_current=False))
def speaking(run: AgentRun, error: Exception) -> None:
    raise error


@pytest.fixture
def unlogged() -> Iterator[None]:
    """Disable logging: receivers of other tests may log values that xdist cannot send between
    processes.
    """
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("error", [ValueError("half \ud800"), Reject("half \ud800")])
def test_an_error_with_half_a_character_is_recorded_and_the_run_ends(
    error: Exception, unlogged: None
) -> None:
    speaking.app.conf.ckpt_store_url = "memory://"
    life = SimulatedRun(speaking._get_current_object(), (error,), {})
    with pytest.raises(type(error)):
        life.finish()
    [run] = life.store.runs("crash_everywhere")
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error.endswith(": half \\ud800")


def test_the_redaction_function_can_be_given_by_name() -> None:
    assert Settings.of(app_with("tests.support.tasks.redaction:redact")).redact is redaction.redact
    for wrong in ("tests.support.tasks.redaction:nobody", "nowhere:redact", 7):
        with pytest.raises(ConfigurationError, match="ckpt_redact"):
            Settings.of(app_with(wrong))


@pytest.mark.configured(
    include=(MODULE,),
    conf={"ckpt_lease_ttl": 30, "ckpt_redact": "tests.support.tasks.redaction:redact"},
)
def test_a_killed_worker_repeats_no_recorded_call_and_the_secret_is_stored_nowhere(
    celery_app: Celery, start_worker: StartWorker, ledger: Ledger, broker: Broker
) -> None:
    worker = start_worker()
    ledger.hold("tool 2")
    result = redaction.keep_secret_everywhere.delay(4)
    worker.kill_child(ledger.wait_for_call("tool 2", 10).pid)
    ledger.let_go()

    value, calls = (
        result.get(timeout=60),
        Counter(note["name"] for note in ledger.calls(run_id=result.id)),
    )

    assert calls.pop("tool 2") <= 2, "it was in flight"
    assert set(calls.values()) == {1}
    assert SECRET not in json.dumps(value)
    agents = Agents(celery_app)
    checkpoint = agents.latest(result.id)
    assert checkpoint is not None
    assert SECRET not in checkpoint.to_bytes().decode()
    assert checkpoint.to_bytes().count(b"[gone]") >= 9

    failed = redaction.keep_secret_everywhere.delay(1, fails=True)
    with pytest.raises(RuntimeError):
        failed.get(timeout=60)
    [run] = agents.runs(failed.id)
    assert (run.status, run.error) == (RunStatus.FAILED, "RuntimeError: about [gone]")
