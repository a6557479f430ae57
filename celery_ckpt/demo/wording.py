"""What is said before and after the show."""

from __future__ import annotations

from celery_ckpt.demo import waits
from celery_ckpt.demo.model import DOLLARS_IN, DOLLARS_OUT
from celery_ckpt.demo.research import TURNS
from celery_ckpt.demo.sides import KILLED_IN, STOPPED_IN

INTRODUCTION = (
    f"The same research agent twice: {TURNS} model calls if nothing goes wrong. Both lose a\n"
    f"worker to SIGKILL in iteration {KILLED_IN}, and the next one to a deploy in iteration "
    f"{STOPPED_IN}."
)
NOTES = (
    "Both sides pay again for a call that was in flight when its worker was killed.\n"
    f"Pretend prices: ${DOLLARS_IN:.0f} per million input tokens, ${DOLLARS_OUT:.0f} per million "
    "output tokens."
)
SETTINGS = (
    "Settings, chosen to keep this short and to give the plain task a fair chance:\n"
    f"  celery_ckpt        lease {waits.LEASE} s (default: 30 s)\n"
    "  plain Celery task  acks_late and reject_on_worker_lost (default: off);\n"
    f"                     visibility timeout {waits.VISIBILITY} s, just longer than the task,\n"
    "                     or it would run twice at once (default: 1 hour);\n"
    f"                     soft shutdown {waits.SOFT_SHUTDOWN} s (default: none)"
)
WHERE = "Compare the two agents: celery_ckpt/demo/durable.py and celery_ckpt/demo/plain.py"
