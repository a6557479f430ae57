"""Durable LLM agents on Celery: checkpoints of conversations, and stores that keep them.

The names below are the public interface. Each is imported when it is first used, so that
``import celery_ckpt`` is fast and imports neither Celery nor a store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_ckpt.checkpoint import Checkpoint, Entry
    from celery_ckpt.conversation import Conversation
    from celery_ckpt.event_log import LogEntry
    from celery_ckpt.events import CheckpointEvent
    from celery_ckpt.messages import Message, ToolCall
    from celery_ckpt.retention.policy import RetentionPolicy
    from celery_ckpt.run.agent_run import AgentRun
    from celery_ckpt.run.current import current_run
    from celery_ckpt.runtime import signals
    from celery_ckpt.runtime.agents.agents import Agents
    from celery_ckpt.runtime.task.decorator import agent_task
    from celery_ckpt.runtime.task.task import AgentTask
    from celery_ckpt.store import CheckpointStore
    from celery_ckpt.stores.file import FileCheckpointStore
    from celery_ckpt.stores.memory import MemoryCheckpointStore
    from celery_ckpt.stores.redis import RedisCheckpointStore
    from celery_ckpt.stores.registry import open_store, register_store
    from celery_ckpt.stores.sqlite import SqliteCheckpointStore
    from celery_ckpt.strategies import (
        AfterLlmResponse,
        AfterToolCall,
        AnyOf,
        CheckpointStrategy,
        EveryN,
        EverySeconds,
        Never,
    )
    from celery_ckpt.usage import Usage

__version__ = "0.1.0"

__all__ = [
    # Tasks
    "AgentTask",
    "Agents",
    "agent_task",
    "current_run",
    "signals",
    # What a body works with
    "AgentRun",
    # Vocabulary
    "Checkpoint",
    "CheckpointEvent",
    "Conversation",
    "Entry",
    "LogEntry",
    "Message",
    "ToolCall",
    "Usage",
    # When to save a checkpoint, and which to delete
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
    "register_store",
]

#: The module of each name.
_MODULES = {
    "conversation": ("Conversation",),
    "events": ("CheckpointEvent",),
    "event_log": ("LogEntry",),
    "messages": ("Message", "ToolCall"),
    "checkpoint": ("Checkpoint", "Entry"),
    "retention": ("RetentionPolicy",),
    "runtime.agents.agents": ("Agents",),
    "run.current": ("current_run",),
    "runtime.task.decorator": ("agent_task",),
    "runtime.task.task": ("AgentTask",),
    "run.agent_run": ("AgentRun",),
    "store": ("CheckpointStore",),
    "stores.file": ("FileCheckpointStore",),
    "stores.memory": ("MemoryCheckpointStore",),
    "stores.registry": ("open_store", "register_store"),
    "stores.redis": ("RedisCheckpointStore",),
    "stores.sqlite": ("SqliteCheckpointStore",),
    "strategies": (
        "AfterLlmResponse",
        "AfterToolCall",
        "AnyOf",
        "CheckpointStrategy",
        "EveryN",
        "EverySeconds",
        "Never",
    ),
    "usage": ("Usage",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "signals":
        return import_module(f"{__name__}.runtime.signals")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
