"""What the agent is asked, what it looks up, and what it says: all of it known beforehand."""

from __future__ import annotations

import time
from collections.abc import Callable

from celery_ckpt.demo import ledger

QUESTION = "Why is the sky blue, and red at dusk?"
ANSWER = (
    "Air scatters short waves most, so blue comes from everywhere; "
    "at dusk the long way through the air has used it up."
)
#: One turn of the agent each; after the last one it answers.
TOPICS = (
    "scattering by small particles",
    "the size of air molecules",
    "the spectrum of sunlight",
    "why the sky is not violet",
    "how the eye mixes colours",
    "the path of light at dusk",
    "what dust and smoke add",
    "skies of other planets",
)
TURNS = len(TOPICS) + 1
_SECONDS_PER_TOOL = 0.05
#: Long enough for its tokens to cost something.
_PAGE = "What was measured, by whom, with which instruments, and what follows from it. " * 100


def search(topic: str) -> str:
    """Pretend to search."""
    ledger.here().note("tool", name="search")
    time.sleep(_SECONDS_PER_TOOL)
    return f"The best page on {topic}: physics.example/{topic.replace(' ', '-')}"


def read(topic: str) -> str:
    """Pretend to read a long page."""
    ledger.here().note("tool", name="read")
    time.sleep(_SECONDS_PER_TOOL)
    return f"On {topic}. {_PAGE}"


TOOLS: dict[str, Callable[..., str]] = {"search": search, "read": read}
