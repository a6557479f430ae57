"""The index of changes: agents by the time of their last change and by their status, newest first.

An agent has two entries in one sorted set, in which all scores are 0, so that it is sorted by text:

    * 1795009388235887 k3f9aaaaaaaaaaaa:user-42
    running 1795009388235887 k3f9aaaaaaaaaaaa:user-42

The field ``changed`` of the agent's hash, ``1795009388235887 running``, says which entries these are.
On one server they change in the same atomic step (``agent_note.lua``). In a cluster the index is in
other slots than the agents, and an entry is written after the data. So an entry is a hint, and the
record decides. A reader that finds an entry which does not agree with its record leaves it out, and
repairs the index.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from celery_ckpt.errors import (
    CheckpointDamaged,
    CheckpointError,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from celery_ckpt.json_values import from_microseconds
from celery_ckpt.names import locator
from celery_ckpt.page_cursor import PageCursor
from celery_ckpt.records import IDLE, AgentOutline, AgentPage, RunOutline, RunStatus
from celery_ckpt.store import CheckpointStore, outline_of
from celery_ckpt.stores.encryption_tag import key_of_outline, plain_history, plain_outlines
from celery_ckpt.stores.log.record import Record
from celery_ckpt.stores.redis.current_call import call_in
from celery_ckpt.stores.redis.keys import SHARDS, Keys, agent_named, id_of, shown
from celery_ckpt.stores.redis.run_line import parsed_outline
from celery_ckpt.stores.redis.server import Call, Server

#: The name of the list of all agents. The other lists have the names of statuses.
ALL = "*"
#: Finds the status in a run's line.
_STATUS = re.compile(rb"\d+ \S+ (\S+) ").match
#: How many agents are read in one round trip.
_ROWS = 100
#: How many entries are read in one round trip if only some of their names match.
_NAMES = 500


class Entry(NamedTuple):
    """An entry of a list."""

    #: ``ALL``, or a status.
    name: str
    changed_at: int
    agent_id: str

    @property
    def member(self) -> bytes:
        """The entry as it is stored."""
        place = f"{self.changed_at:016d} {locator(self.agent_id)}:{self.agent_id}"
        return f"{self.name} {place}".encode()

    @property
    def cursor(self) -> str:
        """What continues a page after this entry."""
        return str(PageCursor(self.changed_at, self.agent_id))

    @classmethod
    def parse(cls, member: bytes) -> Entry | None:
        """Return a stored entry, or ``None`` if it is not one."""
        name, _, place = member.partition(b" ")
        time, _, rest = place.partition(b" ")
        agent_id = agent_named(rest.partition(b":")[2])
        if agent_id is None or not time.isdigit():
            return None
        entry = cls(shown(name), int(time[:20]), agent_id)
        return entry if entry.member == member else None


def entries(agent_id: str, changed: bytes) -> tuple[Entry, ...]:
    """Return the entries of an agent with this field ``changed``; none if it is empty or damaged."""
    time, _, status = changed.partition(b" ")
    if not (time.isdigit() and status):
        return ()
    return tuple(Entry(name, int(time[:20]), agent_id) for name in (ALL, shown(status)))


class _Row(NamedTuple):
    """What ``agent_outline.lua`` returns of an agent that exists."""

    changed: bytes
    run_id: bytes
    run: bytes
    envelope: bytes
    blocked: int
    owner: bytes
    checkpoints: int
    latest: bytes
    line: bytes
    renewed: bytes

    def entries(self, agent_id: str) -> tuple[Entry, ...]:
        """Return the entries that the agent must have: its time as noted, its status as it is.

        If its run cannot be read, the status that was noted counts, so that the damage is reported.
        """
        time, _, noted = self.changed.partition(b" ")
        own = _STATUS(self.run)
        status = own[1] if own else noted if self.run else IDLE.encode()
        return entries(agent_id, time + b" " + status)


class ChangeIndex:
    """Reads pages of agents, and repairs the index."""

    def __init__(self, store: CheckpointStore, server: Server, keys: Keys) -> None:
        self._store, self._server, self._keys = store, server, keys

    # -- what is written -----------------------------------------------------------------------------

    def note(self, agent_id: str, mode: str = "", *, moves: bool = True) -> Call:
        """Return the script that notes a change. Without ``moves``, the caller moves the agent."""
        keys = self._keys.of(agent_id, "agent", "runs")
        if moves:
            keys = (*keys, self._key(agent_id))
        return Call.script("agent_note", keys, f"{locator(agent_id)}:{agent_id}", mode)

    def moves(self, agent_id: str, noted: Sequence[bytes] | None) -> list[Call]:
        """Return the script that moves an agent, given the reply of ``agent_note.lua``, or none."""
        if not noted:
            return []
        before, now = (entries(agent_id, changed) for changed in noted)
        added = (part for entry in now for part in (0, entry.member))
        removals = self.removals(agent_id, [entry for entry in before if entry not in now])
        return [Call.joined(*removals, Call.command("ZADD", self._key(agent_id), *added))]

    def removals(self, agent_id: str, removed: Iterable[Entry]) -> list[Call]:
        """Return the command that removes entries of an agent, or none."""
        members = [entry.member for entry in removed]
        return [Call.command("ZREM", self._key(agent_id), *members)] if members else []

    def _key(self, agent_id: str) -> bytes:
        return self._keys.changes(locator(agent_id)[0])

    # -- what is read --------------------------------------------------------------------------------

    def outline(self, agent_id: str) -> AgentOutline | None:
        """See ``CheckpointStore.outline``."""
        [reply] = self._server.side_by_side(self._question(agent_id))
        return self._outline(agent_id, _Row(*reply)) if reply else None

    def page(self, status: str | None, prefix: str, size: int, after: PageCursor | None) -> AgentPage:
        """See ``CheckpointStore.page``."""
        name, page = status or ALL, AgentPage([], None, [], {})
        above = f"({name}!".encode()  # "!" follows " "
        if after is not None:
            above = b"(" + Entry(name, *after).member
        while True:
            needed = min(size - len(page.agents), _ROWS)
            found, is_end = self._next(name, above, _NAMES if prefix else needed)
            matching = [entry for entry in found if entry.agent_id.startswith(prefix)]
            if len(matching) > needed:
                matching, is_end = matching[:needed], False
                found = matching
            self._add(page, matching)
            if is_end:
                return page
            if len(page.agents) >= size:
                return page._replace(after=found[-1].cursor)
            above = b"(" + found[-1].member

    def _next(self, name: str, above: bytes, count: int) -> tuple[list[Entry], bool]:
        """Return at most ``count`` entries of a list, newest first, and whether these are the last."""
        # Agents are spread evenly over the shards: a few more than its share of each are enough.
        share = min(count + 1, 2 * (-(-count // len(SHARDS))) + 6)
        keys, bounds = [self._keys.changes(shard) for shard in SHARDS], (above, f"[{name} ".encode())

        def read(*shards: bytes) -> Call:
            return Call.script("change_page", shards, *bounds, share)

        replies = self._server.whole_or_parts(read(*keys), [read(key) for key in keys])
        shards = [members for reply in replies for members in reply]
        # Of a shard with more entries, those after its last one here are not known.
        known_to = max((members[-1] for members in shards if len(members) == share), default=b"")
        merged = sorted((one for members in shards for one in members if one >= known_to), reverse=True)
        parsed = [Entry.parse(member) for member in merged[:count]]
        is_end = not known_to and len(merged) <= count
        found = [entry for entry in parsed if entry is not None]
        if not found and not is_end:
            # All of them are forged. They are passed, as everything that is not an entry.
            return self._next(name, b"(" + merged[:count][-1], count)
        return found, is_end

    def _add(self, page: AgentPage, found: Sequence[Entry]) -> None:
        """Add the agents of some entries to a page, except those whose records disagree."""
        replies = self._server.each(*(self._question(entry.agent_id) for entry in found))
        rows = dict(zip(found, replies, strict=True))
        moved = self._moved(rows)
        wrong: list[Entry] = []
        for entry, reply in rows.items():
            if isinstance(reply, StoreError):
                page.unreadable[entry.agent_id] = reply
                continue
            row = _Row(*reply) if reply else None
            if row is None or entry not in row.entries(entry.agent_id):
                wrong.append(entry)
                if row is None or entry not in moved:
                    continue
            try:
                outline = self._outline(entry.agent_id, row)
            except StoreUnavailable:
                raise
            except StoreError as error:
                page.unreadable[entry.agent_id] = error
                continue
            if outline is not None:
                page.agents.append(outline)
                page.cursors.append(entry.cursor)
        self._repair_if_allowed(wrong)

    def _moved(self, rows: dict[Entry, Any]) -> set[Entry]:
        """Return entries whose agents belong to a newer place of the list, and were not read there.

        They have moved since the entries were read, or are missing there. A reader has passed that
        place, and returns the agent here. An entry that is left over, beside the right one, is not
        returned.
        """
        newer = {
            entry: right
            for entry, reply in rows.items()
            if reply and not isinstance(reply, StoreError)
            for right in _Row(*reply).entries(entry.agent_id)
            if right.name == entry.name and right.changed_at > entry.changed_at
        }
        both = [one for pair in newer.items() for one in pair]
        scores = self._server.side_by_side(*map(self._asked, both))
        found = zip(newer, scores[::2], scores[1::2], strict=True)
        return {entry for entry, own, right in found if own is None or right is None}

    def _asked(self, entry: Entry) -> Call:
        return Call.command("ZSCORE", self._key(entry.agent_id), entry.member)

    def _question(self, agent_id: str) -> Call:
        return Call.script("agent_outline", self._keys.of(agent_id, "agent", "runs", "open"))

    def _outline(self, agent_id: str, row: _Row) -> AgentOutline | None:
        run: RunOutline | None = None
        if row.run:
            run = parsed_outline(agent_id, shown(row.run_id), row.run)
            plain_outlines(self._store, [(run, key_of_outline(run, row.envelope))])
        if row.checkpoints and not row.latest:
            self._store.load_latest(agent_id)  # raises the error that says what is wrong
        if row.latest and not row.line:
            raise CheckpointDamaged(
                agent_id=agent_id, checkpoint_id=id_of(row.latest), reason="its record is missing"
            )
        latest = Record.parse(agent_id, id_of(row.latest), row.line).info() if row.line else None
        plain_history(self._store, agent_id, [latest] if latest else [])
        if run is None and latest is None:
            return None
        time = row.changed.partition(b" ")[0]
        try:
            changed_at = from_microseconds(int(time[:20])) if time.isdigit() else None
        except ValueError as error:
            where = f"{self._server.where}, agent {agent_id!r}"
            raise StoreDamaged(where=where, reason=str(error)) from error
        return outline_of(
            agent_id,
            run,
            blocked=row.blocked,
            owner=shown(row.owner) or None,
            call=call_in(row.renewed),
            iteration=latest.iteration if latest else None,
            checkpointed_at=latest.created_at if latest else None,
            checkpoints=row.checkpoints,
            changed_at=changed_at,
        )

    # -- repair --------------------------------------------------------------------------------------

    def _repair_if_allowed(self, wrong: Sequence[Entry]) -> None:
        # A reader may lack the permission to write, or read from a replica.
        with suppress(CheckpointError):
            self.repair({entry.agent_id for entry in wrong}, wrong)

    def repair(self, agent_ids: Iterable[str], wrong: Iterable[Entry] = ()) -> None:
        """Write the entries of agents again, and remove wrong ones."""
        removals = [
            call
            for entry in wrong
            for call in self.removals(entry.agent_id, [entry, *self._siblings(entry)])
        ]
        names, moves = list(agent_ids), not self._server.is_cluster
        notes = [self.note(name, "same", moves=moves) for name in names]
        replies = self._server.each(*removals, *notes)[len(removals) :]
        if not moves:
            noted = zip(names, replies, strict=True)
            calls = [self.moves(*one) for one in noted if not isinstance(one[1], StoreError)]
            self._server.each(*(call for of_agent in calls for call in of_agent))

    def _siblings(self, wrong: Entry) -> list[Entry]:
        """Return the entries that may be wrong too: if the time is wrong, those of all statuses."""
        statuses = (IDLE, *RunStatus) if wrong.name == ALL else ()
        return [wrong._replace(name=str(status)) for status in statuses]

    def misplaced(self, agent_ids: Sequence[str]) -> list[str]:
        """Return those of these agents that lack an entry, or the time of their last change."""
        replies = self._server.each(*map(self._question, agent_ids))
        needed = {
            name: _Row(*reply).entries(name)
            for name, reply in zip(agent_ids, replies, strict=True)
            if reply and not isinstance(reply, StoreError)
        }
        asked = [entry for own in needed.values() for entry in own]
        scores = self._server.side_by_side(*map(self._asked, asked))
        absent = {entry.agent_id for entry, score in zip(asked, scores, strict=True) if score is None}
        return [name for name, own in needed.items() if not own or name in absent]

    def wrong(self, members: Sequence[bytes]) -> list[bytes]:
        """Return those of these entries that are not entries of an agent as it is now."""
        parsed = {member: Entry.parse(member) for member in members}
        named = [entry for entry in parsed.values() if entry is not None]
        replies = self._server.each(*(self._question(entry.agent_id) for entry in named))
        right = {
            entry.member
            for entry, reply in zip(named, replies, strict=True)
            # An error is reported for the agent itself.
            if isinstance(reply, StoreError)
            or (reply and entry in _Row(*reply).entries(entry.agent_id))
        }
        return [member for member in members if member not in right]

    def members(self, shard: str) -> Iterator[list[bytes]]:
        """Yield the entries of a shard, page by page."""
        key, start = self._keys.changes(shard), b"-"
        while page := self._server.command("ZRANGEBYLEX", key, start, b"+", "LIMIT", 0, _ROWS):
            yield page
            start = b"(" + page[-1]

    def remove(self, shard: str, members: Sequence[bytes]) -> None:
        """Remove entries of a shard."""
        self._server.command("ZREM", self._keys.changes(shard), *members)
