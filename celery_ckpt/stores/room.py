"""When the system has no room for more: what it says then."""

from __future__ import annotations

import errno

#: The disk is full, a user's share of it is, or a file would become larger than the process may write.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_lacking_room(error: OSError) -> bool:
    """Does the system say that there is no room?"""
    return error.errno in _NO_ROOM
