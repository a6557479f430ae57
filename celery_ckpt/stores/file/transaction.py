"""One agent's runs in files, and whose turn it is.

    lease   {"token": ..., "nonce": ..., "owner": ..., "expires_at": ..., "active": run_id}
    runs    a table of run records (see table.py)
    end     {"checkpoint": id, "run": run_id, "record": {...}}: written before a checkpoint that ends
            its run; it counts if that checkpoint is in the journal, so that both are one write

A crash can come between two files. So ``write`` keeps an order: first a run that is new, or the outcome
of one that has none yet; then the lease; then the steps; then the rest. The worst that is left is a run
that looks as if its attempt had died, or one that is delivered once more.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery_ckpt.errors import StoreDamaged
from celery_ckpt.json_values import decode, encode
from celery_ckpt.records import RunRecord
from celery_ckpt.stores.encoding import decoded_run, encoded
from celery_ckpt.stores.file.directory import Agent
from celery_ckpt.stores.file.filesystem import read, replace, sync_directory
from celery_ckpt.stores.file.steps import StepTable
from celery_ckpt.stores.file.tables import Table
from celery_ckpt.stores.rules.leases import LeaseState


class FileDesk:
    """A ``turns.Desk``; ``write`` puts down what was changed. Its caller holds the agent's lock."""

    def __init__(self, agent: Agent, limit: int) -> None:
        self.agent_id = agent.agent_id
        self.lease: LeaseState
        self.lease, self.active = self._before = agent.lease(), agent.active()
        self._agent, self._limit = agent, limit
        self._table = Table(agent.directory / "runs")
        self._changed: dict[str, RunRecord] = {}
        self._ended = self._end()
        self._without_steps: list[str] = []

    # -- reading -------------------------------------------------------------------------------------

    def run(self, run_id: str) -> RunRecord | None:
        """See ``turns.Desk``."""
        if run_id in self._changed:
            return self._changed[run_id]
        stored = self._ended.get(run_id) or self._table.values.get(run_id)
        return None if stored is None else decoded_run(self.agent_id, run_id, stored)

    def runs(self) -> list[RunRecord]:
        """All runs, in the order in which they were added."""
        names = dict.fromkeys([*self._table.values, *self._changed])
        return [run for name in names if (run := self.run(name)) is not None]

    def open_runs(self) -> list[RunRecord]:
        """See ``turns.Desk``."""
        return [run for run in self.runs() if not run.is_settled]

    def progress(self) -> str:
        """See ``turns.Desk``."""
        return f"{self._agent.journal.seq}.{len(StepTable(self._agent))}"

    def _end(self) -> dict[str, bytes]:
        """The record that a checkpoint brought along, if it is not in the table yet."""
        path = self._agent.directory / "end"
        stored = read(path)
        if stored is None:
            return {}
        try:
            end: dict[str, Any] = decode(stored)
            if end["checkpoint"] not in self._agent.journal.live:
                return {}
            return {end["run"]: encode(end["record"])}
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamaged(where=str(path), reason=str(error)) from error

    # -- writing -------------------------------------------------------------------------------------

    def put(self, run: RunRecord) -> None:
        """See ``turns.Desk``."""
        encoded(run, self._limit)
        self._changed[run.run_id] = run

    def drop_steps_of(self, run_id: str) -> None:
        """See ``turns.Desk``."""
        self._without_steps.append(run_id)

    def write(self) -> None:
        """Put down everything that was changed."""
        self._take_in_end()
        for run in self._changed.values():
            if not self._is_known(run) or (run.is_settled and not self._has_outcome(run)):
                self._write_run(run.model_copy(update={"delivered": False}))
        if (self.lease, self.active) != self._before:
            self._agent.set_lease(self.lease, self.active)
        try:
            for run_id in self._without_steps:
                StepTable(self._agent).drop(run_id)
            for run in self._changed.values():
                self._write_run(run)
        except OSError:
            # Who is told that it failed must be able to ask again, with the lease that they know of.
            with suppress(OSError):
                self._agent.set_lease(*self._before)
            raise

    def _is_known(self, run: RunRecord) -> bool:
        return run.run_id in self._table.values

    def _has_outcome(self, run: RunRecord) -> bool:
        stored = self._table.values[run.run_id]
        return decoded_run(self.agent_id, run.run_id, stored).status.is_final

    def _write_run(self, run: RunRecord) -> None:
        value = encoded(run, self._limit)
        if self._table.values.get(run.run_id) != value:
            self._table.put(run.run_id, value)

    def replace(self, runs: list[RunRecord]) -> None:
        """Put others in the place of all runs."""
        self._take_in_end()
        if runs:
            self._table.replace({run.run_id: encoded(run, self._limit) for run in runs})

    def forget(self, run_ids: list[str]) -> None:
        """Drop runs and their steps, which must not outlive them."""
        self._take_in_end()
        StepTable(self._agent).drop_all_of(run_ids)
        self._table.drop(run_ids)

    def _take_in_end(self) -> None:
        path = self._agent.directory / "end"
        if not path.exists():
            return
        for run_id, record in self._ended.items():
            self._table.put(run_id, record)
        self._ended = {}
        path.unlink()
        # It must not come back after a power failure: it would hide what is written to the table now.
        sync_directory(path.parent)

    def announce_end(self, checkpoint_id: str, run: RunRecord) -> None:
        """Say what becomes of the run once that checkpoint is saved."""
        self._take_in_end()
        record = decode(encoded(run, self._limit))
        end = {"checkpoint": checkpoint_id, "run": run.run_id, "record": record}
        replace(self._agent.directory / "end", encode(end))
