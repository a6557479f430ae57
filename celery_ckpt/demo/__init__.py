"""What happens to an agent when its worker is killed, live, with and without celery_ckpt.

research  model               the agent's question, tools and model: a stand-in that streams offline
durable   plain               the same agent twice: with ``@agent_task``, and as a plain Celery task
ledger                        what was called and what it cost, written where no kill can take it away
processes  server  workers    real processes, which end with the demo
sides  show                   who is killed when; both sides at once, until both have their answer
story                         what the ledger tells: attempts, iterations, the bill
wording  lines  screen  bill  what a person sees
command                       ``celery-ckpt demo``
"""

from __future__ import annotations
