r"""The journal of one agent: its saves, one after the other, in files of bounded size.

    #3f2a91c0 save 2 <id> <record>           a save: its record (see log/record.py) ...
    {"role":"assistant","content":...}       ... and the messages that it added, one line each
    {"role":"tool","content":...}
    #9be10d77 prune <id> <id>                removes checkpoints; others may need their messages

The line of a message begins with a brace, every other line with ``#`` and the CRC-32 of the rest. A
damaged line therefore costs only its own content: reading continues with the next line. A crash can
leave an incomplete save at the very end. It does not count, and the next save overwrites it.

When the last file has grown large, the next save begins a new one. The oldest files are deleted as soon
as no checkpoint needs them. The last file is kept, and file numbers are never used again.

``tip`` names the last save and the size of the journal after it. It is written after the save, so a
journal that ends earlier has lost an acknowledged save. On a full disk, ``tip`` may be older or torn; a
torn one is ignored.
"""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from celery_ckpt.format_version import FORMAT_VERSION
from celery_ckpt.stores.file.filesystem import FILE_MODE, append, read, replace, write_all
from celery_ckpt.stores.file.journal_entries import Save, Scan
from celery_ckpt.stores.log.ranges import Ranges
from celery_ckpt.stores.log.record import low_of, stamp
from celery_ckpt.stores.log.rewrite import Rewritten

#: A file that is larger than this gets no further saves.
SEGMENT_BYTES = 4_000_000
_LOST = b"(it was cut off)"
_NUMBERED = re.compile(r"journal-([0-9]{8,})").fullmatch


class Tip(NamedTuple):
    """The last acknowledged save."""

    segment: int
    size: int
    checkpoint_id: str


class Journal:
    """The journal of one agent, read to its end. The caller holds the agent's lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._scan = Scan()
        #: How many bytes of each file were read and are complete.
        self._sizes: dict[int, int] = {}
        self.refresh()

    # -- reading -------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what was added since the last call."""
        names = (_NUMBERED(path.name) for path in self._directory.glob("journal-*"))
        # Other files, for example a manual copy, are ignored.
        numbers = sorted(int(found[1]) for found in names if found)
        deleted = self._sizes.keys() - set(numbers)
        if deleted:
            self._scan.forget_segments(deleted)
            self._sizes = {n: size for n, size in self._sizes.items() if n not in deleted}
        for number in numbers:
            known = self._sizes.get(number, 0)
            with self._path(number).open("rb") as file:
                file.seek(known)
                self._sizes[number] = known + self._scan.take(number, known, file.read())
        self._notice_loss()

    def _notice_loss(self) -> None:
        tip = self._tip()
        if tip is None or self._sizes.get(tip.segment, 0) >= tip.size:
            return
        # The last file is never deleted: a missing file with a successor was deleted on purpose.
        if tip.segment in self._sizes or tip.segment > max(self._sizes, default=0):
            self._scan.add_unreadable(tip.checkpoint_id, tip.segment, _LOST)

    def _tip(self) -> Tip | None:
        words = (read(self._directory / "tip") or b"").split()
        if len(words) != 4 or words[0] != _crc(b" ".join(words[1:])):
            return None
        return Tip(int(words[1]), int(words[2]), unquote(words[3].decode()))

    def _path(self, segment: int) -> Path:
        return self._directory / f"journal-{segment:08d}"

    @property
    def live(self) -> dict[str, Save]:
        """The checkpoints that were not removed, by id, oldest first."""
        return self._scan.live

    @property
    def seq(self) -> int:
        """The number of the last save."""
        return self._scan.seq

    def has(self, checkpoint_id: str, mark: str) -> bool:
        """Return True if the checkpoint exists and its record begins with this mark."""
        save = self.live.get(checkpoint_id)
        return save is not None and save.record.split(b" ", 2)[-1].startswith(f"{mark} {{".encode())

    def is_incomplete(self) -> bool:
        """Return True if a record is so damaged that its id is not certain."""
        return any(save.is_unreadable for save in self.live.values())

    def lines(self) -> list[tuple[str, bytes]]:
        """Return the ids and records of all checkpoints, oldest first."""
        return [(name, save.record) for name, save in self.live.items()]

    def messages(self, ranges: Ranges) -> dict[int, bytes]:
        """Return the messages at these offsets. Messages that are missing are left out."""
        wanted: dict[int, list[tuple[int, int, int]]] = {}
        for start, count, _ in ranges.spans:
            for segment, *place in self._scan.places(start, start + count):
                wanted.setdefault(segment, []).append((place[0], place[1], place[2]))
        found: dict[int, bytes] = {}
        for segment, places in wanted.items():
            found.update(self._cut_out(segment, places))
        return found

    def _cut_out(self, segment: int, places: list[tuple[int, int, int]]) -> dict[int, bytes]:
        first = min(start for _, start, _ in places)
        with self._path(segment).open("rb") as file:
            file.seek(first)
            data = file.read(max(end for _, _, end in places) - first)
        return {offset: data[start - first : end - first] for offset, start, end in places}

    # -- writing -------------------------------------------------------------------------------------

    def save(self, checkpoint_id: str, rest: bytes, messages: list[bytes]) -> int:
        """Add a save. Return its base."""
        base, seq = self._scan.end, self._scan.seq + 1
        record = stamp(FORMAT_VERSION, seq, base, rest)
        segment = self._write(_entry(checkpoint_id, record, messages))
        with suppress(OSError):  # the save is on the disk
            self._write_tip(Tip(segment, self._sizes[segment], checkpoint_id))
        return base

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self._scan.end

    def rewrite(self, history: list[Rewritten]) -> None:
        """Replace all saves in one step: a new file that also removes the old checkpoints."""
        lines = [_line(b"prune " + b" ".join(_quoted(name) for name in self.live))]
        for one in history:
            lines.append(_entry(one.checkpoint_id, one.line, one.messages))
        data, segment = b"".join(lines), max(self._sizes, default=0) + 1
        replace(self._path(segment), data)
        self._sizes[segment] = self._scan.take(segment, 0, data)
        with suppress(OSError):
            self._write_tip(Tip(segment, self._sizes[segment], history[-1].checkpoint_id))
        self.prune([])

    def prune(self, checkpoint_ids: list[str]) -> int:
        """Remove checkpoints and the files that no checkpoint needs. Return how many existed."""
        found = [name for name in checkpoint_ids if name in self.live]
        if found:
            self._write(_line(b"prune " + b" ".join(_quoted(name) for name in found)))
        for segment in self.needless():
            self._path(segment).unlink()
        self.refresh()
        return len(found)

    def needless(self) -> list[int]:
        """Return the numbers of the oldest files, up to the first that a checkpoint needs."""
        low = min((low_of(save.record) for save in self.live.values()), default=self._scan.end)
        older = sorted(self._sizes)[:-1]
        return list(takewhile(lambda segment: not self._scan.is_needed(segment, low), older))

    def _write(self, data: bytes) -> int:
        segment = max(self._sizes, default=1)
        if self._sizes.get(segment, 0) > SEGMENT_BYTES:
            segment += 1
        append(self._path(segment), data, self._sizes.get(segment, 0))
        known = self._sizes.get(segment, 0)
        self._sizes[segment] = known + self._scan.take(segment, known, data)
        return segment

    def _write_tip(self, tip: Tip) -> None:
        words = b"%d %d %b" % (tip.segment, tip.size, _quoted(tip.checkpoint_id))
        descriptor = os.open(self._directory / "tip", os.O_WRONLY | os.O_CREAT, FILE_MODE)
        try:
            data = b"%b %b\n" % (_crc(words), words)
            os.ftruncate(descriptor, len(data))
            write_all(descriptor, data)
        finally:
            os.close(descriptor)


def _quoted(name: str) -> bytes:
    return quote(name, safe="").encode()


def _crc(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)


def _line(entry: bytes) -> bytes:
    return b"#%b %b\n" % (_crc(entry), entry)


def _entry(checkpoint_id: str, record: bytes, messages: list[bytes]) -> bytes:
    """Return the lines of a save."""
    head = b"save %d %b %b" % (len(messages), _quoted(checkpoint_id), record)
    return _line(head) + b"".join(line + b"\n" for line in messages)
