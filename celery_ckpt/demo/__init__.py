"""What happens to an agent when its worker is killed, live, with and without celery_ckpt.

research  model                    what the agent is asked, and a model that streams offline
durable  plain  waits              the same agent with ``@agent_task``, and as a plain Celery task
ledger  telling                    what was called and what it cost, where no kill can take it away
processes  server  workers         real processes, which end with the demo
sides  show                        who is killed when; both sides at once, until both have answered
story                              what the ledger tells: attempts, iterations, money
wording  lines  screen  bill  svg  what a person sees
command  script  stop              ``celery-ckpt demo``, and how Ctrl-C ends it at any moment
"""

from __future__ import annotations
