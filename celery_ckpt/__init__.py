"""Durable LLM agents on Celery: checkpoints of a conversation, and stores that keep them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_ckpt.conversation import Conversation
from celery_ckpt.events import CheckpointEvent
from celery_ckpt.messages import Message, ToolCall
from celery_ckpt.models import Checkpoint, Entry
from celery_ckpt.retention import RetentionPolicy
from celery_ckpt.store import CheckpointStore
from celery_ckpt.stores.opening import open_store
from celery_ckpt.strategies import (
    AfterLlmResponse,
    AfterToolCall,
    AnyOf,
    CheckpointStrategy,
    EveryN,
    EverySeconds,
    Never,
)

if TYPE_CHECKING:
    from celery_ckpt.stores.file import FileCheckpointStore
    from celery_ckpt.stores.memory import MemoryCheckpointStore
    from celery_ckpt.stores.redis import RedisCheckpointStore
    from celery_ckpt.stores.sqlite import SqliteCheckpointStore

__version__ = "0.1.0"

__all__ = [
    # Vocabulary
    "Checkpoint",
    "CheckpointEvent",
    "Conversation",
    "Entry",
    "Message",
    "ToolCall",
    # When to take a checkpoint, and which may go
    "AfterLlmResponse",
    "AfterToolCall",
    "AnyOf",
    "CheckpointStrategy",
    "EveryN",
    "EverySeconds",
    "Never",
    "RetentionPolicy",
    # Stores
    "CheckpointStore",
    "FileCheckpointStore",
    "MemoryCheckpointStore",
    "RedisCheckpointStore",
    "SqliteCheckpointStore",
    "open_store",
]

#: The stores are imported when they are first named: most programs use one of them.
_STORES = {
    "FileCheckpointStore": "celery_ckpt.stores.file",
    "MemoryCheckpointStore": "celery_ckpt.stores.memory",
    "RedisCheckpointStore": "celery_ckpt.stores.redis",
    "SqliteCheckpointStore": "celery_ckpt.stores.sqlite",
}


def __getattr__(name: str) -> Any:
    if name not in _STORES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_STORES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_STORES])
