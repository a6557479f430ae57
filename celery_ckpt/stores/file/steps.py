"""The recorded steps of an agent's runs, in a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from celery_ckpt.errors import AlreadyExists
from celery_ckpt.records import Step
from celery_ckpt.stores.encoding import decoded_step, encoded, is_same
from celery_ckpt.stores.file.directory import Agent
from celery_ckpt.stores.file.tables import Table


class StepTable:
    """The steps of one agent. Its caller holds the agent's lock."""

    def __init__(self, agent: Agent) -> None:
        self._agent_id = agent.agent_id
        self._table = Table(agent.directory / "steps")

    def __len__(self) -> int:
        return len(self._table.values)

    def has(self, step: Step) -> bool:
        """Is it recorded? Raises ``AlreadyExists`` if another one is under its key."""
        stored = self._table.values.get(_key(step.run_id, step.key))
        if stored is None:
            return False
        if not is_same(decoded_step(step.agent_id, step.run_id, stored), step):
            raise AlreadyExists(what=f"Step {step.key!r}", agent_id=step.agent_id)
        return True

    def add(self, step: Step, value: bytes) -> None:
        """Record a step."""
        self._table.put(_key(step.run_id, step.key), value)

    def of(self, run_id: str) -> list[Step]:
        """The steps of a run, in order."""
        return [step for _, step in self._of(run_id)]

    def all(self) -> list[Step]:
        """The steps of all runs, in order."""
        found = ((_run_of(key), value) for key, value in self._table.values.items())
        return [decoded_step(self._agent_id, run_id, value) for run_id, value in found]

    def replace(self, steps: list[Step], limit: int) -> None:
        """Put others in the place of all of them."""
        self._table.replace({_key(step.run_id, step.key): encoded(step, limit) for step in steps})

    def drop(self, run_id: str, first: int = 0, last: int | None = None) -> int:
        """Forget the steps of some iterations of a run; returns how many there were."""
        gone = [
            key
            for key, step in self._of(run_id)
            if first <= step.iteration and (last is None or step.iteration <= last)
        ]
        self._table.drop(gone)
        return len(gone)

    def drop_all_of(self, run_ids: Iterable[str]) -> None:
        """Forget all steps of some runs."""
        gone = set(run_ids)
        self._table.drop(key for key in self._table.values if _run_of(key) in gone)

    def _of(self, run_id: str) -> Iterator[tuple[str, Step]]:
        prefix = _key(run_id, "")
        for key, value in self._table.values.items():
            if key.startswith(prefix):
                yield key, decoded_step(self._agent_id, run_id, value)


def _key(run_id: str, key: str) -> str:
    # The length keeps run "a b" with key "c" apart from run "a" with key "b c".
    return f"{len(run_id)} {run_id} {key}"


def _run_of(key: str) -> str:
    length, _, rest = key.partition(" ")
    return rest[: int(length)]
