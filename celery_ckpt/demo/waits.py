"""How long each side waits for what, in seconds: short, so that nobody has to watch for long."""

from __future__ import annotations

#: An agent whose worker says nothing for so long is taken over. The default is 30.
LEASE = 2
#: A message that was not acknowledged comes back after this. It has to be longer than the task takes,
#: or the task runs twice at once. Celery's default is an hour.
VISIBILITY = 9
#: A worker that is told to stop gives its task so long to end, then puts it back on the queue.
SOFT_SHUTDOWN = 1
