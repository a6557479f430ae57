"""What must be true at the end of every schedule, whatever happened before."""

from __future__ import annotations

from itertools import pairwise

from celery.states import FAILURE, REVOKED, SUCCESS

from celery_ckpt.records import RunRecord, RunStatus
from tests.protocol.world import AGENT, CALLS, World

#: The Celery state that the caller of a run must see.
_CELERY_STATES = {
    RunStatus.SUCCEEDED: SUCCESS,
    RunStatus.FAILED: FAILURE,
    RunStatus.CANCELLED: REVOKED,
}


def violations(world: World) -> list[str]:
    """Return what is wrong."""
    repeated = sum(times - 1 for times in world.calls.values())
    waited = world.waits > 0 == world.troubles + world.redeliveries + world.passes
    facts = {
        "not settled": [run.run_id for run in world.open_runs()],
        "outcome never stored": sorted(world.unreported()),
        "deleted and back": sorted(world.deleted & {run.run_id for run in world.store.runs(AGENT)}),
        "messages left": [*world.queue, *world.unacked.values()],
        # What the store has lost may all be repeated.
        "repeated calls": [repeated]
        if repeated > world.troubles + world.losses * len(world.calls)
        else [],
        "not one history": _disconnected_results(world),
        "begun in another order": _out_of_order(world),
        # Without failures, nothing is left for the watchdog.
        "waits": [world.waits] if waited else [],
    }
    wrong = [f"{what}: {which}" for what, which in facts.items() if which]
    runs = [run for run in world.store.runs(AGENT) if not world.cannot_be_settled(run)]
    return wrong + [said for run in runs for said in _violations_of(world, run)]


def _out_of_order(world: World) -> list[str]:
    """Return the order in which the runs have begun, if it is not the order of sending."""
    begun = list(dict.fromkeys(world.order))
    is_excused = world.passes + world.deletions + world.losses > 0
    return [] if is_excused or begun == [run for run in world.published if run in begun] else begun


def _disconnected_results(world: World) -> list[object]:
    """Return the results that do not build on each other: each run continues with the agent's state."""
    done = {run: result for run, (state, result) in world.results.items() if state == SUCCESS}
    in_order = sorted(done.values(), key=len)
    nested = [] if world.deletions + world.losses else pairwise(in_order)
    apart: list[object] = [(less, more) for less, more in nested if more[: len(less)] != less]
    return apart + [
        (run, result)
        for run, result in done.items()
        if [each for each in result if each.startswith(f"{run},")]
        != [f"{run}, call {number + 1}" for number in range(CALLS)]
    ]


def _violations_of(world: World, run: RunRecord) -> list[str]:
    is_success = run.status is RunStatus.SUCCEEDED
    callbacks, failures = world.callbacks[run.run_id], world.failures[run.run_id]
    allowed = (1 + world.max_retries) * (1 + world.resumed)
    facts = {
        "has another state in Celery": world.state(run.run_id) != _CELERY_STATES.get(run.status),
        "failed too early": run.status is RunStatus.FAILED
        and failures <= world.max_retries
        and not (world.losses and (run.error or "").startswith("RunLost: ")),
        "was attempted too often": failures > allowed + world.troubles,
        "has too many retries": run.retries > min(failures, world.max_retries),
        "has no callback": is_success and not callbacks,
        # A run may be lost after its callbacks were published and before its result was stored.
        "has too many callbacks": callbacks
        > (is_success or world.losses * world.crashes > 0) * (1 + world.troubles),
    }
    said = f"{run.run_id} ({run.status}, {world.state(run.run_id)}, retries {run.retries})"
    return [f"{said} {what}" for what, is_so in facts.items() if is_so]
