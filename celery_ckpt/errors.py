"""The errors of the library, in one tree.

    CheckpointError
    ├── ConfigurationError      a URL, a setting or an option is wrong                  (a ValueError)
    ├── InvalidName             an agent, run or checkpoint name that cannot be stored  (a ValueError)
    ├── NotJson                 a value that JSON cannot hold exactly; names the path   (a ValueError)
    │   └── StepResultNotJson   what a step returned cannot be recorded; names the step
    │       └── NotAMessage     what a model call returned holds no message
    ├── NotACheckpoint          bytes that are not a checkpoint                         (a ValueError)
    ├── NotAnExport             a line that is not part of an export; names its number (a ValueError)
    ├── RunMisused              a body used its run in a way that a resume cannot repeat
    ├── RedactionFailed         ckpt_redact raised, or returned what cannot be kept
    ├── NoCurrentRun            no body of an agent task is being executed here        (a RuntimeError)
    ├── RunFailed               the recorded failure of a run, raised again
    ├── RunStalled              a run that died too often without recording anything
    ├── RunLost                 a run that had begun, and of which the store has no record
    ├── StepChanged             a call does not match its record, and the task has on_changed="fail"
    └── StoreError              the store refused an operation, or could not do it
        ├── StoreUnavailable    the store does not answer; the data may be intact
        │   └── StoreFull       the disk, a quota or the server's memory has no room
        ├── StoreDamaged        the store as a whole cannot be read
        ├── CheckpointDamaged   one checkpoint cannot be read; the others can
        ├── EncryptionKeyMissing  encrypted with a key that is not in the settings
        ├── NotEncrypted        plain text in an encrypted store
        ├── FeatureMissing      the store does not have an optional feature
        ├── SchemaTooNew        written by a newer version of this library
        ├── CheckpointTooLarge  over the limit; nothing was written
        ├── AlreadyExists       the same id, different content
        ├── AgentNotFound       there is no such agent
        ├── CheckpointNotFound  there is no such checkpoint
        ├── RunNotFound         there is no such run
        ├── RunOver             the run has already ended
        └── LeaseError
            ├── LeaseHeld       another owner holds the lease of the agent
            └── LeaseLost       the lease was released, or a newer one was issued

Each class is one case that a caller would catch. The facts in a message are attributes of the error.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from celery_ckpt.checkpoint import Checkpoint


class CheckpointError(Exception):
    """The root of every error this library raises."""

    #: The message; the braces name facts.
    template: ClassVar[str] = "{reason}"
    #: Facts of several errors. An error has the facts that its message names.
    agent_id: str
    run_id: str
    checkpoint_id: str
    what: str
    where: str
    reason: str
    limit: int
    token: int

    def __init__(self, *message: str, **facts: Any) -> None:
        # Celery rebuilds an error from its message alone, without the facts.
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
    """A name is empty, too long, or not valid Unicode text."""

    template = "{what} {reason}. Use 1 to {limit} characters of valid Unicode text."


class NotJson(CheckpointError, ValueError):
    """JSON cannot represent a value exactly. It was refused before anything changed."""

    template = "{path} {reason}. Convert it to a value that JSON represents exactly."
    path: str


class StepResultNotJson(NotJson):
    """The result of a step cannot be recorded or read back. Nothing was recorded."""

    template = (
        "Step {step!r}: {path} {reason}. Return JSON, or annotate the function with a pydantic model "
        "that can read the result back, or pass returns=..."
    )
    step: str


class NotAMessage(StepResultNotJson):
    """The function passed to ``run.llm`` returned no message. Nothing was recorded."""

    template = "The function passed to run.llm ({function}) returned {reason}. {advice}"
    function: str
    advice: str


class NotACheckpoint(CheckpointError, ValueError):
    """Bytes are not a checkpoint that ``Checkpoint.to_bytes`` wrote."""

    template = (
        "These bytes are not a checkpoint: {reason}. Pass bytes that Checkpoint.to_bytes returned."
    )


class NotAnExport(CheckpointError, ValueError):
    """A line of a file is not part of an export. Nothing of its agent was imported."""

    template = "Line {line} cannot be imported: {reason}. Nothing of {what} was imported."
    line: int


class RunMisused(CheckpointError):
    """A body used its run in a way that a later attempt cannot repeat."""


class RedactionFailed(CheckpointError):
    """``ckpt_redact`` failed to redact a value. Nothing of the value was stored."""

    template = (
        "ckpt_redact failed on a {what}: {reason}. Nothing of it was stored. Correct the function."
    )


class NoCurrentRun(CheckpointError, RuntimeError):
    """``current_run()`` was called outside an agent's body."""

    template = (
        "No agent task is running here. Call current_run() inside the body of a task made with "
        "@agent_task or base=AgentTask. A thread that you start yourself does not inherit the run: "
        "pass run to it, or start it with contextvars.copy_context().run."
    )


class RunFailed(CheckpointError):
    """Raises the recorded failure of a run again, because Celery never stored it."""

    template = "Run {run_id!r} of agent {agent_id!r} has already failed: {reason}."


class RunStalled(CheckpointError):
    """A run was stopped because it kills its workers, or dies before it records anything."""

    template = (
        "Run {run_id!r} of agent {agent_id!r} was stopped: {attempts} attempts in a row died without "
        "recording a step or a checkpoint. Find what ended them (memory? time?), then resume the run."
    )
    attempts: int


class RunLost(CheckpointError):
    """The store has no record of a run that had begun. The agent was not deleted."""

    template = (
        "Run {run_id!r} of agent {agent_id!r} was lost: it had begun, and the store has no record of "
        "it. Check that the store keeps its data (celery ckpt doctor), then resume the run: it starts "
        "from what the store still has of the agent."
    )


class StepChanged(CheckpointError):
    """A call does not match its recorded step, and ``on_changed`` is "fail"."""

    template = (
        "Step {name!r} in iteration {iteration} of agent {agent_id!r} does not match its record: the "
        "code or its arguments changed during the run. Restore the old code, or use "
        "on_changed='call'."
    )
    name: str
    iteration: int


class StoreError(CheckpointError):
    """The store refused an operation, or could not do it."""


class StoreUnavailable(StoreError):
    """The store did not answer. Every operation is safe to repeat."""

    template = (
        "The checkpoint store at {where} did not answer: {reason}. Check that it is running and "
        "reachable."
    )


class StoreFull(StoreUnavailable):
    """The store has no room for a write. Everything that was saved before is intact."""

    template = (
        "The checkpoint store at {where} has no room left: {reason}. Earlier saves are intact. Free "
        "disk space, or raise the quota or limit; the next write then succeeds."
    )


class StoreDamaged(StoreError):
    """The store as a whole cannot be read."""

    template = "The checkpoint store at {where} cannot be read: {reason}. Restore it from a backup."


class CheckpointDamaged(StoreError):
    """A checkpoint exists but cannot be read. The agent's other checkpoints can.

    ``readable`` holds the checkpoints of the agent that ``CheckpointStore.list`` could read.
    """

    template = (
        "Checkpoint {checkpoint_id} of agent {agent_id!r} is damaged: {reason}. The agent's other "
        "checkpoints are intact: load one of them, or prune this one."
    )
    readable: Sequence[Checkpoint] = ()


class EncryptionKeyMissing(StoreError):
    """A value is encrypted with a key that is not known here. The data is intact."""

    template = (
        "{what} of agent {agent_id!r} is encrypted with the key {key_id!r}, which is not in "
        "ckpt_encryption_keys here. Add it after the first key."
    )
    key_id: str


class NotEncrypted(StoreError):
    """A value is not encrypted, although keys are set."""

    template = (
        "{what} of agent {agent_id!r} is not encrypted, although ckpt_encryption_keys is set. If it "
        "was written before keys were set, run `celery ckpt rekey --from-plaintext`; otherwise treat "
        "it as tampering."
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
        "Upgrade celery_ckpt here."
    )
    version: int
    supported: int


class CheckpointTooLarge(StoreError):
    """A checkpoint, step or run record exceeds ``max_checkpoint_bytes``. Nothing was written."""

    template = (
        "{what} of agent {agent_id!r} has {size:,} bytes, the limit is {limit:,}; the largest part is "
        "{part} with {part_size:,} bytes. Shorten it, or raise ckpt_max_checkpoint_bytes."
    )
    size: int
    part: str
    part_size: int


class AlreadyExists(StoreError):
    """The id is already stored, with different content."""

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
    """The store has no record of the run."""

    template = "Agent {agent_id!r} has no run {run_id!r}. Add its record before updating it."


class RunOver(StoreError):
    """The run has ended."""

    template = "Run {run_id!r} of agent {agent_id!r} has already ended ({status}). Nothing was changed."
    status: str


class LeaseError(StoreError):
    """A write conflicts with the lease of its agent."""


class LeaseHeld(LeaseError):
    """Another owner holds an unexpired lease of this agent."""

    template = (
        "{owner} holds the lease of agent {agent_id!r} (token {token}); it expires in "
        "{seconds_left:.1f} s. Wait until then, or write with the lease."
    )
    owner: str
    nonce: str
    seconds_left: float


class LeaseLost(LeaseError):
    """The lease is not valid: a newer one was issued, it was released, or the agent was deleted."""

    template = (
        "The lease with token {token} no longer covers agent {agent_id!r}. Nothing was written. "
        "Another attempt may have taken over: stop, or acquire a new lease."
    )


def is_disk_full(error: OSError) -> bool:
    """True if the disk or a quota is full, or a file would exceed the process's limit on file sizes."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
