"""What a delivered request says: whose it is, which message it came in, how to send it again."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery.app.task import Task
from kombu.exceptions import EncodeError

from celery_ckpt.runtime.broker.unacked import envelope

#: On the wire, the agent's name travels under this header.
AGENT_HEADER = "ckpt_agent_id"
#: Says that the run is on record: whoever gets the message need not keep it.
RECORDED_HEADER = "ckpt_recorded"


def agent_id_of(request: Any, unknown: str = "") -> str:
    """The agent that a request is for: the one it names, else one of its own."""
    named = (request.headers or {}).get(AGENT_HEADER) or getattr(request, AGENT_HEADER, None)
    return str(named or request.id or unknown)


def delivery_tag(request: Any) -> str:
    """The broker's name for the message, where it has one that outlives the connection."""
    tag = (request.properties or {}).get("delivery_tag")
    return str(tag or "")


def envelope_of_request(task: Any) -> dict[str, Any]:
    """The message of a request that is being executed, made again."""
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
    return _envelope(
        task,
        body=message.body,
        headers={**message.headers, **(request.headers or {})},
        properties={**message.properties, "priority": delivery.get("priority")},
        exchange=delivery.get("exchange") or "",
        routing_key=delivery.get("routing_key") or "",
    )


def _envelope(task: Any, **message: Any) -> dict[str, Any]:
    """An envelope, written with what the message may have been written with: a request does not say.

    Raises:
        EncodeError: nothing that the app accepts can hold it.
    """
    conf = task.app.conf
    # Whoever sends a task by its name gets the serializer of its route.
    routed = task.app.amqp.router.route({}, task.name).get("serializer")
    likely: str = routed or task.serializer or conf.task_serializer
    accepted: list[str] = list(conf.accept_content)
    for serializer in (likely, *accepted):
        with suppress(EncodeError):
            return envelope(serializer=serializer, **message)
    return envelope(serializer=likely, **message)  # raises again what is wrong with it


def send_later(task: Any, seconds: float) -> None:
    """Send a request again as it is, without asking the store."""
    request = task.request
    copy = task.signature_from_request(request, retries=request.retries, countdown=seconds)
    Task.apply_async(task, copy.args, copy.kwargs, **copy.options)
