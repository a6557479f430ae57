"""Which agents are there, and whose is an id that does not say so.

The indexes lie in other slots than the agents' data and cannot change in the same atomic step. So an
entry is written first: one without data behind it is harmless, and ``agents`` passes over it; data
without an entry would be lost from sight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery_ckpt.errors import AlreadyExists
from celery_ckpt.names import id_prefix, locator
from celery_ckpt.records import Schedule
from celery_ckpt.stores.redis.keys import SHARDS, Keys, agent_named
from celery_ckpt.stores.redis.server import Call, Server

_PAGE = 500
#: How many agents a process remembers to have indexed.
_REMEMBERED = 10_000


class AgentIndex:
    """Finds agents by page and by checkpoint id."""

    def __init__(self, server: Server, keys: Keys) -> None:
        self._server, self._keys = server, keys
        self._known: set[str] = set()

    def entry(self, agent_id: str) -> Call:
        """The command that writes the agent's entry, to be sent before its data."""
        place = locator(agent_id)
        return Call.command("ZADD", self._keys.agents(place[0]), 0, f"{place}:{agent_id}")

    def question(self, agent_id: str) -> Call:
        """The command that asks whether the agent has an entry."""
        place = locator(agent_id)
        return Call.command("ZSCORE", self._keys.agents(place[0]), f"{place}:{agent_id}")

    def listing(self, agent_id: str) -> Call:
        """The script that has a sweep look at the agent soon."""
        return Call.script(
            "schedule_add", [self._keys.moments_of(agent_id, Schedule.SWEEP)], agent_id, 0
        )

    def ensure(self, agent_id: str) -> None:
        """Write the agent's entry, unless this process did so before."""
        if agent_id not in self._known:
            self.add(agent_id)

    def add(self, agent_id: str) -> None:
        """Write the agent's entries: among all agents, and among those that a sweep looks at."""
        self._server.together(self.entry(agent_id), self.listing(agent_id))
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known.add(agent_id)

    def forget(self, agent_id: str) -> None:
        """The agent may be gone: its entry has to be written again before its next data."""
        self._known.discard(agent_id)

    def remove(self, agent_id: str) -> None:
        """Drop the agent's entries, unless it came back meanwhile."""
        self.remove_all([agent_id])

    def remove_all(self, agent_ids: Sequence[str]) -> None:
        """The same of several."""
        calls = [call for agent_id in agent_ids for call in self._removal(agent_id)]
        self._server.side_by_side(*calls)
        # Only now: what is written before its entry is dropped has to be found after it.
        there = self.with_data(agent_ids)
        for agent_id in agent_ids:
            self.forget(agent_id)
            if agent_id in there:
                self.add(agent_id)

    def _removal(self, agent_id: str) -> list[Call]:
        place = locator(agent_id)
        sweep = self._keys.moments_of(agent_id, Schedule.SWEEP)
        return [
            Call.command("ZREM", self._keys.agents(place[0]), f"{place}:{agent_id}"),
            Call.command("ZREM", sweep, agent_id),
        ]

    def with_data(self, agent_ids: Sequence[str]) -> set[str]:
        """Those of the agents that there is anything of."""
        calls = [Call.command("EXISTS", *self._keys.all_of(name)) for name in agent_ids]
        return {
            n
            for n, is_there in zip(agent_ids, self._server.side_by_side(*calls), strict=True)
            if is_there
        }

    def agents(self) -> Iterator[str]:
        """All agents with data, page by page."""
        for shard in SHARDS:
            for page in self.pages(shard):
                there = self.with_data(page)
                yield from (agent_id for agent_id in page if agent_id in there)

    def pages(self, shard: str) -> Iterator[list[str]]:
        """The agents of a part that have an entry, page by page."""
        start = b"-"
        while page := self._page(shard, start):
            yield [name for name in map(_agent_of, page) if name is not None]
            start = b"(" + page[-1]

    def _page(self, shard: str, start: bytes, end: bytes = b"+") -> list[bytes]:
        key = self._keys.agents(shard)
        found: list[bytes] = self._server.command("ZRANGEBYLEX", key, start, end, "LIMIT", 0, _PAGE)
        return found

    def agents_that_may_have(self, checkpoint_id: str) -> Iterator[str]:
        """The agents whose locator the id begins with; then the one that it was registered for."""
        place, dash, _ = checkpoint_id.partition("-")
        if dash and place and place[0] in SHARDS:
            prefix = f"{place}:".encode()
            members = self._page(place[0], b"[" + prefix, b"(" + prefix[:-1] + b";")
            yield from (name for name in map(_agent_of, members) if name is not None)
        owner = self._server.command("HGET", self._keys.foreign_ids(checkpoint_id), checkpoint_id)
        if owner is not None and (name := agent_named(owner)) is not None:
            yield name

    def register(self, checkpoint_id: str, agent_id: str) -> None:
        """Make an id findable that does not name its agent.

        Raises:
            AlreadyExists: another agent has it, or is about to.
        """
        key = self._keys.foreign_ids(checkpoint_id)
        if self._server.command("HSETNX", key, checkpoint_id, agent_id):
            return
        if self._server.command("HGET", key, checkpoint_id) != agent_id.encode():
            raise AlreadyExists(what=f"Checkpoint {checkpoint_id}", agent_id=agent_id)

    def unregister(self, agent_id: str, checkpoint_ids: list[str]) -> None:
        """Ids of the agent went: drop the entries of those that had one."""
        own = id_prefix(agent_id)
        for checkpoint_id in checkpoint_ids:
            if checkpoint_id.startswith(own):
                continue
            key = self._keys.foreign_ids(checkpoint_id)
            if self._server.command("HGET", key, checkpoint_id) == agent_id.encode():
                self._server.command("HDEL", key, checkpoint_id)


def _agent_of(member: bytes) -> str | None:
    return agent_named(member.partition(b":")[2])
