"""Reads what the stores wrote by the rules of docs/reference/storage-format.md, and by nothing else.

It imports no part of the library. ``reader.mjs`` does the same in another language.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import zlib
from base64 import b32encode
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from redis import Redis

Run = dict[str, Any]

FORMAT = 1
SHARDS = "abcdefghijklmnopqrstuvwxyz234567"


class Damaged(Exception):
    pass


class TooNew(Exception):
    pass


def locator(name: str) -> str:
    return _file_name(name)[:16]


def _file_name(name: str) -> str:
    return b32encode(hashlib.sha256(name.encode()).digest()[:20]).decode().lower()


def _unquoted(word: bytes) -> str:
    return unquote_to_bytes(word).decode()


# -- a record and its messages -------------------------------------------------------------------------


def refuse_newer(version: int) -> None:
    if version > FORMAT:
        raise TooNew(version)


def written(agent_id: str, checkpoint_id: str, record: bytes, log: Mapping[int, bytes]) -> bytes:
    """The checkpoint as ``to_bytes`` writes it, of its record and the log."""
    if not re.match(rb"[1-9][0-9]* ", record):
        raise Damaged(record[:40])
    refuse_newer(int(record.partition(b" ")[0]))
    _, _, base, _, ranges, digest, header = record.split(b" ", 6)
    spans = _spans(ranges.decode(), int(base))
    if not all(span[-1] in log for span in spans):
        raise Damaged("the last message of a range is missing")
    if not all(offset in log for span in spans for offset in span):
        raise Damaged("a message is missing")
    lines = [log[offset] for span in spans for offset in span]
    hashed = b"".join(line + b"\n" for line in lines) + header
    if hashlib.sha256(hashed).hexdigest()[:24] != digest.decode():
        raise Damaged("the digest is wrong")
    _check(json.loads(header), len(lines))
    names = (json.dumps(name, ensure_ascii=False).encode() for name in (checkpoint_id, agent_id))
    parts = (*names, header, b",".join(lines))
    return b'{"format":1,"id":%b,"agent_id":%b,"header":%b,"messages":[%b]}' % parts


def _spans(ranges: str, base: int) -> list[range]:
    found: list[range] = []
    for text in ranges.split(",") if ranges != "-" else ():
        start, _, count = text.partition(":")
        first = int(start) + (base if start.startswith("+") else 0)
        found.append(range(first, first + int(count)))
    return found


def _check(header: dict[str, object], count: int) -> None:
    own, entry = header["messages"], header.get("entry")
    if not (own == count if entry is None else entry["kept"] <= own <= count):
        raise Damaged("the header does not belong to these messages")


def is_open(run: Run) -> bool:
    return not (run["status"] in ("succeeded", "failed", "cancelled") and run["delivered"])


# -- Redis ---------------------------------------------------------------------------------------------


class RawRedis:
    def __init__(self, client: Redis, prefix: str = "ckpt:") -> None:
        self._client, self._prefix = client, prefix

    def _key(self, agent_id: str, name: str) -> str:
        tag = agent_id.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
        return f"{self._prefix}{{{tag}}}:{name}"

    def latest(self, agent_id: str) -> bytes | None:
        agent = self._client.hgetall(self._key(agent_id, "agent"))
        _, _, field = agent.get(b"tip", b"").partition(b" ")
        log = self._client.lrange(self._key(agent_id, "log"), 0, -1)
        if not field and not log:
            return None
        if field not in agent:
            raise Damaged("the record of the latest checkpoint is missing")
        by_offset = dict(enumerate(log, int(agent.get(b"first", 0))))
        return written(agent_id, field.decode().removeprefix("c:"), agent[field], by_offset)

    def agents(self) -> list[str]:
        members = (
            member
            for shard in SHARDS
            for member in self._client.zrangebylex(f"{self._prefix}agents:{shard}", "-", "+")
        )
        names = (member.decode().partition(":")[2] for member in members)
        keys = ("agent", "log", "steps", "stepidx", "runs", "open")
        return [n for n in names if self._client.exists(*(self._key(n, key) for key in keys))]

    def owner_of_foreign(self, checkpoint_id: str) -> str | None:
        key = f"{self._prefix}ids:{locator(checkpoint_id)[0]}"
        owner = self._client.hget(key, checkpoint_id)
        return None if owner is None else owner.decode()

    def steps(self, agent_id: str, run_id: str) -> list[bytes]:
        prefix = f"{len(run_id)}:{run_id}:".encode()
        stored = self._client.hgetall(self._key(agent_id, "steps"))
        index = dict(self._client.zrange(self._key(agent_id, "stepidx"), 0, -1, withscores=True))
        assert {field: json.loads(_content(v))["iteration"] for field, v in stored.items()} == index
        return _in_order(value for field, value in stored.items() if field.startswith(prefix))

    def runs(self, agent_id: str) -> dict[str, Run]:
        lines = self._client.hgetall(self._key(agent_id, "runs"))
        ordered = sorted(lines, key=lambda name: int(lines[name].partition(b" ")[0]))
        return {name.decode(): _run(lines[name]) for name in ordered}

    def turns(self, agent_id: str) -> tuple[str, list[str]]:
        active = self._client.hget(self._key(agent_id, "agent"), "active") or b""
        open_runs = {x.decode() for x in self._client.zrange(self._key(agent_id, "open"), 0, -1)}
        return active.decode(), [name for name in self.runs(agent_id) if name in open_runs]

    def due_times(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for shard in range(4):
            key = f"{self._prefix}watchdog:{shard}"
            for member, score in self._client.zrangebyscore(key, "-inf", "+inf", withscores=True):
                assert SHARDS.index(locator(member.decode())[0]) % 4 == shard
                found[member.decode()] = int(score)
        return found

    def lease(self, agent_id: str) -> tuple[int, str, str]:
        names = ("token", "nonce", "owner")
        token, nonce, owner = self._client.hmget(self._key(agent_id, "agent"), *names)
        return int(token), nonce.decode(), owner.decode()


def _run(line: bytes) -> Run:
    _, usage, status, delivered, attempts, stalled, *texts, passed, expires, rest = line.split(b" ", 11)
    progress, delivery, trace = ("" if text == b"-" else _unquoted(text) for text in texts)
    return {
        **({} if usage == b"-" else {"usage": _usage(usage)}),
        "status": status.decode(),
        "delivered": delivered == b"1",
        "attempts": int(attempts),
        "stalled": int(stalled),
        "progress": progress,
        "delivery": delivery,
        "passed_over": passed == b"1",
        "expires_at": None if expires == b"-" else _iso(int(expires)),
        **({"trace": trace} if trace else {}),
        **json.loads(rest),
    }


def _iso(microseconds: int) -> str:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    return time.isoformat().replace("+00:00", "Z")


def _usage(word: bytes) -> dict[str, Any]:
    names = ("input_tokens", "output_tokens", "cached_tokens", "cost")
    found = {}
    for each in word.split(b";"):
        model, _, counts = each.partition(b"=")
        pairs = zip(names, counts.split(b","), strict=True)
        found[_unquoted(model)] = {
            name: float(count) if name == "cost" else int(count)
            for name, count in pairs
            if count not in (b"", b"0")
        }
    return found


def _content(stored: bytes) -> bytes:
    return stored.partition(b" ")[2]


def _in_order(stored: Iterable[bytes]) -> list[bytes]:
    return [_content(value) for value in sorted(stored, key=lambda v: int(v.partition(b" ")[0]))]


# -- SQLite --------------------------------------------------------------------------------------------


class RawSqlite:
    def __init__(self, path: Path) -> None:
        self._path = path

    def _all(self, query: str, *values: object) -> list[tuple]:
        with closing(sqlite3.connect(self._path)) as connection:
            refuse_newer(*connection.execute("SELECT version FROM ckpt_format").fetchone())
            return connection.execute(query, values).fetchall()

    def _agent_key(self, agent_id: str) -> int | None:
        rows = self._all("SELECT key FROM ckpt_agents WHERE agent_id = ?", agent_id)
        return rows[0][0] if rows else None

    def latest(self, agent_id: str) -> bytes | None:
        key = self._agent_key(agent_id)
        query = """
            SELECT id, format, number & 4294967295, record, base, count, messages FROM ckpt_saves
            WHERE number >> 32 = ? ORDER BY number"""
        log: dict[int, bytes] = {}
        newest = None
        for name, version, seq, record, base, count, messages in self._all(query, key):
            lines = messages.split(b"\n") if count else []
            if len(lines) == count:
                log.update(enumerate(lines, base))
            if name is not None:
                newest = name, b"%d %d %d %b" % (version, seq, base, record)
        return newest and written(agent_id, *newest, log)

    def agents(self) -> list[str]:
        return [name for (name,) in self._all("SELECT agent_id FROM ckpt_agents")]

    def owner_of_foreign(self, checkpoint_id: str) -> str | None:
        query = "SELECT agent_id FROM ckpt_saves JOIN ckpt_agents ON key = number / 4294967296"
        rows = self._all(f"{query} WHERE id = ?", checkpoint_id)
        return rows[0][0] if rows else None

    def steps(self, agent_id: str, run_id: str) -> list[bytes]:
        query = "SELECT value FROM ckpt_steps WHERE agent = ? AND run_id = ? ORDER BY number"
        return [value for (value,) in self._all(query, self._agent_key(agent_id), run_id)]

    def runs(self, agent_id: str) -> dict[str, Run]:
        query = "SELECT run_id, outline, payload FROM ckpt_runs WHERE agent = ? ORDER BY number"
        rows = self._all(query, self._agent_key(agent_id))
        return {run_id: json.loads(outline) | json.loads(payload) for run_id, outline, payload in rows}

    def turns(self, agent_id: str) -> tuple[str, list[str]]:
        rows = self._all("SELECT key, active FROM ckpt_agents WHERE agent_id = ?", agent_id)
        key, active = rows[0] if rows else (None, "")
        query = "SELECT run_id FROM ckpt_runs WHERE agent = ? AND open ORDER BY number"
        return active, [run_id for (run_id,) in self._all(query, key)]

    def due_times(self) -> dict[str, int]:
        return dict(self._all("SELECT agent_id, due_at FROM ckpt_watchdog"))

    def lease(self, agent_id: str) -> tuple[int, str, str]:
        return self._all("SELECT token, nonce, owner FROM ckpt_agents WHERE agent_id = ?", agent_id)[0]


# -- files ---------------------------------------------------------------------------------------------


class RawFiles:
    def __init__(self, root: Path) -> None:
        self._root = root

    def _directory(self, agent_id: str) -> Path:
        name = _file_name(agent_id)
        return self._root / "agents" / name[:2] / name

    def latest(self, agent_id: str) -> bytes | None:
        directory = self._directory(agent_id)
        if not directory.exists():
            return None
        refuse_newer(json.loads((directory / "name").read_bytes())["format"])
        live, log, ends = self._journal(directory)
        self._check_tip(directory, ends)
        newest = next(reversed(live), None)
        return newest and written(agent_id, newest, live[newest], log)

    def _journal(self, directory: Path) -> tuple[dict[str, bytes], dict[int, bytes], dict[int, int]]:
        live: dict[str, bytes] = {}
        log: dict[int, bytes] = {}
        ends: dict[int, int] = {}
        paths = directory.glob("journal-*")
        for number, path in sorted((int(path.name.removeprefix("journal-")), path) for path in paths):
            ends[number] = _take(path.read_bytes(), live, log)
        return live, log, ends

    def _check_tip(self, directory: Path, ends: dict[int, int]) -> None:
        if not (directory / "tip").exists():
            return
        crc, _, words = (directory / "tip").read_bytes().rstrip(b"\n").partition(b" ")
        if crc == _crc(words):
            segment, size, _ = words.split(b" ")
            if ends.get(int(segment), 0) < int(size):
                raise Damaged("the last save was cut off")

    def agents(self) -> list[str]:
        names = (self._root / "agents").glob("*/*/name")
        return [json.loads(path.read_bytes())["agent_id"] for path in names]

    def owner_of_foreign(self, checkpoint_id: str) -> str | None:
        name = _file_name(checkpoint_id)
        path = self._root / "ids" / name[:2] / name
        return json.loads(path.read_bytes())["agent_id"] if path.exists() else None

    def _table(self, agent_id: str, name: str) -> dict[str, bytes]:
        values: dict[str, bytes] = {}
        path = self._directory(agent_id) / name
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
            crc, _, entry = line.partition(b" ")
            if crc != _crc(entry):
                raise Damaged(line)
            key, _, value = entry.partition(b" ")
            values[_unquoted(key)] = value
        return values

    def steps(self, agent_id: str, run_id: str) -> list[bytes]:
        prefix = f"{len(run_id)} {run_id} "
        table = self._table(agent_id, "steps")
        return [value for key, value in table.items() if key.startswith(prefix)]

    def runs(self, agent_id: str) -> dict[str, Run]:
        directory = self._directory(agent_id)
        found = {name: json.loads(value) for name, value in self._table(agent_id, "runs").items()}
        if (directory / "pending-run").exists():
            pending = json.loads((directory / "pending-run").read_bytes())
            if pending["checkpoint"] in self._journal(directory)[0]:
                found[pending["run"]] = pending["record"]
        return found

    def turns(self, agent_id: str) -> tuple[str, list[str]]:
        path = self._directory(agent_id) / "lease"
        active = json.loads(path.read_bytes())["active"] if path.exists() else ""
        return active, [name for name, run in self.runs(agent_id).items() if is_open(run)]

    def due_times(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for path in (self._root / "watchdog").glob("[!.]*"):
            if path.name != "lock":
                fields = json.loads(path.read_bytes())
                assert path.name == _file_name(fields["agent_id"])
                found[fields["agent_id"]] = fields["due_at"]
        return found

    def lease(self, agent_id: str) -> tuple[int, str, str]:
        fields = json.loads((self._directory(agent_id) / "lease").read_bytes())
        return fields["token"], fields["nonce"], fields["owner"]


def _crc(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)


def _take(data: bytes, live: dict[str, bytes], log: dict[int, bytes]) -> int:
    """Take in a journal file; returns where its whole lines and saves end."""
    position = end = following = missing = 0
    current = ""
    for line in data.split(b"\n")[:-1]:
        position += len(line) + 1
        if line.startswith(b"{") or (missing and not line.startswith(b"#")):
            log[following] = line
            following, missing = following + 1, max(0, missing - 1)
        else:
            entry = line[10:]
            kind, *words = entry.split(b" ", 3)
            if line[:10] != b"#%b " % _crc(entry) or kind not in (b"save", b"prune"):
                live[f"(unreadable at {position})"] = b"(unreadable)"
            elif kind == b"prune":
                for word in entry.split(b" ")[1:]:
                    live.pop(_unquoted(word), None)
            else:
                missing, current = int(words[0]), _unquoted(words[1])
                live[current], following = words[2], int(words[2].split(b" ")[2])
        end = end if missing else position
    if missing:
        del live[current]
    return end
