"""A full disk, for the stores that keep files: the write fails as a whole, with the reason.

The system's limit on the size of files simulates the disk: a write beyond it raises EFBIG, and a write
that crosses it is cut short, as on a full disk.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_ckpt import Checkpoint, CheckpointStore, open_store
from celery_ckpt.errors import StoreFull, StoreUnavailable
from celery_ckpt.records import RunStatus
from celery_ckpt.testing import make_checkpoint, make_conversation, make_run, make_step

KINDS = pytest.mark.parametrize("kind", ["file", "sqlite"])
TTL = 60.0


def url_of(kind: str, directory: Path) -> str:
    return f"{kind}:///{directory / 'store'}"


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limit the size of every file of this process inside the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def largest(directory: Path) -> int:
    return max(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def saved(store: CheckpointStore, messages: int) -> Checkpoint:
    checkpoint = make_checkpoint("agent", make_conversation(messages))
    store.save(checkpoint)
    return checkpoint


@KINDS
def test_a_save_on_a_full_disk_names_the_store_and_leaves_nothing_behind(
    kind: str, tmp_path: Path
) -> None:
    with open_store(url_of(kind, tmp_path)) as store:
        before = saved(store, 3)
        refused = make_checkpoint("agent", make_conversation(4))
        with room_for(0), pytest.raises(StoreFull, match=f"{tmp_path}.*Free disk space") as caught:
            store.save(refused)

        assert isinstance(caught.value, StoreUnavailable)  # so that the store is retried
        assert store.list("agent") == [before]
        store.save(refused)
        assert store.list("agent") == [refused, before]
    with open_store(url_of(kind, tmp_path)) as store:
        assert store.load_latest("agent") == refused


@KINDS
def test_a_save_is_complete_or_absent_wherever_the_disk_becomes_full(kind: str, tmp_path: Path) -> None:
    with open_store(url_of(kind, tmp_path)) as store:
        acknowledged, refusals = [saved(store, 3)], 0
        for more in range(0, 2000, 53):
            checkpoint = make_checkpoint("agent", make_conversation(5))
            try:
                with room_for(largest(tmp_path) + more):
                    store.save(checkpoint)
            except StoreFull:
                refusals += 1
                assert store.load_latest("agent") == acknowledged[-1]
                assert store.load(checkpoint.id) is None
            else:
                acknowledged.append(checkpoint)
        after = saved(store, 6)
    assert refusals > 5
    with open_store(url_of(kind, tmp_path)) as store:
        assert store.list("agent") == [after, *reversed(acknowledged)]
        assert list(store.findings()) == []


@KINDS
def test_a_store_cannot_be_opened_on_a_full_disk_and_can_be_when_there_is_space(
    kind: str, tmp_path: Path
) -> None:
    def save() -> Checkpoint:
        with open_store(url_of(kind, tmp_path)) as store:
            return saved(store, 2)

    with room_for(0), pytest.raises(StoreFull):
        save()
    made = save()
    with open_store(url_of(kind, tmp_path)) as store:
        assert store.list("agent") == [made]


@KINDS
def test_every_operation_that_fails_on_a_full_disk_can_be_repeated_later(
    kind: str, tmp_path: Path
) -> None:
    """The whole life of a run. Each of its writes is refused at first."""
    refused = []

    def insist(write: Callable[[], object]) -> object:
        for size in (0, 40, 120):
            try:
                with room_for(size):
                    return write()
            except StoreFull:
                refused.append(size)
        return write()

    with open_store(url_of(kind, tmp_path)) as store:
        run = make_run("agent", "run-1")
        assert insist(lambda: store.add_run(run, due_in=TTL))
        start = insist(lambda: store.start_run(run, "me", TTL))
        lease = insist(lambda: store.renew(start.lease, TTL))
        insist(lambda: store.record_step(make_step("agent", "run-1"), lease))
        checkpoint = make_checkpoint("agent", make_conversation(2))
        insist(lambda: store.save(checkpoint, lease))
        assert insist(lambda: store.drop_steps("agent", "run-1", lease=lease)) == 1
        last = make_checkpoint("agent", make_conversation(3))
        ended = start.run.model_copy(update={"status": RunStatus.SUCCEEDED, "result": 7})
        insist(lambda: store.save(last, lease, run=ended))
        insist(lambda: store.settle_run(ended, lease))
        assert len(refused) > 10

        assert store.list("agent") == [last, checkpoint]
        found = store.run("agent", "run-1")
        assert (found.status, found.result, found.delivered) == (RunStatus.SUCCEEDED, 7, True)
        assert (store.activity("agent").open, store.holder("agent")) == ([], None)
        assert insist(lambda: store.prune("agent", 1)) == 1
        assert insist(lambda: store.unschedule({"agent": start.due_at})) == 1
        assert insist(lambda: store.delete("agent")) == 1
        assert list(store.agents()) == []
        assert list(store.findings()) == []
