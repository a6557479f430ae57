"""The signals that agents emit. They work like Celery's own signals.

Receivers get the task as ``sender`` and everything else by keyword; they must take ``**kwargs``. A
receiver's exception is logged and does not affect the run.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

#: Something happened in the agent's loop; a checkpoint follows if the strategy says so.
checkpoint_event = Signal(name="checkpoint_event", providing_args={"run", "event"})
#: A checkpoint is stored.
checkpoint_saved = Signal(name="checkpoint_saved", providing_args={"run", "checkpoint"})
#: A checkpoint could not be stored; the next one carries what it missed.
checkpoint_failed = Signal(name="checkpoint_failed", providing_args={"run", "error"})
#: An attempt began without a checkpoint or recorded steps.
agent_started = Signal(name="agent_started", providing_args={"run"})
#: An attempt continues where an earlier one ended.
agent_resumed = Signal(name="agent_resumed", providing_args={"run"})
#: An attempt saved its run, and the run is queued again.
agent_handed_off = Signal(name="agent_handed_off", providing_args={"run", "reason"})
#: A run has ended; ``record`` has the outcome.
agent_finished = Signal(name="agent_finished", providing_args={"run", "record"})
#: The run was taken over, cancelled or deleted: this attempt stops and changes nothing.
lease_lost = Signal(name="lease_lost", providing_args={"run"})
#: A step differs from its record: the code or its arguments have changed.
step_changed = Signal(name="step_changed", providing_args={"run", "name"})
#: Checkpoints of an agent were deleted, and records of old ``runs``; ``forgotten``: the whole agent.
checkpoints_pruned = Signal(
    name="checkpoints_pruned", providing_args={"agent_id", "count", "bytes", "forgotten", "runs"}
)
#: A sweep, or a part of one, has nothing left to do; ``report`` has its totals.
prune_finished = Signal(name="prune_finished", providing_args={"report"})

__all__ = [
    "agent_finished",
    "agent_handed_off",
    "agent_resumed",
    "agent_started",
    "checkpoint_event",
    "checkpoint_failed",
    "checkpoint_saved",
    "checkpoints_pruned",
    "lease_lost",
    "prune_finished",
    "step_changed",
]
