"""A fake model server for the examples: its replies are set, its requests are recorded.

It runs in the process of the test, so it survives every kill.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from llmock.journal import Journal
from llmock.pytest_plugin import LLMock
from llmock.scenarios import Reply, ToolCall

from tests.support.example_programs import DEADLINE
from tests.support.wait import until

#: Seconds. Less than another worker needs to take over and finish a run: a test waits for the delay.
HESITATION = 5.0


class Model:
    """A server with the APIs of OpenAI and Anthropic."""

    def __init__(self, llmock: LLMock) -> None:
        self._llmock = llmock

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that direct the SDKs to it."""
        return self._llmock.env()

    @property
    def _journal(self) -> Journal:
        return self._llmock._server.state.journal

    def calls(self, name: str, *arguments: dict[str, Any]) -> Model:
        """Add a reply with a tool call for each of the arguments."""
        wanted = tuple(ToolCall(name, given) for given in arguments)
        self._llmock.add(Reply(tool_calls=wanted))
        return self

    def says(self, text: str, times: int | None = 1) -> Model:
        """Add a reply with a text."""
        self._llmock.reply(text, times=times)
        return self

    def thinks(self, seconds: float) -> Model:
        """Delay every reply from now on."""
        self._llmock.delay(seconds, times=None)
        return self

    def hesitates_at(self, question: int) -> Model:
        """Delay the reply to that question once, long enough to kill the worker on a busy machine."""
        if question > 1:
            self._llmock.delay(0, times=question - 1)
        self._llmock.delay(HESITATION, times=1)
        return self

    def wait_until_asked(self, count: int) -> None:
        """Wait until ``count`` questions were asked, and all but the last are answered."""

        def is_thinking() -> bool:
            # A request stays in flight for a moment after its reply is recorded.
            begun = self._journal._next_seq - 1
            return (begun, len(self._journal)) == (count, count - 1)

        until(is_thinking, DEADLINE, f"question {count} is asked")

    def wait_until_answered(self, count: int) -> None:
        """Wait until it has answered ``count`` questions."""
        until(lambda: len(self._journal) >= count, DEADLINE, f"{count} questions are answered")

    def asked(self) -> list[int]:
        """Return how often each question was asked, in the order of the first time."""
        until(lambda: not self._journal.in_flight, DEADLINE, "no request is in flight")
        return list(Counter(request.fingerprint for request in self._llmock.requests).values())

    def last_question(self) -> list[dict[str, Any]]:
        """Return the messages of the last request."""
        return list(self._llmock.last_request.body["messages"])
