"""One agent's runs in SQLite, and whose turn it is."""

from __future__ import annotations

from celery_ckpt.clock import microseconds
from celery_ckpt.records import RunRecord
from celery_ckpt.stores.encoding import decoded_run, encoded
from celery_ckpt.stores.rules.leases import LeaseState
from celery_ckpt.stores.sqlite.database import Database


class SqliteDesk:
    """A ``turns.Desk`` within a transaction. Key 0 is nobody's: an agent that is not there."""

    def __init__(
        self, database: Database, agent_id: str, key: int, lease: LeaseState, limit: int
    ) -> None:
        self.agent_id = agent_id
        self._database, self._key, self._lease, self._limit = database, key, lease, limit

    @property
    def lease(self) -> LeaseState:
        """The lease as it is now."""
        return self._lease

    @lease.setter
    def lease(self, state: LeaseState) -> None:
        """Change the lease."""
        expires_at = microseconds(state.expires_at)
        self._database.run("set_lease", self._key, state.token, state.nonce, state.owner, expires_at)
        self._lease = state

    @property
    def active(self) -> str:
        """The run whose turn it is."""
        found = self._database.one("active", self._key)
        return "" if found is None else str(found[0])

    @active.setter
    def active(self, run_id: str) -> None:
        """Let it be another run's turn."""
        self._database.run("set_active", self._key, run_id)

    def run(self, run_id: str) -> RunRecord | None:
        """See ``turns.Desk``."""
        found = self._database.one("run", self._key, run_id)
        return None if found is None else decoded_run(self.agent_id, run_id, found[0])

    def runs(self) -> list[RunRecord]:
        """All runs, in the order in which they were added."""
        return self._decoded("runs")

    def open_runs(self) -> list[RunRecord]:
        """See ``turns.Desk``."""
        return self._decoded("open_runs")

    def _decoded(self, query: str) -> list[RunRecord]:
        rows = self._database.all(query, self._key)
        return [decoded_run(self.agent_id, run_id, record) for run_id, record in rows]

    def put(self, run: RunRecord) -> None:
        """See ``turns.Desk``."""
        record = encoded(run, self._limit)
        self._database.run("put_run", self._key, run.run_id, not run.is_settled, record)

    def progress(self) -> str:
        """See ``turns.Desk``."""
        [place] = self._database.one("last_place", *places(self._key))
        [steps] = self._database.one("count_steps", self._key)
        return f"{place or 0}.{steps}"

    def drop_steps_of(self, run_id: str) -> None:
        """See ``turns.Desk``."""
        self._database.run("drop_steps", self._key, run_id, 0, LAST_ITERATION)


#: An iteration that no run reaches.
LAST_ITERATION = 2**62
#: An agent's saves have the places from its key shifted by this to just below the next agent's.
SEQ_BITS = 32


def places(key: int) -> tuple[int, int]:
    """The first and the last place that an agent's saves can have."""
    return key << SEQ_BITS, (key + 1 << SEQ_BITS) - 1
