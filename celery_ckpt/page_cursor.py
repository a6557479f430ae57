"""Where a page of agents ends: a time of last change, and the agent at that place.

Agents are listed by the time of their last change, newest first, and agents with equal times in an
order of the store's own that never changes. So a place in the list does not depend on what is listed
before it, and stays valid when its agent moves or is deleted.
"""

from __future__ import annotations

from typing import NamedTuple, Self


class PageCursor(NamedTuple):
    """A place in the list of agents."""

    #: In microseconds since 1970.
    changed_at: int
    agent_id: str

    def __str__(self) -> str:
        """Return the text that callers of ``CheckpointStore.page`` get."""
        return f"{self.changed_at}:{self.agent_id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the cursor in a text. Raises ``ValueError`` if no page has returned that text."""
        number, colon, agent_id = text.partition(":")
        if not (colon and agent_id and number.isascii() and number.isdigit()):
            raise ValueError(f"page(after={text!r}): pass what an earlier page returned as `after`")
        return cls(int(number[:20]), agent_id)
