"""A stand-in for a model: offline, always the same, it streams, and every token has its price.

It is paid as real ones are: for the whole conversation at each call, and for each word it streams,
whether or not anybody is still there to hear it.
"""

from __future__ import annotations

import json
import time
from typing import Any

from celery_ckpt.conversation import Conversation
from celery_ckpt.demo import cues, ledger
from celery_ckpt.demo.research import ANSWER, TOOLS, TOPICS

#: Pretend dollars for a million tokens, and how many tokens a word is.
DOLLARS_IN, DOLLARS_OUT = 3.0, 15.0
_TOKENS_PER_WORD = 1.4
_SECONDS_TO_THINK, _SECONDS_PER_WORD = 0.15, 0.035


def ask(conversation: Conversation) -> dict[str, Any]:
    """What the model answers to this conversation: it wants to look something up, or it knows."""
    turn = 1 + sum(message.role == "assistant" for message in conversation)
    book = ledger.here()
    book.note("call", turn=turn, dollars=conversation.estimated_tokens() * DOLLARS_IN / 1e6)
    time.sleep(_SECONDS_TO_THINK)
    topic = TOPICS[turn - 1] if turn <= len(TOPICS) else None
    text = f"Next I want to look up and read about {topic}." if topic else ANSWER
    for number, word in enumerate(text.split(), 1):
        book.note("word", text=word, dollars=_TOKENS_PER_WORD * DOLLARS_OUT / 1e6)
        time.sleep(_SECONDS_PER_WORD)
        cues.here().keep(turn, number)
    calls = [_tool_call(turn, name, topic) for name in TOOLS] if topic else []
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def _tool_call(turn: int, name: str, topic: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps({"topic": topic})}
    return {"id": f"{name}-{turn}", "type": "function", "function": function}
