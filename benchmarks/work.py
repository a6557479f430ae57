"""The work of every contender: one agent that adds two messages of about 1 KB in each iteration.

What precedes a save (the reply of the model, the tool result, the checkpoint) is the same for all
contenders and is not measured.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from celery_ckpt import Checkpoint, CheckpointEvent, Conversation, Message

_chance = random.Random(20240229)
#: As many different words as in a long text, so that the texts compress like one.
_WORDS = [
    "".join(_chance.choices("etaoinshrdlucmfwypvbgkjqxz", range(26, 0, -1), k=_chance.randint(1, 11)))
    for _ in range(4000)
]
#: Made beforehand: making them must not take longer than saving them.
_TEXTS = [" ".join(_chance.choices(_WORDS, k=300)) for _ in range(500)]


@dataclass(frozen=True)
class Work:
    """The work of one iteration, ready to be saved."""

    checkpoint: Checkpoint
    #: The two new messages, one JSON line each.
    new: list[bytes]
    #: The whole conversation as plain objects, for contenders that need it. The list keeps growing.
    plain: list[dict[str, Any]]

    @property
    def agent_id(self) -> str:
        """The name of the agent."""
        return self.checkpoint.agent_id

    @property
    def iteration(self) -> int:
        """The number of this iteration."""
        return self.checkpoint.iteration


class Agent:
    """An agent that works."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.iteration = 0
        #: The bytes of all messages so far, one JSON line each.
        self.message_bytes = 0
        self._conversation = Conversation()
        self._plain: list[dict[str, Any]] = []

    def work(self) -> Work:
        """Do the work of one iteration, and return it."""
        self.iteration += 1
        call_id = f"call_{self.iteration:08}"
        new = [self._say(_request(call_id)), self._say(_answer(call_id))]
        checkpoint = Checkpoint.new(
            self.agent_id,
            self._conversation,
            self.iteration,
            run_id="7a2c1f0e-5a43-4a7e-9f0b-2f6d3c1b8e55",
            event=CheckpointEvent.ITERATION,
        )
        return Work(checkpoint, new, self._plain)

    def _say(self, fields: dict[str, Any]) -> bytes:
        message = Message.of(fields)
        line = message.to_json()
        self._conversation.append(message)
        self._plain.append(fields)
        self.message_bytes += len(line)
        return line


def _request(call_id: str) -> dict[str, Any]:
    function = {"name": "search", "arguments": '{"query": "wind and water"}'}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": text(860), "tool_calls": calls}


def _answer(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text(965)}


def text(length: int) -> str:
    return _chance.choice(_TEXTS)[:length]
