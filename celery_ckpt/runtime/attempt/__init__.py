"""How a delivery becomes an outcome (RESUME): ``start``, ``execution``, ``settlement``.

Celery gets no outcome that the store has not recorded. Every write of an attempt carries its lease, so
that an attempt that lost its lease changes nothing. ``attempt`` is the host of the run: it saves,
records and emits. ``backend`` stores task states that Celery does not store by itself.
"""

from __future__ import annotations
