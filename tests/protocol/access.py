"""How a process sees the world: a store, a broker and a result backend. Each access is one step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery
from celery.backends.base import BaseBackend

from celery_ckpt.records import Lease
from celery_ckpt.runtime.process.lease_renewer import HeldLease, LeaseRenewer
from celery_ckpt.store import CheckpointStore
from tests.protocol.world import HEARD, LEASE, World, pause

#: The operations that only the holder of the lease may perform.
_WRITES = {"save", "record_step", "update_run"}


class SteppingStore:
    """The world's store. Every method call is one step."""

    #: True for the store of a renewer.
    renews = False

    def __init__(self, process: str) -> None:
        self.process = process
        self.world = World()

    @property
    def features(self) -> frozenset[str]:
        return self.world.store.features

    def record_and_save(self, *args: Any, **options: Any) -> Any:
        """Record and save in two steps, as a store does that cannot do both at once."""
        return CheckpointStore.record_and_save(self, *args, **options)  # type: ignore[arg-type]

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self.world.store, verb)

        def step(*args: Any, **options: Any) -> Any:
            pause(verb)
            newest = self.world.newest_token()
            if verb == "delete":
                self.world.delete()
            deadline = self.world.deadline()
            answer = method(*args, **options)
            if self.world.deadline() != deadline:
                self._note_deadline(deadline)
            lease = next((arg for arg in (*args, *options.values()) if isinstance(arg, Lease)), None)
            if verb in _WRITES and lease is not None and lease.token < newest:
                self.world.wrong.append(f"{verb} was accepted from a process that had lost the lease")
            self.world.passes += verb == "pass_turn" and answer is not None
            if verb == "record_step":
                self.world.recorded.add((args[0].run_id, args[0].iteration))
            return answer

        return step

    def _note_deadline(self, before: int | None) -> None:
        """Note which process has set the deadline. A renewal must not replace another process's."""
        is_anothers = before is not None and self.world.deadline_is_of != self.process
        if self.renews and is_anothers:
            self.world.wrong.append("a renewal moved a deadline that another process had set")
        self.world.deadline_is_of = self.process


class RenewersStore(SteppingStore):
    """The store of a process, as its renewer uses it."""

    renews = True

    def __init__(self, store: SteppingStore) -> None:
        self._of = store

    @property
    def process(self) -> str:
        return self._of.process

    @property
    def world(self) -> World:
        return self._of.world


class SteppingBroker:
    """A producer and its connection in one. The library and Celery publish through it."""

    def __init__(self, store: SteppingStore) -> None:
        self.store = store

    @property
    def connection(self) -> SteppingBroker:
        return self

    @contextmanager
    def acquired(self, producer: Any = None) -> Iterator[SteppingBroker]:
        """Behave like ``Celery.producer_or_acquire``."""
        yield self

    def _reraise_as_library_errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    def publish(self, payload: Any, *, headers: dict[str, Any], **_: Any) -> None:
        is_callback = headers["task"] == HEARD
        pause("publish the callbacks" if is_callback else "publish")
        world = self.store.world
        if is_callback:
            world.callbacks[headers["parent_id"]] += 1
            return
        # A stored message has it as text.
        body = json.loads(payload) if isinstance(payload, str) else payload
        world.publish({**body[2], **headers}, _seconds_until(headers.get("eta")))


def _seconds_until(eta: str | None) -> float:
    """Return the whole seconds until a time, by the machine's clock, which Celery uses.

    Whole seconds, so that a schedule can be repeated.
    """
    left = 0.0 if eta is None else (datetime.fromisoformat(eta) - datetime.now(UTC)).total_seconds()
    return float(round(left))


class SteppingUnacked:
    """Replaces ``broker.Unacked``."""

    def __init__(self, broker: SteppingBroker) -> None:
        self._store = broker.store

    def drop(self, tag: str) -> None:
        pause("drop")
        self._store.world.unacked.pop(tag, None)

    def restore(self, tag: str) -> bool:
        pause("restore")
        return self._store.world.restore(tag)

    def is_backlogged(self, envelope: Any) -> bool:
        return self._store.world.has_message()

    def touch(self, tags: list[str]) -> None:
        """Do nothing: here time jumps for all messages at once."""

    def untouched_for(self, shortest: float, longest: float) -> list[str]:
        return []


class SteppingBackend(BaseBackend):
    """Keeps the last state of each run."""

    def __init__(self, app: Celery, store: SteppingStore) -> None:
        super().__init__(app)
        self._of = store

    def store_result(self, task_id: str, result: Any, state: str, *_: Any, **__: Any) -> Any:
        pause(f"store the result: {state}")
        self._of.world.keep_result(task_id, state, result)
        return result

    def get_state(self, task_id: str) -> str:
        pause("read the state")
        return self._of.world.state(task_id)

    def forget(self, task_id: str) -> None:
        pause("delete the result")
        self._of.world.results.pop(task_id, None)


class SteppingRenewer(LeaseRenewer):
    """Renews leases when the actor that stands for its thread says so. Unschedules agents at once."""

    def __init__(self, app: Celery, store: SteppingStore) -> None:
        super().__init__(app, RenewersStore(store), LEASE)  # type: ignore[arg-type]
        self._is_working = True  # no threads
        self._processes = store

    def unschedule(self, held: HeldLease) -> None:
        if held.due_at is not None:
            self._processes.unschedule({held.lease.agent_id: held.due_at})

    def is_late(self) -> bool:
        """Return True if more time has passed since the leases were renewed than steps take."""
        end = self._processes.world.clock.now() + timedelta(seconds=LEASE - 1)
        return any(held.lease.expires_at < end for held in self._all())


class AtOnce:
    """Does background work immediately: work in a separate thread would not be part of the schedule."""

    def do(self, action: Callable[[], object]) -> None:
        action()

    def finish(self, seconds: float) -> bool:
        return True
