"""Everything that an agent has, replaced in one atomic step.

The digest of the agent is taken before anything is read, and compared by the script that writes. If it
is the same, nothing changed in between.
"""

from __future__ import annotations

from collections.abc import Callable

from celery_ckpt.event_log import Part, decoded
from celery_ckpt.event_log import encoded as encoded_entry
from celery_ckpt.names import checked_name
from celery_ckpt.records import AgentContents, Change, Lease, RunRecord, Step
from celery_ckpt.stores.encoding import encoded
from celery_ckpt.stores.log.rewrite import rewritten
from celery_ckpt.stores.log.store import LogStore
from celery_ckpt.stores.redis.event_log import EventLog
from celery_ckpt.stores.redis.keys import FIELD, Keys
from celery_ckpt.stores.redis.leases import refuse
from celery_ckpt.stores.redis.run_line import run_line, usage_word
from celery_ckpt.stores.redis.runs import Runs
from celery_ckpt.stores.redis.server import Server, fence
from celery_ckpt.stores.redis.steps import Steps, run_prefix


class Rewrite:
    """Reads an agent, and writes what a change makes of it."""

    def __init__(
        self,
        store: LogStore,
        server: Server,
        keys: Keys,
        steps: Steps,
        runs: Runs,
        event_log: EventLog,
        limit: Callable[[], int],
    ) -> None:
        self._event_log = event_log
        self._store, self._server, self._keys = store, server, keys
        self._steps, self._runs, self._limit = steps, runs, limit

    def apply(self, agent_id: str, change: Change, lease: Lease | None) -> bool:
        """See ``CheckpointStore.rewrite``."""
        *keys, _ = self._keys.all_of(checked_name(agent_id))
        agent, _, steps_key, _, runs_key, *_ = keys
        digest = self._server.run("agent_contents", (agent, steps_key, runs_key))
        sequence = {info.id: info.seq for info in self._store.history(agent_id)}
        checkpoints = self._store.list(agent_id)[::-1]
        steps, runs = self._steps.numbered(agent_id), self._runs.numbered(agent_id)
        last, parts = self._event_log.stored(agent_id)
        lines = sorted(parts[Part.ATTEMPTS] + parts[Part.ENTRIES])
        log = [decoded(agent_id, number, text) for number, text in lines]
        before = AgentContents(checkpoints, [step for _, step in steps], [run for _, run in runs], log)
        after = change(before)
        if after is None:
            return True
        if sequence.keys() != {checkpoint.id for checkpoint in checkpoints}:
            return False  # a save or a sweep came in between
        history = rewritten(agent_id, [(sequence[one.id], one) for one in after.checkpoints])
        reply = self._server.run(
            "agent_rewrite",
            keys,
            fence(agent_id, lease),
            digest,
            len(history),
            len(after.steps),
            len(runs),
            last,
            sum(one.part is Part.ATTEMPTS for one in after.log),
            sum(one.part is Part.ENTRIES for one in after.log),
            *(part for one in history for part in (FIELD + one.checkpoint_id, one.line)),
            *(
                part
                for (n, _), step in zip(steps, after.steps, strict=False)
                for part in self._step(n, step)
            ),
            *(part for (n, _), run in zip(runs, after.runs, strict=True) for part in self._run(n, run)),
            *(
                b"%d %b" % (one.cursor, encoded_entry(one, agent_id))
                for part in (Part.ATTEMPTS, Part.ENTRIES)
                for one in after.log
                if one.part is part
            ),
            *(line for one in history for line in one.messages),
        )
        refuse(reply, agent_id, lease)
        return bool(reply[0] == b"ok")

    def _step(self, number: int, step: Step) -> tuple[str, int, bytes]:
        value = b"%d %b" % (number, encoded(step, self._limit()))
        return run_prefix(step.run_id) + step.key, step.iteration, value

    def _run(self, number: int, run: RunRecord) -> tuple[str, bytes]:
        used, line = usage_word(run.usage).encode(), run_line(run, self._limit())
        return run.run_id, b"%d %b %b" % (number, used, line)
