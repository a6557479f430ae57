"""Writes docs/reference/api.md: ``python docs/.api``, or ``make api``.

The page is template.md, in which each directive (``::: celery_ckpt.AgentRun``) stands for what the
docstrings say about that name. Options may follow it, indented, one on a line:

    members: [a, b]     only these, in this order; an empty list: none
    without: [c]        all public ones but these
    inherited: true     also what it has from its base classes
    init: false         people do not make one themselves
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import yaml

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "reference" / "api.md"
_DIRECTIVE = re.compile(r"^::: (celery_ckpt[.\w]*)\n((?:    .*\n)*)", re.MULTILINE)
_WIDTH = 100


def page() -> str:
    """The page as it should be."""
    package = griffe.load(
        "celery_ckpt",
        search_paths=[HERE.parents[1]],
        extensions=griffe.load_extensions("griffe_sphinx"),
        docstring_parser=griffe.Parser.google,
    )
    template = (HERE / "template.md").read_text(encoding="utf-8")

    def explained(directive: re.Match[str]) -> str:
        found = package[directive[1].removeprefix("celery_ckpt.")]
        options = yaml.safe_load(directive[2]) or {}
        return "\n\n".join(_explained(_target(found), options)) + "\n"

    return _DIRECTIVE.sub(explained, template)


def _target(found: Any) -> Any:
    return found.final_target if found.is_alias else found


def _explained(found: Any, options: dict[str, Any]) -> Iterator[str]:
    yield f"### `{found.name}`"
    if found.is_class:
        yield from _class(found, options)
    else:
        yield _signature(found, found.name)
        yield from _docstring(found)


def _class(found: Any, options: dict[str, Any]) -> Iterator[str]:
    init = found.members.get("__init__")
    if init is not None and options.get("init", True):
        yield _signature(init, found.name, is_class=True)
    yield from _docstring(found)
    members = _members(found, options)
    attributes = [member for member in members if member.is_attribute]
    if attributes:
        yield "\n".join(map(_attribute, attributes))
    for member in members:
        if member.is_function:
            yield f"#### `{found.name}.{member.name}`"
            yield _signature(member, member.name)
            yield from _docstring(member)


def _members(found: Any, options: dict[str, Any]) -> list[Any]:
    there = found.all_members if options.get("inherited") else found.members
    names = options.get("members")
    if names is None:
        left_out = options.get("without", [])
        missing = set(left_out) - set(there)
        names = [name for name in there if _is_public(name) and name not in left_out]
    else:
        missing = set(names) - set(found.all_members)
    if missing:
        sys.exit(f"docs/.api/template.md: {found.path} has no {', '.join(sorted(missing))}")
    return [_target(found.all_members[name]) for name in names]


def _is_public(name: str) -> bool:
    # pydantic's own begin with model_.
    return not name.startswith(("_", "model_"))


def _attribute(member: Any) -> str:
    annotation = f": {member.annotation}" if member.annotation is not None else ""
    said = _one_line(" ".join(_docstring(member)))
    return f"- `{member.name}{annotation}`" + (f": {said}" if said else "")


def _signature(function: Any, name: str, *, is_class: bool = False) -> str:
    parameters = list(_parameters(function))
    returns = "" if is_class or function.returns is None else f" -> {function.returns}"
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) > _WIDTH:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){returns}"
    kind = "class " if is_class else ""
    marks = [label for label in ("classmethod", "staticmethod") if label in function.labels]
    return "\n".join(["```pyi", *(f"@{mark}" for mark in marks), f"{kind}{line}", "```"])


def _parameters(function: Any) -> Iterator[str]:
    """As they are written in the code, with the bare ``/`` and ``*`` where they belong."""
    kinds = griffe.ParameterKind
    shown = [one for one in function.parameters if one.name not in ("self", "cls")]
    was_positional = is_starred = False
    for one in shown:
        if was_positional and one.kind is not kinds.positional_only:
            yield "/"
        was_positional = one.kind is kinds.positional_only
        if one.kind is kinds.keyword_only and not is_starred:
            yield "*"
        is_starred = is_starred or one.kind in (kinds.keyword_only, kinds.var_positional)
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(one.kind, "")
        annotation = f": {one.annotation}" if one.annotation is not None else ""
        has_default = one.default is not None and not stars
        default = f"{' = ' if annotation else '='}{one.default}" if has_default else ""
        yield f"{stars}{one.name}{annotation}{default}"
    if was_positional:
        yield "/"


def _docstring(found: Any) -> Iterator[str]:
    kinds = griffe.DocstringSectionKind
    for section in found.docstring.parsed if found.docstring else ():
        if section.kind is kinds.text:
            yield _markdown(section.value)
        elif section.kind is kinds.raises:
            said = {str(one.annotation): _one_line(_markdown(one.description)) for one in section.value}
            rows = [f"- `{error}`: {when}" for error, when in said.items()]
            yield "\n".join(["Raises:", "", *rows])
        elif section.kind is kinds.returns:
            yield "Returns: " + " ".join(_one_line(_markdown(one.description)) for one in section.value)
        else:
            sys.exit(f"{found.path}: a section that docs/.api cannot show: {section.kind.value}")


def _markdown(text: str) -> str:
    return re.sub(r"``([^`]+)``", r"`\1`", text.strip())


def _one_line(text: str) -> str:
    return " ".join(text.split())


def main() -> None:
    """Write the page, or with --check only say whether that would change it."""
    fresh = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(fresh, encoding="utf-8")
    elif fresh != PAGE.read_text(encoding="utf-8"):
        sys.exit("docs/reference/api.md is not what the docstrings say. Run: make api")


if __name__ == "__main__":
    main()
