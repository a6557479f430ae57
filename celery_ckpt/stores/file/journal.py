r"""The journal of one agent: its saves, one after the other, in files of bounded size.

    #3f2a91c0 save 2 <id> <record>           a save: its record (see log/record.py) ...
    {"role":"assistant","content":...}       ... and the messages that it added, one line each
    {"role":"tool","content":...}
    #9be10d77 prune <id> <id>                those checkpoints are gone; their messages may be needed

A line of a message begins with a brace, every other one with ``#`` and the CRC-32 of what follows. A
damaged line therefore costs what it holds and nothing else: reading goes on with the next line. A save
that is not whole at the very end was cut off by a crash, and is overwritten by the next one.

A new file begins when the last one has grown large; files on the left that nobody needs are removed.
The last file stays, and file numbers are never used again.

``tip`` names the last save and where the journal ended then. It is written after the save, so a
journal that ends before it has lost something that was acknowledged. On a full disk it may be an older
one, or torn, which is as if it were not there.
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

from celery_ckpt.codec import FORMAT_VERSION
from celery_ckpt.stores.file.filesystem import FILE_MODE, append, read, replace, write_all
from celery_ckpt.stores.file.journal_entries import Save, Scan
from celery_ckpt.stores.log.ranges import Ranges
from celery_ckpt.stores.log.record import low_of, stamp
from celery_ckpt.stores.log.rewrite import Rewritten

#: A file that is larger than this gets no more saves.
SEGMENT_BYTES = 4_000_000
_LOST = b"(it was cut off)"
_NUMBERED = re.compile(r"journal-([0-9]{8,})").fullmatch


class Tip(NamedTuple):
    """The last save that was acknowledged."""

    segment: int
    size: int
    checkpoint_id: str


class Journal:
    """What is in an agent's journal, read as far as it has grown. Its caller holds the lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._scan = Scan()
        #: How much of each file is known to be whole.
        self._sizes: dict[int, int] = {}
        self.refresh()

    # -- reading -------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what was added since the last time."""
        names = (_NUMBERED(path.name) for path in self._directory.glob("journal-*"))
        # What else is there, a copy that somebody has made for instance, is none of ours.
        numbers = sorted(int(found[1]) for found in names if found)
        gone = self._sizes.keys() - set(numbers)
        if gone:
            self._scan.forget_segments(gone)
            self._sizes = {n: size for n, size in self._sizes.items() if n not in gone}
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
        # The last file stays: one that is gone and has a successor was not needed any more.
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
        """The checkpoints that are there, by id, oldest first."""
        return self._scan.live

    @property
    def seq(self) -> int:
        """The number of the last save."""
        return self._scan.seq

    def has(self, checkpoint_id: str, mark: str) -> bool:
        """Is a checkpoint there, and does it say that of itself?"""
        save = self.live.get(checkpoint_id)
        return save is not None and save.record.split(b" ", 2)[-1].startswith(f"{mark} {{".encode())

    def is_incomplete(self) -> bool:
        """Is there a record of which not even the id is certain?"""
        return any(save.is_unreadable for save in self.live.values())

    def lines(self) -> list[tuple[str, bytes]]:
        """The ids and records of all checkpoints, oldest first."""
        return [(name, save.record) for name, save in self.live.items()]

    def messages(self, ranges: Ranges) -> dict[int, bytes]:
        """The messages at these offsets; what is not there is left out."""
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
        """Add a save; returns its base."""
        base, seq = self._scan.end, self._scan.seq + 1
        record = stamp(FORMAT_VERSION, seq, base, rest)
        segment = self._write(_entry(checkpoint_id, record, messages))
        with suppress(OSError):  # the save is on the disk, whatever becomes of this
            self._write_tip(Tip(segment, self._sizes[segment], checkpoint_id))
        return base

    @property
    def end(self) -> int:
        """The offset that the next message gets."""
        return self._scan.end

    def rewrite(self, history: list[Rewritten]) -> None:
        """Put others in the place of all saves: they are in a new file, which says that the old ones
        are gone; it is there as a whole or not at all.
        """
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
        """Take checkpoints out, and remove the files that nobody needs any more."""
        gone = [name for name in checkpoint_ids if name in self.live]
        if gone:
            self._write(_line(b"prune " + b" ".join(_quoted(name) for name in gone)))
        for segment in self.needless():
            self._path(segment).unlink()
        self.refresh()
        return len(gone)

    def needless(self) -> list[int]:
        """The files that nobody needs any more, from the left."""
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
    """A save as it stands in a file."""
    head = b"save %d %b %b" % (len(messages), _quoted(checkpoint_id), record)
    return _line(head) + b"".join(line + b"\n" for line in messages)
