"""Lua scripts and SQL statements, read from their files."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from celery_ckpt.event_log import ATTEMPT_ENTRIES, LIVE_ENTRIES, LIVE_SECONDS
from celery_ckpt.format_version import FORMAT_VERSION

#: Found at import, because this imports modules. If a thread did so later, a process that is forked at
#: the same time would wait forever for the import to end.
_FILES = files("celery_ckpt.stores")
#: The places of open runs in Redis: numbers of runs are below, times in milliseconds are not.
IN_LINE = 10**11
#: What every script begins with.
_CONSTANTS = (
    f"local FORMAT_VERSION, IN_LINE = '{FORMAT_VERSION}', '{IN_LINE}'\n"
    f"local ATTEMPT_ENTRIES, LIVE_ENTRIES, LIVE_SECONDS = "
    f"{ATTEMPT_ENTRIES}, {LIVE_ENTRIES}, {LIVE_SECONDS}\n"
)


@cache
def lua(name: str) -> str:
    """Return a whole script: the shared functions that it needs, then its own file."""
    own = _read(f"redis/lua/{name}.lua")
    return _CONSTANTS + _used_by(own) + own


@cache
def joined_lua(names: tuple[str, ...]) -> str:
    """Return a script that runs any of several scripts; an empty name is a command with one key."""
    command = "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))\n"
    scripts = (f"function(KEYS, ARGV)\n{lua(name) if name else command}end" for name in names)
    return f"local scripts = {{{', '.join(scripts)}}}\n{_read('redis/lua/joined.lua')}"


def _used_by(script: str) -> str:
    """Return the shared functions that a script needs, directly or not, in the order of their file."""
    _, *functions = re.split(r"^(?=local function )", _read("redis/lua/shared.lua"), flags=re.MULTILINE)
    used = ""
    for function in reversed(functions):
        name = function.split("(", 1)[0].removeprefix("local function ")
        if re.search(rf"\b{name}\(", used + script):
            used = function + used
    return used


@cache
def queries() -> dict[str, str]:
    """Return the statements of ``queries.sql`` by the name in the line above each."""
    blocks = _read("sqlite/queries.sql").split("\n\n-- ")[1:]
    pairs = (block.split("\n", 1) for block in blocks)
    return {name.partition(" ")[0]: statement.strip() for name, statement in pairs}


def schema() -> list[str]:
    """Return the statements that create the tables of an SQLite store."""
    return _read("sqlite/schema.sql").split(";\n")


def _read(path: str) -> str:
    return _FILES.joinpath(path).read_text(encoding="utf-8")
