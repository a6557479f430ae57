"""What the event log costs: a recorded step, a short run and the bytes in Redis, with it and without.

A step has a value of 1 KB, and one entry: its call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import count

from benchmarks.budgets import Budget
from benchmarks.contenders import Place
from benchmarks.iterations import TEXT_BYTES, Runs
from benchmarks.measure import Plan, timed
from benchmarks.pairs import Timed, alternate
from benchmarks.work import Agent, text
from celery_ckpt import CheckpointStore, RedisCheckpointStore, SqliteCheckpointStore
from celery_ckpt.clock import system_clock
from celery_ckpt.event_log import LogEntry
from celery_ckpt.records import RunRecord, Step

_TTL = 3600.0
_WARM_UP = 50
_RUN = "7a2c1f0e-5a43-4a7e-9f0b-2f6d3c1b8e55"


def call_entry(iteration: int) -> LogEntry:
    """Return the entry of a call of a model."""
    data = {"run_id": _RUN, "attempt": 1, "iteration": iteration, "call": "llm", "name": "call_model"}
    usage = {"input_tokens": 1200 + iteration, "output_tokens": 80}
    return LogEntry("call", system_clock.now(), {**data, "took": 1234, "usage": usage})


def _recording(store: CheckpointStore, agent_id: str, *, with_log: bool) -> Timed:
    """Return a function that records the next step of an agent."""
    run = RunRecord(agent_id=agent_id, run_id=_RUN, envelope={}, created_at=system_clock.now())
    lease, numbers = store.start_run(run, "benchmark", _TTL).lease, count(1)

    def record() -> float:
        number = next(numbers)
        step = Step(
            agent_id=agent_id,
            run_id=_RUN,
            key=f"llm:{number}",
            iteration=number,
            value=text(TEXT_BYTES),
        )
        entries = [call_entry(number)]
        given = {"log": entries} if with_log else {}
        return timed(lambda: store.record_step(step, lease, **given))

    return record


def _steps(store: CheckpointStore, name: str, plan: Plan, allowed: float) -> Budget:
    with closing(store):
        ours = _recording(store, "with-log", with_log=True)
        bare = _recording(store, "without-log", with_log=False)
        pair = alternate(ours, bare, plan.rounds, warm_up=_WARM_UP)
    return Budget.of(f"{name} record_step with the event log", "the same without", pair, allowed)


def redis_step(place: Place, plan: Plan) -> Budget:
    """Compare a step with its entry and a step without, on Redis."""
    return _steps(RedisCheckpointStore.from_url(place.redis_url), "Redis", plan, 1.1)


def sqlite_step(place: Place, plan: Plan) -> Budget:
    """Compare a step with its entry and a step without, on SQLite."""
    store = SqliteCheckpointStore.open(place.directory / "ours.db")
    return _steps(store, "SQLite", plan, 1.3)


def logged_bytes(place: Place, plan: Plan) -> Budget:
    """Compare the bytes in Redis, with one entry for each iteration, with the bytes of the messages."""
    agent = Agent("weighed")
    with closing(RedisCheckpointStore.from_url(place.redis_url)) as store:
        for number in range(1, plan.read_at + 1):
            store.save(agent.work().checkpoint, log=[call_entry(number)])
    stored, messages = place.bytes_in_redis(), agent.message_bytes
    what = f"Redis bytes at iteration {plan.read_at:,} with the event log"
    ratio = stored / messages
    return Budget(what, "the bytes of the messages", stored, messages, ratio, 1.2, unit="B")


def short_run(place: Place, plan: Plan) -> Budget:
    """Compare a short run with and without the event log, on Redis."""
    with (
        closing(Runs(place.redis_url, "after_llm_response")) as logging,
        closing(Runs(place.redis_url, "after_llm_response", name="silent", event_log=0)) as silent,
    ):
        pair = alternate(
            lambda: timed(logging.short_run),
            lambda: timed(silent.short_run),
            max(100, plan.rounds // 3),
            warm_up=_WARM_UP,
        )
    return Budget.of("Redis run with one call with the event log", "the same without", pair, 1.1)


#: Each starts with an empty server and an empty directory.
EVENT_LOGS: tuple[Callable[[Place, Plan], Budget], ...] = (
    redis_step, sqlite_step, logged_bytes, short_run,
)  # fmt: skip
