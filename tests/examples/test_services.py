"""The FastAPI service and the Django project: a real server, a real worker, and a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.support.example_model import Model
from tests.support.example_programs import DEADLINE, Example, OpenExample
from tests.support.wait import until

Event = dict[str, Any]


def _events(client: httpx.Client, path: str, last: int = 0) -> Iterator[Event]:
    """Return the server-sent events, as a browser would get them."""
    with client.stream("GET", path, headers={"Last-Event-ID": str(last)} if last else {}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        event: Event = {}
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if name and value:
                event[name] = json.loads(value) if name == "data" else value
            elif event:
                yield event
                event = {}


def _serve_api(example: Example) -> httpx.Client:
    return example.serve("-m", "uvicorn", "service:api", "--port", "{port}", "--log-level", "warning")


def test_a_fastapi_service_cancels_an_agent_and_its_stream_survives_a_killed_worker(
    open_example: OpenExample, model: Model
) -> None:
    example = open_example("fastapi_service", "assistant")
    client = _serve_api(example)
    _assert_cancels_what_it_knows(client)
    assert model.asked() == []

    model.hesitates_at(3).calls("stock", {"item": "tea"}).calls("stock", {"item": "sugar"})
    model.says("Tea, yes.", times=None)
    example.start_workers()
    agent = client.post("/agents", json={"question": "Is there tea?"}).json()["agent_id"]
    stream = _events(client, f"/agents/{agent}/events")
    first = next(stream)
    model.wait_until_asked(3)
    example.working().kill_tree()
    *messages, end = [first, *stream]

    assert [message["id"] for message in messages] == ["1", "2", "3", "4", "5", "6"]
    assert messages[-1]["data"]["content"] == "Tea, yes."
    assert (end["event"], end["data"]) == (
        "end",
        {"status": "succeeded", "attempts": 2, "error": None},
    )
    assert model.asked() == [1, 1, 2], "only the reply in flight is paid for twice"
    assert [*_events(client, f"/agents/{agent}/events", last=5)] == [messages[-1], end]


def _assert_cancels_what_it_knows(client: httpx.Client) -> None:
    agent = client.post("/agents", json={"question": "Is there tea?"}).json()["agent_id"]

    assert client.get("/agents/nobody").status_code == 404
    assert client.get("/agents/nobody/events").status_code == 404
    assert client.get(f"/agents/{agent}").json()["status"] == "queued"
    assert client.delete(f"/agents/{agent}").status_code == 204
    [end] = _events(client, f"/agents/{agent}/events")
    assert end["data"]["status"] == "cancelled"


def test_a_ticket_of_the_django_project_is_answered_though_its_worker_is_killed(
    open_example: OpenExample, model: Model, tmp_path: Path
) -> None:
    example = open_example("django_project", "desk")
    example.set(DJANGO_DATABASE=str(tmp_path / "desk.sqlite3"))
    model.hesitates_at(2).calls("manual", {"problem": "noise"}).says("Tighten it.", times=None)
    example.start("manage.py", "migrate").output()
    example.start_workers()
    client = example.serve("manage.py", "runserver", "--noreload", "{port}")

    opened = client.post("/tickets", data={"question": "It rattles."}).json()
    assert opened == {"number": 1, "agent_id": "ticket-1"}
    model.wait_until_asked(2)
    example.working().kill_tree()

    def shown() -> dict[str, Any]:
        ticket: dict[str, Any] = client.get("/tickets/1").json()
        return ticket

    ticket = until(
        lambda: (now := shown())["agent"]["status"] == "succeeded" and now, DEADLINE, "an answer"
    )
    assert (ticket["answer"], ticket["agent"]["attempts"]) == ("Tighten it.", 2)
    assert model.asked() == [1, 2], "only the reply in flight is paid for twice"
