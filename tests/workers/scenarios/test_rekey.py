"""The key is changed while agents run. No agent fails, and afterwards nothing needs the old key."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_ckpt import open_store
from celery_ckpt.cli import ckpt
from celery_ckpt.errors import EncryptionKeyMissing
from celery_ckpt.records import AgentContents
from celery_ckpt.stores.encrypted import EncryptedStore
from tests.support.ledger import Ledger
from tests.support.stored_bytes import bytes_of_keys
from tests.support.tasks import scenarios, short_waits
from tests.support.tasks.scenarios import count, fair
from tests.support.wait import until
from tests.support.workers.broker import STORE_DB, RedisBroker
from tests.support.workers.configuration import Configuration
from tests.support.workers.fixtures import StartWorker, app_of
from tests.support.workers.processes import Worker
from tests.support.workers.scenario import LEASE, LONG_LEASE, assert_all_right, scenario, uninterrupted

OLD, NEW = (f"{name}:{base64.b64encode(name.encode() * 8).decode()}" for name in ("oldk", "newk"))
ITERATIONS = 5
BUSY = 75
POOL = {"pool": "threads", "concurrency": 4, "forked": True}


def with_keys(*keys: str) -> dict[str, object]:
    return {"ckpt_lease_ttl": LEASE, **({"ckpt_encryption_keys": list(keys)} if keys else {})}


@contextmanager
def operator(configuration: Configuration, *keys: str) -> Iterator[Celery]:
    """Yield the app on which the commands run, with these keys."""
    with app_of(replace(configuration, conf=with_keys(*keys))) as app:
        yield app


def worker_with(start_worker: StartWorker, *keys: str) -> Worker:
    return start_worker(environment={"CKPT_TEST_CONF": json.dumps(with_keys(*keys))}, **POOL)


def rekey(app: Celery, *options: str) -> Result:
    context = CLIContext(app=app, no_color=True, workdir=None)
    return CliRunner().invoke(ckpt, ["rekey", *options], obj=context, prog_name="celery ckpt")


def rekey_until_all_is_done(app: Celery, *options: str) -> None:
    def is_done() -> bool:
        result = rekey(app, *options)
        assert result.exit_code in (0, BUSY), result.output
        return result.exit_code == 0

    until(is_done, 30, "all agents are rekeyed")


def assert_only_the_new_key_is_needed(broker: RedisBroker, agents: int) -> None:
    """Assert that the new key decrypts all records, and that no record needs or names the old key."""
    with open_store(broker.server.url_of(STORE_DB)) as store:
        names = list(store.agents())
        assert len(names) == agents
        new, old = EncryptedStore(store, [NEW]), EncryptedStore(store, [OLD])
        for name in names:
            assert [one.id for one in new.list(name)] == [one.id for one in new.history(name)]
            assert [run.is_settled for run in new.runs(name)] == [True]
            for read in (old.load_latest, old.list, old.runs):
                with pytest.raises(EncryptionKeyMissing, match="'newk'"):
                    read(name)
    with broker.server.client(db=STORE_DB) as client:
        assert [name for name, data in bytes_of_keys(client) if b"oldk." in data] == []


@scenario(ckpt_encryption_keys=[OLD, NEW])
def test_running_agents_are_rekeyed_and_lose_nothing(
    configuration: Configuration,
    celery_app: Celery,
    start_worker: StartWorker,
    ledger: Ledger,
    broker: RedisBroker,
) -> None:
    before = start_worker(**POOL)
    done = count.delay(ITERATIONS, 0)
    assert done.get(timeout=60) == uninterrupted(ITERATIONS)
    ledger.hold("tool 2", "tool 3")
    # Two of them return to the queue after each iteration. Between two attempts their lease is free.
    results = [task.delay(ITERATIONS, 0) for task in (count, fair, count, fair)]
    ledger.wait_for_call("tool 2", 20, count=4)
    worker_with(start_worker, NEW, OLD)

    with operator(configuration, NEW, OLD) as app:
        held = rekey(app)
        assert held.exit_code == BUSY
        assert "Checked 5 agents, 1 changed." in held.stdout
        before.term()
        ledger.wait_for_call("tool 3", 20, count=4)
        assert rekey(app).exit_code == BUSY, (
            "agents that run, now with records of both keys, are skipped"
        )
        ledger.let_go()
        while not all(result.ready() for result in results):
            rekey(app)
        rekey_until_all_is_done(app)
        assert rekey(app).stdout == "Checked 5 agents, 0 changed.\n"

    assert_all_right([done, *results], ITERATIONS, ledger, broker)
    assert_only_the_new_key_is_needed(broker, 5)


@scenario(ckpt_encryption_keys=[NEW, OLD], ckpt_lease_ttl=LONG_LEASE)
def test_a_run_that_arrives_while_its_agent_is_rekeyed_starts_soon_after(
    celery_app: Celery,
    start_worker: StartWorker,
    ledger: Ledger,
    broker: RedisBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = start_worker(**POOL)
    with open_store(broker.server.url_of(STORE_DB), encryption_keys=[OLD, NEW]) as store:
        assert isinstance(store, EncryptedStore)
        count.apply_async((1, 0), agent_id="user-42").get(timeout=60)
        until(lambda: not store.activity("user-42").open, 10, "the first run is settled")
        encrypt, sent = store._rekeying.encrypt, []

        def send_a_run_and_encrypt(agent_id: str, plain: AgentContents) -> AgentContents:
            if not sent:
                sent.append(count.apply_async((2, 0), agent_id="user-42"))
                until(lambda: f"{sent[0].id}] ignored" in worker.log(), 10, "the second run is refused")
            return encrypt(agent_id, plain)

        monkeypatch.setattr(store._rekeying, "encrypt", send_a_run_and_encrypt)
        store.rekey("user-42")

    # It does not wait until the lease expires and the watchdog looks, half a minute later.
    sent[0].get(timeout=60)
    broker.assert_clean(10)


@pytest.mark.configured(include=(scenarios.MODULE, short_waits.MODULE), conf=with_keys())
def test_a_plaintext_store_is_encrypted_while_agents_run(
    configuration: Configuration,
    celery_app: Celery,
    start_worker: StartWorker,
    ledger: Ledger,
    broker: RedisBroker,
) -> None:
    before = start_worker(**POOL)
    done = count.delay(ITERATIONS, 0)
    assert done.get(timeout=60) == uninterrupted(ITERATIONS)
    ledger.hold("tool 2")
    results = [task.delay(ITERATIONS, 0) for task in (count, fair)]
    ledger.wait_for_call("tool 2", 20, count=2)
    after = worker_with(start_worker, NEW)

    with operator(configuration, NEW) as app:
        assert rekey(app, "--from-plaintext").exit_code == BUSY
        # A held call continues when its worker knows that it is shutting down.
        before.term()
        # The worker with keys does not start these runs until their agents are encrypted.
        until(lambda: after.log().count("is not encrypted") >= 2, 60, "both are refused")
        ledger.let_go()
        assert not any(result.ready() for result in results)
        rekey_until_all_is_done(app, "--from-plaintext")

        assert_all_right([done, *results], ITERATIONS, ledger, broker)
        rekey_until_all_is_done(app)
    assert_only_the_new_key_is_needed(broker, 3)
