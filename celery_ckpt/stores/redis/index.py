"""The index of all agents, and of the checkpoint ids that do not name their agent.

In a cluster the indexes are in other slots than the agents' data and cannot change in the same atomic
step. So an entry is written before the data. An entry without data is harmless, and ``agents`` skips
it. Data without an entry would never be found. On one server both are written by one script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from celery_ckpt.errors import AlreadyExists
from celery_ckpt.names import locator
from celery_ckpt.records import Schedule
from celery_ckpt.stores.redis.change_index import ChangeIndex, entries
from celery_ckpt.stores.redis.keys import SHARDS, Keys, agent_named
from celery_ckpt.stores.redis.server import Call, Server

_PAGE = 500
#: How many indexed agents a process remembers.
_REMEMBERED = 10_000


class AgentIndex:
    """Finds agents by page and by checkpoint id."""

    def __init__(self, server: Server, keys: Keys, changes: ChangeIndex) -> None:
        self._server, self._keys, self._changes = server, keys, changes
        #: The agents whose entries this process has written. Others are added before their data.
        self.known: set[str] = set()

    def entry(self, agent_id: str) -> Call:
        """Return the command that writes the agent's entry."""
        return Call.command("ZADD", *self._place(agent_id, 0))

    def question(self, agent_id: str) -> Call:
        """Return the command that asks whether the agent has an entry."""
        return Call.command("ZSCORE", *self._place(agent_id))

    def _place(self, agent_id: str, *score: int) -> tuple[str | int, ...]:
        """Return the key and the member of the agent's entry, with a score between them if given."""
        place = locator(agent_id)
        return self._keys.agents(place[0]), *score, f"{place}:{agent_id}"

    def listing(self, agent_id: str) -> Call:
        """Return the script that lists the agent: a sweep looks at it soon."""
        key = self._keys.due_times_of(agent_id, Schedule.SWEEP)
        return Call.script("schedule_add", [key], agent_id, 0)

    def add(self, agent_id: str) -> None:
        """Write the agent's entry, list it for a sweep, and note its creation unless that was noted."""
        indexed = self.entry(agent_id), self.listing(agent_id)
        if self._server.as_one(*indexed, self._changes.note(agent_id, "new")) is None:
            is_cluster = self._server.is_cluster
            note = self._changes.note(agent_id, "new", moves=not is_cluster)
            [*_, noted] = self._server.together(*indexed, note)
            if is_cluster:
                self._server.together(*self._changes.moves(agent_id, noted))
        self._remember(agent_id)

    def _remember(self, agent_id: str) -> None:
        if len(self.known) >= _REMEMBERED:
            self.known.clear()
        self.known.add(agent_id)

    def write(self, agent_id: str, *calls: Call, has_changed: bool = False) -> list[Any]:
        """Write the agent's entry, list it for a sweep, and write its data, in one round trip.

        The other calls are made only if the first one has written. Return the replies of the calls.
        With ``has_changed``, they change a run; otherwise the agent changes only if they create it.
        """
        [key] = self._keys.of(agent_id, "agent")
        mode, swept = "" if has_changed else "new", Call.script("agent_list", [key])
        own = (*calls, swept, self._changes.note(agent_id, mode))
        indexed = self.entry(agent_id), self.listing(agent_id)
        replies = self._server.as_one(*own, *indexed, deciding=1)
        if replies is None:
            is_cluster = self._server.is_cluster
            note = self._changes.note(agent_id, mode, moves=not is_cluster)
            data = Call.joined(*calls, swept, note, deciding=1)
            # The entries again after the data: the agent may be deleted at the same time.
            replies = self._server.together(*indexed, data, *indexed)[len(indexed)]
            if is_cluster:
                self._server.together(*self._changes.moves(agent_id, replies[-1]))
        if isinstance(replies[0], int) or replies[0][0] == b"ok":
            self._remember(agent_id)
        return replies[: len(calls)]

    def change(
        self, agent_id: str, data: Call, *, before: Sequence[Call] = (), after: Sequence[Call] = ()
    ) -> list[Any]:
        """Change a run of the agent, and move the agent in the index of changes, in one round trip.

        The calls ``after`` are made at least if ``data`` has written. Return the replies of all calls,
        without those that move the agent. In a cluster, moving it is another round trip.
        """
        place = len(before)
        note = self._changes.note(agent_id)
        replies = self._server.as_one(*before, data, note, *after, deciding=place + 1)
        if replies is not None:
            del replies[place + 1]
            return replies
        if not self._server.is_cluster:
            both = Call.joined(data, note, deciding=1)
            replies = self._server.together(*before, both, *after)
            replies[place] = replies[place][0]
            return replies
        both = Call.joined(data, self._changes.note(agent_id, moves=False), deciding=1)
        replies = self._server.together(*before, both, *after)
        replies[place], noted = replies[place]
        self._server.together(*self._changes.moves(agent_id, noted))
        return replies

    def forget(self, agent_id: str) -> None:
        """Forget that the agent has an entry, because the agent may have been deleted."""
        self.known.discard(agent_id)

    def remove(self, agent_id: str, changed: bytes | None = None) -> None:
        """Remove the agent's entries, unless the agent exists again by then.

        ``changed`` is that field of the agent's hash before the agent was deleted. Without it, the
        entries in the index of changes are left to readers of the list.
        """
        self.remove_all([agent_id], {agent_id: changed or b""})

    def remove_if_gone(self, agent_id: str) -> None:
        """Remove the agent's entries after a refused write, if the agent does not exist."""
        if not self.with_data([agent_id]):
            self.remove(agent_id)

    def remove_all(self, agent_ids: Sequence[str], changed: Mapping[str, bytes]) -> None:
        """Remove the entries of several agents. See ``remove``."""
        calls: list[Call] = []
        for agent_id in agent_ids:
            sweep = self._keys.due_times_of(agent_id, Schedule.SWEEP)
            calls.append(Call.command("ZREM", *self._place(agent_id)))
            calls.append(Call.command("ZREM", sweep, agent_id))
            listed = entries(agent_id, changed.get(agent_id, b""))
            calls += self._changes.removals(agent_id, listed)
        self._server.side_by_side(*calls)
        # Only now: an agent that was written before its entry was removed must be found afterwards.
        existing = self.with_data(agent_ids)
        for agent_id in agent_ids:
            self.forget(agent_id)
            if agent_id in existing:
                self.add(agent_id)

    def with_data(self, agent_ids: Sequence[str]) -> set[str]:
        """Return the agents that have any key."""
        calls = [Call.command("EXISTS", *self._keys.all_of(name)) for name in agent_ids]
        counts = self._server.side_by_side(*calls)
        return {name for name, count in zip(agent_ids, counts, strict=True) if count}

    def agents(self) -> Iterator[str]:
        """Yield all agents with data, page by page."""
        for shard in SHARDS:
            for page in self.pages(shard):
                existing = self.with_data(page)
                yield from (agent_id for agent_id in page if agent_id in existing)

    def pages(self, shard: str) -> Iterator[list[str]]:
        """Yield the agents of a shard that have an entry, page by page."""
        start = b"-"
        while page := self._page(shard, start):
            yield [name for name in map(_agent_of, page) if name is not None]
            start = b"(" + page[-1]

    def _page(self, shard: str, start: bytes, end: bytes = b"+") -> list[bytes]:
        key = self._keys.agents(shard)
        found: list[bytes] = self._server.command("ZRANGEBYLEX", key, start, end, "LIMIT", 0, _PAGE)
        return found

    def agents_that_may_have(self, checkpoint_id: str) -> Iterator[str]:
        """Yield the agents whose locator the id starts with, then the agent it is registered for."""
        place, dash, _ = checkpoint_id.partition("-")
        if dash and place and place[0] in SHARDS:
            prefix = f"{place}:".encode()
            members = self._page(place[0], b"[" + prefix, b"(" + prefix[:-1] + b";")
            yield from (name for name in map(_agent_of, members) if name is not None)
        owner = self._server.command("HGET", self._keys.foreign_ids(checkpoint_id), checkpoint_id)
        if owner is not None and (name := agent_named(owner)) is not None:
            yield name

    def register(self, checkpoint_id: str, agent_id: str) -> None:
        """Register the agent of an id that does not name it, before the checkpoint is saved.

        Raises:
            AlreadyExists: another agent has it, or is about to.
        """
        key = self._keys.foreign_ids(checkpoint_id)
        if self._server.command("HSETNX", key, checkpoint_id, agent_id):
            return
        if self._server.command("HGET", key, checkpoint_id) != agent_id.encode():
            raise AlreadyExists(what=f"Checkpoint {checkpoint_id}", agent_id=agent_id)

    def unregister(self, agent_id: str, checkpoint_ids: list[str]) -> None:
        """Delete the entries of removed checkpoints of the agent whose ids were registered."""
        own = f"{locator(agent_id)}-"
        for checkpoint_id in checkpoint_ids:
            if checkpoint_id.startswith(own):
                continue
            key = self._keys.foreign_ids(checkpoint_id)
            if self._server.command("HGET", key, checkpoint_id) == agent_id.encode():
                self._server.command("HDEL", key, checkpoint_id)


def _agent_of(member: bytes) -> str | None:
    return agent_named(member.partition(b":")[2])
