"""What must be true when all is quiet, whatever has come between."""

from __future__ import annotations

from itertools import pairwise

from celery.states import FAILURE, READY_STATES, REVOKED, SUCCESS

from celery_ckpt.records import RunRecord, RunStatus
from tests.protocol.world import AGENT, CALLS, World

#: What whoever waits for a run is told.
_TOLD = {
    RunStatus.SUCCEEDED: SUCCESS,
    RunStatus.FAILED: FAILURE,
    RunStatus.CANCELLED: REVOKED,
}


def judged(world: World) -> list[str]:
    """What is wrong."""
    told = {run for run in world.results if world.state(run) in READY_STATES}
    repeated = sum(times - 1 for times in world.calls.values())
    waited = world.waits > 0 == world.troubles + world.redeliveries
    facts = {
        "not settled": [run.run_id for run in world.open_runs()],
        "nobody hears of": sorted(world.published - world.untold - told),
        "messages left": [*world.queue, *world.unacked.values()],
        "calls made again": [repeated] if repeated > world.troubles else [],
        "not one history": _apart(world),
        # Without any trouble nothing is left to the watchdog.
        "waits": [world.waits] if waited else [],
    }
    wrong = [f"{what}: {which}" for what, which in facts.items() if which]
    runs = [run for run in world.store.runs(AGENT) if not world.is_beyond_help(run)]
    return wrong + [said for run in runs for said in _wrong_with(world, run)]


def _apart(world: World) -> list[object]:
    """Each run goes on with the agent's state, so one adds to what the other came to."""
    done = {run: result for run, (state, result) in world.results.items() if state == SUCCESS}
    in_order = sorted(done.values(), key=len)
    nested = [] if world.is_deleted else pairwise(in_order)
    apart: list[object] = [(less, more) for less, more in nested if more[: len(less)] != less]
    return apart + [
        (run, result)
        for run, result in done.items()
        if [each for each in result if each.startswith(f"{run},")]
        != [f"{run}, call {number + 1}" for number in range(CALLS)]
    ]


def _wrong_with(world: World, run: RunRecord) -> list[str]:
    is_success = run.status is RunStatus.SUCCEEDED
    callbacks, failures = world.callbacks[run.run_id], world.failures[run.run_id]
    allowed = (1 + world.max_retries) * (1 + world.resumed)
    facts = {
        "is told otherwise": world.state(run.run_id) != _TOLD.get(run.status),
        "failed too early": run.status is RunStatus.FAILED and failures <= world.max_retries,
        "was tried too often": failures > allowed + world.troubles,
        "has too many retries": run.retries > min(failures, world.max_retries),
        "was not called back": is_success and not callbacks,
        "was called back again": callbacks > is_success * (1 + world.troubles),
    }
    said = f"{run.run_id} ({run.status}, {world.state(run.run_id)}, retries {run.retries})"
    return [f"{said} {what}" for what, is_so in facts.items() if is_so]
