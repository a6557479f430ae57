"""A conversation on the screen: numbered, shortened, and harmless."""

from __future__ import annotations

from collections.abc import Iterable

from celery_ckpt.cli.output.screen import Screen
from celery_ckpt.cli.output.text import excerpt, visible
from celery_ckpt.messages import Message
from celery_ckpt.views.transcript import Kind, pieces, speaker

#: How much of one piece is shown, unless all is asked for.
EXCERPT = 1_000
_MARKS = {
    Kind.TEXT: "",
    Kind.THINKING: "thinking: ",
    Kind.CALL: "→ ",
    Kind.RESULT: "← ",
    Kind.OTHER: "",
}


def show_messages(
    screen: Screen, messages: Iterable[Message], *, first: int = 1, limit: int | None = EXCERPT
) -> None:
    """Write messages, numbered from ``first``; each piece cut to ``limit`` characters."""
    for number, message in enumerate(messages, first):
        show_message(screen, f"{number:>4} {speaker(message)[:12]}", message, limit=limit)


def show_message(
    screen: Screen, label: str, message: Message, *, limit: int | None = EXCERPT, kind: str = ""
) -> None:
    """Write one message beside a label, coloured by who speaks or as ``kind``."""
    who = speaker(message)
    for piece in pieces(message):
        text = visible(piece.text) if limit is None else excerpt(piece.text, limit)
        own = who if piece.kind is Kind.TEXT else piece.kind.value
        screen.labelled(label, _MARKS[piece.kind] + text.strip("\n"), kind=kind or own, width=17)
        label = ""
