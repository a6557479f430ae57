"""All of an agent, written anew, in SQLite: one transaction."""

from __future__ import annotations

from celery_ckpt.checkpoint import Checkpoint
from celery_ckpt.codec import FORMAT_VERSION
from celery_ckpt.names import checked_name
from celery_ckpt.records import AgentContents, Change, Lease, Step
from celery_ckpt.stores.encoding import decoded_step, encoded
from celery_ckpt.stores.log.ranges import Ranges
from celery_ckpt.stores.log.rewrite import rewritten
from celery_ckpt.stores.log.store import listed, ranges_of_all
from celery_ckpt.stores.sqlite.database import writing
from celery_ckpt.stores.sqlite.sweeps import SqliteSweeps
from celery_ckpt.stores.sqlite.transaction import SEQ_BITS, places


class SqliteRewriting(SqliteSweeps):
    """The part of the store that writes everything anew."""

    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:
        """See ``Upkeep``."""
        if self._is_rewritten(checked_name(agent_id), change, lease):
            self._database.empty_log()
        return True

    @writing
    def _is_rewritten(self, agent_id: str, change: Change, lease: Lease | None) -> bool:
        key, held = self._lease_of(agent_id)
        lines = self._newest(key or 0)
        checkpoints = listed(agent_id, lines, self._messages(key or 0, ranges_of_all(agent_id, lines)))
        rows = self._database.all("all_steps", key or 0)
        steps = [decoded_step(agent_id, run_id, value) for _, run_id, value in rows]
        after = change(AgentContents(checkpoints[::-1], steps, self._desk(agent_id).runs()))
        if after is not None:
            held.refuse(agent_id, lease, self._clock.now())
        if after is not None and key is not None:
            places_of = [int(line.split(b" ", 2)[1]) for _, line in reversed(lines)]
            self._replace_saves(agent_id, key, places_of, after.checkpoints)
            self._replace_steps(key, [number for number, *_ in rows], after.steps)
            for run in after.runs:
                self._desk(agent_id).put(run)
        return after is not None

    def _replace_saves(
        self, agent_id: str, key: int, sequence: list[int], checkpoints: list[Checkpoint]
    ) -> None:
        [last] = self._database.one("last_place", *places(key))
        self._database.run("delete_saves", *places(key))
        history = rewritten(agent_id, zip(sequence, checkpoints, strict=True))
        for one in history:
            messages = b"\n".join(one.messages)
            added = (FORMAT_VERSION, len(one.messages), one.checkpoint_id, one.rest, messages)
            self._database.add("add_save", (key << SEQ_BITS) + one.seq, True, one.base, *added)
        if last is not None and last != (key << SEQ_BITS) + max(sequence, default=0):
            # The last one was pruned: its number must not be given again.
            end = history[-1].base + len(history[-1].messages) if history else 0
            self._database.add("add_save", last, True, end, FORMAT_VERSION, 0, None, None, b"")

    def _replace_steps(self, key: int, numbers: list[int], steps: list[Step]) -> None:
        self._database.run("delete_steps", key)
        for number, step in zip(numbers, steps, strict=False):
            value = encoded(step, self.max_checkpoint_bytes)
            self._database.run("put_step", number, key, step.run_id, step.key, step.iteration, value)

    def _messages(self, key: int, ranges: Ranges) -> dict[int, bytes]:
        messages: dict[int, bytes] = {}
        for start, count, _ in ranges.spans:
            rows = self._database.all("messages", *places(key), start, start + count)
            for base, added, text in rows:
                lines = text.split(b"\n")
                if len(lines) == added:
                    messages.update(zip(range(base, base + added), lines, strict=True))
        return messages
