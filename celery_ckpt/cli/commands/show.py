"""``ckpt show``: one agent, with its conversation, checkpoints, runs and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.cli.commands.timeline import show_timeline
from celery_ckpt.cli.errors import Code, Failure
from celery_ckpt.cli.options import agent_argument, agents_of, checkpoint_id_of, json_option, screen_of
from celery_ckpt.cli.output.screen import EXCERPT, Screen
from celery_ckpt.cli.output.tables import Column
from celery_ckpt.cli.output.text import (
    age,
    as_json_line,
    cost_of,
    counted,
    one_line,
    status_of,
    tokens_of,
)
from celery_ckpt.records import CheckpointInfo, RunOutline, RunStatus, Step
from celery_ckpt.runtime.agents.agents import Agents, AgentStatus
from celery_ckpt.runtime.process.owner import host_and_pid
from celery_ckpt.usage import Usage

PARTS = ("conversation", "checkpoints", "runs", "steps")
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


@dataclass(frozen=True)
class Found:
    """Everything that can be shown of an agent."""

    status: AgentStatus
    checkpoint: Checkpoint | None
    history: list[CheckpointInfo]
    #: Without results, unless all of them were asked for.
    runs: Sequence[RunOutline]
    #: The results of the runs that are shown.
    results: dict[str, Any]
    steps: list[Step]

    @classmethod
    def of(
        cls, agents: Agents, agent_id: str, checkpoint_id: str | None, last: int | None = None
    ) -> Found:
        """Read the agent. With ``last``, only the results of that many runs, and of the present one.

        Raises:
            AgentNotFound, CheckpointNotFound: there is no such agent or checkpoint.
        """
        status = agents.status(agent_id)
        if checkpoint_id is None:
            checkpoint = agents.latest(agent_id)
        else:
            checkpoint = agents.checkpoint(checkpoint_id_of(agents, agent_id, checkpoint_id))
            if checkpoint.agent_id != agent_id:
                owner = f"Checkpoint {checkpoint.id} belongs to agent {checkpoint.agent_id!r}"
                raise Failure(f"{owner}, not to agent {agent_id!r}.", Code.NOT_FOUND)
        runs: Sequence[RunOutline]
        if last is None:
            runs = records = agents.runs(agent_id)
        else:
            runs = agents.run_outlines(agent_id)[::-1]
            shown = {run.run_id for run in runs[max(len(runs) - last, 0) :]} | {status.run_id}
            ended = [one.run_id for one in runs if one.status is RunStatus.SUCCEEDED]
            found = [agents.store.run(agent_id, name) for name in ended if name in shown]
            records = [record for record in found if record is not None]
        results = {record.run_id: record.result for record in records}
        history, steps = agents.history(agent_id), agents.steps(agent_id)
        return cls(status, checkpoint, history, runs, results, steps)


@click.command("show")
@agent_argument
@click.option(
    "--part", "parts", type=click.Choice(PARTS), multiple=True, help="Show only this part; repeatable."
)
@click.option(
    "--checkpoint", "checkpoint_id", metavar="ID", help="Show this checkpoint instead of the latest."
)
@click.option(
    "-n", "--last", type=click.IntRange(0), default=20, show_default=True,
    help="How many messages, checkpoints, runs and steps to show.",
)  # fmt: skip
@click.option(
    "--all", "everything", is_flag=True, help="Show all messages, checkpoints, runs and steps."
)
@click.option("--full", is_flag=True, help="Show messages in full.")
@click.option(
    "--pager/--no-pager", default=True, help="Use a pager if the output is longer than the terminal."
)
@click.option("--timeline", is_flag=True, help="Show attempts and calls, from the event log.")
@json_option
@click.pass_context
def show_(
    ctx: click.Context,
    agent_id: str,
    parts: tuple[str, ...],
    checkpoint_id: str | None,
    last: int,
    everything: bool,
    full: bool,
    pager: bool,
    timeline: bool,
    as_json: bool,
) -> None:
    """Show an agent.

    Prints its conversation, checkpoints, runs with their attempts, and recorded steps. With --timeline,
    prints its attempts, and when and how long each made which call.
    """
    screen = screen_of(ctx, as_json=as_json)
    if timeline:
        with screen.paged(pager):
            show_timeline(screen, agents_of(ctx), agent_id)
        return
    wanted, shown = parts or PARTS, None if everything else last
    found = Found.of(agents_of(ctx), agent_id, checkpoint_id, None if as_json else shown)
    if as_json:
        screen.json(_as_object(found, wanted))
        return
    with screen.paged(pager):
        if not parts:
            _show_summary(screen, found)
        if "conversation" in wanted:
            _show_conversation(screen, found.checkpoint, shown, None if full else EXCERPT)
        if "checkpoints" in wanted:
            _show_checkpoints(screen, found, shown)
        if "runs" in wanted:
            _show_runs(screen, found, shown)
        if "steps" in wanted:
            _show_steps(screen, found.steps, shown)


def _as_object(found: Found, parts: tuple[str, ...]) -> dict[str, Any]:
    shown: dict[str, Any] = {"agent": found.status.model_dump(mode="json")}
    if "conversation" in parts:
        shown["checkpoint"] = found.checkpoint and found.checkpoint.model_dump(mode="json")
    if "checkpoints" in parts:
        shown["checkpoints"] = [info.model_dump(mode="json") for info in found.history]
    if "runs" in parts:
        shown["runs"] = [
            {**run.model_dump(mode="json", exclude={"envelope", "usage"}), "usage": run.usage.to_dict()}
            for run in found.runs
        ]
    if "steps" in parts:
        shown["steps"] = [step.model_dump(mode="json") for step in found.steps]
    return shown


# -- the parts, for people ---------------------------------------------------------------------------


def _show_summary(screen: Screen, found: Found) -> None:
    """Show the agent and its active or latest run in a few lines."""
    status = found.status
    run = next((run for run in found.runs if run.run_id == status.run_id), None)
    screen.line(status.agent_id, "bold")
    facts = [("status", status_of(status)), ("task", status.task), ("run", status.run_id)]
    facts += [("attempts", f"{status.attempts} (retries: {status.retries})")] if status.run_id else []
    call = f"{status.call.kind} {status.call.name}" if status.call else None
    facts += [("worker", status.owner and host_and_pid(status.owner)), ("calling", call)]
    facts += [("error", status.error)]
    facts += [("result", _result(found, run))] if run else []
    facts += [("usage", _usage(status.usage))]
    facts += [("blocked", counted(status.blocked, "run"))] if status.blocked else []
    for name, value in facts:
        if value:
            screen.fact(name, one_line(value, 500))


def _usage(usage: Usage) -> str:
    if not usage:
        return ""
    parts = [f"{usage.input_tokens:,} tokens in", f"{usage.output_tokens:,} out"]
    parts += [f"{usage.cached_tokens:,} cached"] if usage.cached_tokens else []
    parts += [f"cost {cost_of(usage)}"] if usage.cost is not None else []
    models = ", ".join(model for model in usage.by_model if model)
    return ", ".join(parts) + (f" ({models})" if models else "")


def _show_conversation(
    screen: Screen, checkpoint: Checkpoint | None, last: int | None, limit: int | None
) -> None:
    """Show the first message and the last ones, then what the conversation waits for, and the state."""
    if checkpoint is None:
        screen.heading("Conversation: no checkpoint yet")
        return
    conversation = checkpoint.conversation
    messages, tokens = conversation.messages, conversation.estimated_tokens()
    screen.heading(f"Conversation: {counted(len(messages), 'message')}, about {tokens:,} tokens")
    omitted = 0 if last is None else max(len(messages) - last, 0)
    if omitted and last:
        # The first message says what the conversation is about.
        screen.messages(messages[:1], limit=limit)
        if omitted > 1:
            many = counted(omitted - 1, "message")
            screen.line(f"     … {many} omitted (--all shows them) …", "dim")
    screen.messages(messages[omitted:], first=omitted + 1, limit=limit)
    if pending := conversation.pending_tool_calls():
        names = ", ".join(call.name for call in pending)
        screen.line(f"     waiting for results of: {names}", "yellow")
    if state := checkpoint.state:
        screen.fact("state", one_line(as_json_line(state), limit))


def _show_checkpoints(screen: Screen, found: Found, last: int | None) -> None:
    """Show the checkpoints, newest first."""
    history = found.history
    _heading(screen, "Checkpoints", len(history), last)
    # The last checkpoint of a run that succeeded has no event: it was taken when the run ended.
    succeeded = {run.run_id for run in found.runs if run.status is RunStatus.SUCCEEDED}
    last_of = {info.run_id: info.id for info in reversed(history) if info.run_id in succeeded}
    final = set(last_of.values())
    rows = []
    for info in history[:last]:
        metadata = " ".join(f"{key}={value}" for key, value in info.metadata.items())
        event = info.event.value if info.event else "end" if info.id in final else ""
        taken, pin = age(info.created_at), one_line(info.pin or "", 20)
        rows.append([info.id, info.iteration, pin, event, taken, one_line(metadata, 80)])
    if history:
        screen.table(_CHECKPOINTS, rows)


def _show_runs(screen: Screen, found: Found, last: int | None) -> None:
    """Show the runs, newest first."""
    runs = found.runs
    _heading(screen, "Runs", len(runs), last)
    rows = [
        [
            run.run_id,
            run.task,
            run.status.value,
            run.attempts,
            run.retries or None,
            run.stalled or None,
            age(run.created_at),
            tokens_of(run.usage),
            cost_of(run.usage),
            one_line(run.error or _result(found, run), 80),
        ]
        for run in runs[::-1][:last]
    ]
    if runs:
        screen.table(_RUNS, rows)


def _result(found: Found, run: RunOutline) -> str:
    result = found.results.get(run.run_id) if run.status is RunStatus.SUCCEEDED else None
    return "" if result is None else as_json_line(result)


def _show_steps(screen: Screen, steps: list[Step], last: int | None) -> None:
    """Show the recorded steps that a later attempt replays, newest last."""
    _heading(screen, "Recorded steps", len(steps), last)
    rows = [
        [step.iteration, step.name, one_line(step.key, 40), one_line(as_json_line(step.value), 60)]
        for step in (steps if last is None else steps[max(len(steps) - last, 0) :])
    ]
    if rows:
        screen.table(_STEPS, rows)


def _heading(screen: Screen, title: str, count: int, last: int | None) -> None:
    shown = "" if last is None or count <= last else f" (newest {last} shown)"
    screen.heading(f"{title}: {count}{shown}")
