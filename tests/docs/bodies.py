"""The agents on the pages and in the examples, and how to extract each one from its page.

A body is found by its decorator. The program of a page may connect to workers and servers: only the
statements that its bodies need are extracted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.docs.pages import PAGES, ROOT, Page

#: A decorator or base class that makes an agent task.
MAKERS = frozenset({"agent_task", "AgentTask"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A Python module with agents in it: a file of an example, a block with a title, or a program."""

    #: Its location, for messages.
    name: str
    #: The module name under which it is imported, in its directory.
    module: str
    code: str
    #: The page that contains it, if any.
    page: Page | None = None
    #: True if it is the program of its page.
    is_program: bool = False

    @property
    def directory(self) -> Path | None:
        """Return the directory of the file, if it is a file."""
        return None if self.page else _example(ROOT / self.name)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.code)

    @property
    def bodies(self) -> list[str]:
        """Return the names of its agent tasks."""
        return [inner.name for inner in self.tree.body if _makes_a_task(inner)]

    @property
    def unknown(self) -> list[int]:
        """Return the lines that make agent tasks in a way that ``bodies`` does not understand."""
        inside = [own for inner in self.tree.body if _makes_a_task(inner) for own in _decorators(inner)]
        understood = {id(name) for one in inside for name in _makers(one)}
        return [name.lineno for name in _makers(self.tree) if id(name) not in understood]

    def place(self, directory: Path) -> None:
        """Write it where it can be imported, with the files that belong to it."""
        if self.page is not None:
            self.page.write_files(directory)
        if self.is_program:
            (directory / f"{self.module}.py").write_text(sliced(self.code), encoding="utf-8")


def _makes_a_task(statement: ast.stmt) -> bool:
    return isinstance(statement, _Function) and any(map(_makers, statement.decorator_list))


def _decorators(statement: ast.stmt) -> list[ast.expr]:
    return statement.decorator_list if isinstance(statement, _Function | ast.ClassDef) else []


def _makers(node: ast.AST) -> list[ast.Name]:
    return [one for one in ast.walk(node) if isinstance(one, ast.Name) and one.id in MAKERS]


# -- what a body needs of its page -----------------------------------------------------------------


def sliced(program: str) -> str:
    """Return the statements of a program that its agents need, each on its original line."""
    tree = ast.parse(program)
    needed = {name for inner in tree.body if _makes_a_task(inner) for name in _bound(inner)}
    kept: set[ast.stmt] = set()
    while more := [one for one in tree.body if one not in kept and needed & set(_bound(one))]:
        kept.update(more)
        needed.update(name.id for one in more for name in ast.walk(one) if isinstance(name, ast.Name))
    lines = program.splitlines()
    taken = {number for one in kept for number in _lines(one)}
    return "\n".join(line if number in taken else "" for number, line in enumerate(lines, 1)) + "\n"


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Return the names that a statement defines or configures (``app.conf...``)."""
    match statement:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from ((name.asname or name.name).partition(".")[0] for name in names)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from _targets(targets)
        case ast.AnnAssign(target=target):
            yield from _targets([target])
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Attribute(attr="conf") as own))):
            yield from _targets([own])


def _targets(targets: Iterable[ast.expr]) -> Iterator[str]:
    for target in targets:
        match target:
            case ast.Name(id=name):
                yield name
            case ast.Tuple(elts=inner):
                yield from _targets(inner)
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                yield from _targets([value])


def _lines(statement: ast.stmt) -> range:
    first = min([statement.lineno, *(own.lineno for own in _decorators(statement))])
    return range(first, (statement.end_lineno or first) + 1)


# -- all of them -----------------------------------------------------------------------------------


def _of_page(page: Page) -> Iterator[Source]:
    for block in page.python:
        if block.title is not None:
            module = block.title.removesuffix(".py").replace("/", ".")
            yield Source(f"{page.name}: {block.title}", module, block.code, page)
    yield Source(page.name, "program", page.program, page, is_program=True)


def _of_example(path: Path) -> Source:
    module = path.relative_to(_example(path)).with_suffix("").as_posix().replace("/", ".")
    return Source(path.relative_to(ROOT).as_posix(), module, path.read_text(encoding="utf-8"))


def _example(path: Path) -> Path:
    """Return the directory of an example, in which its programs run."""
    return ROOT / "examples" / path.relative_to(ROOT / "examples").parts[0]


_ALL = [
    *(source for page in PAGES for source in _of_page(page)),
    *map(_of_example, sorted((ROOT / "examples").rglob("*.py"))),
]
SOURCES = [source for source in _ALL if _makers(source.tree)]
