"""How things go in a file store: checkpoints, agents, and what lies outside of their directories."""

from __future__ import annotations

import builtins
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from celery_ckpt.errors import StoreDamaged
from celery_ckpt.json_values import decode
from celery_ckpt.names import names_its_agent
from celery_ckpt.records import Schedule
from celery_ckpt.stores.file.directory import Agent
from celery_ckpt.stores.file.filesystem import make_directory, read, translated
from celery_ckpt.stores.file.ledger import FileLedger
from celery_ckpt.stores.log.store import LogStore


class FileDropping(FileLedger, LogStore):
    """The part of the store that removes."""

    _root: Path

    def _remove(self, agent: Agent, checkpoint_ids: builtins.list[str]) -> int:
        # A crash may have left a run's end that only counts as long as its checkpoint is there.
        self._desk(agent).write()
        removed = agent.journal.prune(checkpoint_ids)
        policy = agent.policy()
        if policy.without(checkpoint_ids) != policy:
            agent.set_policy(policy.without(checkpoint_ids))
        return removed

    def _move_to_trash(self, agent: Agent) -> None:
        # What is saved from now on is another agent, which gets a moment of its own.
        self._moments[Schedule.SWEEP].forget(agent.agent_id)
        self._throw_away(agent.directory)

    def _throw_away(self, directory: Path) -> None:
        trash = self._root / "trash" / secrets.token_hex(8)
        while directory.exists():
            with suppress(FileNotFoundError):  # another deletion may have emptied the trash
                make_directory(trash.parent)
                directory.rename(trash)
                break  # what is there now is another agent of that name, just made

    def _empty_trash(self) -> None:
        """Remove what was deleted, also by deletions that were cut off."""
        for left in (self._root / "trash").glob("*"):
            shutil.rmtree(left, ignore_errors=True)
        with suppress(OSError):
            (self._root / "trash").rmdir()

    def _registered(self, checkpoint_id: str) -> str | None:
        path = self._agents.id_file(checkpoint_id)
        return self._entry(path)[1] or None

    def _entry(self, path: Path) -> tuple[str, str]:
        """The id and the agent that an entry names; an empty one was removed just now."""
        with translated(path):
            found = read(path)
        try:
            fields = {"id": "", "agent_id": ""} if found is None else decode(found)
            return str(fields["id"]), str(fields["agent_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamaged(where=str(path), reason=str(error)) from error

    def _unregister(self, agent_id: str, checkpoint_ids: builtins.list[str]) -> None:
        for checkpoint_id in checkpoint_ids:
            is_native = names_its_agent(checkpoint_id, agent_id)
            if not is_native and self._registered(checkpoint_id) == agent_id:
                self._agents.id_file(checkpoint_id).unlink(missing_ok=True)
