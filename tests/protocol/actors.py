"""The actors: workers, a watchdog, a caller and an operator, which execute the library's code and
Celery's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.app.trace import TraceInfo, build_tracer

from celery_ckpt import AgentRun, Agents, EveryN, agent_task
from celery_ckpt.errors import CheckpointError
from celery_ckpt.runtime.process import context as contexts
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.worker.watchdog import Watchdog
from tests.protocol.access import (
    AtOnce,
    SteppingBackend,
    SteppingBroker,
    SteppingRenewer,
    SteppingStore,
    SteppingUnacked,
)
from tests.protocol.world import AGENT, CALLS, HEARD, LEASE, World, pause


class _Quiet(TraceInfo):
    """A signal that does not log ignored exceptions: logging takes longer than everything else here."""

    def _log_error(self, *_: Any) -> None: ...


class Process:
    """An app with an agent task, as in one process."""

    def __init__(self, name: str, **options: Any) -> None:
        self.store = SteppingStore(name)
        self.broker = SteppingBroker(self.store)
        self.app = Celery(name, set_as_current=False, broker="memory://")
        self.app.conf.update(ckpt_store_url="memory://", ckpt_lease_ttl=LEASE, task_publish_retry=False)
        self.app.producer_or_acquire = self.broker.acquired
        self.app._backend = SteppingBackend(self.app, self.store)
        self.context = AppContext(self.app, store=self.store)  # type: ignore[arg-type]
        self.context.owner = f"{name}/-/-/-/-"  # the owner of a process that no other process can check
        self.context.lease_renewer = SteppingRenewer(self.app, self.store)
        self.context.background = AtOnce()  # type: ignore[assignment]
        contexts._contexts[self.app] = self.context
        declare = agent_task(app=self.app, shared=False, name="agent", strategy=EveryN(1), **options)
        self.task = declare(self._body)
        self._trace = build_tracer("agent", self.task, app=self.app, Info=_Quiet)

    def _body(self, run: AgentRun) -> list[str]:
        self.world.begin(self, run.run_id)
        try:
            for number in run.iterations(limit=CALLS):
                if self.world.talks:
                    call = run.llm(self.world.reply, run.run_id, number).text
                else:
                    call = run.step("call", self.world.call, run.run_id, number)
                run.state["done"] = [*run.state.get("done", []), call]
                if number == CALLS:
                    self.world.fail(run.run_id, run.task.request.retries)
            return list(run.state["done"])
        finally:
            self.world.bodies.pop(self, None)

    @property
    def world(self) -> World:
        return self.store.world

    def enter(self, world: World) -> None:
        """Start again: in another world, or after a crash."""
        self.store.world = world
        world.bodies.pop(self, None)
        self.context.lease_renewer = SteppingRenewer(self.app, self.store)

    # -- what it does --------------------------------------------------------------------------------

    def work(self) -> None:
        """Act as a worker: take messages, and acknowledge each one when everything else is done."""
        while True:
            pause("take a message", self.world.has_message)
            message = self.world.taken()
            # Redis hands the message out first, and the worker records it afterwards.
            pause("record it as unacknowledged")
            self.world.deliver(message, self)
            again = message.is_redelivered
            where = {"exchange": "", "routing_key": "celery", "redelivered": again}
            request = {"properties": {"delivery_tag": message.tag}, "delivery_info": where}
            self._trace(message.run_id, (), {}, {**message.headers, **request})
            pause("acknowledge")
            self.world.unacked.pop(message.tag, None)

    def renew(self) -> None:
        """Act as the thread of a worker that renews its leases: renew them when time has passed."""
        while True:
            pause("renew", lambda: self.context.lease_renewer.is_late())  # type: ignore[attr-defined]
            self.context.lease_renewer.renew_all()

    def watch(self) -> None:
        """Act as a watchdog: look whenever an agent is due."""
        dog = Watchdog(self.app, lambda: None)
        while True:
            pause("look", self._is_due)
            dog.check(SteppingUnacked(self.broker))  # type: ignore[arg-type]

    def _is_due(self) -> bool:
        now = self.world.clock.now().timestamp()
        return any(due_at <= now for due_at in self.world.due_times())

    def send(self, *run_ids: str) -> Callable[[], None]:
        """Act as a caller: send the runs one after the other."""
        heard = self.app.signature(HEARD, immutable=True)

        def act() -> None:
            for run_id in run_ids:
                self.task.apply_async(task_id=run_id, agent_id=AGENT, link=heard)

        return act

    def operate(self, act: Callable[[Agents, World], object]) -> Callable[[], None]:
        """Act as an operator, who changes agents from outside."""

        def operator() -> None:
            try:
                act(Agents(self.app), self.world)
            except CheckpointError as error:
                self.world.wrong.append(f"the operator got {error!r}")

        return operator
