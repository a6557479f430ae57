"""What a run costs in the store: round trips of an iteration, scripts from its admission to its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from benchmarks.iterations import TEXT_BYTES, Runs, scripts_of_a_short_run, trips_per_iteration
from celery_ckpt import RedisCheckpointStore
from celery_ckpt.records import RunStatus
from celery_ckpt.testing import make_run
from tests.support.servers.proxies import Proxy
from tests.support.servers.valkey import Valkey


def test_an_iteration_with_three_results_takes_three_round_trips(redis_url: str) -> None:
    # Old steps are dropped every 16 iterations.
    assert trips_per_iteration(redis_url) <= 3 + 1 / 15


def test_a_short_run_takes_five_scripts(redis_url: str) -> None:
    assert scripts_of_a_short_run(redis_url) <= 5


def test_a_short_run_takes_five_round_trips(wire: Proxy, redis_url: str) -> None:
    with closing(Runs(wire.url, "after_llm_response")) as runs:
        runs.short_run()
        wire.reset()
        runs.short_run()
        assert wire.trips == 5


def test_the_results_of_tools_are_sent_once(wire: Proxy) -> None:
    with closing(Runs(wire.url)) as runs:
        iterate = runs.iterations()
        iterate()
        wire.reset()
        for _ in range(10):
            iterate()
        # The reply of the model is sent with its step, and again with the first checkpoint after it.
        texts = 4 * TEXT_BYTES
        assert texts < wire.bytes_sent / 10 < 1.8 * texts


def test_the_only_run_of_an_agent_pays_nothing_for_the_order_of_runs(
    store: RedisCheckpointStore, valkey: Valkey
) -> None:
    with valkey.client() as client:

        def commands(action: Callable[[], object]) -> int:
            client.config_resetstat()
            action()
            calls = {name: one["calls"] for name, one in client.info("commandstats").items()}
            not_ours = ("evalsha", "eval", "info", "config|resetstat")
            return sum(count for name, count in calls.items() if not name.endswith(not_ours))

        def costs(name: str) -> tuple[int, int, int]:
            run, started = make_run(name, name), []
            sent = commands(lambda: store.add_run(run, due_in=30))
            begun = commands(lambda: started.append(store.start_run(run, "me", 30)))
            [start] = started
            ended = start.run.model_copy(update={"status": RunStatus.SUCCEEDED})
            return sent, begun, commands(lambda: store.settle_run(ended, start.lease))

        costs("loads the scripts")
        # As many as without an order of runs.
        assert costs("agent") == (9, 7, 7)
