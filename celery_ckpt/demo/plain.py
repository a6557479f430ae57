"""The same agent as a plain Celery task, with every Celery setting that helps it."""

from __future__ import annotations

import os

from celery import Celery

from celery_ckpt import Conversation, Message
from celery_ckpt.demo import ledger
from celery_ckpt.demo.processes import URL
from celery_ckpt.demo.research import SOFT_SHUTDOWN, TOOLS, VISIBILITY, ask

app = Celery("plain", broker=f"{os.environ[URL]}/2", backend=f"{os.environ[URL]}/2")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": VISIBILITY,
        # By default, Celery looks for such messages only every 100 seconds.
        "unacked_restore_interval": 0.2,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 2,
    },
    worker_soft_shutdown_timeout=SOFT_SHUTDOWN,
)
ledger.record_tasks()


@app.task(name="research", acks_late=True, reject_on_worker_lost=True)  # type: ignore[untyped-decorator]
def research(question: str) -> str:
    """Look things up until the answer is known."""
    conversation = Conversation()
    conversation.append(Message.user(question))
    for _ in range(20):
        reply = Message.of(ask(conversation))
        conversation.append(reply)
        for call in reply.tool_calls:
            result = TOOLS[call.name](**call.arguments)
            conversation.append(Message.tool(result, call.id))
        if not reply.tool_calls:
            return reply.text
    raise RuntimeError("no answer in 20 iterations")
