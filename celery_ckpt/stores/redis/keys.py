"""The names of all keys. ``docs/reference/storage-format.md`` says what each holds."""

from __future__ import annotations

from functools import lru_cache

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.names import locator

#: How many parts the indexes have, one for each first character of a locator.
SHARDS = "abcdefghijklmnopqrstuvwxyz234567"

#: How many parts the agents that are watched have; each watchdog looks at all of them every second.
DUE_SHARDS = 4


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

    def agents(self, shard: str) -> str:
        """The index of the agents whose locators begin with that character."""
        return f"{self._prefix}agents:{shard}"

    def due(self, shard: int) -> bytes:
        """The agents of one part of them, by the moment at which a watchdog should look at them."""
        return f"{self._prefix}due:{shard}".encode()

    def due_of(self, agent_id: str) -> bytes:
        """The part in which an agent is."""
        return self.due(SHARDS.index(locator(agent_id)[0]) % DUE_SHARDS)

    def foreign_ids(self, checkpoint_id: str) -> str:
        """The index of checkpoint ids that do not name their agent."""
        return f"{self._prefix}ids:{locator(checkpoint_id)[0]}"
