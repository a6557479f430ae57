"""The result of a step: JSON, or a value that its declared type can write as JSON and read back.

The body gets the value that was *read back*, in the first attempt, too, so that a replay cannot differ.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from celery_ckpt.errors import NotJson, StepResultNotJson
from celery_ckpt.json_values import encode, kind_of, plain


def declared(fn: Callable[..., Any]) -> Any:
    """Return the annotated return type of a function if it contains pydantic models; else ``None``.

    Other annotations are ignored: plain JSON needs none, and they may be wrong.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not hasattr(fn, "__annotations__"):
        fn = getattr(fn, "__call__", fn)  # noqa: B004  (an object that can be called)
    if "return" not in getattr(fn, "__annotations__", ()):
        return None
    own = getattr(fn, "__func__", fn)
    try:
        return _declared[own]
    except TypeError:
        return _annotated(fn)  # it cannot be the key of a cache
    except KeyError:
        found = _declared[own] = _annotated(fn)
        return found


#: What functions declare: reading annotations takes longer than recording a result.
_declared: WeakKeyDictionary[Callable[..., Any], Any] = WeakKeyDictionary()


def _annotated(fn: Callable[..., Any]) -> Any:
    try:
        found = get_type_hints(fn).get("return")
    except (NameError, TypeError, AttributeError):
        # The annotation names something that exists for type checkers only.
        return None
    if get_origin(found) in (Awaitable, Coroutine):
        found = get_args(found)[-1]
    return found if _has_model(found) else None


def _has_model(annotation: Any) -> bool:
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, BaseModel)
    return any(_has_model(part) for part in get_args(annotation))


def dumped(value: Any, returns: Any, step: str) -> Any:
    """Return the JSON to record for a result. ``loaded`` can read it.

    Raises:
        StepResultNotJson: JSON cannot represent it; the error names the step and the path.
    """
    recorded = _dumped(value, returns, step)
    loaded(recorded, returns, step)
    return recorded


def _dumped(value: Any, returns: Any, step: str) -> Any:
    try:
        if returns is not None:
            adapter = _adapter(returns)
            value = adapter.dump_python(
                adapter.validate_python(value, by_alias=True, by_name=True),
                mode="json",
                by_alias=False,
                round_trip=True,
                warnings=False,
            )
        return plain(value, "result")
    except NotJson as error:
        reason = error.reason
        if isinstance(value, BaseModel):
            model = kind_of(value).rsplit(".")[-1]
            reason += f" (pass returns={model}, or annotate the function's result)"
        raise StepResultNotJson(step=step, path=error.path, reason=reason) from None
    except ValidationError as error:
        raise _misfit(error, returns, step) from None  # its text contains the value
    except PydanticSerializationError as error:
        raise StepResultNotJson(
            step=step, path="result", reason=f"cannot be written as JSON: {error}"
        ) from error


def loaded(value: Any, returns: Any, step: str) -> Any:
    """Return the result that was recorded as this JSON.

    Raises:
        StepResultNotJson: the declared type does not accept it, or no longer does.
    """
    if returns is None:
        return value
    try:
        return _adapter(returns).validate_json(encode(value), by_alias=False, by_name=True)
    except ValidationError as error:
        raise _misfit(error, returns, step) from None  # its text contains the value


def _misfit(error: ValidationError, returns: Any, step: str) -> StepResultNotJson:
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
    reason = f"does not fit {returns!r}: {first['msg']}"
    return StepResultNotJson(step=step, path=f"result{path}", reason=reason)


@functools.lru_cache(maxsize=256)
def _cached_adapter(returns: Any) -> TypeAdapter[Any]:
    return TypeAdapter(returns)


def _adapter(returns: Any) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(returns)
    except TypeError:
        # An annotation that cannot be hashed.
        return TypeAdapter(returns)
