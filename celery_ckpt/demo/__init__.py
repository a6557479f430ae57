"""``celery-ckpt demo``: an agent whose worker is killed, live, with and without celery_ckpt.

durable  plain    the agent with ``@agent_task``, and as a plain Celery task
research          what both share: the question, the tools, a model that runs offline
ledger            what each side did and what it cost, in a file that survives every kill
processes         the Valkey server and the Celery workers
stage             what is done to both sides
screen            what a person sees
command           the command line; ``__main__`` starts it

It may import everything but ``testing``; nothing imports it. Whatever ends the demo, no process and no
file is left behind.
"""

from __future__ import annotations

import signal


class Stopped(Exception):
    """A signal ended the demo. ``code`` is the exit code that shells expect."""

    def __init__(self, number: int) -> None:
        super().__init__(f"Stopped by {signal.Signals(number).name}. Nothing is left behind.")
        self.code = 128 + number
