"""Where a run goes on: decided by the latest checkpoint alone, never by how often it was tried.

    latest checkpoint                       restored            enters              resumed
    none, or of another run                 all of it           1                   no
    of this run
      with an entry, before the loop        the entry           1                   no
      with an entry, in iteration i         the entry           i                   yes
      with an entry, after the loop         the entry           skips the loop      yes
      after ITERATION i, without entry      all of it           i + 1               yes
      exact, after the loop                 all of it           skips the loop      yes
      exact, in iteration i                 all of it           i                   yes

An entry is where an iteration, or the code after the loop, began: recorded steps replay from there and
add again what they added. Without one the checkpoint is exact (the body took it by its own hand), and
steps find there what they have added. The run's metadata goes with the state; metadata that was given
to a single checkpoint stays with that one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.conversation import Conversation
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.retention.report import without_pin
from celery_ckpt.usage import Usage


@dataclass(frozen=True)
class Restored:
    """What an attempt begins with."""

    conversation: Conversation
    state: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    #: Was a checkpoint of this very run restored?
    resumed: bool = False
    #: The iteration of that checkpoint.
    iteration: int = 0
    #: The iteration to enter, 0 for the beginning of the body.
    enters: int = 0
    #: Does the conversation hold already what steps of that iteration have added?
    exact: bool = False
    #: Is the loop not entered again?
    skips_loop: bool = False
    #: The iteration to enter, if its end is on record: then so are all its calls.
    completed: int | None = None
    #: What the calls of the run had used, and the key of the last step in there.
    usage: Usage = field(default_factory=Usage)
    counted: str | None = None


def restored(latest: Checkpoint | None, run_id: str, max_tokens: int) -> Restored:
    """What an attempt of this run begins with."""
    if latest is None:
        return Restored(Conversation(max_tokens))
    if latest.run_id != run_id:
        return Restored(latest.conversation, latest.state)
    if latest.entry is None:
        return _exact(latest)
    i, entry = latest.iteration, latest.entry
    is_over = latest.after_loop or latest.event == CheckpointEvent.ITERATION
    return Restored(
        entry.conversation,
        entry.state,
        metadata_of_run(latest),
        resumed=i > 0 or entry.after_loop,
        iteration=i,
        enters=i + 1 if entry.after_loop else i,
        skips_loop=entry.after_loop,
        completed=i if is_over and i > 0 and not entry.after_loop else None,
        usage=entry.usage,
    )


def _exact(latest: Checkpoint) -> Restored:
    i = latest.iteration
    ended = is_end_of_iteration(latest)
    return Restored(
        latest.conversation,
        latest.state,
        metadata_of_run(latest),
        resumed=True,
        iteration=i,
        enters=i + 1 if ended or latest.after_loop else i,
        exact=not ended,
        skips_loop=latest.after_loop,
        usage=latest.usage,
        counted=latest.counted,
    )


def metadata_of_run(checkpoint: Checkpoint) -> dict[str, str]:
    """The metadata that its run goes on with."""
    own = checkpoint.run_metadata
    return without_pin(checkpoint.metadata) if own is None else own


def is_end_of_iteration(checkpoint: Checkpoint) -> bool:
    """Was it taken when its iteration was over, and does a resume enter the next one?"""
    is_end = checkpoint.event == CheckpointEvent.ITERATION and not checkpoint.after_loop
    return checkpoint.entry is None and is_end
