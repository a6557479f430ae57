"""What a step may return. A replay returns the same type and value."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, Field

from celery_ckpt import AgentRun
from celery_ckpt.errors import NotJson, StepResultNotJson
from celery_ckpt.run.step_result import declared, dumped, loaded
from tests.support.run_host import Attempts


class Page(BaseModel):
    title: str
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    links: list[Page] = []
    score: float = Field(default=0.5, alias="pageScore")


def page() -> Page:
    return Page(title="a", links=[Page(title="b")], pageScore=0.75)


def pages() -> list[Page]:
    return [page(), page()]


def maybe() -> Page | None:
    return None


def by_title() -> dict[str, Page]:
    return {"a": page()}


async def later() -> list[Page]:
    return pages()


def coming() -> Awaitable[Page]:
    raise NotImplementedError


class Fetcher:
    def __call__(self) -> Page:
        return page()


@pytest.mark.parametrize("fn", [page, pages, maybe, by_title, Fetcher(), functools.partial(page)])
def test_models_are_restored_by_the_annotation_of_the_function(fn: Callable[[], Any]) -> None:
    recorded = dumped(fn(), declared(fn), "step")
    again = loaded(recorded, declared(fn), "step")
    assert again == fn()
    assert type(again) is type(fn())


def test_the_annotation_of_an_async_function_is_used() -> None:
    assert declared(later) == list[Page]
    assert declared(coming) is Page


def not_true() -> int:
    return "a text"  # type: ignore[return-value]


def unknown() -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
    return {"a": 1}


@pytest.mark.parametrize("fn", [not_true, unknown, lambda: [1, None], len, dict])
def test_annotations_without_models_are_ignored(fn: Callable[..., Any]) -> None:
    assert declared(fn) is None


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "ü", [1, {"a": [None]}], {}])
def test_json_is_returned_unchanged(value: Any) -> None:
    assert loaded(dumped(value, None, "step"), None, "step") == value


def test_any_result_that_fits_its_declared_type_is_restored() -> None:
    now = datetime(2026, 2, 3, tzinfo=UTC)
    recorded = dumped((1, now), tuple[int, datetime], "step")
    assert loaded(recorded, tuple[int, datetime], "step") == (1, now)


@dataclass
class Plain:
    a: int


BAD: dict[str, tuple[Any, Any, str]] = {
    "an object": ({"a": [object()]}, None, "result.a[0]"),
    "a tuple": ((1, 2), None, "result"),
    "not a number": ([float("nan")], None, "result[0]"),
    "a model without a type": (Page(title="a"), None, "result"),
    "a value that does not fit the type": ({"titel": "a"}, Page, "result.title"),
    "a number that JSON does not have": (float("nan"), float, "result"),
    "a dataclass": (Plain(1), None, "result"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_result_is_an_error_that_names_the_step_and_the_path(case: str) -> None:
    value, returns, path = BAD[case]
    with pytest.raises(StepResultNotJson) as caught:
        dumped(value, returns, "fetch page")
    assert (caught.value.step, caught.value.path) == ("fetch page", path)
    assert isinstance(caught.value, NotJson)
    assert "'fetch page'" in str(caught.value)


def test_the_error_about_a_model_without_a_type_says_what_to_declare() -> None:
    with pytest.raises(StepResultNotJson, match=r"returns=Page"):
        dumped(Page(title="a"), None, "fetch")


def test_a_record_that_no_longer_fits_its_type_is_an_error() -> None:
    with pytest.raises(StepResultNotJson, match="does not fit"):
        loaded({"titel": "a"}, Page, "fetch")


@pytest.mark.parametrize("fn", [lambda: object(), lambda: (1, 2)])
def test_a_bad_result_is_not_recorded(fn: Callable[[], Any]) -> None:
    attempts = Attempts(lambda run: run.step("bad", fn))
    with pytest.raises(StepResultNotJson):
        attempts.go()
    assert attempts.store.steps("a", "run") == []


def test_the_first_attempt_gets_the_same_result_as_a_replay() -> None:
    made: list[Any] = []

    def make() -> list[Any]:
        made.append([{"a": 1}])
        return made[-1]

    def body(run: AgentRun) -> Any:
        return run.step("make", make), run.step("page", lambda: {"title": "t"}, returns=Page)

    attempts = Attempts(body)
    first, _ = attempts.go()
    again, _ = attempts.go()
    assert first == again == ([{"a": 1}], Page(title="t"))
    assert len(made) == 1
    made[0][0]["a"] = 2
    assert first[0] == [{"a": 1}]
