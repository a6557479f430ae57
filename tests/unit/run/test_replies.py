"""What run.llm accepts from the function it is given, what it keeps of that, and what it refuses.

The SDKs are imported by the tests that need them: every process of the suite imports this file, and the
import of both takes two seconds.
"""

from __future__ import annotations

import copy
import json
import pkgutil
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from celery_ckpt import AgentRun, Message
from celery_ckpt.errors import NotAMessage, StepResultNotJson
from celery_ckpt.run.model_reply import usage_of
from celery_ckpt.runtime.task.task import PERMANENT
from celery_ckpt.usage import Usage
from tests.support.run_host import Attempts

SAID = {
    "role": "assistant",
    "content": None,
    "refusal": None,
    "annotations": [],
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{ "a": 1.0 }'}}
    ],
    "reasoning_content": "a field that the SDK does not know",
}
CHOICE = {"index": 0, "finish_reason": "tool_calls", "logprobs": None, "message": SAID}
OTHER_CHOICE = {"index": 1, "finish_reason": "stop", "message": {"role": "assistant", "content": "no"}}
CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-x-2026",
    "choices": [CHOICE, OTHER_CHOICE],
    "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
}
ITEMS: list[dict[str, Any]] = [
    {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    },
    {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
]
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt-x-2026",
    "status": "completed",
    "output": ITEMS,
    "usage": {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13},
}
CONTENT = [
    {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"},
    {"type": "text", "text": "I look.", "citations": None},
    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}, "new": True},
]
ANTHROPIC = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": CONTENT,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 2},
}
SENT_BACK = {"role": "assistant", "content": CONTENT}
#: The names of the SDKs' classes.
CHAT_COMPLETION = "openai.types.chat:ChatCompletion"
PARSED_COMPLETION = "openai.types.chat.parsed_chat_completion:ParsedChatCompletion"
OPENAI_RESPONSE = "openai.types.responses:Response"
PARSED_RESPONSE = "openai.types.responses:ParsedResponse"
ANTHROPIC_MESSAGE = "anthropic.types:Message"


class LiteResponse(BaseModel):
    """Like LiteLLM's: a pydantic model of the same shape that is not one of OpenAI's."""

    id: str
    choices: list[Any]
    object: str = "chat.completion"
    usage: dict[str, int] | None = None


class Plain:
    """An SDK's object that is not a pydantic model."""

    def __init__(self, own: dict[str, Any]) -> None:
        self._own = own

    def to_dict(self) -> dict[str, Any]:
        return self._own


def as_the_sdk_does(kind: str, sent: dict[str, Any]) -> Any:
    """Return an object of that class, made as the client of its SDK makes it from a reply."""
    return pkgutil.resolve_name(kind).construct(**copy.deepcopy(sent))


def completion() -> Any:
    return as_the_sdk_does(CHAT_COMPLETION, CHAT)


def parsed_completion() -> Any:
    parsed = as_the_sdk_does(PARSED_COMPLETION, CHAT)
    parsed.choices[0].message.parsed = LiteResponse(id="x", choices=[object()])
    parsed.choices[0].message.tool_calls[0].function.parsed_arguments = {"a": 1.0}
    return parsed


def response() -> Any:
    return as_the_sdk_does(OPENAI_RESPONSE, RESPONSE)


def parsed_response() -> Any:
    parsed = as_the_sdk_does(PARSED_RESPONSE, RESPONSE)
    parsed.output[1].content[0].parsed = LiteResponse(id="x", choices=[object()])
    parsed.output[2].parsed_arguments = {"a": object()}
    return parsed


def anthropic_message() -> Any:
    return as_the_sdk_does(ANTHROPIC_MESSAGE, ANTHROPIC)


ONE = {
    "a chat completion": (completion, SAID),
    "a parsed chat completion": (parsed_completion, SAID),
    "a chat completion as a dict": (lambda: CHAT, SAID),
    "a choice": (lambda: completion().choices[0], SAID),
    "a choice as a dict": (lambda: CHOICE, SAID),
    "a chat message": (lambda: completion().choices[0].message, SAID),
    "a chat message as a dict": (lambda: SAID, SAID),
    "a message of ours": (lambda: Message.of(SAID), SAID),
    "a completion of another library": (lambda: LiteResponse(id="x", choices=[CHOICE]), SAID),
    "a completion that is not a model": (lambda: Plain(CHAT), SAID),
    "a reply of Ollama": (lambda: {"model": "llama", "message": SAID, "done": True}, SAID),
    "an Anthropic message": (anthropic_message, SENT_BACK),
    "an Anthropic message as a dict": (lambda: ANTHROPIC, SENT_BACK),
    "an Anthropic message as one of ours": (lambda: Message.of(ANTHROPIC), SENT_BACK),
    "what Anthropic's API takes back": (lambda: SENT_BACK, SENT_BACK),
    "a Responses item": (lambda: response().output[2], ITEMS[2]),
    "a Responses item as a dict": (lambda: ITEMS[0], ITEMS[0]),
    "a Responses message": (lambda: response().output[1], ITEMS[1]),
    "an item with an output of its own": (
        lambda: {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": ""}]},
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": ""}]},
    ),
    "a message of Gemini": (lambda: {"role": "model", "parts": []}, {"role": "model", "parts": []}),
}
MANY = {
    "a response": (response, ITEMS),
    "a parsed response": (parsed_response, ITEMS),
    "a response as a dict": (lambda: RESPONSE, ITEMS),
    "a response cut short": (lambda: {**RESPONSE, "status": "incomplete"}, ITEMS),
    "its output": (lambda: response().output, ITEMS),
    "a list of dicts": (lambda: ITEMS, ITEMS),
    "a tuple of messages": (lambda: tuple(Message.of(item) for item in ITEMS), ITEMS),
    "a list of a completion": (lambda: [completion()], [SAID]),
    "an empty list": (list, []),
}


@pytest.mark.parametrize(("returned", "kept"), ONE.values(), ids=ONE)
def test_the_message_is_kept_exactly_as_received(
    returned: Callable[[], Any], kept: dict[str, Any]
) -> None:
    given = returned()
    attempts = Attempts(lambda run: run.llm(lambda: given))
    for _ in range(2):
        reply, run = attempts.go()
        assert type(reply) is Message
        assert canonical(reply.to_dict()) == canonical(kept)
        assert run.conversation.messages == [reply]


@pytest.mark.parametrize(("returned", "kept"), MANY.values(), ids=MANY)
def test_all_messages_of_a_list_are_kept(
    returned: Callable[[], Any], kept: list[dict[str, Any]]
) -> None:
    given = returned()
    attempts = Attempts(lambda run: run.llm(lambda: given))
    for _ in range(2):
        reply, run = attempts.go()
        assert type(reply) is list
        assert canonical([one.to_dict() for one in reply]) == canonical(kept)
        assert run.conversation.messages == reply


def canonical(value: Any) -> str:
    """Return the message as JSON. Only the order of an object's fields is the SDK's choice."""
    return json.dumps(value, sort_keys=True)


def test_a_dict_keeps_the_order_of_its_fields() -> None:
    reply, _ = Attempts(lambda run: run.llm(lambda: ANTHROPIC)).go()
    assert reply.to_json() == Message.of(SENT_BACK).to_json()


def test_the_completion_of_the_caller_is_not_modified() -> None:
    given, before = completion(), copy.deepcopy(CHAT)
    Attempts(lambda run: run.llm(lambda: given)).go()
    assert given.to_dict() == before


def a_generator() -> Iterator[str]:
    yield "chunk"


async def an_async_generator() -> AsyncIterator[str]:
    yield "chunk"


def a_stream_of_openai() -> Any:
    import openai

    server = httpx.MockTransport(lambda request: httpx.Response(200, text="data: [DONE]\n\n"))
    client = openai.OpenAI(api_key="x", http_client=httpx.Client(transport=server))
    stream = client.chat.completions.create(model="m", messages=[], stream=True)
    assert isinstance(stream, openai.Stream)
    return stream


def a_stream_of_anthropic() -> Any:
    from anthropic import Anthropic

    return Anthropic(api_key="x").messages.stream(model="m", max_tokens=1, messages=[])


CHUNK = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "a"}}]}
NO_MESSAGE = {"object": "chat.completion", "choices": [{"index": 0, "message": None}]}
THE_MESSAGE = (
    r"Return the model's message: a dict with a role, .* \(completion\.choices\[0\]\.message\)"
)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "text": (lambda: "hello", rf"returned str\. {THE_MESSAGE}"),
    "None": (lambda: None, rf"returned None\. {THE_MESSAGE}"),
    "bytes": (lambda: b"hello", rf"returned bytes\. {THE_MESSAGE}"),
    "a number": (lambda: 3, rf"returned int\. {THE_MESSAGE}"),
    "a set": (lambda: {"x"}, rf"returned set\. {THE_MESSAGE}"),
    "any object": (object, rf"returned object\. {THE_MESSAGE}"),
    "a message class": (lambda: Message, rf"returned .*ModelMetaclass\. {THE_MESSAGE}"),
    "a generator": (a_generator, r"returned a stream \(generator\)\. Read the stream"),
    "an async generator": (an_async_generator, r"a stream \(async_generator\)\. Read the stream"),
    "a stream of OpenAI": (a_stream_of_openai, r"a stream \(openai\.Stream\).*get_final_completion"),
    "a stream of Anthropic": (
        a_stream_of_anthropic,
        r"a stream \(anthropic\..*MessageStreamManager\).*get_final_message",
    ),
    "no role": (lambda: {"content": "hi"}, rf"returned dict without a role\. {THE_MESSAGE}"),
    "a model without a role": (
        lambda: LiteResponse.model_construct(id="x"),
        rf"returned tests\.unit\.run\.test_replies\.LiteResponse without a role\. {THE_MESSAGE}",
    ),
    "a message item without a role": (lambda: {"type": "message"}, "dict without a role"),
    "an unknown role": (
        lambda: {"role": "robot", "content": "hi"},
        r"the role 'robot'\. The known roles are system, developer, user, assistant, tool, function",
    ),
    "a role that is not text": (lambda: {"role": 3}, "a message with the role 3"),
    "no choices": (
        lambda: {**CHAT, "choices": []},
        r"a completion without choices\. .* raise an error",
    ),
    "no choices in the SDK's object": (
        lambda: as_the_sdk_does(CHAT_COMPLETION, {**CHAT, "choices": []}),
        "a completion without choices",
    ),
    "a choice without a message": (lambda: NO_MESSAGE, "first choice has no message"),
    "a legacy completion": (
        lambda: {"object": "text_completion", "choices": [{"text": "hi"}]},
        "first choice has no message",
    ),
    "a chunk": (lambda: CHUNK, r"a chunk of a stream\. Read the stream"),
    "an empty response": (lambda: {**RESPONSE, "output": []}, "a response without output"),
    "a failed response": (lambda: {**RESPONSE, "status": "failed"}, "with the status 'failed'"),
    "a queued response": (lambda: {**RESPONSE, "status": "queued"}, "with the status 'queued'"),
    "a provider's error": (lambda: {"type": "error", "error": {}}, "a provider's error"),
    "the content of a message": (
        lambda: anthropic_message().content,
        r"a list whose item 0 is a part of a message's content \(type 'thinking'\)\. Return the whole",
    ),
    "a list with text": (lambda: [SAID, "hello"], rf"a list whose item 1 is str\. {THE_MESSAGE}"),
    "a NaN": (
        lambda: {"role": "user", "content": float("nan")},
        r"cannot represent: message\.content is nan",
    ),
    "an object in a message": (lambda: {"role": "user", "content": object()}, "is of type object"),
}


@pytest.mark.parametrize(("returned", "says"), REFUSED.values(), ids=REFUSED)
def test_anything_else_is_refused_before_anything_changes(
    returned: Callable[[], Any], says: str
) -> None:
    def ask() -> Any:
        return returned()

    attempts = Attempts(lambda run: run.llm(ask))
    run = attempts.attempt()
    with pytest.raises(NotAMessage, match=rf"The function passed to run\.llm \(ask\).*{says}"):
        attempts.go(run)
    assert len(run.conversation) == 0
    assert attempts.store.steps("a", "run") == []
    assert attempts.host.events == []


def test_the_async_stream_of_openai_is_refused() -> None:
    from openai import AsyncOpenAI

    server = httpx.MockTransport(lambda request: httpx.Response(200, text="data: [DONE]\n\n"))

    async def body(run: AgentRun) -> None:
        async with AsyncOpenAI(api_key="x", http_client=httpx.AsyncClient(transport=server)) as client:
            await run.llm(client.chat.completions.create, model="m", messages=[], stream=True)  # type: ignore[call-overload]

    with pytest.raises(NotAMessage, match=r"\(create\) returned a stream \(openai\.AsyncStream\)"):
        Attempts(body).go()


def test_the_refusal_is_permanent_and_names_the_step() -> None:
    assert issubclass(NotAMessage, PERMANENT)
    with pytest.raises(StepResultNotJson) as caught:
        Attempts(lambda run: run.llm(a_generator)).go()
    assert caught.value.step == "llm:a_generator"


CHAT_USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 3,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 4},
}
RESPONSE_USAGE = {
    "input_tokens": 10,
    "output_tokens": 3,
    "total_tokens": 13,
    "input_tokens_details": {"cached_tokens": 4},
}
ANTHROPIC_USAGE = {
    "input_tokens": 5,
    "output_tokens": 3,
    "cache_creation_input_tokens": 1,
    "cache_read_input_tokens": 4,
}
REPORTING = {
    "chat": (CHAT_COMPLETION, {**CHAT, "usage": CHAT_USAGE}),
    "responses": (OPENAI_RESPONSE, {**RESPONSE, "usage": RESPONSE_USAGE}),
    "anthropic": (ANTHROPIC_MESSAGE, {**ANTHROPIC, "model": "gpt-x-2026", "usage": ANTHROPIC_USAGE}),
}
USED = Usage.of("gpt-x-2026", input_tokens=10, output_tokens=3, cached_tokens=4)


@pytest.mark.parametrize(("kind", "sent"), REPORTING.values(), ids=REPORTING)
def test_the_usage_of_every_completion_shape_is_read(kind: str, sent: dict[str, Any]) -> None:
    assert usage_of(sent) == usage_of(as_the_sdk_does(kind, sent)) == usage_of(Plain(sent)) == USED


def test_the_usage_of_a_completion_of_another_library_is_read_once() -> None:
    # LiteLLM reports Anthropic's counts next to OpenAI's, which include them.
    usage = {**CHAT_USAGE, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 1}
    used = usage_of({**CHAT, "usage": usage})
    assert used == USED


def test_the_usage_of_a_list_is_the_sum() -> None:
    sent = REPORTING["chat"][1]
    assert usage_of([sent, SAID, sent]) == USED + USED
    assert usage_of([SAID]) is usage_of([]) is None


def test_missing_counts_are_zero_and_a_missing_model_has_no_name() -> None:
    assert usage_of({"usage": {"prompt_tokens": 7}}) == Usage.of(None, input_tokens=7)
    assert usage_of({"usage": {"input_tokens": 7}, "model": 3}) == Usage.of(None, input_tokens=7)


@pytest.mark.parametrize("odd", [None, -1, 1.5, "3", True, 2**60, [], {}, float("nan"), object()])
def test_odd_counts_are_ignored(odd: Any) -> None:
    ones = {name: odd for name in (*CHAT_USAGE, *RESPONSE_USAGE, *ANTHROPIC_USAGE)}
    assert usage_of({"usage": ones}) is None
    assert usage_of({"usage": {**ones, "prompt_tokens": 1}}) == Usage.of(input_tokens=1)
    assert usage_of({"usage": {**ones, "input_tokens": 1}}) == Usage.of(input_tokens=1)


@pytest.mark.parametrize(
    "result",
    ["hello", None, b"", 3, object(), SAID, Message.of(SAID), CHOICE, {"usage": None}, {"usage": 3}],
)
def test_a_reply_that_reports_no_usage_has_none(result: Any) -> None:
    assert usage_of(result) is None
