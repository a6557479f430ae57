"""The hooks that a task's own class may have: one that fails must not leave its run open.

Celery calls ``on_failure`` when the failure is stored and the errbacks are sent, and only after it says
so (``task_failure``); a hook that raises would keep it from that. ``before_start`` is called when there
is no attempt yet: a failure of it is kept until there is one, and is that attempt's then.
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
#: A hook that is cared for already: a subclass inherits it.
_MARK = "ckpt_hook"


def wrap_hooks(cls: Any) -> None:
    """Put ours around those that a class of tasks has."""
    for name, around in _AROUND.items():
        hook = inspect.getattr_static(cls, name)
        is_own = inspect.isfunction(hook) and hook is not getattr(Task, name)
        if is_own and not hasattr(hook, _MARK):
            cared_for = functools.wraps(hook)(around(hook))
            setattr(cared_for, _MARK, True)
            setattr(cls, name, cared_for)


def _announced_before(hook: Hook) -> Hook:
    def on_failure(task: Any, *args: Any, **kwargs: Any) -> Any:
        attempt = attempt_of(task)
        if attempt is not None:
            attempt.is_announced = True
        return hook(task, *args, **kwargs)

    return on_failure


def _kept_for_the_attempt(hook: Hook) -> Hook:
    def before_start(task: Any, *args: Any, **kwargs: Any) -> None:
        try:
            hook(task, *args, **kwargs)
        except Retry:
            raise  # its message is sent
        except Exception as error:
            if task.request.is_eager:
                raise
            task.request.ckpt_refusal = error

    return before_start


_AROUND: dict[str, Callable[[Hook], Hook]] = {
    "before_start": _kept_for_the_attempt,
    "on_failure": _announced_before,
}
