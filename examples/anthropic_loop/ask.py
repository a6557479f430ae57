"""Ask an agent that has a name: ``python ask.py NAME QUESTION``. It remembers, so ask it again."""

from __future__ import annotations

import sys

from research import research

name, *question = sys.argv[1:]
result = research.apply_async((" ".join(question),), agent_id=name)
print(result.get())
