"""Agents as lines: each message once, each checkpoint as the places of its messages.

So an export grows with the messages, not with the checkpoints that share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from celery_ckpt import codec
from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.conversation import Conversation, Spine
from celery_ckpt.errors import CheckpointDamaged
from celery_ckpt.messages import Message
from celery_ckpt.records import RunRecord, Step
from celery_ckpt.retention.report import AgentPolicy
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.log.ranges import Ranges
from celery_ckpt.transfer.format import FORMAT_VERSION, Sealer

#: Called with an agent's name once its lines are made, and with the damage that was passed over.
Told = Callable[[str, CheckpointDamaged | None], object]


def export_agents(
    store: CheckpointStore,
    agent_ids: Iterable[str],
    *,
    skip_damaged: bool = False,
    told: Told | None = None,
) -> Iterator[bytes]:
    """Yield the lines of an export of these agents. One that has nothing stored is left out.

    Raises:
        CheckpointDamaged: unless ``skip_damaged``, which exports the others.
    """
    sealer, count = Sealer(), 0
    yield sealer.line("export", format=FORMAT_VERSION)
    for agent_id in agent_ids:
        export = _Export(store, agent_id, skip_damaged)
        if export:
            count += 1
            yield from (sealer.line(kind, **fields) for kind, fields in export.lines())
        if told is not None:
            told(agent_id, export.damage)
    yield sealer.line("finished", agents=count)


class _Export:
    """One agent, as it is now."""

    def __init__(self, store: CheckpointStore, agent_id: str, skip_damaged: bool) -> None:
        self.agent_id = agent_id
        self.damage: CheckpointDamaged | None = None
        # Checkpoints last: steps that are too old do no harm, ones that are missing cost a call.
        self.runs = store.runs(agent_id)
        self.steps = [step for run in self.runs for step in store.steps(agent_id, run.run_id)]
        self.checkpoints = self._checkpoints(store, skip_damaged)
        policy = store.policy(agent_id)
        self.policy = policy.without(
            policy.pins.keys() - {checkpoint.id for checkpoint in self.checkpoints}
        )

    def _checkpoints(self, store: CheckpointStore, skip_damaged: bool) -> list[Checkpoint]:
        try:
            newest_first = store.list(self.agent_id)
        except CheckpointDamaged as damage:
            if not skip_damaged:
                raise
            newest_first, self.damage = list(damage.readable), damage
        return newest_first[::-1]

    def __bool__(self) -> bool:
        return bool(self.runs or self.checkpoints)

    def lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The kinds and fields of the agent's lines."""
        places = _Places()
        yield "agent", {"agent_id": self.agent_id}
        for checkpoint in self.checkpoints:
            yield from _of_checkpoint(checkpoint, places)
        if self.policy != AgentPolicy():
            yield "notes", self.policy.model_dump(mode="json", exclude_defaults=True)
        for step in self.steps:
            yield "step", _dump(step)
        for run in self.runs:
            yield "run", _dump(run)
        yield "end", self._counts(places.count)

    def _counts(self, messages: int) -> dict[str, Any]:
        counts = {
            "checkpoints": len(self.checkpoints),
            "steps": len(self.steps),
            "runs": len(self.runs),
        }
        return {"agent_id": self.agent_id, "messages": messages, **counts}


def _dump(record: Step | RunRecord) -> dict[str, Any]:
    return record.model_dump(mode="json", exclude={"agent_id"})


def _of_checkpoint(checkpoint: Checkpoint, places: _Places) -> Iterator[tuple[str, dict[str, Any]]]:
    kept, rest = codec.shared_with_entry(checkpoint)
    ranges, new = places.of(checkpoint.conversation)
    if rest:
        more, more_new = places.of_messages(rest)
        ranges, new = ranges + more, new + more_new
    for message in new:
        yield "message", {"message": message.json_object}
    header = codec.header(checkpoint, kept)
    yield "checkpoint", {"id": checkpoint.id, "messages": str(ranges), "header": header}


class _Places:
    """Which messages were written, and as which numbers."""

    def __init__(self) -> None:
        self.count = 0
        self._numbers: dict[bytes, int] = {}
        self._spine: Spine | None = None
        self._ranges = Ranges()

    def of(self, conversation: Conversation) -> tuple[Ranges, list[Message]]:
        """The places of a conversation's messages, and those that are new."""
        spine, total = conversation.extent
        if spine is not self._spine:
            self._spine, self._ranges = spine, Ranges()
        known = self._ranges.count
        if total <= known:
            return self._ranges.cut(0, total), []
        more, new = self.of_messages(spine.messages[known:total])
        self._ranges = self._ranges + more
        return self._ranges, new

    def of_messages(self, messages: list[Message]) -> tuple[Ranges, list[Message]]:
        """The same for single messages: equal ones are written once."""
        numbers, new = [], []
        for message in messages:
            digest = hashlib.sha256(message.to_json()).digest()
            if digest not in self._numbers:
                self._numbers[digest] = self.count
                self.count += 1
                new.append(message)
            numbers.append(self._numbers[digest])
        return Ranges.of((number, 1, False) for number in numbers), new
