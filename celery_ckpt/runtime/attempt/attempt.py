"""One execution of a run by one worker: what its body does reaches the store through here.

WRITE   run.emit(event) -> signals.checkpoint_event -> strategy -> Checkpoint -> store.save -> signals
WRITE   run.llm, run.tool -> strategy -> Checkpoint -> store.record_and_save -> signals

A receiver sees the result of a call when it is recorded, and its checkpoint is saved by then: what a
receiver changes in ``run.state`` is part of the next checkpoint. After ``run.emit`` it is part of this
one.

Every write names the attempt's lease. A lease that is lost ends the attempt (``Fenced``); a worker that
shuts down hands it off (``HandOff``). An attempt waits for a store that is unavailable, up to a limit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from celery.exceptions import SoftTimeLimitExceeded, TaskPredicate
from celery.utils.dispatch import Signal

from celery_ckpt.checkpoint import Checkpoint, is_alike, is_as_good_as
from celery_ckpt.errors import LeaseError, RunNotFound, StepChanged, StoreUnavailable
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.records import RunRecord, RunStatus, Step
from celery_ckpt.run.agent_run import AgentRun
from celery_ckpt.run.control_flow import Fenced, HandOff
from celery_ckpt.run.host import Saved
from celery_ckpt.run.timed_call import TimedCall
from celery_ckpt.runtime import log_lines, signals
from celery_ckpt.runtime.attempt.attempt_log import AttemptLog
from celery_ckpt.runtime.attempt.celery_events import send_event
from celery_ckpt.runtime.current import attempting, working_for
from celery_ckpt.runtime.process.context import AppContext
from celery_ckpt.runtime.process.drain import drain
from celery_ckpt.runtime.process.lease_renewer import HeldLease
from celery_ckpt.runtime.process.retry import retry_while_unavailable
from celery_ckpt.strategies import Never
from celery_ckpt.usage import Usage

logger = logging.getLogger(__name__)
R = TypeVar("R")

#: Steps that no resume needs are dropped when this many iterations have them.
_DROP_STEPS_EVERY = 16


class Attempt:
    """The host of a run (see ``celery_ckpt.run.host.RunHost``)."""

    is_kept = True
    queue_errors: tuple[type[Exception], ...] = (SoftTimeLimitExceeded, TaskPredicate)

    def __init__(self, context: AppContext, task: Any, run_record: RunRecord, held: HeldLease) -> None:
        self.context, self.task, self.held = context, task, held
        #: What was delivered: a body's own threads do not see it.
        self.request = task.request
        #: The run's record as this attempt knows it.
        self.run_record = run_record
        self.strategy = task.strategy_in(context.settings).for_run()
        #: True if the store had no record of the run, although an attempt had begun it before.
        self.is_record_lost = False
        #: True if the store lost the record during this attempt, and it was added again, as failed.
        self.is_readded = False
        #: True once its body has started. Before, there is nothing to save.
        self.has_begun = False
        #: True once Celery has announced the outcome of the run.
        self.is_announced = False
        #: Set once its body was asked to stop: whatever it returns then, its work is not complete.
        self.stop: HandOff | None = None
        #: The last checkpoint that this attempt saved.
        self._saved: Checkpoint | None = None
        #: The run's last checkpoint, possibly of an earlier attempt.
        self._latest: Checkpoint | None = None
        #: The checkpoint of its run that it started from.
        self._resumed_from: Checkpoint | None = None
        self._sends_events = context.sends_events
        #: One event or checkpoint at a time: of two snapshots, the older one must not be saved last.
        self._lock = threading.RLock()
        self._has_recorded = False
        self._iterations = 0
        self._dropped_to = 0
        #: What it adds to the event log.
        self.log = AttemptLog(context.store, run_record, context.redaction)
        #: Why the run is being retried.
        self.retried_for: BaseException | None = None
        held.calling = self.log.current_call if self.log.is_on else None

    def is_of(self, agent_id: str, run_id: str) -> bool:
        """True if it is an attempt at that run."""
        return (self.run_record.agent_id, self.run_record.run_id) == (agent_id, run_id)

    @property
    def has_progressed(self) -> bool:
        """True if it has recorded, saved or iterated more than the attempt before it."""
        return self._has_recorded or self._saved is not None or self._iterations > 0

    @property
    def is_released(self) -> bool:
        """True if the lease was released and the run is back in the queue."""
        return self.run_record.status is RunStatus.QUEUED

    # -- what a run asks of its host -----------------------------------------------------------------

    def around(self, call: TimedCall) -> AbstractContextManager[None]:
        """Have the event log know that a call is being made."""
        return self.log.around(call)

    def replayed(self, call: TimedCall) -> None:
        """Have the event log know that a call was replayed."""
        self.log.replayed(call)

    def record(self, step: Step, paid: Usage, call: TimedCall | None) -> None:
        """Record a step, and add to the usage of the run."""
        store, lease = self.context.store, self.held.lease
        with self.log.with_next(self.log.made(call, paid)) as noted:
            self.write(lambda: store.record_step(step, lease, paid=paid or None, **noted))
        self._has_recorded = True

    def record_event(
        self,
        run: AgentRun,
        event: CheckpointEvent,
        step: Step,
        paid: Usage,
        call: TimedCall,
        snapshot: Callable[[], Checkpoint],
        keep: Callable[[], None],
    ) -> Saved:
        """Record a step whose result is an event, and save a checkpoint if the strategy says so."""
        with self._lock:
            if self.strategy.should_checkpoint(run.iteration, event):
                return self._record_and_save(step, paid, call, snapshot, keep)
        self.record(step, paid, call)
        keep()
        return None

    def _record_and_save(
        self,
        step: Step,
        paid: Usage,
        call: TimedCall,
        snapshot: Callable[[], Checkpoint],
        keep: Callable[[], None],
    ) -> Saved:
        store, lease = self.context.store, self.held.lease
        try:
            checkpoint = snapshot()
        except self.queue_errors:
            raise
        except Exception as error:
            # Its state is not JSON, for example. The result is paid for all the same.
            self.record(step, paid, call)
            keep()
            return error
        with self.log.with_next(self.log.made(call, paid)) as noted:
            refusal = self.write(
                lambda: store.record_and_save(step, checkpoint, lease, paid=paid or None, **noted)
            )
        self._has_recorded = True
        keep()
        if refusal is not None:
            return refusal
        self._saved = self._latest = checkpoint
        return checkpoint

    def emit_recorded(self, run: AgentRun, event: CheckpointEvent, saved: Saved) -> None:
        """Emit ``checkpoint_event``, and ``checkpoint_saved`` if a checkpoint was saved."""
        if attempting.get() is not self:
            with working_for(run, self):
                return self.emit_recorded(run, event, saved)
        with self._lock:
            signals.checkpoint_event.send(sender=self.task, run=run, event=event)
            if isinstance(saved, Checkpoint):
                self._announce(run, saved)
            elif saved is not None:
                self._fail(run, saved)
        return None

    def emit(self, run: AgentRun, event: CheckpointEvent) -> None:
        """Emit ``checkpoint_event``, then save a checkpoint if the strategy says so.

        An exception of a receiver is logged. A store that is unavailable costs only this checkpoint.
        """
        if attempting.get() is not self:
            # A body may call from threads of its own, which have no current run.
            with working_for(run, self):
                return self.emit(run, event)
        with self._lock:
            signals.checkpoint_event.send(sender=self.task, run=run, event=event)
            if not self.strategy.should_checkpoint(run.iteration, event):
                return None
            try:
                checkpoint = run.snapshot(event)
                self.context.store.save(checkpoint, self.held.lease)
                self._saved = self._latest = checkpoint
                self._announce(run, checkpoint)
            except (LeaseError, StoreUnavailable) as error:
                self._fail(run, error)
        return None

    def _fail(self, run: AgentRun, error: Exception) -> None:
        """Report that a checkpoint was not saved. Raise the error if the attempt must not continue."""
        if isinstance(error, LeaseError):
            raise self._fenced() from error
        if not isinstance(error, StoreUnavailable):
            raise error
        who = log_lines.identity(self.run_record)
        logger.error(log_lines.CHECKPOINT_NOT_SAVED, *who, run.iteration, error)
        self.emit_signal(signals.checkpoint_failed, run, error=error)

    def save(self, run: AgentRun, checkpoint: Checkpoint) -> None:
        """Save a checkpoint, and wait for a store that is unavailable."""
        with self._lock, working_for(run, self):
            store, lease = self.context.store, self.held.lease
            self.write(lambda: store.save(checkpoint, lease))
            self._saved = self._latest = checkpoint
            self._announce(run, checkpoint)

    def resumes_from(self, latest: Checkpoint | None) -> None:
        """Note the checkpoint that the attempt starts from, if it is one of its run."""
        if latest is not None and latest.run_id == self.run_record.run_id:
            self._latest = self._resumed_from = latest

    def has_saved(self, last: Checkpoint) -> bool:
        """True if the run's last checkpoint is as good as this one."""
        return self._latest is not None and is_as_good_as(self._latest, last)

    def save_as_it_is(self, run: AgentRun) -> None:
        """Save the run as it is now, unless its last checkpoint is the same."""
        now, last = run.snapshot(), self._saved
        if last is None or not is_alike(now, last):
            self.save(run, now)

    def _announce(self, run: AgentRun, checkpoint: Checkpoint) -> None:
        """Emit that a checkpoint was saved, and drop the steps that no resume needs any more."""
        self.emit_signal(signals.checkpoint_saved, run, checkpoint=checkpoint)
        if checkpoint.iteration - self._dropped_to >= _DROP_STEPS_EVERY:
            self._drop_steps(run, run.resumes_beyond(checkpoint))

    def _drop_steps(self, run: AgentRun, last: int) -> None:
        if last - self._dropped_to < _DROP_STEPS_EVERY:
            return
        store, lease = self.context.store, self.held.lease
        try:
            self.fenced(
                lambda: store.drop_steps(run.agent_id, run.run_id, first=1, last=last, lease=lease)
            )
        except StoreUnavailable:
            return  # the checkpoint is saved; a later save drops the steps
        self._dropped_to = last

    def check(self, run: AgentRun) -> None:
        """Raise if the run must stop now."""
        if self.held.is_lost:
            raise Fenced
        if drain.is_on and self.context.settings.hand_off:
            raise self._stopped("the worker is shutting down")

    def is_stopping(self, run: AgentRun) -> bool:
        """True if the worker is shutting down, the lease is lost, or the body was asked to stop."""
        return self.stop is not None or self.held.is_lost or drain.is_on

    def hand_off(self, run: AgentRun) -> None:
        """Hand the run off because its body says so.

        An attempt that has only replayed what earlier ones did continues: they were handed off at the
        same place, and the next one would be, too.
        """
        if self.held.is_lost:
            raise Fenced
        if self._is_ahead(run):
            raise self._stopped("the body asked for it")

    def _is_ahead(self, run: AgentRun) -> bool:
        """True if the next attempt would not begin exactly where this one did."""
        if self._has_recorded or self._iterations > 0 or self.run_record.attempts == 1:
            return True
        if not run.is_manual:
            return False  # the next one replays from the same entry
        before = self._resumed_from
        return self._saved is not None if before is None else not is_as_good_as(run.snapshot(), before)

    def iteration_ended(self, run: AgentRun) -> None:
        """Hand the run off after ``iterations_per_task`` iterations."""
        self._iterations += 1
        limit = self.task.iterations_per_task or self.context.settings.iterations_per_task
        if isinstance(self.strategy, Never):
            return  # without checkpoints, the next attempt would start where this one did
        if limit is not None and self._iterations >= limit:
            raise self._stopped(f"iterations_per_task={limit} is reached")

    def _stopped(self, reason: str) -> HandOff:
        self.stop = HandOff(reason)
        return self.stop

    def changed(self, run: AgentRun, name: str, *, is_replayed: bool = False) -> None:
        """Fail or warn, as the task wants: a call does not match its recorded step."""
        if self.task.on_changed == "fail":
            raise StepChanged(agent_id=run.agent_id, name=name, iteration=run.iteration)
        with self._lock:
            who = log_lines.identity(self.run_record)
            line = log_lines.CHANGED_STEP_REPLAYED if is_replayed else log_lines.STEP_CHANGED
            logger.warning(line, *who, run.iteration, log_lines.shown(name))
            self.emit_signal(signals.step_changed, run, name=name)

    def cost_failed(self, run: AgentRun, error: Exception) -> None:
        """Warn that ``ckpt_cost``, or a step's ``usage``, raised or returned something else."""
        who = log_lines.identity(self.run_record)
        logger.warning(log_lines.COST_NOT_COMPUTED, *who, f"{type(error).__name__}: {error}")

    def should_hand_off(self, error: BaseException) -> bool:
        """True if the run must be handed off after that error instead of retried."""
        return self.stop is not None or self.should_hand_off_at_limit(error)

    def should_hand_off_at_limit(self, error: BaseException) -> bool:
        """True if that is a soft time limit at which the run must be handed off."""
        is_wanted = self.context.settings.hand_off_on_time_limit
        return is_wanted and isinstance(error, SoftTimeLimitExceeded)

    def emit_signal(self, signal: Signal, run: AgentRun | None, **facts: Any) -> None:
        """Emit a signal and, if the worker sends events (``-E``), its Celery event."""
        signal.send(sender=self.task, run=run, **facts)
        if self._sends_events:
            send_event(signal, self, run)

    # -- writing -------------------------------------------------------------------------------------

    def write(self, action: Callable[[], R]) -> R:
        """Do a write, and wait for an unavailable store. Raises ``Fenced`` if the lease is lost."""
        return self.fenced(lambda: retry_while_unavailable(action, 2 * self.context.settings.lease_ttl))

    def release(
        self,
        record: RunRecord,
        due_in: float,
        how: str,
        why: str | BaseException | None = None,
        *,
        retry_seconds: float | None = None,
    ) -> None:
        """Release the lease and store the run. The watchdog requeues it if it does not start.

        The event log notes how the attempt ended, and why.

        Raises:
            Fenced: the lease was already lost.
        """
        self.context.lease_renewer.discard(self.held)
        store, lease = self.context.store, self.held.lease
        seconds = 2 * self.context.settings.lease_ttl if retry_seconds is None else retry_seconds
        with self.log.with_next(self.log.ended(how, why)) as noted:
            if not retry_while_unavailable(
                lambda: store.release(lease, run=record, due_in=due_in, **noted), seconds
            ):
                raise Fenced
        self.run_record = record

    def fenced(self, action: Callable[[], R]) -> R:
        """Do a write. Raises ``Fenced`` if the lease, or the record of the run, is lost."""
        try:
            return action()
        except (LeaseError, RunNotFound) as error:
            raise self._fenced() from error

    def _fenced(self) -> Fenced:
        self.held.lose()
        return Fenced()


def attempt_of(task: Any) -> Attempt | None:
    """Return the attempt that a task executes; ``None`` if it is not an agent task."""
    return getattr(getattr(task, "request", None), "ckpt_attempt", None)
