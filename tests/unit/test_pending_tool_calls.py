"""Which tool calls of a conversation wait for a result, in every provider's shape."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ckpt import Conversation


def chat_call(*ids: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def chat_result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": ""}


def item(kind: str, call_id: str) -> dict[str, Any]:
    return {"type": kind, "call_id": call_id}


def anthropic_call(*ids: str, kind: str = "tool_use") -> dict[str, Any]:
    blocks = [{"type": kind, "id": call_id, "name": "f", "input": {}} for call_id in ids]
    return {"role": "assistant", "content": [{"type": "text", "text": "so"}, *blocks]}


def anthropic_result(*ids: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": i} for i in ids]}


def parts(kind: str, part_kind: str, *ids: str) -> dict[str, Any]:
    of_call = {"tool_name": "f", "part_kind": part_kind}
    return {"kind": kind, "parts": [{**of_call, "tool_call_id": call_id} for call_id in ids]}


PENDING: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "nothing said": ([], []),
    "no calls": ([{"role": "user", "content": "hi"}], []),
    "chat: one call": ([chat_call("1")], ["1"]),
    "chat: answered": ([chat_call("1"), chat_result("1")], []),
    "chat: parallel, one answered": ([chat_call("1", "2", "3"), chat_result("2")], ["1", "3"]),
    "chat: a result without a call": ([chat_result("9"), chat_call("1")], ["1"]),
    "chat: a reused id": ([chat_call("1"), chat_result("1"), chat_call("1")], ["1"]),
    "responses: one call": ([item("function_call", "1")], ["1"]),
    "responses: parallel, answered in another order": (
        [
            *(item("function_call", "1"), item("custom_tool_call", "2"), item("computer_call", "3")),
            *(item("computer_call_output", "3"), item("function_call_output", "1")),
        ],
        ["2"],
    ),
    "responses: shell and patch": (
        [item("shell_call", "1"), item("apply_patch_call", "2")],
        ["1", "2"],
    ),
    "responses: shell answered by id": (
        [item("local_shell_call", "1"), {"type": "local_shell_call_output", "id": "1"}],
        [],
    ),
    "responses: tool search by the client": (
        [item("tool_search_call", "1"), item("tool_search_output", "1")],
        [],
    ),
    "responses: run by the server": (
        [{"type": kind, "id": "x"} for kind in ("web_search_call", "mcp_call", "file_search_call")],
        [],
    ),
    "responses: tool search by the server": ([{"type": "tool_search_call", "call_id": None}], []),
    "anthropic: parallel": ([anthropic_call("1", "2")], ["1", "2"]),
    "anthropic: one of two": ([anthropic_call("1", "2"), anthropic_result("1")], ["2"]),
    "anthropic: both in one message": ([anthropic_call("1", "2"), anthropic_result("2", "1")], []),
    "anthropic: run by the server": ([anthropic_call("1", kind="server_tool_use")], []),
    "anthropic: MCP, run by the server": ([anthropic_call("1", kind="mcp_tool_use")], []),
    "pydantic-ai: parallel": ([parts("response", "tool-call", "1", "2")], ["1", "2"]),
    "pydantic-ai: one of two": (
        [parts("response", "tool-call", "1", "2"), parts("request", "tool-return", "1")],
        ["2"],
    ),
    "pydantic-ai: to be tried again": (
        [parts("response", "tool-call", "1"), parts("request", "retry-prompt", "1")],
        [],
    ),
    "pydantic-ai: run by the server": ([parts("response", "builtin-tool-call", "1")], []),
}


@pytest.mark.parametrize(("messages", "pending"), PENDING.values(), ids=PENDING)
def test_calls_without_a_result_are_pending_in_order(
    messages: list[dict[str, Any]], pending: list[str]
) -> None:
    calls = Conversation(messages=messages).pending_tool_calls()
    assert [call.id for call in calls] == pending


def test_a_snapshot_includes_only_its_own_results() -> None:
    live = Conversation(messages=[chat_call("1")])
    snapshot = live.copy()
    live.append(chat_result("1"))
    assert [call.id for call in snapshot.pending_tool_calls()] == ["1"]
    assert live.pending_tool_calls() == []
