"""The recorded steps of an agent's runs.

All steps of an agent are in one hash. The name of a step starts with the length of its run's id, so
that run "a:b" with key "c" and run "a" with key "b:c" differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_ckpt.errors import AlreadyExists
from celery_ckpt.names import checked_name
from celery_ckpt.records import Lease, Step
from celery_ckpt.stores.encoding import damaged, decoded_step, encoded, is_same
from celery_ckpt.stores.redis.index import AgentIndex
from celery_ckpt.stores.redis.keys import Keys
from celery_ckpt.stores.redis.leases import refuse
from celery_ckpt.stores.redis.run_line import number_of, usage_word
from celery_ckpt.stores.redis.server import Call, Server, fence
from celery_ckpt.usage import Usage


def run_prefix(run_id: str) -> str:
    """Return what the names of a run's steps start with."""
    return f"{len(run_id)}:{run_id}:"


class Steps:
    """Records, lists and drops steps."""

    def __init__(self, server: Server, keys: Keys, index: AgentIndex, limit: Callable[[], int]) -> None:
        self._server, self._keys, self._index, self._limit = server, keys, index, limit

    def record(self, step: Step, lease: Lease | None, paid: Usage | None, log: bytes) -> None:
        """See ``CheckpointStore.record_step``."""
        agent_id, call = step.agent_id, self.recording(step, lease, paid, log)
        is_known = agent_id in self._index.known
        [reply] = self._server.together(call) if is_known else self._index.write(agent_id, call)
        if self.is_first(reply, step, lease) and is_known:
            self._index.add(agent_id)  # the agent was deleted since

    def recording(self, step: Step, lease: Lease | None, paid: Usage | None, log: bytes) -> Call:
        """Return the call that records a step. Raises ``CheckpointTooLarge``."""
        value = encoded(step, self._limit())
        agent_id = step.agent_id
        names = ("agent", "steps", "stepidx", "attempts", "entries", *(("runs",) if paid else ()))
        keys = self._keys.of(agent_id, *names)
        return Call.script(
            "step_record",
            keys,
            fence(agent_id, lease),
            run_prefix(step.run_id) + step.key,
            step.iteration,
            value,
            log,
            *((step.run_id, usage_word(paid)) if paid else ()),
        )

    def is_first(self, reply: list[Any], step: Step, lease: Lease | None) -> bool:
        """Return True if that was the first step of the agent.

        Raises:
            AlreadyExists, LeaseLost, LeaseHeld: the step was not recorded.
        """
        if reply[0] == b"exists":
            stored = decoded_step(step.agent_id, step.run_id, reply[1].partition(b" ")[2])
            if not is_same(stored, step):
                raise AlreadyExists(what=f"Step {step.key!r}", agent_id=step.agent_id)
            return False
        if reply[0] == b"lost":  # the agent may have been deleted before its entry was written
            self._index.remove_if_gone(step.agent_id)
        refuse(reply, step.agent_id, lease)
        return bool(reply[1])

    def of_run(self, agent_id: str, run_id: str) -> list[Step]:
        """See ``CheckpointStore.steps``."""
        checked_name(run_id, "A run_id")
        prefix = run_prefix(run_id).encode()
        return [
            decoded_step(agent_id, run_id, value.partition(b" ")[2])
            for name, value in self._stored(checked_name(agent_id))
            if name.startswith(prefix)
        ]

    def numbered(self, agent_id: str) -> list[tuple[int, Step]]:
        """Return the steps of all runs, in order, with the numbers that give the order."""
        return [
            (
                number_of(value),
                decoded_step(agent_id, run_of(agent_id, name), value.partition(b" ")[2]),
            )
            for name, value in self._stored(agent_id)
        ]

    def _stored(self, agent_id: str) -> list[tuple[bytes, bytes]]:
        stored = self._server.whole_hash(self._keys.of(agent_id, "steps"))
        return sorted(stored.items(), key=lambda pair: number_of(pair[1]))

    def drop(
        self, agent_id: str, run_id: str, first: int, last: int | None, lease: Lease | None
    ) -> int:
        """See ``CheckpointStore.drop_steps``."""
        checked_name(run_id, "A run_id")
        keys = self._keys.of(checked_name(agent_id), "agent", "steps", "stepidx")
        span = "-inf" if first <= 0 else first, "+inf" if last is None else last
        total = rank = 0
        while rank >= 0:
            own = fence(agent_id, lease)
            reply = self._server.run("step_drop", keys, own, run_prefix(run_id), *span, rank)
            refuse(reply, agent_id, lease)
            _, dropped, rank = reply
            total += dropped
        return total

    def drop_rest(self, agent_id: str, run_id: str) -> int:
        """Drop all steps of a run that has succeeded and is settled. This needs no lease."""
        keys = self._keys.of(checked_name(agent_id), "agent", "steps", "stepidx", "runs")
        everything = ("", run_prefix(run_id), "-inf", "+inf")
        total = rank = 0
        while rank >= 0:
            _, dropped, rank = self._server.run("step_drop", keys, *everything, rank, run_id)
            total += dropped
        return total


def run_of(agent_id: str, name: bytes) -> str:
    """Return the run whose step has this name. Raises ``StoreError`` if no step can have it."""
    try:
        length, _, rest = name.decode().partition(":")
        return rest[: int(length)]
    except ValueError as error:
        raise damaged(f"The name of a step of agent {agent_id!r}", error) from error
