"""The agent with celery_ckpt. Compare it with ``plain.py``.

The two are separate modules because each is a Celery app, and runs in workers of its own.
"""

from __future__ import annotations

import os

from celery import Celery

from celery_ckpt import AgentRun, EveryN, Message, agent_task
from celery_ckpt.demo import ledger
from celery_ckpt.demo.processes import URL
from celery_ckpt.demo.research import LEASE, TOOLS, ask

app = Celery("durable", broker=f"{os.environ[URL]}/0", backend=f"{os.environ[URL]}/0")
app.conf.update(
    broker_connection_retry_on_startup=True,
    ckpt_store_url=f"{os.environ[URL]}/1",
    ckpt_lease_ttl=LEASE,
)
ledger.record_agents(app)


@agent_task(app=app, name="research", strategy=EveryN(3))
def research(run: AgentRun, question: str) -> str:
    """Look things up until the answer is known."""
    if not run.resumed:
        run.conversation.append(Message.user(question))
    for _ in run.iterations(limit=20):
        reply = run.llm(ask, run.conversation)
        for call in reply.tool_calls:
            run.tool(call, TOOLS[call.name])
        if not reply.tool_calls:
            return reply.text
    raise RuntimeError("no answer in 20 iterations")
