"""The event log of an agent: its entries, their kinds, and how an entry is written.

    part      kinds                                    kept
    attempts  attempt, ended, settled, waiting, woken  the last 600 entries: at least 200 attempts
    entries   call, replay, action                     the last ``event_log_limit``, at most twice that
    live      checkpoint, and the names of streams     written while a follower is connected; deleted
                                                       an hour after the last one

All three parts have one order: the ``cursor``. It grows by one with every entry of an agent, so a
reader that finds a number missing knows that an entry has been dropped, and how many. No promise of a
store depends on the log: an entry may be lost with a process, and an entry that cannot be read is
skipped.

What ``data`` holds, by kind (a field that is not known, or empty, is left out):

    attempt   run_id, attempt, worker
    ended     run_id, attempt, how; why: the error or the reason. If it was lost: renewed_at (of its
              lease, in milliseconds since 1970), and calling: the call that was in progress then
    settled   run_id, status
    call      run_id, attempt, iteration, call (llm, tool or step), name, took (milliseconds), usage;
              error: why it failed. ``at`` is when it began
    replay    run_id, attempt, iteration, call, name
    action    action, by, and what it was done to
    checkpoint  id, iteration
    gap       missing: how many entries before this one are no longer kept
    damaged   nothing: the entry cannot be read

An entry is stored as JSON, ``[kind, milliseconds, data]``, with short names for the fields. A run that
has the name of its agent is left out. An encrypted entry has a fourth item: the encrypted texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from celery_ckpt.json_values import decode, encode
from celery_ckpt.usage import Usage

#: How many entries of the part ``entries`` are kept, unless ``ckpt_event_log`` says otherwise.
DEFAULT_EVENT_LOG: Final = 500
#: How many entries of the other two parts are kept.
ATTEMPT_ENTRIES: Final = 600
LIVE_ENTRIES: Final = 1000
#: For how many seconds live entries are kept after the last follower was there.
LIVE_SECONDS: Final = 3600
#: How many characters of a name and of the text of an error are kept.
LONGEST_NAME: Final = 200
LONGEST_TEXT: Final = 300

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SHORT: Final = {
    "run_id": "r",
    "attempt": "a",
    "iteration": "i",
    "call": "k",
    "name": "n",
    "took": "t",
    "usage": "u",
    "error": "e",
    "worker": "w",
    "how": "h",
    "why": "y",
}
_LONG: Final = {short: long for long, short in _SHORT.items()}
#: What an entry of a kind cannot be without, and what is a number wherever it is.
_NEEDED: Final = {"attempt": "attempt", "ended": "how", "settled": "status", "action": "action"}
_NUMBERS: Final = ("attempt", "iteration", "took", "renewed_at")
_USAGE: Final = ("input_tokens", "output_tokens", "cached_tokens", "cost")


class Part(StrEnum):
    """The parts of an event log. The values are stored."""

    ATTEMPTS = "a"
    ENTRIES = "e"
    LIVE = "l"


#: The part that keeps the entries of a kind. All other kinds are live.
PARTS: Final = {
    "attempt": Part.ATTEMPTS,
    "ended": Part.ATTEMPTS,
    "settled": Part.ATTEMPTS,
    "waiting": Part.ATTEMPTS,
    "woken": Part.ATTEMPTS,
    "call": Part.ENTRIES,
    "replay": Part.ENTRIES,
    "action": Part.ENTRIES,
}
#: Kinds that no stream can be named.
RESERVED: Final = frozenset({*PARTS, "checkpoint", "gap", "damaged"})


class LogEntry(NamedTuple):
    """One entry of an event log."""

    kind: str
    #: When it happened, by the clock of the process that wrote it.
    at: datetime
    data: Any
    #: Its place in the log, from 1; 0 before it is stored.
    cursor: int = 0
    #: What an ``EncryptedStore`` has taken out of ``data``, encrypted. Its readers never see it.
    encrypted: str = ""

    @property
    def part(self) -> Part:
        """The part of the log that keeps it."""
        return PARTS.get(self.kind, Part.LIVE)


def limit_of(part: Part, limit: int) -> int:
    """Return how many entries of a part are kept, if ``limit`` of the part ``entries`` are."""
    if part is Part.ENTRIES:
        return limit
    return ATTEMPT_ENTRIES if part is Part.ATTEMPTS else LIVE_ENTRIES


def milliseconds(at: datetime) -> int:
    """Return a time as it is stored in an entry."""
    return (at - _EPOCH) // _MILLISECOND


def time_of(stored: int) -> datetime:
    """Return the time that ``milliseconds`` was given, without the rest."""
    return _EPOCH + timedelta(milliseconds=stored)


def usage_data(usage: Usage) -> dict[str, Any]:
    """Return a usage as the data of an entry has it: its sums."""
    sums = (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cost)
    return {name: value for name, value in zip(_USAGE, sums, strict=True) if value}


# -- how an entry is written -------------------------------------------------------------------------


def encoded(entry: LogEntry, agent_id: str) -> bytes:
    """Return an entry as it is stored, without its number."""
    kind, at, data, _, encrypted = entry
    if kind in PARTS:
        data = _shortened(data, agent_id)
    items = [kind, (at - _EPOCH) // _MILLISECOND, data]
    return encode([*items, encrypted] if encrypted else items)


def _shortened(data: dict[str, Any], agent_id: str) -> dict[str, Any]:
    short = {_SHORT.get(name, name): value for name, value in data.items()}
    if short.get("r") == agent_id:
        del short["r"]
    if "u" in short:
        used = short["u"]
        counts = [used.get(name, 0) for name in _USAGE]
        while counts and not counts[-1]:
            counts.pop()
        short["u"] = counts
    return short


def decoded(agent_id: str, number: int, text: bytes) -> LogEntry:
    """Return a stored entry; one of the kind ``damaged`` if it cannot be read."""
    try:
        kind, at, data, *encrypted = decode(text)
        entry = LogEntry(str(kind), time_of(int(at)), data, number, *map(str, encrypted))
        if entry.part is Part.LIVE:
            return entry
        long = _lengthened(data, agent_id)
        _refuse_damaged(entry.kind, long)
        return entry._replace(data=long)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return LogEntry("damaged", _EPOCH, {}, number)


def _refuse_damaged(kind: str, data: dict[str, Any]) -> None:
    """Raise ``ValueError`` if data is not what readers expect of an entry."""
    numbers = [data[name] for name in _NUMBERS if name in data]
    numbers += data.get("usage", {}).values()
    calling = data.get("calling", {})
    if (
        _NEEDED.get(kind, "run_id") not in data
        or not all(isinstance(number, int | float) for number in numbers)
        or not all(isinstance(calling.get(name, ""), str) for name in ("call", "name"))
    ):
        raise ValueError(f"not an entry of the kind {kind}")


def is_entry(agent_id: str, entry: LogEntry) -> bool:
    """Return True if an entry from outside is like those that a store returns."""
    try:
        is_whole = "name" in entry.data.get("calling", {"name": ""})
        return is_whole and decoded(agent_id, entry.cursor, encoded(entry, agent_id)) == entry
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return False


def _lengthened(data: dict[str, Any], agent_id: str) -> dict[str, Any]:
    long = {_LONG.get(name, name): value for name, value in data.items()}
    if "action" not in long:
        long = {"run_id": agent_id, **long}
    if counts := long.get("usage"):
        long["usage"] = {name: value for name, value in zip(_USAGE, counts, strict=False) if value}
    return long


# -- how a log is read -------------------------------------------------------------------------------


def page_of(
    agent_id: str,
    last: int,
    lines: Iterable[tuple[int, bytes]],
    after: int | None,
    limit: int | None,
) -> list[LogEntry]:
    """Return the entries after a cursor, or the newest ones, in order.

    ``last`` is the number of the entry that was written last. ``lines`` are numbers and stored entries
    in any order; there may be more than are needed. After a cursor, entries of the kind ``gap`` say
    what is missing.
    """
    found = sorted(lines)
    if after is None:
        found = found[max(len(found) - limit, 0) :] if limit is not None else found
        return [decoded(agent_id, number, text) for number, text in found]
    # A cursor of an agent that was deleted since, and has begun a new log.
    at = after if after <= last else 0
    entries: list[LogEntry] = []
    for number, text in found:
        if number <= at:
            continue
        entry = decoded(agent_id, number, text)
        if number > at + 1:
            entries.append(_gap(number - 1, number - 1 - at, entry.at))
        entries.append(entry)
        at = number
    if at < last:
        entries.append(_gap(last, last - at, _EPOCH))
    return entries[:limit]


def _gap(cursor: int, missing: int, at: datetime) -> LogEntry:
    return LogEntry("gap", at, {"missing": missing}, cursor)


def kept(lines: Sequence[tuple[int, Part, bytes]], limit: int) -> list[tuple[int, Part, bytes]]:
    """Return the entries that are left when each part has been cut to its size, in order."""
    left = {part: limit_of(part, limit) for part in Part}
    found: list[tuple[int, Part, bytes]] = []
    for line in reversed(lines):
        left[line[1]] -= 1
        # The last one stays in any case: the next number is one larger.
        if left[line[1]] >= 0 or not found:
            found.append(line)
    return found[::-1]
