"""Ask a named agent: ``python ask.py NAME QUESTION``. It remembers earlier questions.

Without arguments, it asks the question from the README.
"""

from __future__ import annotations

import sys

from research import research

name = sys.argv[1] if len(sys.argv) > 1 else "mountaineer"
question = " ".join(sys.argv[2:]) or "Which is higher, the Zugspitze or Kebnekaise?"
print(research.apply_async((question,), agent_id=name).get())
