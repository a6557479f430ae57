"""The names of all keys. ``docs/reference/storage-format.md`` says what each holds."""

from __future__ import annotations

import re
from functools import lru_cache

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.names import checked_name, locator
from celery_ckpt.records import Schedule

#: What the name of a checkpoint's field in the hash of its agent starts with.
FIELD = "c:"
#: The shards of the indexes, one for each first character of a locator.
SHARDS = "abcdefghijklmnopqrstuvwxyz234567"
#: How many shards each schedule has. A watchdog reads all shards of its own.
SCHEDULE_SHARDS = {Schedule.WATCHDOG: 4, Schedule.SWEEP: len(SHARDS)}


def shown(name: bytes) -> str:
    """Return a name that the server sent as text. Bytes that are not text are escaped."""
    return name.decode(errors="backslashreplace")


def agent_named(name: bytes) -> str | None:
    """Return the name of an agent, or ``None`` if no agent can have it."""
    try:
        return checked_name(name.decode())
    except ValueError:
        return None


def id_of(field: bytes) -> str:
    """Return the checkpoint id in the name of a field."""
    return shown(field[len(FIELD) :])


class Keys:
    """Key names under one prefix."""

    def __init__(self, prefix: str) -> None:
        if "{" in prefix or "}" in prefix:
            raise ConfigurationError(
                reason=f"The key prefix {prefix!r} contains a brace, which a cluster would misread."
            )
        self._prefix = prefix

        self.of = lru_cache(maxsize=4096)(self._of)

    def _of(self, agent_id: str, *names: str) -> tuple[bytes, ...]:
        """Return keys of an agent. They are in one slot, because its name is their hash tag."""
        tag = agent_id.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
        return tuple(f"{self._prefix}{{{tag}}}:{name}".encode() for name in names)

    def all_of(self, agent_id: str) -> tuple[bytes, ...]:
        """Return every key that an agent can have."""
        log = "attempts", "entries", "live"
        return self._of(agent_id, "agent", "log", "steps", "stepidx", "runs", *log, "open")

    def any_agent(self) -> str:
        """Return a pattern for ``SCAN`` that matches the hash of every agent."""
        quoted = re.sub(r"([*?\[\]\\^])", r"\\\1", self._prefix)
        return quoted + "{*}:agent"

    def agent_in(self, key: bytes) -> str | None:
        """Return the agent whose hash has this key, or ``None`` if it is another kind of key."""
        try:
            tag = key.decode().removeprefix(f"{self._prefix}{{").removesuffix("}:agent")
        except UnicodeDecodeError:
            return None
        name = tag.replace("%7B", "{").replace("%7D", "}").replace("%25", "%")
        return name if name and self.of(name, "agent") == (key,) else None

    def agents(self, shard: str) -> str:
        """Return the index of the agents whose locators start with that character."""
        return f"{self._prefix}agents:{shard}"

    def changes(self, shard: str) -> bytes:
        """Return the index of changes of the agents whose locators start with that character."""
        return f"{self._prefix}changes:{shard}".encode()

    def due_times(self, on: Schedule) -> list[bytes]:
        """Return all shards of a schedule."""
        return [self._schedule(on, shard) for shard in range(SCHEDULE_SHARDS[on])]

    def due_times_of(self, agent_id: str, on: Schedule) -> bytes:
        """Return the shard of a schedule that an agent is in."""
        number = SHARDS.index(locator(agent_id)[0])
        return self._schedule(on, number % SCHEDULE_SHARDS[on])

    @property
    def watchdogs(self) -> bytes:
        """The key of the watchdogs that work on this store."""
        return f"{self._prefix}watchdogs".encode()

    def _schedule(self, on: Schedule, shard: int) -> bytes:
        return f"{self._prefix}{on.value}:{shard}".encode()

    def marker(self, digest: str) -> str:
        """Return the key of the marker for a run whose agent was deleted."""
        return f"{self._prefix}deleted:{digest}"

    def foreign_ids(self, checkpoint_id: str) -> str:
        """Return the shard of the index of ids that do not name their agent, for one id."""
        return self.ids(locator(checkpoint_id)[0])

    def ids(self, shard: str) -> str:
        """Return a shard of the index of ids that do not name their agent."""
        return f"{self._prefix}ids:{shard}"
