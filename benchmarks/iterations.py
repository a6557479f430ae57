"""What a run costs: round trips and client CPU of an iteration, scripts of a short run.

The body runs in this process, with the code that a worker executes around it, and without a broker. An
iteration has three durable results: a model's reply with two tool calls, and the results of the tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from time import process_time
from typing import Any
from unittest.mock import patch

from celery import Celery
from redis.connection import AbstractConnection

from benchmarks.budgets import Budget
from benchmarks.contenders import Place
from benchmarks.measure import Plan
from benchmarks.pairs import Timed, alternate
from benchmarks.work import text
from celery_ckpt import AgentRun, RedisCheckpointStore, agent_task, current_run
from celery_ckpt.clock import system_clock
from celery_ckpt.event_log import DEFAULT_EVENT_LOG
from celery_ckpt.records import RunRecord
from celery_ckpt.runtime.attempt.attempt import Attempt
from celery_ckpt.runtime.attempt.execution import work
from celery_ckpt.runtime.attempt.settlement import settle
from celery_ckpt.runtime.attempt.start import load_run
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.process.lease_renewer import HeldLease

_TTL = 3600.0
_RESULTS = 3
#: How many iterations are counted; old steps are dropped every 16 iterations.
_COUNTED = 64
_WARM_UP = 20
#: The length of each reply and of each result.
TEXT_BYTES = 1000


class Runs:
    """Runs of an agent task in this process, on a Redis store."""

    def __init__(
        self,
        url: str,
        strategy: str = "after_tool_call",
        *,
        name: str = "run",
        event_log: int = DEFAULT_EVENT_LOG,
    ) -> None:
        self.store = RedisCheckpointStore.from_url(url)
        app = Celery("iterations", broker="memory://", set_as_current=False)
        app.conf.update(ckpt_store_url=url, ckpt_lease_ttl=_TTL, ckpt_event_log=event_log)
        self._context = AppContext(app, store=self.store)
        self._task: Any = agent_task(app=app, shared=False, strategy=strategy)(_not_called)
        self._names = (f"{name}-{number}" for number in count(1))

    def begin(self) -> Attempt:
        """Send a run and begin an attempt at it."""
        name = next(self._names)
        run = RunRecord(
            agent_id=name, run_id=name, envelope={"headers": {}}, created_at=system_clock.now()
        )
        self.store.add_run(run, due_in=_TTL)
        begun = self.store.start_run(run, "benchmark", _TTL)
        assert begun.lease is not None
        held = HeldLease(begun.lease, due_at=begun.due_at)
        return Attempt(self._context, self._task, begun.run, held)

    def short_run(self) -> None:
        """A run from its admission to its end: one recorded call, whose checkpoint is saved."""
        attempt = self.begin()
        work(attempt, lambda: current_run().llm(_model, "call").text)
        settle(attempt)

    def iterations(self) -> Callable[[], None]:
        """Return a function that executes the next iteration of a run."""
        run = load_run(self.begin())
        loop = iter(run.iterations())

        def iterate() -> None:
            number = next(loop)
            reply = run.llm(_model, f"call-{number}-1", f"call-{number}-2")
            for call in reply.tool_calls:
                run.tool(call, _tool)

        return iterate

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def _not_called(run: AgentRun) -> None:
    """Never run: the benchmark is the body."""


def _model(*call_ids: str) -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "_tool", "arguments": "{}"}}
        for call_id in call_ids
    ]
    return {"role": "assistant", "content": text(TEXT_BYTES), "tool_calls": calls}


def _tool() -> str:
    return text(TEXT_BYTES)


@contextmanager
def counted_trips() -> Iterator[list[int]]:
    """Count, in a list of one number, how often clients send something to a server."""
    trips, send = [0], AbstractConnection.send_packed_command

    def counting(self: Any, *args: Any, **options: Any) -> Any:
        trips[0] += 1
        return send(self, *args, **options)

    with patch.object(AbstractConnection, "send_packed_command", counting):
        yield trips


def trips_per_iteration(url: str) -> float:
    """Return the round trips to the store per iteration, with the default strategy."""
    with closing(Runs(url)) as runs:
        iterate = runs.iterations()
        for _ in range(_WARM_UP):
            iterate()
        with counted_trips() as trips:
            for _ in range(_COUNTED):
                iterate()
    return trips[0] / _COUNTED


def scripts_of_a_short_run(url: str) -> float:
    """Return how many scripts a server executes for a short run."""
    with closing(Runs(url, "after_llm_response")) as runs:
        for _ in range(_WARM_UP):
            runs.short_run()
        before = _scripts(runs.store)
        for _ in range(_COUNTED):
            runs.short_run()
        return (_scripts(runs.store) - before) / _COUNTED


def _scripts(store: RedisCheckpointStore) -> int:
    stats = store._server.client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def trips(place: Place, plan: Plan) -> Budget:
    """Compare the round trips of an iteration with the number of its results."""
    ours = trips_per_iteration(place.redis_url)
    what = "Redis round trips per iteration"
    return Budget(what, "its three results", ours, _RESULTS, ours / _RESULTS, 1.1, unit="")


def scripts(place: Place, plan: Plan) -> Budget:
    """Compare the scripts of a short run with what it writes."""
    ours, least = scripts_of_a_short_run(place.redis_url), 5
    what = "Redis scripts of a run with one call and one checkpoint"
    limit_is = "send, start, record, end, settle"
    return Budget(what, limit_is, ours, least, ours / least, 1, unit="")


def client_cpu(place: Place, plan: Plan) -> Budget:
    """Compare the client's CPU time of an iteration with three RPUSHs of its results."""
    with closing(Runs(place.redis_url)) as runs, place.client() as client:

        def push() -> None:
            for _ in range(_RESULTS):
                client.rpush("bare", text(TEXT_BYTES))

        pair = alternate(
            _cpu(runs.iterations()), _cpu(push), max(100, plan.rounds // 3), warm_up=_WARM_UP
        )
    limit_is = "three RPUSHs of the same bytes"
    return Budget.of("Redis client CPU per iteration", limit_is, pair, 7.5)


def _cpu(action: Callable[[], object]) -> Timed:
    def timed() -> float:
        start = process_time()
        action()
        return process_time() - start

    return timed


#: Each starts with an empty server.
ITERATIONS: tuple[Callable[[Place, Plan], Budget], ...] = (trips, scripts, client_cpu)
