"""``ckpt show``: one agent, with its conversation, checkpoints, runs and steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.cli.addresses import checkpoint_id_of
from celery_ckpt.cli.commands import describing
from celery_ckpt.cli.errors import Code, Failure
from celery_ckpt.cli.options import agent_argument, agents_of, json_option, screen_of
from celery_ckpt.cli.output.conversing import EXCERPT
from celery_ckpt.cli.output.screen import Screen
from celery_ckpt.records import CheckpointInfo, RunRecord, Step
from celery_ckpt.runtime.agents.agents import Agents, AgentStatus

PARTS = ("conversation", "checkpoints", "runs", "steps")


@dataclass(frozen=True)
class Found:
    """All there is to show of an agent."""

    status: AgentStatus
    checkpoint: Checkpoint | None
    history: list[CheckpointInfo]
    runs: list[RunRecord]
    steps: list[Step]

    @property
    def run(self) -> RunRecord | None:
        """The run that the status is about: the active or the last one."""
        return next((run for run in self.runs if run.run_id == self.status.run_id), None)

    @classmethod
    def of(cls, agents: Agents, agent_id: str, checkpoint_id: str | None) -> Found:
        """Read it. Raises ``AgentNotFound`` and ``CheckpointNotFound``."""
        status = agents.status(agent_id)
        if checkpoint_id is None:
            checkpoint = agents.latest(agent_id)
        else:
            checkpoint = agents.checkpoint(checkpoint_id_of(agents, agent_id, checkpoint_id))
            if checkpoint.agent_id != agent_id:
                owner = f"Checkpoint {checkpoint.id} belongs to agent {checkpoint.agent_id!r}"
                raise Failure(f"{owner}, not to agent {agent_id!r}.", Code.NOT_FOUND)
        history, runs = agents.history(agent_id), agents.runs(agent_id)
        return cls(status, checkpoint, history, runs, agents.steps(agent_id))


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
    as_json: bool,
) -> None:
    """Show an agent.

    Prints its conversation, checkpoints, runs with their attempts, and recorded steps.
    """
    screen = screen_of(ctx, as_json=as_json)
    found = Found.of(agents_of(ctx), agent_id, checkpoint_id)
    if as_json:
        return screen.json(_as_object(found, parts or PARTS))
    with screen.paged(pager):
        _show(screen, found, parts, None if everything else last, None if full else EXCERPT)
    return None


def _show(
    screen: Screen, found: Found, parts: tuple[str, ...], last: int | None, limit: int | None
) -> None:
    if not parts:
        describing.summary(screen, found.status, found.run)
    wanted = parts or PARTS
    if "conversation" in wanted:
        describing.conversation(screen, found.checkpoint, last, limit)
    if "checkpoints" in wanted:
        describing.checkpoints(screen, found.history, found.runs, last)
    if "runs" in wanted:
        describing.runs(screen, found.runs, last)
    if "steps" in wanted:
        describing.steps(screen, found.steps, last)


def _run_as_object(run: RunRecord) -> dict[str, Any]:
    shown = run.model_dump(mode="json", exclude={"envelope", "usage"})
    return {**shown, "usage": run.usage.to_dict()}


def _as_object(found: Found, parts: tuple[str, ...]) -> dict[str, Any]:
    checkpoint = found.checkpoint
    whole: dict[str, dict[str, Any]] = {
        "conversation": {"checkpoint": checkpoint and checkpoint.model_dump(mode="json")},
        "checkpoints": {"checkpoints": [info.model_dump(mode="json") for info in found.history]},
        "runs": {"runs": [_run_as_object(run) for run in found.runs]},
        "steps": {"steps": [step.model_dump(mode="json") for step in found.steps]},
    }
    shown: dict[str, Any] = {"agent": found.status.model_dump(mode="json")}
    for part in parts:
        shown |= whole[part]
    return shown
