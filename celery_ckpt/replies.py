"""What a model call returned, as messages, exactly as it was received."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from celery_ckpt.conversation import Conversation
from celery_ckpt.errors import NotJson, StepResultNotJson
from celery_ckpt.messages import Message


def recorded_reply(
    result: Any, at: int, step: str, redact: Callable[[Message], Message]
) -> dict[str, Any]:
    """What to record of a model's answer that is appended at this place of the conversation.

    Raises:
        StepResultNotJson: it is no message, nor a list of messages.
    """
    many = isinstance(result, list | tuple)
    try:
        messages = [redact(_message(one)).to_dict() for one in (result if many else [result])]
    except NotJson as error:
        raise StepResultNotJson(step=step, path=error.path, reason=error.reason) from None
    # OpenAI's Responses API answers with a list, be it of one item.
    return {"at": at, "messages": messages, **({"many": True} if many else {})}


def _message(value: Any) -> Message:
    if isinstance(value, BaseModel) and not isinstance(value, Message):
        # As the server sent it: the SDKs' objects have many fields that it did not send.
        value = value.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    elif hasattr(value, "to_dict") and not isinstance(value, Message):
        value = value.to_dict()
    return Message.of(value)


class Reply:
    """A recorded answer of a model."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        self._at: int = recorded["at"]
        self._many: bool = recorded.get("many", False)
        self.messages = [Message.of(message) for message in recorded["messages"]]

    @property
    def value(self) -> Message | list[Message]:
        """What the body gets."""
        return list(self.messages) if self._many else self.messages[0]

    def append_to(self, conversation: Conversation) -> None:
        """Append it, unless these very messages are at their place already."""
        there = conversation.messages[self._at : self._at + len(self.messages)]
        if there != self.messages:
            for message in self.messages:
                conversation.take(message)
