"""What is said before and after the show."""

from __future__ import annotations

from celery_ckpt.demo import waits
from celery_ckpt.demo.model import DOLLARS_IN, DOLLARS_OUT
from celery_ckpt.demo.research import TURNS
from celery_ckpt.demo.sides import KILLED_IN, STOPPED_IN

INTRODUCTION = (
    f"The same research agent twice, {TURNS} model calls if nothing happens. But both lose\n"
    f"their worker to SIGKILL in iteration {KILLED_IN}, and the next one to a deploy in {STOPPED_IN}."
)
NOTES = (
    "A call that is in flight when its worker is killed is paid again on both sides.\n"
    f"Pretend prices: ${DOLLARS_IN:.0f} for a million tokens in, ${DOLLARS_OUT:.0f} out."
)
SETTINGS = (
    "What was set, to be quick, and to give the plain task a fair chance:\n"
    f"  celery_ckpt        lease {waits.LEASE} s (default: 30 s)\n"
    "  plain Celery task  acks_late and reject_on_worker_lost (default: off);\n"
    f"                     visibility timeout {waits.VISIBILITY} s, just longer than the task,\n"
    "                     or it would run twice at once (default: 1 hour);\n"
    f"                     soft shutdown {waits.SOFT_SHUTDOWN} s (default: none)"
)
WHERE = "Both agents, to compare: celery_ckpt/demo/durable.py and celery_ckpt/demo/plain.py"
