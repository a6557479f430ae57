"""Redaction: a function of the user decides what is kept of the values that enter a run.

It is called once for each message, step result and so on, when the value becomes part of the run. The
body continues with the redacted value. If only the stored copy were redacted, a resumed body would see
a different conversation, and its recorded calls would not match.
"""

from __future__ import annotations

from collections.abc import Callable
from traceback import walk_tb
from typing import Any, Literal

from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import NotJson, RedactionFailed
from celery_ckpt.json_values import kind_of, plain
from celery_ckpt.messages import Message

What = Literal["message", "step", "state", "metadata", "result", "error"]
#: Gets a copy of a value and its kind; returns the value to keep instead.
Redact = Callable[[Any, What], Any]


class Redaction:
    """Applies the function to values; without a function, keeps everything as it is."""

    def __init__(self, function: Redact | None = None) -> None:
        self._function = function
        #: False if everything is kept as it is.
        self.is_active = function is not None

    def message(self, message: Message) -> Message:
        """Return the redacted message."""
        return (
            message
            if self._function is None
            else Message.of(self._redacted(message.to_dict(), "message"))
        )

    def json(self, value: Any, what: What) -> Any:
        """Return the redacted JSON value. A state and metadata stay objects."""
        return value if self._function is None else self._redacted(plain(value, what), what)

    def in_place(self, value: dict[str, Any], what: What) -> None:
        """Redact an object in place."""
        kept = self.json(value, what)
        if kept is not value:
            value.clear()
            value.update(kept)

    def value(self, value: Any, what: What) -> Any:
        """Return the redacted value, of any type."""
        return value if self._function is None else self._call(value, what)

    def error(self, error: Exception) -> str:
        """Return the redacted text of an exception, or its type's name if that fails."""
        name = type(error).__name__
        try:
            words = f"{name}: {error}"
        except Exception:
            return name  # its __str__ raises
        return self.words(words, name)

    def words(self, words: str, otherwise: str) -> str:
        """Return the redacted text of an error, or ``otherwise`` if that fails."""
        try:
            kept = str(self.value(words, "error"))
        except Exception:
            return otherwise
        # A lone surrogate, which tools and files may contain, cannot be encoded.
        return kept.encode(errors="backslashreplace").decode()

    def adopt(self, conversation: Conversation, before: Conversation | None = None) -> None:
        """Redact messages that are added from now on, and those that ``before`` does not have."""
        if self._function is None or conversation.redact == self.message:
            return
        if before is not None:
            known = {id(message) for message in before.messages}
            own = conversation.messages
            conversation.replace(m if id(m) in known else self.message(m) for m in own)
        conversation.redact = self.message

    def _redacted(self, value: Any, what: What) -> Any:
        was = type(value)
        kept = self._call(value, what)
        try:
            kept = plain(kept, what)
        except NotJson as error:
            raise RedactionFailed(
                what=what,
                reason=f"it returned something that is not JSON ({error.path} {error.reason})",
            ) from None
        if what in ("message", "state", "metadata") and type(kept) is not was:
            reason = f"it returned a {kind_of(kept)} instead of an object"
            raise RedactionFailed(what=what, reason=reason)
        return kept

    def _call(self, value: Any, what: What) -> Any:
        assert self._function is not None
        try:
            return self._function(value, what)
        except Exception as error:
            # Neither its text nor the error itself, which a traceback would show: they may contain the
            # value.
            frame, line = list(walk_tb(error.__traceback__))[-1]
            where = f"in {frame.f_code.co_name}, {frame.f_code.co_filename}:{line}"
            reason = f"it raised {kind_of(error)} ({where})"
        raise RedactionFailed(what=what, reason=reason)


KEEP_ALL = Redaction()
