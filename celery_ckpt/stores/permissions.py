"""Which users can change the files of a store."""

from __future__ import annotations

import stat
from pathlib import Path

_OTHERS = {stat.S_IWOTH: ("every user", "o-w"), stat.S_IWGRP: ("its group", "g-w")}


def open_to_others(path: Path) -> list[str]:
    """Return a risk, with its remedy, if users other than the owner can write a file or directory."""
    if not path.exists():
        return []
    mode = stat.S_IMODE(path.stat().st_mode)
    found = [names for bit, names in _OTHERS.items() if mode & bit]
    if not found:
        return []
    who = " and ".join(name for name, _ in found)
    remedy = ",".join(change for _, change in found)
    return [
        f"{path} is writable by {who} (mode {mode:04o}), which can change or delete saved data; "
        f"run chmod {remedy} on it"
    ]
