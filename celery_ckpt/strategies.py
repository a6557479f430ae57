"""When to take a checkpoint: pure decisions about an event.

A strategy may keep state for one run, as ``EverySeconds`` does. The runtime calls ``for_run()`` when a
run begins, so all runs can share the strategy of a decorator.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.events import CheckpointEvent


class CheckpointStrategy(ABC):
    """Decides after each event whether to take a checkpoint. ``a | b`` takes one if either does."""

    @abstractmethod
    def should_checkpoint(self, iteration: int, event: CheckpointEvent) -> bool:
        """Return whether to take a checkpoint after this event of this iteration."""

    def for_run(self) -> CheckpointStrategy:
        """Return the strategy to use for one run."""
        return self

    def __or__(self, other: CheckpointStrategy) -> AnyOf:
        return AnyOf(self, other) if isinstance(other, CheckpointStrategy) else NotImplemented

    @staticmethod
    def parse(text: str) -> CheckpointStrategy:
        """Read a strategy from a setting: ``"every:3"``, ``"after_tool_call | seconds:30"``.

        Raises:
            ConfigurationError: the strategy is unknown; the error lists all.
        """
        parts = [_parse_one(part.strip()) for part in text.split("|")]
        return parts[0] if len(parts) == 1 else AnyOf(*parts)


@dataclass(frozen=True)
class AfterToolCall(CheckpointStrategy):
    """After every completed tool call: the default."""

    def should_checkpoint(self, iteration: int, event: CheckpointEvent) -> bool:
        """Return True for a completed tool call."""
        return event == CheckpointEvent.TOOL_CALL_COMPLETE


@dataclass(frozen=True)
class AfterLlmResponse(CheckpointStrategy):
    """After every reply of the model."""

    def should_checkpoint(self, iteration: int, event: CheckpointEvent) -> bool:
        """Return True for a reply of the model."""
        return event == CheckpointEvent.LLM_RESPONSE


@dataclass(frozen=True)
class EveryN(CheckpointStrategy):
    """After any event of every n-th iteration."""

    n: int

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or isinstance(self.n, bool) or self.n < 1:
            raise ConfigurationError(reason=f"EveryN({self.n!r}): n must be an integer of at least 1.")

    def should_checkpoint(self, iteration: int, event: CheckpointEvent) -> bool:
        """Return True in iterations that are a multiple of n."""
        return iteration % self.n == 0


@dataclass(frozen=True)
class EverySeconds(CheckpointStrategy):
    """After an event, if at least ``seconds`` have passed since its last checkpoint or the start."""

    seconds: float
    clock: Callable[[], float] = field(default=time.monotonic, compare=False, repr=False)
    _last: list[float] = field(default_factory=list, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ConfigurationError(
                reason=f"EverySeconds({self.seconds!r}): seconds must be more than 0."
            )
        self._last.append(self.clock())

    def for_run(self) -> Self:
        """Return a strategy that measures from now on."""
        return replace(self)

    def should_checkpoint(self, iteration: int, event: CheckpointEvent) -> bool:
        """Return True when the time has passed, and measure from now on again."""
        now = self.clock()
        if now - self._last[0] < self.seconds:
            return False
        self._last[0] = now
        return True


@dataclass(frozen=True, init=False)
class AnyOf(CheckpointStrategy):
    """Whenever at least one of several strategies takes one."""

    strategies: tuple[CheckpointStrategy, ...]

    def __init__(self, *strategies: CheckpointStrategy) -> None:
        if not strategies:
            raise ConfigurationError(
                reason="AnyOf() needs at least one strategy. To take no checkpoints, use Never()."
            )
        object.__setattr__(self, "strategies", strategies)

    def for_run(self) -> AnyOf:
        """Return a strategy made of the strategies for one run."""
        return AnyOf(*(strategy.for_run() for strategy in self.strategies))

    def should_checkpoint(self, iteration: int, event: CheckpointEvent) -> bool:
        """Return True if any strategy does. All are asked, because some keep state."""
        return any([s.should_checkpoint(iteration, event) for s in self.strategies])


@dataclass(frozen=True)
class Never(CheckpointStrategy):
    """Take no checkpoints."""

    def should_checkpoint(self, iteration: int, event: CheckpointEvent) -> bool:
        """Return False."""
        return False


_PLAIN: dict[str, Callable[[], CheckpointStrategy]] = {
    "after_tool_call": AfterToolCall,
    "after_llm_response": AfterLlmResponse,
    "never": Never,
}
_COUNTED: dict[str, Callable[[str], CheckpointStrategy]] = {
    "every": lambda number: EveryN(int(number)),
    "seconds": lambda number: EverySeconds(float(number)),
}


def _parse_one(text: str) -> CheckpointStrategy:
    name, _, number = text.partition(":")
    try:
        return _COUNTED[name](number) if number else _PLAIN[name]()
    except (KeyError, ValueError):
        known = ", ".join([*_PLAIN, *(f"{name}:N" for name in _COUNTED)])
        raise ConfigurationError(
            reason=f"Unknown strategy {text!r}. Choose from {known}; join several with '|'."
        ) from None
