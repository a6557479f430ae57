"""Notes what threads import, after a worker has imported its tasks."""

from __future__ import annotations

import sys
import threading

from tests.support.ledger import NO_RUN, here, is_worker

MODULE = "tests.support.tasks.import_log"


class _Finder:
    """An import hook that comes first, takes notes, and finds nothing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            here().note(NO_RUN, "import", module=name, thread=thread.name)


if is_worker():  # the tests import this module too
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
