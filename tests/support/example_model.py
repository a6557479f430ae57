"""The stand-in for the models: what it is to say, and what it was asked. A kill cannot touch it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from llmock.journal import Journal
from llmock.pytest_plugin import LLMock
from llmock.scenarios import Reply, ToolCall

from tests.support.example_programs import DEADLINE
from tests.support.wait import until

#: Seconds; less than a run needs to be taken over and answered, or the test waits for it at its end.
HESITATION = 5.0


class Model:
    """A server that answers as OpenAI and Anthropic do."""

    def __init__(self, llmock: LLMock) -> None:
        self._llmock = llmock

    @property
    def environment(self) -> dict[str, str]:
        """Where the SDKs are to look for it."""
        return self._llmock.env()

    @property
    def _journal(self) -> Journal:
        return self._llmock._server.state.journal

    def calls(self, name: str, *arguments: dict[str, Any]) -> Model:
        """Its next answer: so many calls of a tool at once."""
        wanted = tuple(ToolCall(name, given) for given in arguments)
        self._llmock.add(Reply(tool_calls=wanted))
        return self

    def says(self, text: str, times: int | None = 1) -> Model:
        """Its next answer: a text."""
        self._llmock.reply(text, times=times)
        return self

    def thinks(self, seconds: float) -> Model:
        """From now on it takes so long for every answer."""
        self._llmock.delay(seconds, times=None)
        return self

    def hesitates_at(self, question: int) -> Model:
        """Over that question it takes its time once, long enough to kill who asks on a busy machine."""
        if question > 1:
            self._llmock.delay(0, times=question - 1)
        self._llmock.delay(HESITATION, times=1)
        return self

    def wait_until_asked(self, count: int) -> None:
        """Wait until it has answered all questions but the last of so many, and thinks about that."""

        def is_thinking() -> bool:
            # Not by what is in flight: for a moment that is a question whose answer is written down.
            begun = self._journal._next_seq - 1
            return (begun, len(self._journal)) == (count, count - 1)

        until(is_thinking, DEADLINE, f"question {count} is asked")

    def wait_until_answered(self, count: int) -> None:
        """Wait until it has answered so many questions."""
        until(lambda: len(self._journal) >= count, DEADLINE, f"{count} questions are answered")

    def asked(self) -> list[int]:
        """How often each question was asked, in the order in which they came up."""
        until(lambda: not self._journal.in_flight, DEADLINE, "it thinks about nothing any more")
        return list(Counter(request.fingerprint for request in self._llmock.requests).values())

    def last_question(self) -> list[dict[str, Any]]:
        """The messages that it was sent last."""
        return list(self._llmock.last_request.body["messages"])
