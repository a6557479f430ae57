"""The events of workers, as a monitor receives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from tests.support.wait import until

_PROBE = "probe-sent"


class EventCollector:
    """Collects all events since its start."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._seen: list[dict[str, Any]] = []

    def saw(self, kind: str, uuid: str | None = None) -> list[dict[str, Any]]:
        """Return the events of a kind, such as ``task``; with ``uuid``, only those of that task."""
        own = [event for event in self._seen if event["type"].startswith(f"{kind}-")]
        return [event for event in own if uuid in (None, event.get("uuid"))]

    def kinds(self, kind: str, uuid: str | None = None) -> list[str]:
        """Return the names of the events that ``saw`` returns."""
        return [event["type"] for event in self.saw(kind, uuid)]

    def catch_up(self, deadline: float = 10) -> None:
        """Wait until every event that was sent before this call has arrived."""
        before = len(self.saw("probe"))

        def has_arrived() -> bool:
            with self._app.events.default_dispatcher() as dispatcher:
                dispatcher.send(_PROBE)
            return len(self.saw("probe")) > before

        until(has_arrived, deadline, "events arrive")


@contextmanager
def collect_events(app: Celery) -> Iterator[EventCollector]:
    """Collect the events of all workers of an app inside the block."""
    collected = EventCollector(app)
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": collected._seen.append})
        thread = threading.Thread(target=lambda: receiver.capture(wakeup=False), daemon=True)
        thread.start()
        try:
            collected.catch_up()
            yield collected
        finally:
            receiver.should_stop = True
            thread.join(5)
