"""What the event log of an agent notes by itself: the rules of the stores that decide in Python.

    an attempt starts                         attempt; before it, ended (lost) for an attempt before it
                                              that left no end
    an entry says that the attempt has ended  ended, if that attempt is the one that started last and
                                              has not ended; otherwise nothing
    a run is cancelled                        ended (cancelled), if an attempt of it has not ended
    a run is settled, which was not           settled; before it, ended, if its attempt has not ended
    a lease is renewed                        nothing; the agent remembers when, and the current call

``lua/shared.lua`` and ``lua/run_start.lua`` are the same rules for Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from celery_ckpt.event_log import LIVE_SECONDS, LogEntry, Part, encoded, milliseconds, time_of
from celery_ckpt.records import CurrentCall, RunRecord
from celery_ckpt.stores.rules.open_attempt import OpenAttempt
from celery_ckpt.stores.rules.transaction import AgentTransaction


def call_data(call: CurrentCall) -> dict[str, Any]:
    """Return a call in progress as it is stored."""
    return {"call": call.kind, "name": call.name, "began_at": milliseconds(call.began_at)}


def current_call(stored: Any) -> CurrentCall | None:
    """Return the call that ``call_data`` was given; ``None`` if it cannot be read."""
    try:
        began_at = time_of(stored["began_at"])
        return CurrentCall(kind=stored["call"], name=stored["name"], began_at=began_at)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def ends_as_cancelled(log: Sequence[LogEntry], run_id: str, now: datetime) -> list[LogEntry]:
    """Return the entries of a cancellation: with the end of the attempt, unless they have it."""
    if any(entry.kind == "ended" for entry in log):
        return list(log)
    return [*log, LogEntry("ended", now, {"run_id": run_id, "how": "cancelled"})]


def note(agent: AgentTransaction, log: Sequence[LogEntry]) -> None:
    """Append entries that the caller of a store has made."""
    lines: list[tuple[Part, bytes]] = []
    for entry in log:
        noted = _ended(agent, entry) if entry.kind == "ended" else entry
        if noted is not None:
            lines.append((noted.part, encoded(noted, agent.agent_id)))
    if lines:
        agent.append_log(lines)


def copy(agent: AgentTransaction, log: Sequence[LogEntry]) -> None:
    """Append entries of a log as they are."""
    _append(agent, list(log))


def _ended(agent: AgentTransaction, entry: LogEntry) -> LogEntry | None:
    """Return the entry with the number of the attempt, or ``None`` if that has not to be noted."""
    attempt, data = agent.attempt, entry.data
    if attempt is None or attempt.run_id != data["run_id"]:
        return None
    if data.get("attempt", attempt.number) != attempt.number:
        return None
    agent.attempt = None
    return entry._replace(data={"run_id": attempt.run_id, "attempt": attempt.number, **data})


def start(agent: AgentTransaction, run: RunRecord, worker: str, now: datetime) -> None:
    """Note that an attempt starts, and that the one before was lost if it left no end."""
    entries, lost = [], agent.attempt
    if lost is not None:
        data = {"run_id": lost.run_id, "attempt": lost.number, "how": "lost"}
        data |= {"renewed_at": lost.renewed_at}
        data |= {"calling": lost.calling} if lost.calling else {}
        entries.append(LogEntry("ended", now, data))
    data = {"run_id": run.run_id, "attempt": run.attempts}
    entries.append(LogEntry("attempt", now, data | ({"worker": worker} if worker else {})))
    agent.attempt = OpenAttempt(run.run_id, run.attempts, milliseconds(now))
    _append(agent, entries)


def renewed(agent: AgentTransaction, call: CurrentCall | None, now: datetime) -> None:
    """Remember when the lease was renewed, and what was being called."""
    if agent.attempt is not None:
        calling = None if call is None else call_data(call)
        agent.attempt = agent.attempt._replace(renewed_at=milliseconds(now), calling=calling)


def settled(agent: AgentTransaction, run: RunRecord, now: datetime) -> None:
    """Note that a run is settled, and that its attempt has ended, unless that was noted before."""
    note(agent, settlement(run, now))


def settlement(run: RunRecord, now: datetime) -> list[LogEntry]:
    """Return the entries of a settlement."""
    status = run.status.value
    return [
        LogEntry("ended", now, {"run_id": run.run_id, "how": status}),
        LogEntry("settled", now, {"run_id": run.run_id, "status": status}),
    ]


def is_followed(agent: AgentTransaction, now: datetime) -> bool:
    """Return True if the agent has a follower, so that live entries are written."""
    return agent.followed_until > milliseconds(now)


def saved(agent: AgentTransaction, checkpoint_id: str, iteration: int, now: datetime) -> None:
    """Note a checkpoint, if the agent has a follower."""
    if is_followed(agent, now):
        _append(agent, [LogEntry("checkpoint", now, {"id": checkpoint_id, "iteration": iteration})])


def drop_old_live(agent: AgentTransaction, now: datetime) -> None:
    """Delete the live entries if the last follower has left long ago."""
    if agent.followed_until and has_no_live(agent, now):
        agent.drop_live()
        agent.followed_until = 0


def has_no_live(agent: AgentTransaction, now: datetime) -> bool:
    """Return True if the time of all live entries is over."""
    return agent.followed_until + LIVE_SECONDS * 1000 <= milliseconds(now)


def _append(agent: AgentTransaction, entries: list[LogEntry]) -> None:
    if entries:
        agent.append_log([(entry.part, encoded(entry, agent.agent_id)) for entry in entries])
