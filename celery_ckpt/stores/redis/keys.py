"""The names of all keys. ``docs/reference/storage-format.md`` says what each holds."""

from __future__ import annotations

import re
from functools import lru_cache

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.names import checked_name, locator
from celery_ckpt.records import Schedule

#: What stands before a checkpoint's id in the hash of its agent.
FIELD = "c:"
#: How many parts the indexes have, one for each first character of a locator.
SHARDS = "abcdefghijklmnopqrstuvwxyz234567"

#: How many parts those have that somebody looks at; each watchdog looks at all of its own every second.
ROUNDS_SHARDS = {Schedule.WATCHDOG: 4, Schedule.SWEEP: len(SHARDS)}


def shown(name: bytes) -> str:
    """A name that the server has. What is no text was put there by somebody else: it is escaped."""
    return name.decode(errors="backslashreplace")


def agent_named(name: bytes) -> str | None:
    """The agent of that name; ``None``: nobody can be called that."""
    try:
        return checked_name(name.decode())
    except ValueError:
        return None


class Keys:
    """Key names under one prefix."""

    def __init__(self, prefix: str) -> None:
        if "{" in prefix or "}" in prefix:
            raise ConfigurationError(
                reason=f"The key prefix {prefix!r} holds a brace, which a cluster would misread."
            )
        self._prefix = prefix

        self.of = lru_cache(maxsize=4096)(self._of)

    def _of(self, agent_id: str, *names: str) -> tuple[bytes, ...]:
        """The keys of an agent, in the slot of its name."""
        tag = agent_id.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
        return tuple(f"{self._prefix}{{{tag}}}:{name}".encode() for name in names)

    def all_of(self, agent_id: str) -> tuple[bytes, ...]:
        """Every key that an agent can have."""
        return self._of(agent_id, "agent", "log", "steps", "stepidx", "runs", "open")

    def any_agent(self) -> str:
        """A pattern for ``SCAN`` that the hash of every agent is like."""
        quoted = re.sub(r"([*?\[\]\\^])", r"\\\1", self._prefix)
        return quoted + "{*}:agent"

    def agent_in(self, key: bytes) -> str | None:
        """The agent whose hash that is; ``None``: it is something else."""
        try:
            tag = key.decode().removeprefix(f"{self._prefix}{{").removesuffix("}:agent")
        except UnicodeDecodeError:
            return None
        name = tag.replace("%7B", "{").replace("%7D", "}").replace("%25", "%")
        return name if name and self.of(name, "agent") == (key,) else None

    def agents(self, shard: str) -> str:
        """The index of the agents whose locators begin with that character."""
        return f"{self._prefix}agents:{shard}"

    def moments(self, on: Schedule) -> list[bytes]:
        """All parts of the agents by the moment at which somebody should look at them."""
        return [self._moments(on, part) for part in range(ROUNDS_SHARDS[on])]

    def moments_of(self, agent_id: str, on: Schedule) -> bytes:
        """The part in which an agent is."""
        number = SHARDS.index(locator(agent_id)[0])
        return self._moments(on, number % ROUNDS_SHARDS[on])

    def _moments(self, on: Schedule, part: int) -> bytes:
        return f"{self._prefix}{on.value}:{part}".encode()

    def foreign_ids(self, checkpoint_id: str) -> str:
        """The index of checkpoint ids that do not name their agent."""
        return self.ids(locator(checkpoint_id)[0])

    def ids(self, shard: str) -> str:
        """A part of it."""
        return f"{self._prefix}ids:{shard}"
