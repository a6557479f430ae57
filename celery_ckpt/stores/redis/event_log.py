"""The event log of an agent: three lists, whose entries have numbers from one counter.

Scripts that write for an agent append the entries of the write (``note`` in ``shared.lua``). ``packed``
returns the entries as they take them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_ckpt.event_log import LogEntry, Part, encoded, page_of
from celery_ckpt.json_values import encode
from celery_ckpt.names import checked_name
from celery_ckpt.records import Lease
from celery_ckpt.stores.redis.keys import Keys
from celery_ckpt.stores.redis.leases import refuse
from celery_ckpt.stores.redis.run_line import word
from celery_ckpt.stores.redis.server import Call, Server, fence

#: The names of the keys of the three parts.
PARTS = {Part.ATTEMPTS: "attempts", Part.ENTRIES: "entries", Part.LIVE: "live"}


def packed(agent_id: str, log: Sequence[LogEntry], limit: int, copied: bool = False) -> bytes:
    """Return entries as scripts take them (see ``append`` in ``shared.lua``).

    ``copied`` entries are appended as they are, also the ends of attempts.
    """
    if not (log and limit):
        return b""
    text = b"%d" % limit
    for entry in log:
        ends = entry.kind == "ended" and not copied
        text += _ended(agent_id, entry) if ends else _line(agent_id, entry)
    return text


def _line(agent_id: str, entry: LogEntry) -> bytes:
    return b"\n%b %b" % (entry.part.encode(), encoded(entry, agent_id))


def _ended(agent_id: str, entry: LogEntry) -> bytes:
    data = dict(entry.data)
    number, run = data.pop("attempt", 0), word(data["run_id"])
    return b"\nx %d %b %b" % (number, run.encode(), encoded(entry._replace(data=data), agent_id))


def packed_start(agent_id: str, entry: LogEntry, limit: int) -> tuple[bytes, bytes]:
    """Return the two arguments of a start (see ``note_start`` in ``shared.lua``)."""
    run_id = entry.data["run_id"]
    own = b"" if run_id == agent_id else b',"r":' + encode(run_id)
    return (encoded(entry, agent_id), word(run_id).encode() + b" " + own) if limit else (b"", b"")


class EventLog:
    """Reads event logs, and writes what belongs to no other write."""

    def __init__(self, server: Server, keys: Keys, limit: Callable[[], int]) -> None:
        self._server, self._keys, self._limit = server, keys, limit

    def page(self, agent_id: str, after: int | None, limit: int | None) -> list[LogEntry]:
        """See ``CheckpointStore.event_log``."""
        last, lists = self.stored(agent_id, after, limit)
        lines = [line for lines in lists.values() for line in lines]
        return page_of(agent_id, last, lines, after, limit)

    def stored(
        self, agent_id: str, after: int | None = None, limit: int | None = None
    ) -> tuple[int, dict[Part, list[tuple[int, bytes]]]]:
        """Return the number of the last entry, and the entries of each part with their numbers."""
        keys = self._keys.of(checked_name(agent_id), "agent", *PARTS.values())
        bounds = "" if after is None else after, "" if limit is None else limit
        last, *lists = self._server.run("event_log_page", keys, *bounds)
        return last, {
            # A key that is not a list is one entry that cannot be read.
            part: [_parsed(line) for line in ([b""] if lines is None else lines)]
            for part, lines in zip(PARTS, lists, strict=True)
        }

    def note(self, agent_id: str, log: Sequence[LogEntry], copied: bool) -> bool:
        """See ``CheckpointStore.note``."""
        [reply] = self._server.together(self.noting(checked_name(agent_id), log, copied))
        return bool(reply[0] == b"ok")

    def noting(self, agent_id: str, log: Sequence[LogEntry], copied: bool = False) -> Call:
        """Return the call that appends entries to the log of an agent, if the agent exists."""
        keys = self._keys.of(agent_id, "agent", "attempts", "entries")
        return Call.script("event_log_note", keys, packed(agent_id, log, self._limit(), copied))

    def follow(self, agent_id: str, seconds: float) -> int:
        """See ``CheckpointStore.follow``."""
        keys = self._keys.of(checked_name(agent_id), "agent", "live")
        milliseconds = max(0, round(seconds * 1000)) if self._limit() else 0
        return int(self._server.run("event_log_follow", keys, milliseconds))

    def stream(self, lease: Lease, log: Sequence[LogEntry]) -> bool:
        """See ``CheckpointStore.stream``."""
        agent_id = lease.agent_id
        keys = self._keys.of(agent_id, "agent", "live")
        entries = [encoded(entry, agent_id) for entry in log] if self._limit() else []
        reply = self._server.run("event_log_stream", keys, fence(agent_id, lease), *entries)
        refuse(reply, agent_id, lease)
        return bool(reply[1]) and bool(self._limit())


def _parsed(line: bytes) -> tuple[int, bytes]:
    number, _, text = line.partition(b" ")
    return (int(number), text) if number.isdigit() else (0, b"")
