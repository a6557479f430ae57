"""What both agents share: the question, the tools, a model, and how long each side waits.

Everything is known beforehand and runs offline. The model is paid as real ones are: for the whole
conversation at each call, and for each word that it streams, even if the worker is killed before it
receives the word.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from celery_ckpt.conversation import Conversation
from celery_ckpt.demo import ledger

QUESTION = "Why is the sky blue, and red at dusk?"
ANSWER = (
    "Air scatters short waves most, so blue comes from everywhere; "
    "at dusk the long way through the air has used it up."
)
#: The agent looks up one topic in each iteration, and answers in the one after.
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
ITERATIONS = len(TOPICS) + 1
_SECONDS_PER_TOOL = 0.05
#: Long enough that its tokens have a visible price.
_PAGE = "What was measured, by whom, with which instruments, and what follows from it. " * 100


def search(topic: str) -> str:
    """Pretend to search."""
    ledger.ledger().note("tool", name="search")
    time.sleep(_SECONDS_PER_TOOL)
    return f"The best page on {topic}: physics.example/{topic.replace(' ', '-')}"


def read(topic: str) -> str:
    """Pretend to read a long page."""
    ledger.ledger().note("tool", name="read")
    time.sleep(_SECONDS_PER_TOOL)
    return f"On {topic}. {_PAGE}"


TOOLS: dict[str, Callable[..., str]] = {"search": search, "read": read}


# -- the model ---------------------------------------------------------------------------------------

#: Pretend dollars for a million tokens, and how many tokens a word has.
DOLLARS_IN, DOLLARS_OUT = 3.0, 15.0
_TOKENS_PER_WORD = 1.4
_SECONDS_TO_THINK, _SECONDS_PER_WORD = 0.15, 0.035


def ask(conversation: Conversation) -> dict[str, Any]:
    """Return the reply of the model: two tool calls, or the answer."""
    iteration = 1 + sum(message.role == "assistant" for message in conversation)
    book = ledger.ledger()
    book.note("call", iteration=iteration, dollars=conversation.estimated_tokens() * DOLLARS_IN / 1e6)
    time.sleep(_SECONDS_TO_THINK)
    topic = TOPICS[iteration - 1] if iteration <= len(TOPICS) else None
    text = f"Next I want to look up and read about {topic}." if topic else ANSWER
    for number, word in enumerate(text.split(), 1):
        book.note("word", text=word, dollars=_TOKENS_PER_WORD * DOLLARS_OUT / 1e6)
        time.sleep(_SECONDS_PER_WORD)
        ledger.cue().wait(iteration, number)
    calls = [
        {
            "id": f"{name}-{iteration}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps({"topic": topic})},
        }
        for name in (TOOLS if topic else ())
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


# -- how long each side waits, in seconds: short, to keep the demo short -----------------------------

#: An agent is taken over if its worker does not renew the lease for this long. The default is 30.
LEASE = 2
#: A message that was not acknowledged is delivered again after this. It must be longer than the task
#: takes, or the task runs twice at the same time. Celery's default is an hour.
VISIBILITY = 9
#: A worker that receives SIGTERM gives its task this long to end, then returns it to the queue.
SOFT_SHUTDOWN = 1
