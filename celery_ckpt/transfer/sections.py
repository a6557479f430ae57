"""The sections of an export, one per agent. Each is read and checked as a whole before it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from celery_ckpt.checkpoint import Checkpoint, assemble
from celery_ckpt.errors import NotAnExport, SchemaTooNew
from celery_ckpt.event_log import LogEntry, Part, is_entry, time_of
from celery_ckpt.json_values import encode
from celery_ckpt.names import checked_name
from celery_ckpt.records import RunRecord, Step
from celery_ckpt.retention.report import AgentPolicy
from celery_ckpt.stores.log.ranges import Ranges
from celery_ckpt.stores.log.reader import SharedSpine
from celery_ckpt.transfer.format import FORMAT_VERSION, Line, checked_lines

#: The header of a task's message that names the agent.
AGENT_HEADER = "ckpt_agent_id"


@dataclass
class Section:
    """All lines about one agent."""

    agent_id: str
    #: The numbers and fields of its lines.
    messages_and_checkpoints: list[Line] = field(default_factory=list)
    policy: AgentPolicy = field(default_factory=AgentPolicy)
    steps: list[Step] = field(default_factory=list)
    runs: list[RunRecord] = field(default_factory=list)
    #: The entries of its event log, and how many lines with entries cannot be used.
    log: list[LogEntry] = field(default_factory=list)
    skipped_entries: int = 0
    #: The ids of its checkpoints, oldest first.
    ids: dict[str, None] = field(default_factory=dict)

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Yield the checkpoints, oldest first. They share their messages, so that making them is cheap.

        The import makes them twice: first to check all of them.
        """
        spine, messages = SharedSpine(), dict[int, bytes]()
        for number, kind, fields in self.messages_and_checkpoints:
            with _named(number, self.agent_id):
                if kind == "message":
                    messages[len(messages)] = encode(fields["message"])
                else:
                    ranges = Ranges.parse(fields["messages"])
                    own = spine.at(ranges, messages)
                    yield assemble(Checkpoint, self.agent_id, fields["id"], fields["header"], own)


def sections(lines: Iterable[bytes]) -> Iterator[Section]:
    """Yield the agents of an export in order.

    Raises:
        NotAnExport: a line is not what an export wrote; the agents before that line were yielded.
        SchemaTooNew: a newer version of this library wrote the export.
    """
    source = checked_lines(lines)
    number, kind, fields = next(source, (1, "", {}))
    version = fields.get("format")
    if kind != "export" or not isinstance(version, int):
        raise NotAnExport(line=number, reason="this is not an export", what="it")
    if version > FORMAT_VERSION:
        raise SchemaTooNew(what="This export", version=version, supported=FORMAT_VERSION)
    for count, (number, kind, fields) in enumerate(source):
        with _named(number, "its agent"):
            if kind == "finished":
                if fields["agents"] != count:
                    raise ValueError(f"it announces {fields['agents']} agents, but there are {count}")
                if next(source, None) is not None:
                    reason = "the export ended on the line before"
                    raise NotAnExport(line=number + 1, reason=reason, what="what follows")
                return
            if kind != "agent":
                raise ValueError(f"a line of kind {kind!r} does not belong here")
            section = Section(checked_name(fields["agent_id"]))
        _fill(section, source, number)
        yield section
    raise NotAnExport(line=number + 1, reason="the file ends too early", what="what follows")


def _fill(section: Section, source: Iterator[Line], number: int) -> None:
    for number, kind, fields in source:
        with _named(number, section.agent_id):
            if kind == "end":
                return _check_end(section, fields)
            _take(section, (number, kind, fields))
    what = f"agent {section.agent_id!r}"
    raise NotAnExport(line=number + 1, reason="the file ends too early", what=what)


def _take(section: Section, line: Line) -> None:
    """Add a line to a section, and check it."""
    _, kind, fields = line
    match kind:
        case "message":
            if not isinstance(fields["message"], dict):
                raise ValueError("its message is not an object")
            section.messages_and_checkpoints.append(line)
        case "checkpoint":
            checkpoint_id = checked_name(fields["id"], "A checkpoint id")
            if checkpoint_id in section.ids:
                raise ValueError(f"checkpoint {checkpoint_id} appears twice")
            section.ids[checkpoint_id] = None
            section.messages_and_checkpoints.append(line)
        case "policy":
            section.policy = AgentPolicy(**fields)
            if not section.policy.pins.keys() <= section.ids.keys():
                raise ValueError("it pins a checkpoint that is missing")
        case "step":
            section.steps.append(Step(agent_id=section.agent_id, **fields))
        case "run":
            run = RunRecord(agent_id=section.agent_id, **fields)
            if run.has_envelope:
                _check_message(run)
            section.runs.append(run)
        case "entry":
            _take_entry(section, fields)
        case _:
            raise ValueError(f"a line of kind {kind!r} does not belong here")


def _take_entry(section: Section, fields: dict[str, Any]) -> None:
    """Add an entry of the event log, or count it if it is not one: no promise depends on the log."""
    try:
        kind, at, data = fields["entry"]
        entry = LogEntry(kind, time_of(at), data)
        is_usable = entry.part is not Part.LIVE and is_entry(section.agent_id, entry)
    except (ValueError, KeyError, TypeError, OverflowError):
        is_usable = False
    if is_usable:
        section.log.append(entry)
    else:
        section.skipped_entries += 1


def _check_message(run: RunRecord) -> None:
    """Raise ``ValueError`` if the message of a run would start another task, or another agent.

    When the run is resumed, that message is published as it is.
    """
    headers = run.envelope.get("headers") or {}
    own = {"task": run.task, "id": run.run_id, AGENT_HEADER: run.agent_id}
    for name, what in (("task", "task"), ("id", "task id"), (AGENT_HEADER, "agent")):
        # Without that header, the agent is named after the task id.
        found = headers.get(name, own[name] if name == AGENT_HEADER else None)
        if found != own[name]:
            raise ValueError(
                f"the record of run {run.run_id!r} has {what} {own[name]!r}, but its message has "
                f"{what} {found!r}"
            )


def _check_end(section: Section, said: dict[str, Any]) -> None:
    for _ in section.checkpoints():
        pass  # raises if one of them cannot be made
    kinds = [kind for _, kind, _ in section.messages_and_checkpoints]
    found = {
        "agent_id": section.agent_id,
        "messages": kinds.count("message"),
        "checkpoints": kinds.count("checkpoint"),
        "steps": len(section.steps),
        "runs": len(section.runs),
    }
    if entries := len(section.log) + section.skipped_entries:
        found["entries"] = entries
    if said != found:
        raise ValueError(f"it announces {said}, but there is {found}")
    if not {step.run_id for step in section.steps} <= {run.run_id for run in section.runs}:
        raise ValueError("a step belongs to a run that is missing")


@contextmanager
def _named(number: int, agent_id: str) -> Iterator[None]:
    """Turn errors of the block into ``NotAnExport``, which names the line."""
    try:
        yield
    except NotAnExport:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = agent_id if agent_id == "its agent" else f"agent {agent_id!r}"
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        reason = f"{kind}{str(error)[:400]}".rstrip(".")
        raise NotAnExport(line=number, reason=reason, what=what) from error
