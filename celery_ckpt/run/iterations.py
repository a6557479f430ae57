"""The loop of a body: ``for`` in a plain body, ``async for`` in an async one.

A loop can end without asking for its next iteration: by ``break``, or by an exception. Python deletes
the iterator then, and its ``__del__`` reports that to the run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from celery_ckpt.errors import RunMisused
from celery_ckpt.run.bridge import Bridge

#: Returns the next iteration, or ``None`` at the end.
Advance = Callable[[], Coroutine[Any, Any, int | None]]


class Iterations:
    """The iterations of a run. It can be looped over once."""

    def __init__(self, bridge: Bridge, advance: Advance, dropped: Callable[[], None]) -> None:
        self._bridge, self._advance, self._dropped = bridge, advance, dropped
        self._has_begun = False

    def __iter__(self) -> Iterator[int]:
        return self._loop(is_async=False)

    def __aiter__(self) -> AsyncIterator[int]:
        return self._loop(is_async=True)

    def _loop(self, *, is_async: bool) -> _Loop:
        if self._bridge.is_async != is_async:
            loop = "async for" if self._bridge.is_async else "for"
            raise TypeError(f"Loop over run.iterations() with `{loop}` in this body.")
        if self._has_begun:
            raise RunMisused(
                reason="The loop over run.iterations() has already started. Loop over it once."
            )
        self._has_begun = True
        return _Loop(self._bridge, self._advance, self._dropped)


class _Loop:
    """One pass over the iterations."""

    def __init__(self, bridge: Bridge, advance: Advance, dropped: Callable[[], None]) -> None:
        self._bridge, self._advance, self._dropped = bridge, advance, dropped
        self._is_over = False

    def __iter__(self) -> _Loop:
        return self

    def __aiter__(self) -> _Loop:
        return self

    def __next__(self) -> int:
        iteration = None if self._is_over else self._bridge.run(self._advance())
        if iteration is None:
            self._is_over = True
            raise StopIteration
        return int(iteration)

    async def __anext__(self) -> int:
        iteration = None if self._is_over else await self._bridge.run(self._advance())
        if iteration is None:
            self._is_over = True
            raise StopAsyncIteration
        return int(iteration)

    def __del__(self) -> None:
        if not self._is_over:
            self._dropped()
