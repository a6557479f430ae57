"""The parts of the documentation's pages: their code, commands, links and headings.

A page is a small project. Python with a title is a file of the project. All other Python is one
program, from top to bottom, that runs in its directory. A comment above a block names what must run
with it:

    <!-- before: django-admin migrate -->       runs first, to its end
    <!-- beside: celery -A tasks worker -->     is started first, and ended afterwards
    <!-- not run: why -->                       the block below is not executed
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?$")
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str | None
    #: The line above its opening fence.
    above: str
    #: The number of its first line in the page, from 0.
    start: int
    lines: tuple[str, ...]

    @property
    def code(self) -> str:
        return "\n".join(self.lines) + "\n"

    @property
    def reason_not_to_run(self) -> str | None:
        found = _NOT_RUN.search(self.above)
        return found and found[1]


class Page:
    """One Markdown file."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, path.read_text(encoding="utf-8")
        self.name = path.relative_to(ROOT).as_posix()
        self.blocks = list(_blocks(self.text.splitlines()))

    def blocks_of(self, language: str) -> list[Block]:
        return [block for block in self.blocks if block.language == language]

    @property
    def python(self) -> list[Block]:
        return [block for block in self.blocks_of("python") if not block.reason_not_to_run]

    @property
    def program(self) -> str:
        """Return all Python without a title, each line at its position in the page, so that
        tracebacks fit.
        """
        lines = [""] * len(self.text.splitlines())
        for block in self.python:
            if block.title is None:
                lines[block.start : block.start + len(block.lines)] = block.lines
        return "\n".join(lines)

    def commands(self, when: str) -> list[str]:
        """Return the commands that run before the program, or at the same time."""
        return re.findall(rf"^<!-- {when}: (.+) -->$", self.text, re.MULTILINE)

    @property
    def prose(self) -> str:
        """Return the page without its blocks."""
        return re.sub(r"^```.*?^```$", "", self.text, flags=re.DOTALL | re.MULTILINE)

    @property
    def links(self) -> list[str]:
        return re.findall(r"\]\(([^)\s]+)\)", self.prose)

    @property
    def anchors(self) -> set[str]:
        """Return the anchors that links to this page may use."""
        return {_slug(heading) for heading in re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)}

    def write_files(self, directory: Path) -> None:
        """Write the blocks with a title to their files."""
        for block in self.python:
            if block.title is not None:
                path = directory / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.code, encoding="utf-8")


def _blocks(lines: list[str]) -> list[Block]:
    found: list[Block] = []
    fences = [number for number, line in enumerate(lines) if line.startswith("```")]
    for begin, end in zip(fences[::2], fences[1::2], strict=True):
        opening = _FENCE.match(lines[begin])
        assert opening, f"line {begin + 1} is not a known kind of fence: {lines[begin]}"
        above = lines[begin - 1] if begin else ""
        body = tuple(lines[begin + 1 : end])
        found.append(Block(opening[1], opening[2], above, begin + 1, body))
    return found


def _slug(heading: str) -> str:
    """Return the anchor of a heading, in the form of both the site and GitHub."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


#: Without files that the site hides: the template of a page is not a page.
DOCS = [Page(path) for path in sorted((ROOT / "docs").rglob("*.md")) if ".api" not in path.parts]
_OTHERS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").rglob("*.md"))]
PAGES = [*map(Page, _OTHERS), *DOCS]


def page(name: str) -> Page:
    """Return the page with this path."""
    return next(one for one in PAGES if one.name == name)
