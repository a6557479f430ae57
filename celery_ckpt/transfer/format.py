"""The lines of an export: JSON objects, each sealed with a sum.

    {"sum":"0c6a5d6a0f4e5f0b","kind":"message","message":{"role":"user","content":"..."}}

The sum covers the line and the sum of the line before it. So a line that was changed, lost, repeated
or moved is noticed where it is. It is no signature: whoever wants to forge a file can.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from celery_ckpt.errors import NotAnExport
from celery_ckpt.json_values import decode, encode

#: The version of the format; a reader refuses newer ones.
FORMAT_VERSION = 1
_SUM = re.compile(rb'\{"sum":"([0-9a-f]{16})",')


def _sum(before: bytes, body: bytes) -> bytes:
    return hashlib.sha256(before + body).hexdigest()[:16].encode()


class Sealer:
    """Makes lines, one after the other."""

    def __init__(self) -> None:
        self._before = b""

    def line(self, kind: str, **fields: Any) -> bytes:
        """The next line, with its end."""
        body = encode({"kind": kind, **fields})
        self._before = _sum(self._before, body)
        return b'{"sum":"%b",%b\n' % (self._before, body[1:])


def unsealed(lines: Iterable[bytes]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Each line's number, kind and fields, as long as every one is what was written there.

    Raises:
        NotAnExport: one is not.
    """
    before = b""
    for number, line in enumerate(lines, 1):
        found = _SUM.match(line)
        body = b"{" + line[found.end() :].rstrip(b"\r\n") if found else b""
        if found is None or _sum(before, body) != found[1]:
            raise NotAnExport(line=number, reason=_why(number, found is None), what="its agent")
        before = found[1]
        fields = _fields(number, body)
        yield number, str(fields.pop("kind", "")), fields


def _why(number: int, is_foreign: bool) -> str:
    if is_foreign:
        return "it is not a line of an export" if number > 1 else "this is not an export"
    return "it was changed, or a line before it is missing. Get a complete copy"


def _fields(number: int, body: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = decode(body)
    except ValueError as error:
        raise NotAnExport(line=number, reason=f"it is not JSON: {error}", what="its agent") from error
    return fields
