"""The version of everything that is stored, and the refusal of a newer one.

``docs/reference/storage-format.md`` describes the format.
"""

from __future__ import annotations

from celery_ckpt.errors import SchemaTooNew

#: The version that this code writes.
FORMAT_VERSION = 1


def refuse_newer(version: object, what: str) -> None:
    """Raise ``SchemaTooNew`` for a format version that is newer than this code."""
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"{what} has format version {version!r}")
    if version > FORMAT_VERSION:
        raise SchemaTooNew(what=what, version=version, supported=FORMAT_VERSION)
