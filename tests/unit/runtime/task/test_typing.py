"""Type checkers see a body's own parameters on its task, and the return types of its calls."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mypy import api

SNIPPET = """
from typing import Any
from celery_ckpt import AgentRun, AgentTask, Message, ToolCall, agent_task

@agent_task
def plain(run: AgentRun, question: str, times: int = 1) -> list[str]:
    return [question]

@agent_task(strategy="every:3", max_retries=5)
def with_options(run: AgentRun, question: str, times: int = 1) -> list[str]:
    return [question]

@agent_task
async def coroutine(run: AgentRun, question: str, times: int = 1) -> list[str]:
    return [question]

@agent_task(keep=3)
async def coroutine_with_options(run: AgentRun, question: str, times: int = 1) -> list[str]:
    return [question]

def model(text: str) -> dict[str, Any]:
    return {}

async def async_model(text: str) -> dict[str, Any]:
    return {}

def tool(text: str) -> float:
    return 1

async def async_tool(text: str) -> float:
    return 1

def length(text: str) -> int:
    return 1

async def async_length(text: str) -> int:
    return 1

def body(run: AgentRun, call: ToolCall) -> None:
    for number in run.iterations(limit=3):
        reveal_type(number)
    reveal_type(run.llm(model, "x"))
    reveal_type(run.tool(call, tool))
    reveal_type(run.step("length", length, "x"))

async def async_body(run: AgentRun, call: ToolCall) -> None:
    async for number in run.iterations(limit=3):
        reveal_type(number)
    reveal_type(await run.llm(async_model, "x"))
    reveal_type(await run.tool(call, async_tool))
    reveal_type(await run.step("length", async_length, "x"))
    run.step("length", length, 7)
"""
ROOT = Path(__file__).parents[4]
#: Its comments say what is right and what is wrong.
BODIES = ROOT / "tests/support/typed_bodies.py"
TASKS = ("plain", "with_options", "coroutine", "coroutine_with_options")
GOOD = "".join(f'{name}.delay("x")\n{name}.delay("x", times=2)\n' for name in TASKS)
BAD = "".join(f'{name}.delay(7)\n{name}.delay("x", tmes=2)\n{name}.delay()\n' for name in TASKS)
CALLED = "".join(f'reveal_type({name}("x"))\n' for name in TASKS)


def mypy_output(directory: Path) -> list[str]:
    """Return mypy's output, one line each: the part, "error" or "note", and the text."""
    parts = {"snippet": SNIPPET, "good": GOOD, "bad": BAD, "called": CALLED}
    file = directory / "snippet.py"
    file.write_text("".join(parts.values()))
    # The same options as "make check": mypy's cache is for one set of options.
    places = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    out, problems, _ = api.run([*places, "--python-executable", sys.executable, str(file), str(BODIES)])
    assert problems == ""
    names = [name for name, text in parts.items() for _ in range(text.count("\n"))]
    found = re.findall(r"^([^:]+):(\d+): (error|note): (.*)$", out, re.MULTILINE)
    return [
        f"{names[int(line) - 1] if path.endswith(file.name) else 'bodies'} {kind} {text}"
        for path, line, kind, text in found
    ]


def revealed(output: list[str], part: str) -> list[str]:
    found = [line.split('"')[1] for line in output if line.startswith(f"{part} note Revealed")]
    return [name.replace("builtins.", "") for name in found]


def errors(output: list[str], part: str) -> list[str]:
    return [line for line in output if line.startswith(f"{part} error")]


# One test: mypy runs only once.
def test_type_checkers_see_the_parameters_and_results_of_a_body(tmp_path: Path) -> None:
    output = mypy_output(tmp_path)

    assert errors(output, "bodies") == [], (
        "steps return what their functions return, and take what those take"
    )
    assert errors(output, "good") == [], "correct calls pass"
    wrong = errors(output, "bad")
    assert len(wrong) == 3 * len(TASKS), wrong
    assert sum('incompatible type "int"; expected "str"' in error for error in wrong) == len(TASKS)
    assert sum('Unexpected keyword argument "tmes"' in error for error in wrong) == len(TASKS)
    assert revealed(output, "called") == ["list[str]"] * len(TASKS), (
        "a direct call is a call of the body"
    )
    assert revealed(output, "snippet") == ["int", "celery_ckpt.messages.Message", "float", "int"] * 2
    assert len(errors(output, "snippet")) == 1, "a step's arguments are checked"
