"""What calls have used: tokens and cost, in total and by model.

A ``Usage`` is an immutable value. Sums do not depend on the order. The cost is ``None`` until a call
has one: "unknown" is not "free".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from celery_ckpt.errors import NotJson

#: The model of calls that do not name one.
UNNAMED = ""
_COUNTS = ("input_tokens", "output_tokens", "cached_tokens")
_LARGEST = 2**53


@dataclass(frozen=True)
class Usage:
    """Tokens and cost. ``cached_tokens`` is the part of ``input_tokens`` that came from a cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    #: ``None``: unknown.
    cost: float | None = None
    #: The usage by model name; calls that name no model count under ``""``.
    by_model: Mapping[str, Usage] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: str | None = None,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        cost: float | None = None,
    ) -> Usage:
        """Return what one call used.

        Raises:
            NotJson: a count is not an integer of at least 0, or the cost is not a finite number.
        """
        counts = (input_tokens, output_tokens, cached_tokens)
        for name, count in zip(_COUNTS, counts, strict=True):
            if type(count) is not int or not 0 <= count <= _LARGEST:
                raise NotJson(path=name, reason=f"is {count!r}, not an integer of at least 0")
        cost = _cost(cost)
        if model is not None and not isinstance(model, str):
            raise NotJson(path="model", reason=f"is {model!r}, not a name")
        own = cls(*counts, cost=cost)
        return cls(*counts, cost=cost, by_model={model or UNNAMED: own})

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        names = [*self.by_model, *(name for name in other.by_model if name not in self.by_model)]
        nothing = Usage()
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            _sum_of_costs(self.cost, other.cost),
            {n: self.by_model.get(n, nothing) + other.by_model.get(n, nothing) for n in names},
        )

    def __bool__(self) -> bool:
        return bool(self.by_model)

    def __hash__(self) -> int:
        # Without a hash, pydantic copies the default of a field for every checkpoint and step.
        return hash((self.input_tokens, self.output_tokens, self.cached_tokens, self.cost))

    @property
    def tokens(self) -> int:
        """Return input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def named(self, model: str) -> Usage:
        """Return the usage with this model in place of no name."""
        own = self.by_model.get(UNNAMED)
        if own is None or model == UNNAMED:
            return self
        others = {name: used for name, used in self.by_model.items() if name not in (UNNAMED, model)}
        return _total({model: own + self.by_model.get(model, Usage()), **others})

    def attributed(self) -> Usage:
        """Return the usage by model, also if it was made without models.

        Raises:
            NotJson: a count is not an integer of at least 0, or the cost is not a number.
        """
        if self.by_model:
            return self
        counts = {name: getattr(self, name) for name in _COUNTS}
        is_empty = not any(counts.values()) and self.cost is None
        return self if is_empty else Usage.of(None, **counts, cost=self.cost)

    def priced(self, cost: Callable[[str, Usage], float | None]) -> Usage:
        """Return the usage with costs computed by a function, for models that have no cost.

        Raises:
            NotJson: the function returned something that is not a cost.
        """
        return _total(
            {
                model: own if own.cost is not None else replace(own, cost=_cost(cost(model, own)))
                for model, own in self.by_model.items()
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all counts as JSON, for programs."""
        counts: dict[str, Any] = {name: getattr(self, name) for name in (*_COUNTS, "cost")}
        models = {model: {**own.to_dict()} for model, own in self.by_model.items()}
        for own in models.values():
            own.pop("by_model", None)
        return {**counts, "by_model": models}

    def to_json(self) -> dict[str, Any]:
        """Return the usage by model, without counts of 0 and unknown costs."""
        written: dict[str, Any] = {}
        for model, own in self.by_model.items():
            counts = {name: getattr(own, name) for name in _COUNTS if getattr(own, name)}
            written[model] = counts if own.cost is None else {**counts, "cost": own.cost}
        return written

    @classmethod
    def from_json(cls, value: Any) -> Usage:
        """Read what ``to_json`` wrote. Raises ``NotJson`` for anything else."""
        if not isinstance(value, dict):
            raise NotJson(path="usage", reason="is not an object")
        total = cls()
        for model, own in value.items():
            if not isinstance(own, dict) or not own.keys() <= {*_COUNTS, "cost"}:
                raise NotJson(path=f"usage[{model!r}]", reason="is not the usage of a model")
            total += cls.of(model, **{name: _whole(count) for name, count in own.items()})
        return total


def _total(by_model: dict[str, Usage]) -> Usage:
    everything = sum(by_model.values(), Usage())
    return replace(everything, by_model=by_model)


def _cost(cost: Any) -> float | None:
    if cost is None:
        return None
    is_number = isinstance(cost, int | float) and not isinstance(cost, bool)
    if not is_number or not 0 <= cost <= _LARGEST:
        raise NotJson(path="cost", reason=f"is {cost!r}, not a number of at least 0")
    return float(cost)


def _sum_of_costs(one: float | None, other: float | None) -> float | None:
    if one is None:
        return other
    return one if other is None else one + other


def _whole(number: Any) -> Any:
    """Lua writes 3 as 3, but large counts as 1e+15."""
    return int(number) if isinstance(number, float) and number.is_integer() else number
