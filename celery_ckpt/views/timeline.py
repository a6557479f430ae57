"""The event log for people: entries as sentences, and attempts with what happened in each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_ckpt.event_log import LogEntry, time_of

#: What is said of an attempt that ended in this way; others are said as they are.
_ENDS = {"handed_off": "handed off", "put_back": "put back"}


@dataclass
class AttemptTimeline:
    """One attempt, and what happened until the next one started."""

    run_id: str
    #: ``None``: the entry of its start is no longer kept.
    number: int | None = None
    began_at: datetime | None = None
    worker: str = ""
    #: The entry of its end, if it has ended.
    end: LogEntry | None = None
    #: Calls, replays and actions, in order.
    entries: list[LogEntry] = field(default_factory=list)

    @property
    def took(self) -> int | None:
        """How many milliseconds it took; ``None``: it has not ended, or its start is not known."""
        if self.began_at is None or self.end is None:
            return None
        return round((self.end.at - self.began_at).total_seconds() * 1000)


def attempts_in(log: Iterable[LogEntry]) -> list[AttemptTimeline]:
    """Return the attempts of an event log in order, each with its calls."""
    found: list[AttemptTimeline] = []
    for entry in log:
        data: dict[str, Any] = entry.data
        if entry.kind == "attempt":
            worker = data.get("worker", "")
            found.append(AttemptTimeline(data["run_id"], data["attempt"], entry.at, worker))
        elif entry.kind == "ended":
            ended = (one for one in reversed(found) if _is_of(one, data))
            attempt = next(ended, None)
            if attempt is None:
                found.append(attempt := AttemptTimeline(data["run_id"], data.get("attempt")))
            attempt.end = entry
        elif entry.kind in ("call", "replay", "action"):
            if not found:
                found.append(AttemptTimeline(data.get("run_id", ""), data.get("attempt")))
            found[-1].entries.append(entry)
    return found


def _is_of(attempt: AttemptTimeline, data: dict[str, Any]) -> bool:
    return (attempt.run_id, attempt.number) == (data["run_id"], data.get("attempt"))


def duration(milliseconds: int | None) -> str:
    """Return a duration for people: ``840 ms``, ``1.2 s``, ``3 min 20 s``."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes} min {seconds} s"


def end_of(entry: LogEntry) -> str:
    """Return how an attempt ended, and why."""
    data = entry.data
    text = str(_ENDS.get(data["how"], data["how"]))
    if data["how"] == "lost":
        text += f", last seen {time_of(data.get('renewed_at', 0)).astimezone():%H:%M:%S}"
        calling = data.get("calling") or {}
        named = f", calling {calling.get('call', '')} {calling.get('name')}"
        text += named if calling.get("name") else ""
    return f"{text}: {data['why']}" if data.get("why") else text


def sentence_of(entry: LogEntry) -> str:
    """Return what an entry says."""
    data = entry.data
    match entry.kind:
        case "attempt":
            on = f" on {data['worker']}" if data.get("worker") else ""
            return f"attempt {data['attempt']} of run {data['run_id']} started{on}"
        case "ended":
            return f"attempt {data.get('attempt', '?')} of run {data['run_id']} {end_of(entry)}"
        case "settled":
            return f"run {data['run_id']} settled, {data['status']}"
        case "call" if data.get("error"):
            took = duration(data.get("took"))
            return f"{_call(data)} failed after {took}: {data['error']}"
        case "call":
            return f"{_call(data)} took {duration(data.get('took'))}{_usage(data)}"
        case "replay":
            return f"{_call(data)} replayed"
        case "action":
            about = {name: data[name] for name in data if name not in ("action", "by")}
            said = " ".join(f"{name}={value}" for name, value in about.items())
            by = f" by {data['by']}" if data.get("by") else ""
            return f"{data['action']}{by}{f': {said}' if said else ''}"
        case "gap":
            return f"{data['missing']} entries are no longer kept"
    return entry.kind


def _call(data: dict[str, Any]) -> str:
    return f"{data.get('call', 'call')} {data.get('name', '')}, iteration {data.get('iteration', 0)},"


def _usage(data: dict[str, Any]) -> str:
    used = data.get("usage") or {}
    tokens = used.get("input_tokens", 0) + used.get("output_tokens", 0)
    return f", {tokens:,} tokens" if tokens else ""
