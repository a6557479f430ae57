"""Everything that can go wrong, in one tree.

    CheckpointError
    ├── ConfigurationError      a URL, a setting or an option is wrong                  (a ValueError)
    ├── InvalidName             an agent, run or checkpoint name nobody can store       (a ValueError)
    ├── NotJson                 a value that JSON cannot hold exactly; names the path   (a ValueError)
    │   └── StepResultNotJson   what a step returned cannot be recorded; names the step
    │       └── NotAMessage     what a model call returned holds no message
    ├── NotACheckpoint          bytes that no checkpoint was written as                 (a ValueError)
    ├── NotAnExport             a line that no export wrote; names its number          (a ValueError)
    ├── RunMisused              a body used its run in a way that no resume could repeat
    ├── RedactionFailed         ckpt_redact raised, or returned what cannot be kept
    ├── NoCurrentRun            no body of an agent task is being executed here        (a RuntimeError)
    ├── RunFailed               a run whose end was recorded, told again
    ├── RunStalled              a run that died too often without leaving anything behind
    ├── StepChanged             a step is not what was recorded, and the task wants to fail then
    └── StoreError              the store refused, or could not do, what was asked
        ├── StoreUnavailable    no answer; nothing is known to be wrong with the data
        │   └── StoreFull       the disk, a quota or the server's memory has no room
        ├── StoreDamaged        the store as a whole cannot be read
        ├── CheckpointDamaged   one checkpoint cannot be read; the others can
        ├── EncryptionKeyMissing  sealed with a key that is not in the settings
        ├── NotEncrypted        plain text where everything is to be encrypted
        ├── FeatureMissing      the store does not have an optional feature
        ├── SchemaTooNew        written by a newer version of this library
        ├── CheckpointTooLarge  over the limit; nothing was written
        ├── AlreadyExists       the same id, different content
        ├── AgentNotFound       there is no such agent
        ├── CheckpointNotFound  there is no such checkpoint
        ├── RunNotFound         there is no such run
        ├── RunOver             the run has ended, so that cannot be done to it
        └── LeaseError
            ├── LeaseHeld       somebody else may write for this agent now
            └── LeaseLost       this lease is over: a newer one was given, or it was released

Each class is one thing a caller would catch. The facts in a message are attributes of the error too.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from celery_ckpt.checkpoint import Checkpoint


class CheckpointError(Exception):
    """The root of every error this library raises."""

    #: What the message says; the braces name facts.
    template: ClassVar[str] = "{reason}"
    #: The facts that several of them have: each has those that its message names.
    agent_id: str
    run_id: str
    checkpoint_id: str
    what: str
    where: str
    reason: str
    limit: int
    token: int

    def __init__(self, *message: str, **facts: Any) -> None:
        # Celery makes an error again of its message alone, without the facts.
        super().__init__(*(message or (self.template.format(**facts),)))
        self.__dict__.update(facts)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries in Celery; the default would call __init__ without the facts.
        return _revive, (type(self), self.args, self.__dict__)


def _revive(cls: Any, args: tuple[Any, ...], facts: dict[str, Any]) -> CheckpointError:
    error: CheckpointError = cls.__new__(cls)
    error.args = args
    error.__dict__.update(facts)
    return error


class ConfigurationError(CheckpointError, ValueError):
    """A URL, a setting or an option is wrong."""


class InvalidName(CheckpointError, ValueError):
    """A name that is empty, too long, or not valid Unicode text."""

    template = "{what} {reason}. Use a text of 1 to {limit} characters."


class NotJson(CheckpointError, ValueError):
    """A value that JSON cannot hold exactly. It was refused before anything changed."""

    template = "{path} {reason}. Only what JSON can hold exactly can be kept: convert it first."
    path: str


class StepResultNotJson(NotJson):
    """A step returned what cannot be recorded, or not be read back. Nothing was recorded."""

    template = (
        "Step {step!r}: {path} {reason}. A step returns JSON, or what its declared type can be read "
        "back from: return that, or give returns=..."
    )
    step: str


class NotAMessage(StepResultNotJson):
    """The function given to ``run.llm`` returned something without a message. Nothing was recorded."""

    template = "The function given to run.llm ({function}) returned {reason}. {advice}"
    function: str
    advice: str


class NotACheckpoint(CheckpointError, ValueError):
    """Bytes that ``Checkpoint.to_bytes`` never wrote."""

    template = "These bytes are no checkpoint: {reason}. Only what to_bytes wrote can be read."


class NotAnExport(CheckpointError, ValueError):
    """A line that no export wrote there. Nothing of its agent was imported."""

    template = "Line {line} cannot be imported: {reason}. Nothing of {what} was imported."
    line: int


class RunMisused(CheckpointError):
    """A body used its run in a way that a later attempt could not repeat."""


class RedactionFailed(CheckpointError):
    """``ckpt_redact`` did not say what to keep. Nothing was kept."""

    template = "ckpt_redact was given a {what} to redact, and {reason}. Nothing of it was kept."


class NoCurrentRun(CheckpointError, RuntimeError):
    """``current_run()`` outside of an agent's body."""

    template = (
        "No agent task is running here. Call current_run() inside the body of a task made with "
        "@agent_task or base=AgentTask. A thread that you start yourself does not inherit the run: "
        "pass run to it, or start it with contextvars.copy_context().run."
    )


class RunFailed(CheckpointError):
    """The recorded end of a run, told again because Celery did not get it the first time."""

    template = "Run {run_id!r} of agent {agent_id!r} has ended before: {reason}."


class RunStalled(CheckpointError):
    """A run that kills its workers, or is ended each time before it can record anything."""

    template = (
        "Run {run_id!r} of agent {agent_id!r} was given up: {attempts} attempts in a row died without "
        "recording a step or a checkpoint. Look for what ended them (memory? time?), then resume it."
    )
    attempts: int


class StepChanged(CheckpointError):
    """A step was asked for with other arguments than were recorded, and ``on_changed`` is "fail"."""

    template = (
        "Step {name!r} in iteration {iteration} of agent {agent_id!r} is not what was recorded: the "
        "code or its arguments have changed under a live run. Bring the old code back, or use "
        "on_changed='call'."
    )
    name: str
    iteration: int


class StoreError(CheckpointError):
    """The store refused, or could not do, what was asked."""


class StoreUnavailable(StoreError):
    """The store did not answer. The operation may be tried again; it is safe to repeat."""

    template = "The checkpoint store at {where} did not answer: {reason}. Is it running and reachable?"


class StoreFull(StoreUnavailable):
    """The store has no room for what was to be written. All that was saved before is still there."""

    template = (
        "The checkpoint store at {where} has no room left: {reason}. Nothing that was saved before is "
        "lost. Make room on the disk, or raise the quota or limit; then the next write carries on."
    )


class StoreDamaged(StoreError):
    """The store as a whole cannot be read."""

    template = "The checkpoint store at {where} cannot be read: {reason}. Restore it from a backup."


class CheckpointDamaged(StoreError):
    """A checkpoint is there but cannot be read; the agent's other checkpoints still can.

    ``readable`` holds what ``CheckpointStore.list`` could read of that agent in spite of it.
    """

    template = (
        "Checkpoint {checkpoint_id} of agent {agent_id!r} is damaged: {reason}. The agent's other "
        "checkpoints are not affected: load one of them, or prune this one."
    )
    readable: Sequence[Checkpoint] = ()


class EncryptionKeyMissing(StoreError):
    """Something is encrypted, and the key is not known here. Nothing is wrong with the data."""

    template = (
        "{what} of agent {agent_id!r} is encrypted with the key {key_id!r}, which is not among "
        "ckpt_encryption_keys here. Add it, behind the one that encrypts."
    )
    key_id: str


class NotEncrypted(StoreError):
    """Something is not encrypted, although keys are set."""

    template = (
        "{what} of agent {agent_id!r} is not encrypted, although ckpt_encryption_keys is set. Was it "
        "written before? Then: celery ckpt rekey --from-plaintext. Else somebody has put it there."
    )


class FeatureMissing(StoreError):
    """The store does not have an optional feature. Nothing was changed."""

    template = (
        "{store} does not have the feature {feature!r}, which this operation needs. Use a store that "
        "has it."
    )
    store: str
    feature: str


class SchemaTooNew(StoreError):
    """A record was written by a newer version of this library."""

    template = (
        "{what} has format version {version}; this celery_ckpt reads up to {supported}. "
        "Upgrade celery_ckpt here before this process reads it."
    )
    version: int
    supported: int


class CheckpointTooLarge(StoreError):
    """A checkpoint, step or run record is over ``max_checkpoint_bytes``. Nothing was written."""

    template = (
        "{what} of agent {agent_id!r} has {size:,} bytes, the limit is {limit:,}; the largest part is "
        "{part} with {part_size:,} bytes. Shorten it, or raise ckpt_max_checkpoint_bytes."
    )
    size: int
    part: str
    part_size: int


class AlreadyExists(StoreError):
    """Something with this id is already stored, with different content."""

    template = "{what} of agent {agent_id!r} already exists with different content. Use a new id."


class AgentNotFound(StoreError):
    """The store has no such agent."""

    template = (
        "There is no agent {agent_id!r} in the store at {where}. Check the agent's name and the "
        "store's URL."
    )


class CheckpointNotFound(StoreError):
    """The store has no checkpoint with that id."""

    template = (
        "There is no checkpoint {checkpoint_id!r} in the store at {where}. It may have been pruned; "
        "otherwise check the id and the store's URL."
    )


class RunNotFound(StoreError):
    """There is no record of such a run."""

    template = "Agent {agent_id!r} has no run {run_id!r}. Add its record before updating it."


class RunOver(StoreError):
    """The run has ended."""

    template = "Run {run_id!r} of agent {agent_id!r} has {status} already. Nothing was changed."
    status: str


class LeaseError(StoreError):
    """Something about who may write for an agent."""


class LeaseHeld(LeaseError):
    """Somebody else holds an unexpired lease of this agent."""

    template = (
        "Agent {agent_id!r} is being worked on by {owner} (token {token}); its lease ends in "
        "{seconds_left:.1f} s. Wait for that, or write with the lease."
    )
    owner: str
    nonce: str
    seconds_left: float


class LeaseLost(LeaseError):
    """This lease is over: a newer one was given, it was released, or the agent was deleted."""

    template = (
        "The lease with token {token} no longer covers agent {agent_id!r}. Nothing was written. "
        "Another attempt may have taken over; stop, or acquire anew."
    )


def is_disk_full(error: OSError) -> bool:
    """True if the disk or a quota is full, or a file would exceed the process's limit on file sizes."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
