"""The call in progress, in the field ``renewed`` of an agent: milliseconds, a space, its JSON."""

from __future__ import annotations

from celery_ckpt.json_values import decode, encode
from celery_ckpt.records import CurrentCall
from celery_ckpt.stores.rules.event_log import call_data, current_call


def packed_call(call: CurrentCall | None, limit: int) -> bytes:
    """Return the current call as ``lease_renew.lua`` takes it."""
    if not limit:
        return b""
    return b" " if call is None else b" " + encode(call_data(call))


def call_in(renewed: bytes) -> CurrentCall | None:
    """Return the current call in the field ``renewed`` of an agent, if there is one."""
    text = renewed.partition(b" ")[2]
    try:
        return current_call(decode(text)) if text else None
    except ValueError:
        return None
