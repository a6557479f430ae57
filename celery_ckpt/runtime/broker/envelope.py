"""The envelope of a run: its task message as plain JSON, from which any process can publish it again.

An envelope is made of a message that is about to be published, or of a request that was delivered. It
is stored in the record of its run. What is read from a record may be damaged or forged, and is checked.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from celery import Celery
from kombu.exceptions import EncodeError
from kombu.serialization import dumps, loads, prepare_accept_content
from kombu.utils import json

from celery_ckpt.errors import NotJson, StoreError
from celery_ckpt.json_values import plain

#: The header of a message that holds the name of its agent.
AGENT_HEADER = "ckpt_agent_id"
#: Set on messages of runs that are on record: the worker that receives one need not record it.
RECORDED_HEADER = "ckpt_recorded"
#: Set on messages of runs that a worker has begun.
BEGUN_HEADER = "ckpt_begun"
#: What reading a damaged or forged message raises.
DAMAGED = (AttributeError, LookupError, TypeError, ValueError)


def agent_id_of(request: Any, default: str = "") -> str:
    """Return the agent of a request: the one that its header names, or the task id."""
    named = (request.headers or {}).get(AGENT_HEADER) or getattr(request, AGENT_HEADER, None)
    return str(named or request.id or default)


def may_have_begun(request: Any) -> bool:
    """True unless it is certain that no worker has begun the run of this message.

    A message that was delivered before may have been begun then, whatever it says itself.
    """
    is_begun = bool(getattr(request, BEGUN_HEADER, False)) or bool(request.retries)
    return is_begun or bool((request.delivery_info or {}).get("redelivered"))


def delivery_tag(request: Any) -> str:
    """Return the broker's name for the message, or "" if the broker has none."""
    tag = (request.properties or {}).get("delivery_tag")
    return str(tag or "")


def envelope(
    *,
    body: Any,
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    exchange: str,
    routing_key: str,
    serializer: str,
) -> dict[str, Any]:
    """Return the envelope of a message."""
    content_type, encoding, data = dumps(body, serializer)
    payload = {"text": data} if isinstance(data, str) else {"base64": base64.b64encode(data).decode()}
    message = {
        "headers": dict(headers),
        "properties": {name: value for name, value in properties.items() if value is not None},
        "exchange": exchange or "",
        "routing_key": routing_key or "",
        "content_type": content_type,
        "content_encoding": encoding,
        **payload,
    }
    try:
        result: dict[str, Any] = plain(message, "envelope")
    except NotJson:
        # Dates in headers become texts, as in the message that kombu publishes.
        result = plain(json.loads(json.dumps(message)), "envelope")
    return result


def envelope_of_request(task: Any) -> dict[str, Any]:
    """Return the envelope of the request that a task is executing.

    Raises:
        EncodeError: no serializer that the app accepts can write it.
    """
    request = task.request
    delivery = request.delivery_info or {}
    message = task.app.amqp.create_task_message(
        request.id,
        task.name,
        request.args,
        request.kwargs,
        group_id=request.group,
        group_index=request.group_index,
        retries=request.retries,
        chord=request.chord,
        callbacks=request.callbacks,
        errbacks=request.errbacks,
        reply_to=request.reply_to,
        time_limit=(request.timelimit or (None, None))[0],
        soft_time_limit=(request.timelimit or (None, None))[1],
        root_id=request.root_id,
        parent_id=request.parent_id,
        shadow=request.shadow,
        chain=request.chain,
        ignore_result=request.ignore_result,
        replaced_task_nesting=request.replaced_task_nesting,
        stamped_headers=request.stamped_headers,
        **(request.stamps or {}),
    )
    parts: dict[str, Any] = {
        "body": message.body,
        "headers": {**message.headers, **(request.headers or {})},
        "properties": {**message.properties, "priority": delivery.get("priority")},
        "exchange": delivery.get("exchange") or "",
        "routing_key": delivery.get("routing_key") or "",
    }
    # A request does not name its serializer. A task that is sent by name uses that of its route.
    routed = task.app.amqp.router.route({}, task.name).get("serializer")
    likely: str = routed or task.serializer or task.app.conf.task_serializer
    for serializer in (likely, *task.app.conf.accept_content):
        with suppress(EncodeError):
            return envelope(serializer=serializer, **parts)
    return envelope(serializer=likely, **parts)  # raises the error of the likely serializer


@contextmanager
def reading_envelope() -> Iterator[None]:
    """Raise ``StoreError`` where reading a stored envelope fails."""
    try:
        yield
    except DAMAGED as error:
        # Not its repr: that of a UnicodeEncodeError contains the whole text, a task's arguments.
        what = f"{type(error).__name__}: {error}"[:200]
        reason = f"The stored message of a run is damaged: {what}. Cancel or delete its agent."
        raise StoreError(reason=reason) from error


def without_retries(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Return an envelope whose retries are counted from 0 again.

    Raises:
        StoreError: the stored envelope is damaged.
    """
    with reading_envelope():
        return {**envelope, "headers": {**envelope["headers"], "retries": 0}}


def content_of(app: Celery, envelope: Mapping[str, Any]) -> Any:
    """Return the deserialized body: arguments, keyword arguments, and what Celery embeds beside them.

    Raises:
        ContentDisallowed: the app does not accept its content type.
    """
    accept = prepare_accept_content(app.conf.accept_content)
    content_type, encoding = envelope["content_type"], envelope["content_encoding"]
    return loads(payload_of(envelope), content_type, encoding, accept=accept)


def address_of(envelope: Mapping[str, Any]) -> tuple[str, str]:
    """Return exchange and routing key."""
    exchange, routing_key = envelope["exchange"], envelope["routing_key"]
    if not (isinstance(exchange, str) and isinstance(routing_key, str)):
        # The broker's client would raise errors of its own, as if the broker had refused the message.
        raise TypeError("its exchange or routing key is not text")
    return exchange, routing_key


def payload_of(envelope: Mapping[str, Any]) -> str | bytes:
    """Return the serialized body."""
    return str(envelope["text"]) if "text" in envelope else base64.b64decode(envelope["base64"])
