"""What a run costs in the store: round trips of an iteration, scripts from its admission to its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from benchmarks.iterations import TEXT_BYTES, Runs, scripts_of_a_short_run, trips_per_iteration
from celery_ckpt import RedisCheckpointStore
from celery_ckpt.records import RunRecord, RunStatus, StartResult
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
        for _ in range(20):  # the server learns all scripts, whatever it has learnt before
            iterate()
        wire.reset()
        for _ in range(10):
            iterate()
        # The reply of the model is sent with its step, and again with the first checkpoint after it.
        texts = 4 * TEXT_BYTES
        assert texts < wire.bytes_sent / 10 < 1.8 * texts


def test_the_only_run_of_an_agent_does_not_look_at_the_line(
    store: RedisCheckpointStore, valkey: Valkey
) -> None:
    with valkey.client() as client:

        def looks(action: Callable[[], object]) -> int:
            """Return how many commands looked for the first run in line."""
            client.config_resetstat()
            action()
            stats = client.info("commandstats")
            return sum(
                stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]
                for name in ("zrange", "zrangebyscore")
            )

        def work_off(*runs: RunRecord) -> list[int]:
            for run in runs:
                store.add_run(run, due_in=30)
            started: list[StartResult] = []
            begun = looks(lambda: started.append(store.start_run(runs[0], "me", 30)))
            [start] = started
            ended = start.run.model_copy(update={"status": RunStatus.SUCCEEDED})
            return [begun, looks(lambda: store.settle_run(ended, start.lease))]

        assert work_off(make_run("one", "one")) == [0, 0]
        assert work_off(make_run("two", "first"), make_run("two", "second")) == [2, 2]
