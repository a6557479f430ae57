"""What the package promises about itself: its names, its docstrings, and what it imports."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_ckpt
from celery_ckpt import errors

PACKAGE = Path(celery_ckpt.__file__).parent
LUA = PACKAGE / "stores" / "redis" / "lua"

PROMISED = {
    "AgentRun",
    *("Checkpoint", "CheckpointEvent", "Conversation", "Message", "RetentionPolicy"),
    *(
        "CheckpointStrategy",
        "AfterToolCall",
        "AfterLlmResponse",
        "EveryN",
        "EverySeconds",
        "AnyOf",
        "Never",
    ),
    *("CheckpointStore", "MemoryCheckpointStore", "FileCheckpointStore", "SqliteCheckpointStore"),
    *("RedisCheckpointStore", "open_store", "register_store"),
    *("agent_task", "AgentTask", "AgentRun", "current_run", "Agents", "signals"),
}


def files(pattern: str) -> list[str]:
    found = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob(pattern))
    assert found
    return found


@pytest.mark.parametrize("name", celery_ckpt.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(celery_ckpt, name).__name__.rpartition(".")[2] == name


def test_all_lists_every_public_name_once() -> None:
    own = {
        name
        for name in dir(celery_ckpt)
        if not name.startswith("_")
        and str(getattr(getattr(celery_ckpt, name), "__module__", "")).startswith("celery_ckpt")
    }
    assert sorted(celery_ckpt.__all__) == sorted({*own, "signals"})


def test_the_promised_names_are_public() -> None:
    assert set(celery_ckpt.__all__) >= PROMISED


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'MongoCheckpointStore'"):
        _ = celery_ckpt.MongoCheckpointStore


def test_importing_the_package_imports_no_server_client_and_no_test_tool() -> None:
    code = "import json, sys; from celery_ckpt import Checkpoint, EveryN, RetentionPolicy, open_store; "
    code += "open_store('memory://'); print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(json.loads(run.stdout))
    assert "celery_ckpt.stores.memory" in loaded
    unwanted = {"celery", "hypothesis", "kombu", "pytest", "redis", "sqlite3", "celery_ckpt.testing"}
    assert loaded & unwanted == set()


def test_importing_the_package_alone_imports_none_of_its_modules() -> None:
    code = "import sys, celery_ckpt; print(*[name for name in sys.modules if 'pydantic' in name])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert run.stdout == "\n"


def undocumented(node: ast.AST, prefix: str = "") -> Iterator[str]:
    """Return the public classes, functions and methods below a module or class that have no
    docstring.
    """
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        # The name of a shipped test is its description.
        if inner.name.startswith(("_", "test_")):
            continue
        # The implementation behind the overloads is documented.
        if any(isinstance(by, ast.Name) and by.id == "overload" for by in inner.decorator_list):
            continue
        if not ast.get_docstring(inner):
            yield f"{prefix}{inner.name}"
        if isinstance(inner, ast.ClassDef):
            yield from undocumented(inner, f"{inner.name}.")


@pytest.mark.parametrize("name", files("*.py"))
def test_everything_public_has_a_docstring(name: str) -> None:
    source = (PACKAGE / name).read_text(encoding="utf-8")
    module = ast.parse(source)
    assert ast.get_docstring(module)
    # A method that implements the protocol of stores is documented there.
    is_store = "# ruff: noqa: D102" in source
    assert [each for each in undocumented(module) if not (is_store and "." in each)] == []


def drawn_tree() -> dict[str, str]:
    """Return each error in the drawing at the top of ``errors``, with its parent."""
    tree: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for drawn in re.finditer(r"^([ │├└─]{4,})([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE):
        indent, name = len(drawn[1]), drawn[2]
        path = [(depth, above) for depth, above in path if depth < indent]
        tree[name] = path[-1][1] if path else "Exception"
        path.append((indent, name))
    return tree


def test_every_error_has_its_place_in_the_exception_tree() -> None:
    defined = {
        name: found.__bases__[0].__name__
        for name, found in vars(errors).items()
        if isinstance(found, type) and found.__module__ == errors.__name__
    }
    assert drawn_tree() == defined


@pytest.mark.parametrize("name", sorted(path.name for path in LUA.glob("*.lua")))
def test_every_script_starts_by_naming_the_keys_and_arguments_it_uses(name: str) -> None:
    opening, header, body = re.split(r"--\[\[|^\]\]", (LUA / name).read_text(), maxsplit=2, flags=re.M)
    assert opening == ""
    assert header.startswith(f" {name.removesuffix('.lua')}: ")
    used = re.findall(r"(KEYS|ARGV)\[(\d+)\]", body)
    named = set(re.findall(r"(KEYS|ARGV)\[(\d+)", header))
    assert set(used) - named == set()


def test_the_package_contains_scripts() -> None:
    assert (LUA / "checkpoint_save.lua").is_file()
