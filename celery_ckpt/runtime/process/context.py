"""What an app has in this process: settings, store, threads. Made when it is first used."""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.run.redaction import Redaction
from celery_ckpt.runtime.process.background import BackgroundThread
from celery_ckpt.runtime.process.lease_renewer import LeaseRenewer
from celery_ckpt.runtime.process.owner import this_process
from celery_ckpt.runtime.settings import Settings
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.encrypted import EncryptedStore
from celery_ckpt.stores.registry import open_store

#: The environment variable by which a worker's children know whether to send events.
_EVENTS = "CELERY_CKPT_SENDS_EVENTS"


class AppContext:
    """Everything of an app that a process needs once. Settings that are not given are read."""

    def __init__(
        self, app: Celery, store: CheckpointStore | None = None, settings: Settings | None = None
    ) -> None:
        self.app = app
        self.settings = settings or Settings.of(app)
        self.store = store or _connect_store(app, self.settings)
        self.store.event_log_limit = self.settings.event_log
        self.redaction = Redaction(self.settings.redact)
        self.owner = this_process()
        self.lease_renewer = LeaseRenewer(app, self.store, self.settings.lease_ttl)
        self.background = BackgroundThread()

    @property
    def sends_events(self) -> bool:
        """True if this worker sends events (``-E``)."""
        return bool(os.environ.get(_EVENTS))

    def announce_events(self, enabled: bool) -> None:
        """In the parent: set whether its children send events."""
        os.environ[_EVENTS] = "1" if enabled else ""

    @classmethod
    def of(cls, app: Celery) -> AppContext:
        """Return the context of an app in this process."""
        app = app._get_current_object() if hasattr(app, "_get_current_object") else app
        with _lock:
            found = _contexts.get(app)
            if found is None:
                found = _contexts[app] = cls(app)
            return found

    @classmethod
    def all(cls) -> list[AppContext]:
        """Return the contexts of this process."""
        with _lock:
            return list(_contexts.values())


def _connect_store(app: Celery, settings: Settings) -> CheckpointStore:
    options: dict[str, Any] = {"max_checkpoint_bytes": settings.max_checkpoint_bytes}
    options["durability"] = settings.durability
    if "key_prefix" in settings.model_fields_set:  # only stores with keys have the option
        options["key_prefix"] = settings.key_prefix
    url = settings.required_store_url(app)
    try:
        store = open_store(url, **options)
    except ConfigurationError as error:
        raise ConfigurationError(reason=f"The setting ckpt_store_url is wrong: {error}") from error
    return EncryptedStore(store, settings.encryption_keys) if settings.encryption_keys else store


_lock = threading.Lock()
_contexts: WeakKeyDictionary[Celery, AppContext] = WeakKeyDictionary()


def _reset_after_fork() -> None:
    # A child must not use its parent's threads and connections.
    global _lock
    _lock = threading.Lock()
    _contexts.clear()


os.register_at_fork(after_in_child=_reset_after_fork)
