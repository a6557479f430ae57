"""The hooks of a task class: one that raises must not leave its run open.

Celery calls ``on_failure`` after it has stored the failure and sent the errbacks, and before it sends
``task_failure``. A hook that raises would prevent that signal, so the attempt is marked before the hook
is called. ``before_start`` is called before there is an attempt: what it raises becomes the outcome of
the attempt.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from celery.app.task import Task
from celery.exceptions import Retry

from celery_ckpt.runtime.attempt.attempt import attempt_of

Hook = Callable[..., Any]
#: Marks a hook that is wrapped already: a subclass inherits it.
_MARK = "ckpt_hook"


def wrap_hooks(cls: Any) -> None:
    """Wrap the hooks of a task class."""
    for name, wrapper in _WRAPPERS.items():
        hook = inspect.getattr_static(cls, name)
        is_own = inspect.isfunction(hook) and hook is not getattr(Task, name)
        if is_own and not hasattr(hook, _MARK):
            wrapped = functools.wraps(hook)(wrapper(hook))
            setattr(wrapped, _MARK, True)
            setattr(cls, name, wrapped)


def _wrapped_on_failure(hook: Hook) -> Hook:
    def on_failure(task: Any, *args: Any, **kwargs: Any) -> Any:
        attempt = attempt_of(task)
        if attempt is not None:
            attempt.is_announced = True
        return hook(task, *args, **kwargs)

    return on_failure


def _wrapped_before_start(hook: Hook) -> Hook:
    def before_start(task: Any, *args: Any, **kwargs: Any) -> None:
        try:
            hook(task, *args, **kwargs)
        except Retry:
            raise  # its message is published
        except Exception as error:
            if task.request.is_eager:
                raise
            task.request.ckpt_refusal = error

    return before_start


_WRAPPERS: dict[str, Callable[[Hook], Hook]] = {
    "before_start": _wrapped_before_start,
    "on_failure": _wrapped_on_failure,
}
