"""The parts of ``ckpt show``, for people."""

from __future__ import annotations

from typing import Any

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.cli.output.conversing import show_messages
from celery_ckpt.cli.output.screen import Screen
from celery_ckpt.cli.output.tables import Column
from celery_ckpt.cli.output.text import age, as_json, counted, one_line
from celery_ckpt.records import CheckpointInfo, RunRecord, RunStatus, Step
from celery_ckpt.runtime.agents.agents import AgentStatus
from celery_ckpt.runtime.process.owner import host_and_pid
from celery_ckpt.usage import Usage

_CHECKPOINTS = (
    Column("id", whole=True),
    Column("iteration", right=True),
    Column("pin", coloured=True),
    Column("after", dim=True),
    Column("taken", dim=True),
    Column("metadata"),
)
_RUNS = (
    Column("run", whole=True),
    Column("task", dim=True),
    Column("status", coloured=True),
    Column("attempts", right=True),
    Column("retries", right=True),
    Column("stalled", right=True),
    Column("sent", dim=True),
    Column("tokens", right=True),
    Column("cost", right=True),
    Column("outcome"),
)
_STEPS = (
    Column("iteration", right=True),
    Column("name", whole=True),
    Column("key", dim=True),
    Column("result"),
)


#: The status of an agent that never had a run.
IDLE = "idle"


def standing(status: AgentStatus) -> str:
    """The agent's status in a word."""
    return status.status.value if status.status else IDLE


def tokens(usage: Usage) -> str:
    """How many tokens of input and output, in short."""
    return f"{usage.tokens:,}" if usage else ""


def cost(usage: Usage) -> str:
    """The cost, if it is known. It has no currency: ``ckpt_cost`` decides which one it is in."""
    return "" if usage.cost is None else f"{usage.cost:.4f}"


def _usage(usage: Usage) -> str:
    if not usage:
        return ""
    parts = [f"{usage.input_tokens:,} tokens in", f"{usage.output_tokens:,} out"]
    parts += [f"{usage.cached_tokens:,} cached"] if usage.cached_tokens else []
    parts += [f"cost {cost(usage)}"] if usage.cost is not None else []
    models = ", ".join(model for model in usage.by_model if model)
    return ", ".join(parts) + (f" ({models})" if models else "")


def summary(screen: Screen, status: AgentStatus, run: RunRecord | None) -> None:
    """The agent in a few lines; ``run`` is its active or last run."""
    screen.line(status.agent_id, "bold")
    facts = [("status", standing(status)), ("task", status.task), ("run", status.run_id)]
    facts += [("attempts", f"{status.attempts} (retries: {status.retries})")] if status.run_id else []
    facts += [("worker", status.owner and host_and_pid(status.owner)), ("error", status.error)]
    facts += [("result", _result(run))] if run else []
    facts += [("usage", _usage(status.usage))]
    facts += [("blocked", counted(status.blocked, "run"))] if status.blocked else []
    for name, value in facts:
        if value:
            screen.fact(name, one_line(value, 500))


def conversation(
    screen: Screen, checkpoint: Checkpoint | None, last: int | None, limit: int | None
) -> None:
    """What was said, shortened in the middle."""
    if checkpoint is None:
        screen.heading("Conversation: no checkpoint yet")
        return
    conversation = checkpoint.conversation
    messages = conversation.messages
    tokens = conversation.estimated_tokens()
    screen.heading(f"Conversation: {counted(len(messages), 'message')}, about {tokens:,} tokens")
    left_out = 0 if last is None else max(len(messages) - last, 0)
    if left_out and last:
        # The first one says what it is all about.
        show_messages(screen, messages[:1], limit=limit)
        if left_out > 1:
            screen.line(
                f"     … {counted(left_out - 1, 'message')} omitted (--all shows them) …", "dim"
            )
    show_messages(screen, messages[left_out:], first=left_out + 1, limit=limit)
    pending = conversation.pending_tool_calls()
    if pending:
        screen.line(
            f"     waiting for results of: {', '.join(call.name for call in pending)}", "yellow"
        )
    if state := checkpoint.state:
        screen.fact("state", one_line(as_json(state), limit))


def checkpoints(
    screen: Screen, history: list[CheckpointInfo], runs: list[RunRecord], last: int | None
) -> None:
    """The checkpoints, newest first."""
    screen.heading(f"Checkpoints: {len(history)}{_newest(len(history), last)}")
    final = _final_checkpoints(history, runs)
    if history:
        screen.table(_CHECKPOINTS, [_checkpoint_row(info, final) for info in history[:last]])


def _final_checkpoints(history: list[CheckpointInfo], runs: list[RunRecord]) -> set[str]:
    """The ids of those that were taken when their run succeeded: the last of each such run."""
    succeeded = {run.run_id for run in runs if run.status is RunStatus.SUCCEEDED}
    last_of = {info.run_id: info.id for info in reversed(history) if info.run_id in succeeded}
    return set(last_of.values())


def _checkpoint_row(info: CheckpointInfo, final: set[str]) -> list[Any]:
    metadata = " ".join(f"{key}={value}" for key, value in info.metadata.items())
    event = info.event.value if info.event else "end" if info.id in final else ""
    taken, pin = age(info.created_at), one_line(info.pin or "", 20)
    return [info.id, info.iteration, pin, event, taken, one_line(metadata, 80)]


def runs(screen: Screen, runs: list[RunRecord], last: int | None) -> None:
    """The runs with their attempts, newest first."""
    screen.heading(f"Runs: {len(runs)}{_newest(len(runs), last)}")
    if runs:
        screen.table(_RUNS, [_run_row(run) for run in runs[::-1][:last]])


def _run_row(run: RunRecord) -> list[Any]:
    return [
        run.run_id,
        run.task,
        run.status.value,
        run.attempts,
        run.retries or None,
        run.stalled or None,
        age(run.created_at),
        tokens(run.usage),
        cost(run.usage),
        one_line(run.error or _result(run), 80),
    ]


def _result(run: RunRecord) -> str:
    has_result = run.status is RunStatus.SUCCEEDED and run.result is not None
    return as_json(run.result) if has_result else ""


def steps(screen: Screen, steps: list[Step], last: int | None) -> None:
    """The recorded steps that a later attempt would replay."""
    screen.heading(f"Recorded steps: {len(steps)}{_newest(len(steps), last)}")
    shown = steps if last is None else steps[max(len(steps) - last, 0) :]
    if shown:
        screen.table(_STEPS, [_step_row(step) for step in shown])


def _step_row(step: Step) -> list[Any]:
    return [step.iteration, step.name, one_line(step.key, 40), one_line(as_json(step.value), 60)]


def _newest(count: int, last: int | None) -> str:
    return "" if last is None or count <= last else f" (newest {last} shown)"
