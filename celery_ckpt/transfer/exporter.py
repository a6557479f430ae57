"""Agents as lines: each message once, each checkpoint with the numbers of its messages.

So the size of an export depends on the messages, not on the checkpoints that share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from celery_ckpt.checkpoint import header_of, shared_with_entry
from celery_ckpt.conversation import Conversation, Spine
from celery_ckpt.errors import CheckpointDamaged
from celery_ckpt.event_log import Part, milliseconds
from celery_ckpt.messages import Message
from celery_ckpt.records import RunRecord, Step
from celery_ckpt.retention.report import AgentPolicy
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.log.ranges import Ranges
from celery_ckpt.transfer.format import FORMAT_VERSION, LineWriter

#: Called with each agent's name after its lines, the damage that was skipped, and the number of entries
#: of its event log that cannot be read and were left out.
Report = Callable[[str, CheckpointDamaged | None, int], object]


def export_agents(
    store: CheckpointStore,
    agent_ids: Iterable[str],
    *,
    skip_damaged: bool = False,
    report: Report | None = None,
) -> Iterator[bytes]:
    """Yield the lines of an export of these agents, without agents that have nothing stored.

    With ``skip_damaged``, damaged checkpoints are left out.

    Raises:
        CheckpointDamaged: a checkpoint cannot be read.
    """
    writer, count = LineWriter(), 0
    yield writer.line("export", format=FORMAT_VERSION)
    for agent_id in agent_ids:
        export = _Export(store, agent_id, skip_damaged)
        if export:
            count += 1
            yield from (writer.line(kind, **fields) for kind, fields in export.lines())
        if report is not None:
            report(agent_id, export.damage, export.unreadable_entries)
    yield writer.line("finished", agents=count)


class _Export:
    """One agent, as it is now."""

    def __init__(self, store: CheckpointStore, agent_id: str, skip_damaged: bool) -> None:
        self.agent_id = agent_id
        self.damage: CheckpointDamaged | None = None
        # Checkpoints last: an outdated step does no harm, a missing one costs a call.
        self.runs = store.runs(agent_id)
        self.steps = [step for run in self.runs for step in store.steps(agent_id, run.run_id)]
        try:
            newest_first = store.list(agent_id)
        except CheckpointDamaged as damage:
            if not skip_damaged:
                raise
            newest_first, self.damage = list(damage.readable), damage
        self.checkpoints = newest_first[::-1]
        log = store.event_log(agent_id) if "log" in store.features else []
        self.log = [entry for entry in log if entry.part is not Part.LIVE]
        self.unreadable_entries = sum(entry.kind == "damaged" for entry in log)
        policy = store.policy(agent_id)
        self.policy = policy.without(
            policy.pins.keys() - {checkpoint.id for checkpoint in self.checkpoints}
        )

    def __bool__(self) -> bool:
        return bool(self.runs or self.checkpoints)

    def lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the kinds and fields of the agent's lines."""
        places = _Places()
        yield "agent", {"agent_id": self.agent_id}
        for checkpoint in self.checkpoints:
            kept, rest = shared_with_entry(checkpoint)
            ranges, new = places.of(checkpoint.conversation)
            if rest:
                more, more_new = places.of_messages(rest)
                ranges, new = ranges + more, new + more_new
            for message in new:
                yield "message", {"message": message.json_object}
            header = header_of(checkpoint, kept)
            yield "checkpoint", {"id": checkpoint.id, "messages": str(ranges), "header": header}
        if self.policy != AgentPolicy():
            yield "policy", self.policy.model_dump(mode="json", exclude_defaults=True)
        for step in self.steps:
            yield "step", _dump(step)
        for run in self.runs:
            yield "run", _dump(run)
        for entry in self.log:
            yield "entry", {"entry": [entry.kind, milliseconds(entry.at), entry.data]}
        yield (
            "end",
            {
                "agent_id": self.agent_id,
                "messages": places.count,
                "checkpoints": len(self.checkpoints),
                "steps": len(self.steps),
                "runs": len(self.runs),
                **({"entries": len(self.log)} if self.log else {}),
            },
        )


def _dump(record: Step | RunRecord) -> dict[str, Any]:
    return record.model_dump(mode="json", exclude={"agent_id"})


class _Places:
    """The numbers of the messages that were written."""

    def __init__(self) -> None:
        self.count = 0
        self._numbers: dict[bytes, int] = {}
        self._spine: Spine | None = None
        self._ranges = Ranges()

    def of(self, conversation: Conversation) -> tuple[Ranges, list[Message]]:
        """Return the numbers of a conversation's messages, and the messages that are new."""
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
        """Return the numbers of some messages, and the new ones. Equal messages are written once."""
        numbers, new = [], []
        for message in messages:
            digest = hashlib.sha256(message.to_json()).digest()
            if digest not in self._numbers:
                self._numbers[digest] = self.count
                self.count += 1
                new.append(message)
            numbers.append(self._numbers[digest])
        return Ranges.of((number, 1, False) for number in numbers), new
