"""All of an agent, written anew, in Redis.

The digest is taken before anything is read, and compared in the script that writes: if they are the
same, nothing was changed between the two.
"""

from __future__ import annotations

import builtins

from celery_ckpt.names import checked_name
from celery_ckpt.records import AgentContents, Change, Lease, RunRecord, Step
from celery_ckpt.stores.encoding import damaged, decoded_step, encoded
from celery_ckpt.stores.log.rewrite import rewritten
from celery_ckpt.stores.log.store import LogStore
from celery_ckpt.stores.redis.keys import FIELD, shown
from celery_ckpt.stores.redis.leases import fence, number_of, refuse, run_prefix
from celery_ckpt.stores.redis.pruning import RedisSweeps
from celery_ckpt.stores.redis.run_lines import parsed_run, usage_word


class RedisRewriting(RedisSweeps, LogStore):
    """The part of the store that writes everything anew."""

    def rewrite(self, agent_id: str, change: Change, lease: Lease | None = None) -> bool:
        """See ``Upkeep``."""
        agent, log, steps_key, index, runs_key, _ = self._keys.all_of(checked_name(agent_id))
        digest = self._server.run("agent_contents", (agent, steps_key, runs_key))
        sequence = {info.id: info.seq for info in self.history(agent_id)}
        checkpoints = self.list(agent_id)[::-1]
        steps, runs = self._all_steps(agent_id), self._all_runs(agent_id)
        before = AgentContents(checkpoints, [step for _, step in steps], [run for _, run in runs])
        after = change(before)
        if after is None:
            return True
        if sequence.keys() != {checkpoint.id for checkpoint in checkpoints}:
            return False  # somebody saved or pruned meanwhile
        history = rewritten(agent_id, [(sequence[one.id], one) for one in after.checkpoints])
        reply = self._server.run(
            "agent_rewrite",
            (agent, log, steps_key, index, runs_key),
            fence(agent_id, lease),
            digest,
            len(history),
            len(after.steps),
            len(runs),
            *(part for one in history for part in (FIELD + one.checkpoint_id, one.line)),
            *(
                part
                for (n, _), step in zip(steps, after.steps, strict=False)
                for part in self._step(n, step)
            ),
            *(part for (n, _), run in zip(runs, after.runs, strict=True) for part in self._run(n, run)),
            *(line for one in history for line in one.messages),
        )
        refuse(reply, agent_id, lease)
        return bool(reply[0] == b"ok")

    def _all_steps(self, agent_id: str) -> builtins.list[tuple[int, Step]]:
        """All steps, of whichever run, each with its number, in order."""
        flat = self._server.run("hash_all", self._keys.of(agent_id, "steps"))
        found = [
            (
                number_of(value),
                decoded_step(agent_id, _run_of(agent_id, field), value.partition(b" ")[2]),
            )
            for field, value in zip(flat[::2], flat[1::2], strict=True)
        ]
        return sorted(found, key=lambda numbered: numbered[0])

    def _all_runs(self, agent_id: str) -> builtins.list[tuple[int, RunRecord]]:
        flat = self._server.run("hash_all", self._keys.of(agent_id, "runs"))
        found = [
            (number_of(line), parsed_run(agent_id, shown(name), line))
            for name, line in zip(flat[::2], flat[1::2], strict=True)
        ]
        return sorted(found, key=lambda numbered: numbered[0])

    def _step(self, number: int, step: Step) -> tuple[str, int, bytes]:
        value = b"%d %b" % (number, encoded(step, self.max_checkpoint_bytes))
        return run_prefix(step.run_id) + step.key, step.iteration, value

    def _run(self, number: int, run: RunRecord) -> tuple[str, bytes]:
        return run.run_id, b"%d %b %b" % (number, usage_word(run.usage).encode(), self._line(run))


def _run_of(agent_id: str, field: bytes) -> str:
    """The run in the name of a step: "length:run_id:key"."""
    try:
        length, _, rest = field.decode().partition(":")
        return rest[: int(length)]
    except ValueError as error:
        raise damaged(f"The name of a step of agent {agent_id!r}", error) from error
