"""crash_everywhere: does an agent end the same, wherever it is interrupted?

    def test_my_agent_survives():
        crash_everywhere(research, ("why is the sky blue?",))

The agent runs once undisturbed. Then it runs once for every write to its store, killed just before the
write or just after it, and once for every place where a worker that shuts down can hand it off; each
time other attempts continue it until it ends. Conversation, state, metadata and result must be those of
the undisturbed run, and no recorded call may be made again. What the agent calls must give the same
answer to the same question. No broker, no worker and no server are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_ckpt.testing.faults import iteration_name
from celery_ckpt.testing.simulation import End, SimulatedRun


@dataclass(frozen=True)
class CrashReport:
    """What was tried."""

    #: How many writes one undisturbed run makes.
    writes: int
    #: How many runs were killed and continued.
    kills: int
    #: What the agent returns.
    result: Any
    #: How many runs were handed off and continued.
    hand_offs: int = 0
    #: How many calls one undisturbed run records.
    calls: int = 0


def crash_everywhere(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    same: Callable[[End], Any] | None = None,
    hand_offs: bool = True,
) -> CrashReport:
    """Kill an agent before and after every write, hand it off wherever it can be, and continue it.

    ``same`` maps an end to what must be equal, for agents whose messages contain times or new ids.
    ``hand_offs=False`` only kills.

    Raises:
        AssertionError: a run ended in another way than an undisturbed one, or made a recorded call
            again; the message says after which kill or hand-off.
        Exception: the body raised it; a note says after which kill or hand-off.
    """
    task = task._get_current_object() if hasattr(task, "_get_current_object") else task
    undisturbed = SimulatedRun(task, args, kwargs or {})
    undisturbed.live()
    judge = _Judge(undisturbed, same or (lambda end: end))
    kills = sum(judge.passed(life) for life in undisturbed.killed())
    stops = sum(judge.passed(life) for life in undisturbed.handed_off()) if hand_offs else 0
    calls = undisturbed.store.recorded.total()
    return CrashReport(undisturbed.writes, kills, undisturbed.result, stops, calls)


class _Judge:
    """Holds lives to an undisturbed one."""

    def __init__(self, undisturbed: SimulatedRun, same: Callable[[End], Any]) -> None:
        self._same = same
        self._end = same(undisturbed.end())
        self._recorded = undisturbed.store.recorded

    def passed(self, life: SimulatedRun) -> bool:
        """Live it to its end. Was it disturbed at all? Raises ``AssertionError`` if that shows."""
        life.live()
        faults = [*_differences(self._end, self._same(life.end())), *self._repeated(life)]
        if faults:
            raise AssertionError(f"{life.disturbance or 'run again'}, {'; '.join(faults)}")
        return life.disturbance is not None

    def _repeated(self, life: SimulatedRun) -> Iterator[str]:
        for (iteration, name), times in life.store.recorded.items():
            # A call that the undisturbed run does not make may be one that resumed runs make.
            if times > self._recorded[iteration, name] > 0:
                yield f"the recorded call {name!r} ({iteration_name(iteration)}) was made again"


def _differences(expected: Any, found: Any) -> Iterator[str]:
    """The first thing in which two ends differ, if any."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        differing = [what for what, value in expected.items() if found[what] != value]
        for what in differing[:1]:
            yield f"the {what} is {found[what]!r} instead of {expected[what]!r}"
    elif expected != found:
        yield f"the end is {found!r} instead of {expected!r}"
