"""Ask the agent, and wait for its answer: ``python ask.py "why is the sky blue?"``."""

from __future__ import annotations

import sys

from research import research

result = research.delay(" ".join(sys.argv[1:]) or "Why is the sky blue, and the sunset red?")
print(f"agent {result.id} is running", flush=True)
print(result.get())
