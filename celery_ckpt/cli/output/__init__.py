"""How commands print: tables, text, progress, and the screen they share.

Everything that comes from a store passes through ``text``, which removes what could harm a terminal.
``rich`` is imported only where a person reads. No module here reads a store.
"""

from __future__ import annotations
