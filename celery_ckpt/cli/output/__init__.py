"""How commands print: ``screen``, which they write to, and its tables, text and progress bars.

Everything that comes from a store passes through ``text``, which escapes what could harm a terminal.
``rich`` is imported only where a person reads. No module here reads a store or imports a command.
"""

from __future__ import annotations
