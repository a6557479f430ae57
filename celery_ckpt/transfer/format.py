"""The lines of an export: JSON objects, each with a checksum.

    {"sum":"0c6a5d6a0f4e5f0b","kind":"message","message":{"role":"user","content":"..."}}

The checksum covers the line and the checksum of the line before it, so that a changed, lost, repeated
or moved line is detected where it is. It is not a signature: a file can be forged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from celery_ckpt.errors import NotAnExport
from celery_ckpt.json_values import decode, encode

#: A line's number, kind and fields.
Line = tuple[int, str, dict[str, Any]]
#: The version of the format. A reader refuses newer ones.
FORMAT_VERSION = 1
_SUM = re.compile(rb'\{"sum":"([0-9a-f]{16})",')


def _sum(before: bytes, body: bytes) -> bytes:
    return hashlib.sha256(before + body).hexdigest()[:16].encode()


class LineWriter:
    """Makes the lines of one export, in order."""

    def __init__(self) -> None:
        self._before = b""

    def line(self, kind: str, **fields: Any) -> bytes:
        """Return the next line, including its line break."""
        body = encode({"kind": kind, **fields})
        self._before = _sum(self._before, body)
        return b'{"sum":"%b",%b\n' % (self._before, body[1:])


def checked_lines(lines: Iterable[bytes]) -> Iterator[Line]:
    """Yield the number, kind and fields of each line.

    Raises:
        NotAnExport: a line is not what the export wrote there.
    """
    before = b""
    for number, line in enumerate(lines, 1):
        found = _SUM.match(line)
        body = b"{" + line[found.end() :].rstrip(b"\r\n") if found else b""
        if found is None or _sum(before, body) != found[1]:
            reason = "it was changed, or a line before it is missing. Get a complete copy"
            if found is None:
                reason = "it is not a line of an export" if number > 1 else "this is not an export"
            raise NotAnExport(line=number, reason=reason, what="its agent")
        before = found[1]
        try:
            fields: dict[str, Any] = decode(body)
        except ValueError as error:
            reason = f"it is not JSON: {error}"
            raise NotAnExport(line=number, reason=reason, what="its agent") from error
        yield number, str(fields.pop("kind", "")), fields
