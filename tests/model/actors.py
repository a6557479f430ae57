"""Who acts: workers and a watchdog, which execute the library's own code, and a sender."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.exceptions import Ignore
from world import LEASE, Message, World, pause

from celery_ckpt import AgentRun, EveryN, agent_task
from celery_ckpt.records import Lease, RunRecord
from celery_ckpt.runtime import context as contexts
from celery_ckpt.runtime.admission import UNCLAIMED_SECONDS
from celery_ckpt.runtime.context import AppContext
from celery_ckpt.runtime.execution import execute
from celery_ckpt.runtime.settling import _on_announced, _on_postrun
from celery_ckpt.runtime.watchdog import Watchdog

CALLS = 2
#: What only the holder of the lease may do.
_WRITES = {"save", "record_step", "update_run"}


class SteppingStore:
    """The world's store; every verb is a step."""

    def __init__(self) -> None:
        self.world = World()

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self.world.store, verb)

        def step(*args: Any, **options: Any) -> Any:
            pause(verb)
            newest = self.world.newest_token()
            answer = method(*args, **options)
            lease = next((arg for arg in (*args, *options.values()) if isinstance(arg, Lease)), None)
            if verb in _WRITES and lease is not None and lease.token < newest:
                self.world.wrong.append(f"{verb} was accepted of somebody who had lost the lease")
            if verb == "record_step":
                self.world.recorded.add((args[0].run_id, args[0].iteration))
            return answer

        return step


class SteppingUnacked:
    """What ``broker.Unacked`` is elsewhere; made of a connection, which is the world's store."""

    def __init__(self, store: SteppingStore) -> None:
        self._store = store

    def drop(self, tag: str) -> None:
        pause("drop")
        self._store.world.unacked.pop(tag, None)

    def restore(self, tag: str) -> bool:
        pause("restore")
        return self._store.world.restore(tag)

    def is_backlogged(self, sealed: Any) -> bool:
        return bool(self._store.world.queue)

    def touch(self, tags: list[str]) -> None:
        """Time jumps for all at once here."""

    def untouched_for(self, shortest: float, longest: float) -> list[str]:
        return []


class _Keeper:
    """Renews nothing: time only passes where the scheduler says so."""

    def keep(self, hold: Any) -> None: ...
    def let_go(self, hold: Any) -> None: ...
    def is_keeping(self, agent_id: str) -> bool:
        return False

    def unwatch(self, agent_id: str, moment: int) -> None: ...


class _Aside:
    """Does at once what is to be done aside: with a thread of its own there would be no schedule."""

    def do(self, action: Callable[[], object]) -> None:
        action()

    def finish(self, seconds: float) -> bool:
        return True


class Process:
    """An app with an agent's task, as one process has it."""

    def __init__(self, name: str, **options: Any) -> None:
        self.store = SteppingStore()
        self.app = Celery(name, set_as_current=False, broker="memory://", backend=None)
        self.app.conf.update(ckpt_store_url="memory://", ckpt_lease_ttl=LEASE)
        self.app.producer_or_acquire = self._producer
        self.context = AppContext(self.app, store=self.store)  # type: ignore[arg-type]
        self.context.owner = f"{name}/-/-/-/-"  # as a process is named that nobody can see
        self.context.keeper = _Keeper()  # type: ignore[assignment]
        self.context.aside = _Aside()  # type: ignore[assignment]
        contexts._contexts[self.app] = self.context
        declare = agent_task(app=self.app, shared=False, name="agent", strategy=EveryN(1), **options)
        self.task = declare(self._body)

    def _body(self, run: AgentRun) -> int:
        self.world.begin(self, run.run_id)
        try:
            for number in run.iterations(limit=CALLS):
                answer = run.step("call", self.world.call, run.run_id, number)
                run.state["sum"] = run.state.get("sum", 0) + answer
            return int(run.state["sum"])
        finally:
            self.world.bodies.pop(self, None)

    @contextmanager
    def _producer(self) -> Iterator[Any]:
        def publish(payload: Any, *, headers: dict[str, Any], **_: Any) -> None:
            pause("publish")
            self.world.publish(headers)

        yield SimpleNamespace(publish=publish, connection=self.store)

    @property
    def world(self) -> World:
        return self.store.world

    def enter(self, world: World) -> None:
        """Begin anew, in another world, or after a crash."""
        self.store.world = world
        world.bodies.pop(self, None)
        while self.task.request_stack.top is not None:
            self.task.request_stack.pop()

    # -- what it does --------------------------------------------------------------------------------

    def work(self) -> None:
        """A worker: takes messages and acknowledges each when all is done."""
        while True:
            pause("take a message", lambda: bool(self.world.queue))
            message = self.world.deliver(self)
            self._execute(message)
            pause("acknowledge")
            self.world.unacked.pop(message.tag, None)

    def _execute(self, message: Message) -> None:
        """As Celery's tracer does: the outcome, the callbacks, its signals, in this order."""
        self.task.push_request(
            id=message.run_id,
            headers={},
            ckpt_agent_id=message.agent_id,
            ckpt_recorded=True,
            properties={"delivery_tag": message.tag},
            retries=0,
        )
        try:
            value = execute(self.task, (), {})
            pause("keep the result")
            self.world.results[message.run_id] = value
            pause("send the callbacks")
            self.world.callbacks[message.run_id] += 1
            _on_announced(self.task)
        except Ignore:
            pass
        finally:
            _on_postrun(self.task)
            self.task.pop_request()

    def watch(self) -> None:
        """A watchdog: looks whenever something is due."""
        dog = Watchdog(self.app, lambda: None)
        while True:
            pause("look", self._is_due)
            dog.look(SteppingUnacked(self.store))  # type: ignore[arg-type]

    def _is_due(self) -> bool:
        now = self.world.clock.now().timestamp()
        return any(moment <= now for moment in self.world.moments())

    def send(self, agent_id: str, *run_ids: str) -> Callable[[], None]:
        """A caller: each run is on record before its message is published."""

        def act() -> None:
            for run_id in run_ids:
                headers = {"id": run_id, "ckpt_agent_id": agent_id}
                self.store.add_run(record_of(agent_id, run_id, headers), unclaimed=UNCLAIMED_SECONDS)
                pause("publish")
                self.world.publish(headers)

        return act


def record_of(agent_id: str, run_id: str, headers: dict[str, Any]) -> RunRecord:
    """A run as it is before its message is published."""
    envelope = {
        "headers": headers,
        "properties": {},
        "exchange": "",
        "routing_key": "celery",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "text": "[]",
    }
    now = World().clock.now()
    return RunRecord(agent_id=agent_id, run_id=run_id, task="agent", envelope=envelope, created_at=now)
