"""``celery-ckpt demo``: an agent whose worker is killed, live, with and without celery_ckpt.

durable  plain    the agent with ``@agent_task``, and as a plain Celery task
research          what both share: the question, the tools, a model that runs offline
ledger            what was called and what it cost, in a file that survives every kill
processes         the Valkey server and the Celery workers
stage  story      what is done to both sides, and what has happened to each so far
screen  bill      what a person sees
command  script   the command line and its entry points
stop              how Ctrl-C ends the demo at any time

It may import everything but ``testing``; nothing imports it. Whatever ends the demo, no process and no
file is left behind.
"""

from __future__ import annotations
