"""Exports, and forged versions of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from celery_ckpt import CheckpointEvent, CheckpointStore, Conversation, MemoryCheckpointStore, Message
from celery_ckpt.records import RunStatus
from celery_ckpt.testing import FakeClock, make_checkpoint, make_run, make_step
from celery_ckpt.transfer import export_agents
from tests.fuzz.mutations import changed, mangled_bytes

#: An agent that exists before the import and must not change. Some exports claim to contain it.
BYSTANDER = "bystander"
Line = tuple[str, dict[str, Any]]


def fill(store: CheckpointStore, agent_id: str, says: str = "hello", **more: Any) -> None:
    """Give an agent data of every kind."""
    conversation = Conversation(messages=[Message.user(says)])
    run = make_run(agent_id, f"run of {agent_id}", status=RunStatus.FAILED, delivered=True, error="e")
    store.add_run(run)
    for iteration in (1, 2, 3):
        conversation.append(Message.assistant(None, tool_calls=[{"id": f"c{iteration}"}]))
        conversation.append(Message.tool("result", f"c{iteration}"))
        facts = {"event": CheckpointEvent.ITERATION, "run_id": run.run_id, "state": {"n": iteration}}
        checkpoint = make_checkpoint(
            agent_id, conversation, iteration, created_at=FakeClock().now(), **facts, **more
        )
        store.save(checkpoint.model_copy(update={"id": id_of(agent_id, iteration)}))
    store.record_step(make_step(agent_id, run.run_id, "3:call:c3", iteration=3))
    store.pin(id_of(agent_id, 3), "last")


def id_of(agent_id: str, iteration: int) -> str:
    """Return the id of a checkpoint. It does not contain the agent's name, so that another
    agent can claim it.
    """
    return f"{agent_id} {iteration}"


def exported(store: CheckpointStore, *agent_ids: str) -> bytes:
    """Return an export of some agents."""
    return b"".join(export_agents(store, agent_ids))


def parsed(export: bytes) -> list[Line]:
    """Return the kinds and fields of its lines."""
    fields = [json.loads(line) for line in export.splitlines()]
    return [(one.pop("kind"), one) for one in fields if one.pop("sum")]


def with_sums(lines: Sequence[Line]) -> bytes:
    """Return lines with correct checksums, whatever they contain: a checksum is not a signature."""
    bodies = (json.dumps({"kind": kind, **fields}, separators=(",", ":")) for kind, fields in lines)
    return _with_sums(body.encode() for body in bodies)


def with_new_sums(export: bytes) -> bytes:
    """Return the same lines with correct checksums."""
    return _with_sums(b"{" + line.partition(b",")[2] for line in export.splitlines())


def _with_sums(bodies: Iterable[bytes]) -> bytes:
    before, made = b"", []
    for body in bodies:
        before = hashlib.sha256(before + body).hexdigest()[:16].encode()
        made.append(b'{"sum":"%b",%b\n' % (before, body[1:]))
    return b"".join(made)


def _source() -> MemoryCheckpointStore:
    store = MemoryCheckpointStore(clock=FakeClock())
    for agent_id in ("first", "second", BYSTANDER):
        fill(store, agent_id)
    return store


SOURCE = _source()
EXPORT = exported(SOURCE, "first", "second")
LINES = parsed(EXPORT)


def forged_export(chance: Random) -> bytes:
    """Return an export with changed, missing, repeated or moved lines, and with correct checksums."""
    lines = list(LINES)
    for _ in range(chance.randrange(1, 4)):
        lines = _forged(chance, lines)
    return with_sums(lines)


def _forged(chance: Random, lines: list[Line]) -> list[Line]:
    at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind, fields = lines[at]
    match chance.choice(("change", "change", "change", "drop", "repeat", "move", "steal", "rename")):
        case "change":
            altered = changed(chance, fields)
            forged = (kind, altered if isinstance(altered, dict) else {"value": altered})
            return [*lines[:at], forged, *lines[at + 1 :]]
        case "drop" if len(lines) > 1:
            return [*lines[:at], *lines[at + 1 :]]
        case "repeat":
            return [*lines[:to], lines[at], *lines[to:]]
        case "move":
            rest = [*lines[:at], *lines[at + 1 :]]
            return [*rest[:to], lines[at], *rest[to:]]
        case "steal":
            stolen = id_of(BYSTANDER, chance.randrange(1, 4))
            return [(kind, _stolen(fields, stolen)) for kind, fields in lines]
        case _:
            name = chance.choice((BYSTANDER, "second", "", "x" * 600, "../../etc", "\ud800"))
            return [(kind, _renamed(fields, name)) for kind, fields in lines]


def _stolen(fields: dict[str, Any], checkpoint_id: str) -> dict[str, Any]:
    return {**fields, "id": checkpoint_id} if fields.get("id") == id_of("first", 2) else fields


def _renamed(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {**fields, "agent_id": name} if fields.get("agent_id") == "first" else fields


def any_export(chance: Random) -> bytes:
    """Return an export that is usually wrong in one of several ways. Some are still correct."""
    return forged_export(chance) if chance.random() < 0.8 else mangled_bytes(chance, EXPORT)
