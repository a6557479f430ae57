"""How people name a checkpoint: by its id or the beginning of it, or by its agent.

nweuvi7oqasutv7t-06gu8qjh0ue3b0pb938cp6e8    the id
nweuvi7oqasutv7t-06gu8qjh0                   the beginning of one id only
user-42@latest                               the newest checkpoint of the agent
user-42@12                                   the newest one of iteration 12
user-42@06gu8qjh0                            the beginning of an id, with or without the first part
"""

from __future__ import annotations

import re

import click

from celery_ckpt.cli.output.progress import counting
from celery_ckpt.cli.output.text import counted
from celery_ckpt.names import locator, locator_in
from celery_ckpt.runtime.agents.agents import Agents

LATEST = "latest"
#: What this library makes; others may have other ids.
_ID = re.compile("[a-z2-7]{16}-[0-9a-v]{24}")


def checkpoint_id_at(agents: Agents, address: str) -> str:
    """The id of the checkpoint at an address; the address itself if there is none.

    Raises:
        click.UsageError: several checkpoints are meant.
    """
    if _ID.fullmatch(address) or agents.store.load(address) is not None:
        return address
    agent_id, has_agent, which = address.rpartition("@")
    found = _of_agent(agents, agent_id, which) if has_agent else _of_all(agents, address)
    if len(found) > 1:
        many = counted(len(found), "checkpoint")
        raise click.UsageError(f"{address!r} matches {many}: {', '.join(found)}. Give more of the id")
    return found[0] if found else address


def checkpoint_id_of(agents: Agents, agent_id: str, address: str) -> str:
    """The same where the agent is known: ``latest``, ``12`` or the beginning of an id will do."""
    own = f"{agent_id}@{address}"
    found = checkpoint_id_at(agents, own)
    return checkpoint_id_at(agents, address) if found == own else found


def _of_agent(agents: Agents, agent_id: str, which: str) -> list[str]:
    history = agents.history(agent_id) if agent_id and which else []
    named = [info.id for info in history if which in (LATEST, str(info.iteration))]
    return named[:1] or [info.id for info in history if _begins(info.id, which)]


def _begins(checkpoint_id: str, text: str) -> bool:
    return checkpoint_id.startswith(text) or checkpoint_id.partition("-")[2].startswith(text)


def _of_all(agents: Agents, start: str) -> list[str]:
    """The ids that begin so. Only the agents are looked at whose ids can."""
    names = [name for name in counting(agents.names(), "agents") if _may_begin(name, start)]
    return [info.id for name in names for info in agents.history(name) if info.id.startswith(start)]


def _may_begin(agent_id: str, start: str) -> bool:
    own, wanted = locator(agent_id), locator_in(start)
    return own == wanted if "-" in start else own.startswith(wanted)
