"""Redaction: a function of the user's decides what is kept of whatever enters a run.

It is asked once for each message, step result and so on, at the moment at which that becomes part of
the run; the body goes on with what it answered. Were only the stored copy changed, a body that is
resumed would see another conversation than it had, and take recorded calls for new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from traceback import walk_tb
from typing import Any, Literal

from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import RedactionFailed
from celery_ckpt.json_values import kind_of, plain
from celery_ckpt.messages import Message

What = Literal["message", "step", "state", "metadata", "result", "error"]
#: Gets a value of its own and what it is; returns what is kept in its place.
Redact = Callable[[Any, What], Any]


class Redaction:
    """Applies a function to what is to be kept; without one, keeps everything as it is."""

    def __init__(self, function: Redact | None = None) -> None:
        self._function = function
        #: False if everything is kept as it is.
        self.is_active = function is not None

    def message(self, message: Message) -> Message:
        """A message as it is kept."""
        return (
            message if self._function is None else Message.of(self._asked(message.to_dict(), "message"))
        )

    def json(self, value: Any, what: What) -> Any:
        """A JSON value as it is kept: a state and metadata stay objects."""
        return value if self._function is None else self._asked(plain(value, what), what)

    def in_place(self, value: dict[str, Any], what: What) -> None:
        """Make of an object what is kept of it."""
        kept = self.json(value, what)
        if kept is not value:
            value.clear()
            value.update(kept)

    def value(self, value: Any, what: What) -> Any:
        """Any value as it is kept."""
        return value if self._function is None else self._call(value, what)

    def error(self, error: Exception) -> str:
        """What is kept of an exception. If nobody can say, its name."""
        name = type(error).__name__
        try:
            words = f"{name}: {error}"
        except Exception:
            return name  # it cannot say itself what it is
        return self.words(words, name)

    def words(self, words: str, otherwise: str) -> str:
        """What is kept of the words of an error; if nobody can say, something else."""
        try:
            kept = str(self.value(words, "error"))
        except Exception:
            return otherwise
        # Half a character, as tools and files may bring it, can be written nowhere.
        return kept.encode(errors="backslashreplace").decode()

    def adopt(self, conversation: Conversation, before: Conversation | None = None) -> None:
        """Redact what a conversation gets from now on, and what it has that the one before had not."""
        if self._function is None or conversation.redact == self.message:
            return
        if before is not None:
            known = {id(message) for message in before.messages}
            own = conversation.messages
            conversation.replace(m if id(m) in known else self.message(m) for m in own)
        conversation.redact = self.message

    def _asked(self, value: Any, what: What) -> Any:
        was = type(value)
        kept = self._call(value, what)
        try:
            kept = plain(kept, what)
        except ValueError as error:
            raise RedactionFailed(what=what, reason=f"it returned what is not JSON ({error})") from None
        if what in ("message", "state", "metadata") and type(kept) is not was:
            reason = f"it returned a {kind_of(kept)} instead of an object"
            raise RedactionFailed(what=what, reason=reason)
        return kept

    def _call(self, value: Any, what: What) -> Any:
        assert self._function is not None
        try:
            return self._function(value, what)
        except Exception as error:
            # Not its text, nor the error itself, which a traceback would show: it may hold what was to
            # be redacted.
            reason = f"it raised {kind_of(error)}{_place(error)}"
        raise RedactionFailed(what=what, reason=reason)


def _place(error: Exception) -> str:
    """Where it was raised, for who has to find out why."""
    frame, line = list(walk_tb(error.__traceback__))[-1]
    return f" (in {frame.f_code.co_name}, {frame.f_code.co_filename}:{line})"


KEEP_ALL = Redaction()
