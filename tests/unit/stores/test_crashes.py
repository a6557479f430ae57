"""Processes killed while they save: everything acknowledged is there, and the latest checkpoint
is complete.
"""

from __future__ import annotations

import os
import shutil
import signal
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from celery_ckpt import Checkpoint, Conversation, FileCheckpointStore, open_store
from celery_ckpt.records import RunStatus, Schedule
from celery_ckpt.retention.policy import Rules
from celery_ckpt.stores.file import filesystem, journal
from celery_ckpt.testing import make_checkpoint, make_conversation, make_message, make_run, make_step
from celery_ckpt.testing.contract.fixtures import settled, sweep
from tests.support.killed_writers import assert_nothing_is_missing, killed_while_saving, started

KILLS = 25


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_process_killed_repeatedly_while_saving_loses_nothing(kind: str, tmp_path: Path) -> None:
    url = {"file": f"file://{tmp_path}/store", "sqlite": f"sqlite:///{tmp_path}/store.db"}[kind]
    acknowledged = []
    for seed in range(KILLS):
        acknowledged += killed_while_saving(url, seed, after=seed % 4)
        with open_store(url) as store:
            if acknowledged:
                assert_nothing_is_missing(store, acknowledged)
    assert len(acknowledged) >= KILLS


# -- killed at every single write --------------------------------------------------------------------

CALLS = ("write", "fsync", "ftruncate")


class _Killing:
    """Replaces a module, and kills the process at the n-th call that changes something."""

    def __init__(self, module: Any, at: int, *, torn: bool) -> None:
        self._module, self._left, self._torn = module, at, torn

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        return self.counted(function) if name in CALLS else function

    def counted(self, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                if self._torn and function is os.write:
                    os.write(args[0], bytes(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return call


def _history() -> list[Checkpoint]:
    """Return two checkpoints of a growing conversation."""
    conversation, saved = make_conversation(0), []
    for iteration in (1, 2):
        conversation.append(make_message(f"iteration {iteration}"))
        saved.append(make_checkpoint("agent", conversation, iteration))
    return saved


def _die_at(at: int, torn: bool) -> None:
    filesystem.os = killing = _Killing(os, at, torn=torn)  # type: ignore[assignment]
    for name in ("rename", "unlink"):
        setattr(Path, name, killing.counted(getattr(Path, name)))


def work_until_killed(directory: str, at: int, torn: bool, said: Connection) -> None:
    """Save, record and prune. Report each save when it is done."""
    _die_at(at, torn)
    store = FileCheckpointStore(directory)
    for checkpoint in _history():
        store.save(checkpoint)
        said.send(checkpoint.iteration)
    store.record_step(make_step("agent", "run", "step", value=1))
    said.send("step")
    store.prune("agent", 1)
    said.send("pruned")
    lease = store.acquire("agent", "me", 60)
    said.send("lease")
    store.release(lease)
    said.send("end")


@pytest.mark.parametrize("torn", [False, True])
def test_a_file_store_killed_at_any_write_keeps_acknowledged_data(tmp_path: Path, torn: bool) -> None:
    said: list[object] = []
    for at in range(1, 200):
        directory = tmp_path / str(at)
        said = _what_was_said(work_until_killed, str(directory), at, torn)
        store = FileCheckpointStore(directory)
        latest = store.load_latest("agent")
        saved = [word for word in said if isinstance(word, int)]

        if saved:
            assert latest is not None
            assert latest.iteration >= saved[-1]
        if "step" in said:
            assert [step.value for step in store.steps("agent", "run")] == [1]
        if "pruned" in said:
            assert len(store.list("agent")) == 1
        again = make_checkpoint("agent", latest.conversation if latest else make_conversation())
        store.save(again, store.acquire("agent", "next", 60, over=store.holder("agent")))
        assert store.load_latest("agent") == again
        if "end" in said:
            break
    assert "end" in said
    assert at > 10


def _what_was_said(work: Any, directory: str, at: int, torn: bool) -> list[object]:
    said: list[object] = []
    with started(work, directory, at, torn) as (process, heard):
        while True:
            try:
                said.append(heard.recv())
            except EOFError:
                break
        process.join(10)
        assert process.exitcode in (0, -signal.SIGKILL)
    return said


def take_turns_until_killed(directory: str, at: int, torn: bool, said: Connection) -> None:
    """Take turns with two runs: one ends when it is settled, the other ends with a checkpoint."""
    _die_at(at, torn)
    store = FileCheckpointStore(directory)
    ended = {"status": RunStatus.SUCCEEDED, "result": "r"}
    first = store.start_run(make_run("agent", "first"), "me", 60)
    store.record_step(make_step("agent", "first"), first.lease)
    store.start_run(make_run("agent", "second"), "me", 60)
    said.send("started")
    store.settle_run(first.run.model_copy(update=ended), first.lease)
    said.send("settled")
    second = store.start_run(make_run("agent", "second"), "me", 60)
    finished = second.run.model_copy(update=ended)
    store.save(make_checkpoint("agent"), second.lease, run=finished)
    said.send("saved")
    store.settle_run(finished, second.lease)
    said.send("end")


@pytest.mark.parametrize("torn", [False, True])
def test_runs_continue_after_a_file_store_was_killed_at_any_write(tmp_path: Path, torn: bool) -> None:
    said: list[object] = []
    for at in range(1, 200):
        directory = tmp_path / str(at)
        said = _what_was_said(take_turns_until_killed, str(directory), at, torn)
        store = FileCheckpointStore(directory)
        activity = store.activity("agent")
        runs = {run.run_id: run for run in store.runs("agent")}

        assert activity.active is None or activity.active in {run.run_id for run in activity.open}
        if "started" in said:
            # The turn passes on only when the outcome is stored, and nothing of a settled run is left.
            assert runs["first"].status.is_final or activity.active == "first"
            assert not (runs["first"].is_settled and store.steps("agent", "first"))
        if "settled" in said:
            assert runs["first"].is_settled
            is_saved = store.load_latest("agent") is not None
            assert is_saved == runs["second"].status.is_final
        if "saved" in said:
            assert runs["second"].result == "r"
        _finish_all(store)
        assert (store.activity("agent").open, store.steps("agent", "first")) == ([], [])
        if "end" in said:
            break
    assert "end" in said
    assert at > 20


def _finish_all(store: FileCheckpointStore) -> None:
    """Finish what is left, as a later process does: the run whose turn it is first."""
    active = store.activity("agent").active
    for run in sorted(store.activity("agent").open, key=lambda run: run.run_id != active):
        start = store.start_run(run, "next", 60, over=store.holder("agent"))
        assert start.lease is not None
        store.settle_run(start.run.model_copy(update={"status": RunStatus.SUCCEEDED}), start.lease)


# -- killed at every write of a sweep or a deletion ---------------------------------------------------


def fill(store: FileCheckpointStore) -> None:
    """Add an agent to prune, with a long journal and an old run, and one to delete. Both have
    an id of their own.
    """
    for agent_id in ("pruned", "deleted"):
        for number in range(4):
            message = make_message(f"{number}".ljust(900))
            plain = make_checkpoint(agent_id, Conversation(messages=[message]))
            store.save(Checkpoint(**{**plain.__dict__, "id": f"{agent_id} {number}"}))
    for run_id in ("old", "last"):
        settled(store, "pruned", run_id, datetime(2026, 1, 1, tzinfo=UTC), RunStatus.FAILED)
        store.record_step(make_step("pruned", run_id))
    store.pin("pruned 0", "mine")
    store.pin("pruned 0", None)


class Died(BaseException):
    """Raised where the process dies."""


class Dying:
    """Counts everything that changes a file. From the n-th change on, nothing is changed."""

    def __init__(self, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self._os = at, os
        monkeypatch.setattr(filesystem, "os", self)
        for name in ("rename", "unlink", "hardlink_to", "touch"):
            monkeypatch.setattr(Path, name, self._counted(getattr(Path, name)))

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._os, name)
        return self._counted(function) if name in CALLS else function

    def _counted(self, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                raise Died
            return function(*args, **options)

        return call


def dropped(store: FileCheckpointStore) -> None:
    """Sweep one agent and delete the other."""
    for name in list(store.agents()):
        store.schedule(name, 0, Schedule.SWEEP)
    sweep(store, Rules(keep=1, forget_after=1))
    store.delete("deleted")


def has_died(directory: Path, at: int) -> bool:
    with pytest.MonkeyPatch.context() as patching:
        Dying(at, patching)
        try:
            dropped(FileCheckpointStore(directory))
        except Died:
            return True
    return False


def paths(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_doctor_restores_a_clean_file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 1_500)
    monkeypatch.setattr("celery_ckpt.stores.file.doctor.PATIENCE", 0.0)
    clean, found, at = tmp_path / "clean", 0, 1
    fill(FileCheckpointStore(clean))
    dropped(FileCheckpointStore(clean))
    fill(FileCheckpointStore(filled := tmp_path / "filled"))
    is_dead = True
    while is_dead:
        directory = shutil.copytree(filled, tmp_path / str(at))
        is_dead = has_died(directory, at)
        for path in directory.rglob("*"):
            os.utime(path, (0, 0))  # the process that held the lease has been dead for a long time
        store = FileCheckpointStore(directory)
        found += len(list(store.findings(repair=True)))
        assert list(store.findings()) == []
        assert store.load_latest("pruned") is not None
        assert store.run("pruned", "old") or not store.steps("pruned", "old"), (
            "no step outlives its run"
        )
        # The next process completes the rest, and nothing else is there.
        dropped(store)
        assert [run.run_id for run in store.runs("pruned")] == ["last"]
        assert len(store.steps("pruned", "last")) == 1
        assert paths(directory) == paths(clean)
        at += 1
    assert (at > 10, found > 5) == (True, True)
