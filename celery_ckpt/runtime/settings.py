"""The ``ckpt_*`` settings of an app, read and checked once.

They are read with ``app.conf.get``. Defaults set with ``app.add_defaults`` would take precedence over
the user's configuration. Under a namespace the settings are named ``CELERY_CKPT_*``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from celery import Celery
from kombu.utils.imports import symbol_by_name
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from celery_ckpt.errors import ConfigurationError
from celery_ckpt.event_log import DEFAULT_EVENT_LOG
from celery_ckpt.store import DEFAULT_MAX_CHECKPOINT_BYTES, DEFAULT_REMEMBER, Durability
from celery_ckpt.stores.encrypted.key_ring import parse_keys
from celery_ckpt.strategies import AfterToolCall, CheckpointStrategy
from celery_ckpt.usage import Usage

PREFIX = "ckpt_"
#: Settings whose values are never shown in messages.
_SECRETS = {"encryption_keys"}
_NOT_SET = object()
#: Kombu's default for the visibility timeout of a Redis broker, in seconds.
_VISIBILITY_TIMEOUT = 3600
_WEEK = timedelta(days=7).total_seconds()
#: The name of the app that shared tasks get where no app is current, as in a web server's thread.
_CELERYS_OWN_APP = "default"
_NO_STORE_URL = (
    "ckpt_store_url is not set. Set where checkpoints are stored, for instance "
    "app.conf.ckpt_store_url = 'redis://localhost:6379/1'."
)
_NO_CURRENT_APP = (
    "No app of yours is current in this thread, so the task uses Celery's default app, in which "
    "ckpt_store_url is not set. Name the app, @agent_task(app=app), or call app.set_default()."
)


class Settings(BaseModel):
    """Every setting with its default. Times are seconds, or a ``timedelta``."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    #: Where checkpoints are stored, see ``open_store``. A default would be a store that loses work.
    store_url: str | None = None
    #: The prefix of every key in Redis.
    key_prefix: str = "ckpt:"
    #: When to take a checkpoint, for tasks without a strategy.
    strategy: CheckpointStrategy = Field(default_factory=AfterToolCall)
    #: How many checkpoints of an agent are kept.
    keep: int | None = Field(default=20, ge=1)
    #: Older checkpoints are deleted.
    max_age: float | None = Field(default=None, gt=0)
    #: Agents named by their task id are deleted this time after their end; named agents never are.
    forget_finished_after: float | None = Field(default=_WEEK, gt=0)
    #: How often beat prunes; ``None``: never.
    prune_every: float | None = Field(default=300, gt=0)
    #: How long a worker may fail to renew a lease before it is presumed dead.
    lease_ttl: float = Field(default=30, ge=0.5, le=86_400)
    #: Whether runs are handed off when the worker shuts down.
    hand_off: bool = True
    #: Whether a run is handed off at a soft time limit, instead of failing.
    hand_off_on_time_limit: bool = False
    #: A run is handed off after this number of iterations.
    iterations_per_task: int | None = Field(default=None, ge=1)
    #: A run fails after this number of attempts in a row that died without recording anything.
    max_stalled_attempts: int = Field(default=5, ge=1)
    #: Larger checkpoints, steps and run records are refused.
    max_checkpoint_bytes: int = Field(default=DEFAULT_MAX_CHECKPOINT_BYTES, ge=1)
    #: How many calls, replays and actions the event log of an agent keeps; 0: there is no event log.
    event_log: int = Field(default=DEFAULT_EVENT_LOG, ge=0, le=100_000)
    #: What a save waits for: only the store's reply, the disk, or a replica.
    durability: Durability = "default"
    #: Keys for encryption at rest, as a list or separated by commas. The first one encrypts.
    encryption_keys: tuple[str, ...] = Field(default=(), repr=False)
    #: Removes secrets from messages, states and results: a function, or "module:function".
    redact: Callable[[Any, Any], Any] | None = None
    #: Computes the cost of a call from its model and usage: a function, or "module:function".
    cost: Callable[[str, Usage], float | None] | None = None

    @field_validator("strategy", mode="before")
    @classmethod
    def _parse_strategy(cls, value: Any) -> Any:
        return CheckpointStrategy.parse(value) if isinstance(value, str) else value

    @field_validator("max_age", "forget_finished_after", "prune_every", "lease_ttl", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        return seconds(value)

    @field_validator("redact", "cost", mode="before")
    @classmethod
    def _function(cls, value: Any) -> Any:
        try:
            return symbol_by_name(value) if isinstance(value, str) else value
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"it cannot be imported: {error}") from None

    @field_validator("encryption_keys", mode="before")
    @classmethod
    def _keys(cls, value: Any) -> Any:
        # An empty text is a variable that was not set. Without an error, data would be unencrypted.
        given = value.split(",") if isinstance(value, str) else tuple(value or ())
        parse_keys(given)
        return given

    @classmethod
    def of(cls, app: Celery) -> Settings:
        """Return the settings of an app.

        Raises:
            ConfigurationError: a name or a value is wrong; it names it, and suggests a correction.
        """
        known = cls.model_fields
        refuse_unknown(_names_in(app), known)
        given = {}
        for name in known:
            # Without a namespace Celery finds a name in capitals only as it is written.
            setting = PREFIX + name
            value = app.conf.get(setting, app.conf.get(setting.upper(), _NOT_SET))
            if value is not _NOT_SET:
                given[name] = value
        try:
            return cls(**given)
        except ValidationError as error:
            [first, *_] = error.errors()
            name = ".".join(str(part) for part in first["loc"])
            shown = "" if name in _SECRETS else f" = {first['input']!r}"
            why = first["msg"].removeprefix("Value error, ").rstrip(".")
            reason = f"The setting {PREFIX}{name}{shown} is wrong: {why}."
            raise ConfigurationError(reason=reason) from None  # the error's input may be a key

    def remember_deleted(self, app: Celery) -> float:
        """Return how many seconds the store remembers runs that were deleted with their agent.

        A message can be delivered again until the visibility timeout of the broker has passed.
        """
        options = app.conf.broker_transport_options or {}
        visibility = options.get("visibility_timeout", _VISIBILITY_TIMEOUT)
        return max(self.forget_finished_after or DEFAULT_REMEMBER, float(visibility))

    def required_store_url(self, app: Celery) -> str:
        """Return the URL of the store. Raise ``ConfigurationError`` if it is not set in that app."""
        if self.store_url is None:
            raise ConfigurationError(reason=_NO_CURRENT_APP if is_default_app(app) else _NO_STORE_URL)
        return self.store_url


def is_default_app(app: Celery) -> bool:
    """True if it is the app that Celery makes where no app was named."""
    return app.main == _CELERYS_OWN_APP


def seconds(value: Any) -> Any:
    """Return a ``timedelta`` as seconds, and other values unchanged."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def refuse_unknown(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``ConfigurationError`` for a name that is not a setting, with the closest one."""
    allowed = {PREFIX + name for name in known}
    for name in names:
        if name not in allowed:
            close = get_close_matches(name, allowed, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ConfigurationError(reason=f"There is no setting {name!r}.{hint}")


def _names_in(app: Celery) -> list[str]:
    app.conf.finalize()
    prefix = (app.conf.prefix or "") + PREFIX
    names = {str(name) for mapping in app.conf.maps for name in mapping}
    own = [name.lower() for name in names if name.lower().startswith(prefix.lower())]
    plain = {name.lower() for name in names if name.lower().startswith(PREFIX)}
    return sorted({PREFIX + name[len(prefix) :] for name in own} | plain)
