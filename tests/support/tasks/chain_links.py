"""Plain tasks that follow an agent in a chain."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from tests.support.ledger import NO_RUN, here


@shared_task
def first_of(values: list[Any]) -> Any:
    return values[0]


@shared_task
def counted(value: Any) -> Any:
    here().call(NO_RUN, "counted")
    return value
