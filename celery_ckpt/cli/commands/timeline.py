"""``ckpt show --timeline``: the attempts of an agent, and what each called, from the event log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from celery_ckpt.cli.output.screen import Screen
from celery_ckpt.cli.output.tables import Column
from celery_ckpt.cli.output.text import one_line
from celery_ckpt.event_log import LogEntry
from celery_ckpt.runtime.agents.agents import Agents
from celery_ckpt.views.timeline import AttemptTimeline, attempts_in, duration, end_of, sentence_of

_COLUMNS = (
    Column("time", dim=True, whole=True),
    Column("took", right=True),
    Column("what", whole=True),
    Column("outcome"),
)


def show_timeline(screen: Screen, agents: Agents, agent_id: str) -> None:
    """Print the attempts of an agent with their calls. Raises ``AgentNotFound``."""
    agents.status(agent_id)
    attempts = attempts_in(agents.log(agent_id))
    if screen.as_json:
        screen.json({"agent_id": agent_id, "attempts": [_as_object(one) for one in attempts]})
        return
    if not attempts:
        screen.line("The event log is empty.")
        return
    rows = [row for attempt in attempts for row in _rows(attempt)]
    screen.table(_COLUMNS, rows)


def _rows(attempt: AttemptTimeline) -> list[list[str]]:
    number = "?" if attempt.number is None else attempt.number
    on = f" on {attempt.worker}" if attempt.worker else ""
    what = one_line(f"attempt {number} of run {attempt.run_id}{on}")
    outcome = "" if attempt.end is None else one_line(end_of(attempt.end), 120)
    head = [_time(attempt.began_at), duration(attempt.took), what, outcome]
    return [head, *(_row(entry) for entry in attempt.entries)]


def _row(entry: LogEntry) -> list[str]:
    data = entry.data
    if entry.kind == "action":
        return [_time(entry.at), "", one_line(f"  {sentence_of(entry)}"), ""]
    what = f"{data.get('iteration', 0)}. {data.get('call', '')} {data.get('name', '')}"
    outcome = "replayed" if entry.kind == "replay" else data.get("error") or "ok"
    took = duration(data.get("took"))
    return [_time(entry.at), took, f"  {one_line(what)}", one_line(str(outcome), 120)]


def _time(at: datetime | None) -> str:
    return "" if at is None else at.astimezone().strftime("%m-%d %H:%M:%S")


def _as_object(attempt: AttemptTimeline) -> dict[str, Any]:
    end = attempt.end
    return {
        "run_id": attempt.run_id,
        "attempt": attempt.number,
        "worker": attempt.worker or None,
        "began_at": attempt.began_at and _iso(attempt.began_at),
        "ended_at": end and _iso(end.at),
        "took": attempt.took,
        "end": end and {k: v for k, v in end.data.items() if k not in ("run_id", "attempt")},
        "entries": [
            {"kind": one.kind, "at": _iso(one.at), "cursor": one.cursor, **one.data}
            for one in attempt.entries
        ],
    }


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
