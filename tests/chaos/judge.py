"""The verdict on a campaign: what was done, what was repeated, and what was wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from celery import current_app
from celery.result import AsyncResult

from celery_ckpt import CheckpointStore
from celery_ckpt.runtime.process.context import AppContext
from tests.chaos.fleet import LEASE, Fleet
from tests.chaos.records import judge_record
from tests.support import bodies
from tests.support.ledger import NO_RUN, Note
from tests.support.repetitions import repetitions, uninterrupted
from tests.support.servers.valkey import Guarded
from tests.support.wait import until

#: How long all agents together may take to end after the last fault.
_END = 120.0
_CLEAN = 60.0
#: How a body ends that was not interrupted.
_IN_ORDER = {"returned", "HandOff"}


@dataclass
class Verdict:
    """The figures of one campaign."""

    name: str
    seed: int
    faults: int = 0
    runs: int = 0
    calls: int = 0
    repeated: int = 0
    interrupted: int = 0
    hand_offs: int = 0
    #: The seconds from each kill of a body to the start of the next body of its run.
    resumes: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    #: Other measurements, as text.
    remarks: list[str] = field(default_factory=list)

    @property
    def p50(self) -> float | None:
        """Return the median time to resume."""
        return median(self.resumes) if self.resumes else None

    @property
    def p99(self) -> float | None:
        """Return the 99th percentile of the time to resume."""
        ordered = sorted(self.resumes)
        return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] if ordered else None


def judge(fleet: Fleet, verdict: Verdict) -> Verdict:
    """Wait for the end of all runs, and check everything that they did."""
    for result in fleet.results:
        until(lambda run=result: fleet.supervise() and run.ready(), _END, f"{result.id} ends")
        value = result.get(timeout=_END)
        if value != uninterrupted(fleet.iterations):
            verdict.problems.append(f"run {result.id} returned {value}")
    _wait_until_clean(fleet)
    notes = defaultdict(list)
    for note in fleet.ledger.notes():
        notes[note.run_id].append(note)
    # A failover may undo the beginning of an attempt. Nonces distinguish equal tokens.
    is_forgetful = isinstance(fleet.store, Guarded)
    for result in fleet.results:
        _judge_run(result, fleet.iterations, notes[result.id], notes[NO_RUN], verdict)
        # A body that was frozen just before it began begins late, and is stopped at its first event.
        thawed = _thawed(notes[NO_RUN])
        begins = [n for n in notes[result.id] if n.what == "begin" and not _is_late(n, thawed)]
        begins = [] if is_forgetful else begins
        verdict.problems += judge_record(_store(), result.id, uninterrupted(fleet.iterations), begins)
    verdict.runs = len(fleet.results)
    return verdict


def _store() -> CheckpointStore:
    return AppContext.of(current_app).store


def _wait_until_clean(fleet: Fleet) -> None:
    fleet.broker.assert_clean(_CLEAN)
    store = _store()
    for result in fleet.results:
        until(lambda run=result.id: not store.activity(run).open, _CLEAN, f"{result.id} is settled")


def _judge_run(
    result: AsyncResult, iterations: int, own: Sequence[Note], others: Sequence[Note], verdict: Verdict
) -> None:
    in_order = sorted([*own, *others], key=lambda note: note.at)
    made = bodies.of_run(in_order, result.id)
    interrupted = sum(body.how not in _IN_ORDER or bool(body.frozen) for body in made)
    try:
        thawed = _thawed(others)
        repeated = repetitions(result.id, iterations, own, lambda call: _is_late(call, thawed))
        assert repeated <= interrupted, (
            f"run {result.id}: {repeated} repeated calls, {interrupted} interrupted bodies"
        )
        awake = [body for body in made if not _woke_up_fenced(body, thawed)]
        beside = bodies.overlaps([_at_work(body) for body in awake], grace_after_thaw=LEASE)
        assert not beside, f"two bodies of run {result.id} at once: {beside}"
    except AssertionError as error:
        verdict.problems.append(str(error))
        return
    verdict.calls += 2 * iterations + repeated
    verdict.repeated += repeated
    verdict.interrupted += interrupted
    verdict.hand_offs += sum(body.how == "HandOff" for body in made)
    verdict.resumes += [
        after.begin - body.end for body, after in pairwise(made) if body.how == "killed"
    ]


def _thawed(others: Sequence[Note]) -> list[Note]:
    return [note for note in others if note.what == "thawed"]


def _is_late(call: Note, thawed: Sequence[Note]) -> bool:
    """True if this is the one extra call that a body may make after it was frozen past its lease."""
    return any(call.pid in thaw["pids"] and 0 <= call.at - thaw.at < LEASE for thaw in thawed)


def _at_work(body: bodies.Body) -> bodies.Body:
    """Return the body without the time in which it only waited.

    A body that waited for the store or for a processor until it was refused or killed did nothing while
    it waited.
    """
    return replace(body, end=body.last) if body.how in ("Fenced", "killed") else body


def _woke_up_fenced(body: bodies.Body, thawed: Sequence[Note]) -> bool:
    """True if the body was frozen just before it began, and stopped at its first event."""
    woken = any(body.pid in thaw["pids"] and 0 <= body.begin - thaw.at < LEASE for thaw in thawed)
    return woken and body.how == "Fenced"
