"""Every agent on the pages and in the examples ends the same, wherever it is killed or handed off."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from llmock.pytest_plugin import LLMock

from tests.docs import interruptions
from tests.docs.bodies import SOURCES, Source, sliced
from tests.docs.pages import ROOT
from tests.support.forks import ForkServer

#: Preparations that the agents of a source need. They run in the agents' process.
PREPARE = {
    "docs/howto/django.md: research/tasks.py": """
import proj, django
from django.core.management import call_command
django.setup()
call_command("migrate", run_syncdb=True, verbosity=0)
from research.models import Article
Article.objects.create(pk=3, title="Rayleigh scattering")
""",
    "docs/howto/encrypt.md: tasks.py": """
import base64, os
os.environ["CKPT_KEYS"] = base64.b64encode(bytes(32)).decode()
""",
    # It refuses the first call of an iteration, which Celery would retry.
    "docs/howto/rate-limits.md: tasks.py": "import tasks; tasks.limited.clear()",
    # The caller would have to sign the request.
    "docs/howto/restrict-redis-users.md": "import hmac; hmac.compare_digest = lambda *_: True",
    # Its tool fails once, which Celery would retry.
    "docs/howto/tools.md": "import program; next(program.attempts)",
    "examples/django_project/support/tasks.py": """
import os
os.environ["DJANGO_DATABASE"] = "tickets.sqlite3"
import desk, django
from django.core.management import call_command
django.setup()
call_command("migrate", verbosity=0)
from support.models import Ticket
Ticket.objects.create(pk=3, question="The battery is empty.")
""",
}
#: Agents that show a mistake, with the mistake. The interruptions must find it.
WRONG = {
    "docs/howto/migrate.md": {
        "counts_too_little": "accumulates in a variable",
        "asks_again": "is not deterministic",
    },
    "docs/howto/test-your-agents.md": {"forgetful": "shows a report"},
}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_documented_agents_end_the_same_wherever_they_are_interrupted(
    source: Source, tmp_path: Path, llmock: LLMock
) -> None:
    source.place(tmp_path)
    wrong = WRONG.get(source.name, {})
    order = {
        "module": source.module,
        "bodies": source.bodies,
        "prepare": PREPARE.get(source.name, ""),
        "wrong": list(wrong),
        "reports": str(tmp_path / "reports.json"),
    }
    path = [str(ROOT), str(source.directory or tmp_path)]
    log = tmp_path / "interruptions.log"
    log.touch()
    run = ForkServer.with_imports(interruptions.__name__).fork(
        f"{interruptions.__name__}:main",
        [interruptions.__file__, json.dumps(order)],
        {**os.environ, **llmock.env(), "PYTHONPATH": os.pathsep.join(path)},
        directory=tmp_path,
        files=[os.devnull, str(log), str(log)],
    )
    assert run.wait(240) == 0, f"{source.name}:\n{log.read_text()[-4000:]}"
    reports = json.loads((tmp_path / "reports.json").read_text())
    assert list(reports) == source.bodies
    assert {name for name in reports if "found" in reports[name]} == set(wrong)
    right = [report for name, report in reports.items() if name not in wrong]
    assert [one for one in right if one["kills"] < 4 or one["hand_offs"] < one["calls"]] == []


def test_every_documented_agent_is_found() -> None:
    assert {source.name: source.unknown for source in SOURCES if source.unknown} == {}
    assert [source.name for source in SOURCES if len(set(source.bodies)) < len(source.bodies)] == []
    assert len(SOURCES) > 15


def test_the_tables_of_sources_name_only_existing_sources() -> None:
    bodies = {source.name: set(source.bodies) for source in SOURCES}
    assert set(PREPARE) <= set(bodies)
    assert [name for name, wrong in WRONG.items() if not set(wrong) <= bodies[name]] == []


def test_an_agent_created_in_an_unknown_way_is_detected() -> None:
    code = (
        "from celery_ckpt import agent_task\n@agent_task\ndef one(run): ...\ntwo = agent_task(print)\n"
    )
    source = Source("page", "program", code)
    assert (source.bodies, source.unknown) == (["one"], [4])


def test_only_the_lines_that_agents_need_are_taken_from_a_program() -> None:
    code = """\
from celery import Celery, chain
app = Celery("x", broker=URL)
app.conf.update(a=1)
URL, other = "redis://there", 2
@app.task(base=AgentTask)
def agent(run):
    return helper(run)
def helper(run): ...
agent.delay().get()
result = agent.delay()
"""
    assert [line for line in sliced(code).splitlines() if line] == code.splitlines()[:8]
