"""crash_everywhere checks that an agent ends the same, wherever it is interrupted.

    def test_my_agent_survives():
        crash_everywhere(research, ("why is the sky blue?",))

The agent first runs without interruption. Then it runs twice for every write to its store, killed just
before the write and just after it, and once for every place where a worker that shuts down can hand it
off. Each time, further attempts continue it until it ends. The conversation, state, metadata and result
must equal those of the first run, and no recorded call may be made again. What the agent calls must
return the same for the same arguments. No broker, worker or server is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_ckpt.testing.faults import iteration_name
from celery_ckpt.testing.simulation import End, SimulatedRun


@dataclass(frozen=True)
class CrashReport:
    """What ``crash_everywhere`` has tried."""

    #: How many writes an uninterrupted run makes.
    writes: int
    #: How many runs were killed and continued.
    kills: int
    #: What the agent returns.
    result: Any
    #: How many runs were handed off and continued.
    hand_offs: int = 0
    #: How many calls an uninterrupted run records.
    calls: int = 0


def crash_everywhere(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    same: Callable[[End], Any] | None = None,
    hand_offs: bool = True,
) -> CrashReport:
    """Kill an agent before and after every write, hand it off wherever possible, and continue it.

    ``same`` maps the end of a run to what must be equal, for agents whose messages contain times or
    new ids. ``hand_offs=False`` only kills.

    Raises:
        AssertionError: a run ended differently from an uninterrupted one, or made a recorded call
            again. The message names the kill or hand-off.
        Exception: the body raised it. A note names the kill or hand-off.
    """
    task = task._get_current_object() if hasattr(task, "_get_current_object") else task
    uninterrupted = SimulatedRun(task, args, kwargs or {})
    uninterrupted.finish()
    judge = _Judge(uninterrupted, same or (lambda end: end))
    kills = sum(judge.passed(run) for run in uninterrupted.killed())
    stops = sum(judge.passed(run) for run in uninterrupted.handed_off()) if hand_offs else 0
    calls = uninterrupted.store.recorded.total()
    return CrashReport(uninterrupted.writes, kills, uninterrupted.result, stops, calls)


class _Judge:
    """Compares runs with an uninterrupted one."""

    def __init__(self, uninterrupted: SimulatedRun, same: Callable[[End], Any]) -> None:
        self._same = same
        self._end = same(uninterrupted.end())
        self._recorded = uninterrupted.store.recorded

    def passed(self, run: SimulatedRun) -> bool:
        """Run to the end, and return whether the run was interrupted at all.

        Raises ``AssertionError`` if the run differs from the uninterrupted one.
        """
        run.finish()
        faults = list(_differences(self._end, self._same(run.end())))
        for (iteration, name), times in run.store.recorded.items():
            # Resumed runs may make calls that the uninterrupted run does not make.
            if times > self._recorded[iteration, name] > 0:
                call = f"the recorded call {name!r} ({iteration_name(iteration)})"
                faults.append(f"{call} was made again")
        if faults:
            raise AssertionError(f"{run.interruption or 'run again'}, {'; '.join(faults)}")
        return run.interruption is not None


def _differences(expected: Any, found: Any) -> Iterator[str]:
    """Yield the first difference between two ends, if any."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        differing = [what for what, value in expected.items() if found[what] != value]
        for what in differing[:1]:
            yield f"the {what} is {found[what]!r} instead of {expected[what]!r}"
    elif expected != found:
        yield f"the end is {found!r} instead of {expected!r}"
