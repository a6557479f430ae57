"""Servers that restart, lose their scripts, hang or are unavailable, and replies that are lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme

from celery_ckpt import RedisCheckpointStore, open_store
from celery_ckpt.errors import ConfigurationError, StoreUnavailable
from celery_ckpt.records import RunRecord, RunStatus
from tests.support.redis_agents import call_every_method, checkpoint, run, step, work
from tests.support.servers.proxies import Proxy, server_side_of
from tests.support.servers.valkey import APPEND_ONLY, LOOPBACK, Valkey, free_port, wait_until


class Disturbed:
    """A store that calls a function before each of its methods."""

    def __init__(self, store: RedisCheckpointStore, disturb: Callable[[], object]) -> None:
        self._store, self._disturb = store, disturb

    def __getattr__(self, name: str) -> Any:
        self._disturb()
        return getattr(self._store, name)


def test_scripts_flushed_from_the_server_are_loaded_again(store, valkey: Valkey) -> None:
    with valkey.client() as client:
        call_every_method(Disturbed(store, client.script_flush), "agent")


def test_a_cut_connection_is_reestablished(far_store, wire: Proxy) -> None:
    call_every_method(Disturbed(far_store, wire.cut), "agent")
    assert wire.connections > 10


def test_the_store_reconnects_to_a_server_that_restarts_between_operations(tmp_path: Path) -> None:
    with Valkey(tmp_path, *APPEND_ONLY) as server, open_store(server.url) as store:
        saved = work(store, "agent", 2)
        server.restart()
        assert store.load_latest("agent") == saved[-1]
        server.restart()
        saved += work(store, "agent", 2)
        assert store.list("agent") == saved[::-1]


def test_a_save_waits_for_a_server_that_comes_back(tmp_path: Path) -> None:
    with (
        Valkey(tmp_path, *APPEND_ONLY) as server,
        Proxy(server.port) as wire,
        open_store(wire.url) as store,
        ThreadPoolExecutor() as threads,
    ):
        [first] = work(store, "agent", 1)
        server.kill()
        wire.reset()
        second = checkpoint("agent", 2)
        saving = threads.submit(store.save, second)
        wait_until("it has tried more than once", lambda: wire.connections > 1)
        assert not saving.done()
        server.start()
        saving.result(timeout=60)
        assert store.list("agent") == [second, first]


VERBS = {
    "load_latest": lambda store: store.load_latest("agent"),
    "load": lambda store: store.load("some-id"),
    "list": lambda store: store.list("agent"),
    "history": lambda store: store.history("agent"),
    "agents": lambda store: list(store.agents()),
    "holder": lambda store: store.holder("agent"),
    "steps": lambda store: store.steps("agent", "run-1"),
    "run": lambda store: store.run("agent", "run-1"),
    "runs": lambda store: store.runs("agent"),
    "save": lambda store: store.save(checkpoint("agent")),
    "acquire": lambda store: store.acquire("agent", "me", 30),
    "record_step": lambda store: store.record_step(step("agent")),
    "add_run": lambda store: store.add_run(run("agent")),
    "prune": lambda store: store.prune("agent", keep=1),
    "delete": lambda store: store.delete("agent"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_unavailable_server_is_never_reported_as_an_empty_result(tmp_path: Path, verb: str) -> None:
    with (
        Valkey(tmp_path).client() as client,
        pytest.raises(StoreUnavailable, match="refused"),
    ):
        VERBS[verb](RedisCheckpointStore(client))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("maxmemory", 1, "used memory"), ("min-replicas-to-write", 1, "Not enough good replicas")],
)
def test_a_server_that_cannot_write_is_unavailable(
    store, valkey: Valkey, name: str, value: int, message: str
) -> None:
    with valkey.client() as client:
        client.config_set(name, value)
        try:
            with pytest.raises(StoreUnavailable, match=message):
                store.save(checkpoint("agent"))
        finally:
            client.config_set(name, 0)
    store.save(checkpoint("agent"))


def test_retries_for_an_unreachable_server_end_soon(tmp_path: Path) -> None:
    """Each URL is tried for about ten seconds. All are tried at the same time, to keep the test
    short.
    """

    def ask(url: str) -> tuple[Exception | None, float]:
        began = time.monotonic()
        try:
            with open_store(url) as store:
                store.load_latest("agent")
        except Exception as error:
            return error, time.monotonic() - began
        return None, 0

    away = f"{LOOPBACK}:{free_port()}"
    with (
        Valkey(tmp_path, config="requirepass right") as server,
        Valkey(tmp_path / "hung") as hung,
        Proxy(server.port, server_side_of(trustme.CA())) as untrusted,
        ThreadPoolExecutor() as threads,
    ):
        hung.signal(signal.SIGSTOP)
        expected: dict[str, tuple[type[Exception], str]] = {
            f"redis://me:secret@{away}/0": (StoreUnavailable, "refused"),
            f"redis+sentinel://:secret@{away}/themaster": (StoreUnavailable, "No master found"),
            f"redis+cluster://:secret@{away}": (StoreUnavailable, "refused"),
            f"{hung.url}?socket_timeout=0.2": (StoreUnavailable, "Timeout"),
            untrusted.url: (StoreUnavailable, "CERTIFICATE_VERIFY_FAILED"),
            server.url: (ConfigurationError, "Authentication required"),
            server.url.replace("//", "//:secret@"): (ConfigurationError, "refused the login"),
        }
        for url, (error, waited) in zip(expected, threads.map(ask, expected), strict=True):
            kind, reason = expected[url]
            assert type(error) is kind
            assert reason in str(error)
            assert "secret" not in str(error)
            assert waited < 60


@pytest.fixture(autouse=True)
def _scripts_are_known(request: pytest.FixtureRequest) -> None:
    if "wire" in request.fixturenames:
        call_every_method(request.getfixturevalue("far_store"), "somebody else")


@pytest.fixture
def unknown_scripts(valkey: Valkey) -> None:
    with valkey.client() as client:
        client.script_flush()


def each_trip(test: Any) -> Any:
    """The server does not know the script, and then gets its source."""
    trips = pytest.mark.parametrize("trip", [1, 2])
    return pytest.mark.usefixtures("unknown_scripts")(trips(test))


@each_trip
def test_a_save_whose_reply_was_lost_is_saved_once(far_store, wire: Proxy, valkey, trip: int) -> None:
    saved = checkpoint("agent", 3)
    wire.lose_reply(trip)
    far_store.save(saved)
    assert wire.lost_replies == 1
    assert far_store.list("agent") == [saved]
    assert far_store.history("agent")[0].seq == 1
    with valkey.client() as client:
        assert client.llen("ckpt:{agent}:log") == 3


def test_a_later_save_whose_reply_was_lost_is_saved_once(far_store, wire: Proxy) -> None:
    saved = work(far_store, "agent", 3)
    wire.lose_reply(2)
    saved += work(far_store, "agent", 2)
    assert wire.lost_replies == 1
    assert far_store.list("agent") == saved[::-1]
    assert [info.seq for info in far_store.history("agent")] == [5, 4, 3, 2, 1]


@each_trip
def test_an_acquire_whose_reply_was_lost_returns_the_acquired_lease(far_store, wire, trip: int) -> None:
    wire.lose_reply(trip)
    lease = far_store.acquire("agent", "me", 30)
    assert wire.lost_replies == 1
    assert lease.token == 1
    assert far_store.holder("agent") == lease
    far_store.save(checkpoint("agent"), lease)


def test_a_release_whose_reply_was_lost_reports_success(far_store, wire: Proxy) -> None:
    lease = far_store.acquire("agent", "me", 30)
    wire.lose_reply()
    assert far_store.release(lease) is True
    assert wire.lost_replies == 1
    assert far_store.holder("agent") is None
    assert far_store.release(lease) is False


@each_trip
def test_a_step_whose_reply_was_lost_is_recorded_once(far_store, wire: Proxy, trip: int) -> None:
    wire.lose_reply(trip)
    far_store.record_step(step("agent"))
    assert wire.lost_replies == 1
    assert far_store.steps("agent", "run-1") == [step("agent")]


def test_an_added_run_whose_reply_was_lost_is_added_once(far_store, wire: Proxy) -> None:
    record = run("agent")
    wire.lose_reply()
    assert far_store.add_run(record) is True
    assert wire.lost_replies == 1
    assert far_store.runs("agent") == [record]
    assert far_store.add_run(run("agent", task="another")) is False


def _ended(record: RunRecord, **changes: Any) -> RunRecord:
    return record.model_copy(update={"status": RunStatus.SUCCEEDED, **changes})


def test_a_start_whose_reply_was_lost_counts_one_attempt(far_store, wire: Proxy) -> None:
    wire.lose_reply()
    start = far_store.start_run(run("agent"), "me", 30)
    assert wire.lost_replies == 1
    assert (start.run.attempts, start.lease.token) == (1, 1)
    assert far_store.activity("agent").open == [start.run]


def test_a_blocked_run_whose_reply_was_lost_is_added_once(far_store, wire: Proxy) -> None:
    far_store.start_run(run("agent"), "me", 30)
    wire.lose_reply()
    assert far_store.start_run(run("agent", "run-2"), "me", 30).lease is None
    assert wire.lost_replies == 1
    assert [each.run_id for each in far_store.activity("agent").open] == ["run-1", "run-2"]


def test_a_start_returns_the_run_that_has_the_turn_although_the_reply_was_lost(
    far_store, wire: Proxy
) -> None:
    for name in ("run-1", "run-2"):
        far_store.add_run(run("agent", name))
    wire.lose_reply()
    start = far_store.start_run(run("agent", "run-2"), "me", 30)
    assert wire.lost_replies == 1
    assert (start.lease, start.run.status, start.next.run_id) == (None, RunStatus.BLOCKED, "run-1")
    again = far_store.start_run(run("agent", "run-2"), "me", 30)
    assert again.next is None, "another delivery publishes it no second time"


def test_settling_returns_the_next_run_although_the_reply_was_lost(far_store, wire: Proxy) -> None:
    start = far_store.start_run(run("agent"), "me", 30)
    far_store.start_run(run("agent", "run-2"), "me", 30)
    wire.lose_reply()
    following = far_store.settle_run(_ended(start.run), start.lease)
    assert wire.lost_replies == 1
    assert (following.run_id, following.status) == ("run-2", RunStatus.QUEUED)
    start = far_store.start_run(run("agent", "run-2"), "me", 30)
    wire.lose_reply()
    assert far_store.settle_run(_ended(start.run), start.lease) is None
    assert wire.lost_replies == 2


def test_settling_returns_no_run_that_was_already_active_if_the_reply_was_lost(
    far_store, wire: Proxy
) -> None:
    first = far_store.start_run(run("agent"), "me", 30)
    ended = _ended(run("agent", "run-2"))
    far_store.add_run(ended)
    far_store.release(first.lease, run=first.run.model_copy(update={"status": RunStatus.QUEUED}))
    start = far_store.start_run(ended, "me", 30)
    wire.lose_reply()
    assert far_store.settle_run(start.run, start.lease) is None
    assert wire.lost_replies == 1
    assert far_store.activity("agent").active == "run-1"


def test_a_cancellation_whose_reply_was_lost_takes_one_lease(far_store, wire: Proxy) -> None:
    far_store.start_run(run("agent"), "me", 30)
    wire.lose_reply()
    lease = far_store.cancel_run("agent", "run-1", "me", 30)
    assert wire.lost_replies == 1
    assert lease.token == 2
    assert far_store.holder("agent") == lease


def test_a_due_time_whose_reply_was_lost_can_be_unscheduled(far_store, wire: Proxy) -> None:
    wire.lose_reply()
    due_at = far_store.schedule("agent", 0)
    assert wire.lost_replies == 1
    assert far_store.unschedule({"agent": due_at}) == 1


def test_an_agent_whose_claim_reply_was_lost_is_due_again_after_the_hold(
    far_store, wire: Proxy
) -> None:
    far_store.schedule("agent", 0)
    wire.lose_reply()
    found = far_store.claim_due(10, 0.05)
    assert wire.lost_replies == 1
    wait_until("the error names it", lambda: found or far_store.claim_due(10, 30))
