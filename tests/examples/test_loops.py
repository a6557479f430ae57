"""The plain loops on the SDKs of OpenAI and Anthropic, and the async agent. Workers are killed."""

from __future__ import annotations

from tests.support.example_model import Model
from tests.support.example_programs import DEADLINE, OpenExample


def test_the_openai_loop_repeats_no_recorded_call_after_its_worker_is_killed(
    open_example: OpenExample, model: Model
) -> None:
    example = open_example("openai_loop", "research")
    model.hesitates_at(3).calls("look_up", {"topic": "sky"}).calls("look_up", {"topic": "sunset"})
    model.says("Air scatters blue.", times=None)
    example.start_workers()
    asking = example.start("ask.py", "Why is the sky blue?")

    model.wait_until_asked(3)
    example.working().kill_tree()

    assert asking.output()[-1] == "Air scatters blue."
    assert model.asked() == [1, 1, 2], "only the reply in flight is paid for twice"
    roles = [message["role"] for message in model.last_question()]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]


def test_the_anthropic_loop_runs_parallel_calls_together_and_remembers_them_in_its_next_run(
    open_example: OpenExample, model: Model
) -> None:
    example = open_example("anthropic_loop", "research")
    model.hesitates_at(2).calls("height", {"mountain": "Zugspitze"}, {"mountain": "Kebnekaise"})
    model.says("The Zugspitze.", times=2).says("2962 metres.")
    example.start_workers()
    asking = example.start("ask.py")  # its own question, to the mountaineer

    model.wait_until_asked(2)
    example.working().kill_tree()

    assert asking.output() == ["The Zugspitze."]
    assert model.asked() == [1, 2], "only the reply in flight is paid for twice"
    results = model.last_question()[-1]["content"]
    assert [result["type"] for result in results] == ["tool_result", "tool_result"]
    assert example.start("ask.py", "mountaineer", "How high is it?").output() == ["2962 metres."]
    assert [message["role"] for message in model.last_question()] == [
        *("user", "assistant", "user", "assistant"),
        "user",
    ]


def test_async_agents_share_a_worker_and_continue_on_another_after_its_shutdown(
    open_example: OpenExample, model: Model
) -> None:
    example = open_example("async_agent", "travel")
    # By default the fake model calls a tool once and then answers: each agent asks two questions.
    model.thinks(0.3)
    example.start_workers("threads", concurrency=10)
    asking = example.start("ask.py", "10")

    model.wait_until_answered(3)
    worker = example.working()
    worker.term()

    assert len(asking.output()) == 10
    assert worker.wait_exit(DEADLINE) == 0
    assert model.asked() == [1] * 20, "a deploy costs no reply"
