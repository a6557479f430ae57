"""The whole demo, once, with its output in a pipe; and the picture that it writes."""

from __future__ import annotations

import re
import time
from pathlib import Path
from xml.etree import ElementTree

from tests.support.demo import DEMO, StartDemo

# A developer may have such variables in the environment; no server answers there.
ELSEWHERE = {
    "CELERY_BROKER_URL": "redis://127.0.0.1:1",
    "CELERY_RESULT_BACKEND": "redis://127.0.0.1:1",
}
#: Under 40 on two idle cores; other tests run at the same time.
LIMIT = 85


def test_an_agent_pays_one_call_more_and_a_plain_task_starts_over_twice(
    start_demo: StartDemo, tmp_path: Path
) -> None:
    picture = tmp_path / "demo.svg"
    start = time.monotonic()
    demo = start_demo(*DEMO, "--picture", str(picture), variables=ELSEWHERE)

    assert demo.wait() == 0, demo.output
    assert time.monotonic() - start < LIMIT
    assert_story(demo.output)
    assert_bill(demo.output)
    assert demo.output.isascii()
    assert "plain Celery task" in "".join(ElementTree.parse(picture).getroot().itertext()).replace(
        "\N{NO-BREAK SPACE}", " "
    )
    demo.assert_nothing_left()


def assert_story(output: str) -> None:
    assert re.findall(r"celery_ckpt +(worker .*|SIG.*|answered)", output) == [
        "worker 1 starts",
        "SIGKILL to worker 1",
        "worker 2 loads checkpoint 3, replays 3 steps",
        "SIGTERM to worker 2: a deploy",
        "worker 2 hands the run off",
        "worker 3 loads checkpoint 7, replays 1 step",
        "answered",
    ]
    assert re.findall(r"plain Celery task +(worker .*|SIG.*|answered)", output) == [
        "worker 1 starts",
        "SIGKILL to worker 1",
        "worker 2 starts from scratch",
        "SIGTERM to worker 2: a deploy",
        "worker 3 starts from scratch",
        "answered",
    ]


def assert_bill(output: str) -> None:
    def row(name: str) -> tuple[float, float]:
        found = re.search(rf"{name} +\$?([\d.]+) +\$?([\d.]+)", output)
        assert found, f"no row {name!r} in {output}"
        return float(found[1]), float(found[2])

    # Nine are needed, and one was in flight when the worker was killed.
    assert row("model calls paid")[0] == 10
    assert row("paid before")[0] == 1
    assert row("steps replayed, free") == (4, 0)
    for name in ("model calls paid", "tool calls made", "pretend price", "seconds to the answer"):
        ours, plain = row(name)
        assert plain > 1.5 * ours, name
