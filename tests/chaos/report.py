"""The figures as a table for people, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from tests.chaos.judge import Verdict

_COLUMNS = (
    "campaign", "faults", "runs", "bodies interrupted", "hand-offs", "calls", "calls repeated",
    "resumed p50", "p99", "lost or wrong",
)  # fmt: skip


#: The lines of a page between which the figures are.
_BEGIN, _END = "<!-- figures: written by make chaos -->", "<!-- end of figures -->"


def rows(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """Return the row of each campaign."""
    return [
        (
            verdict.name,
            *(f"{number:,}" for number in (verdict.faults, verdict.runs, verdict.interrupted)),
            *(f"{number:,}" for number in (verdict.hand_offs, verdict.calls, verdict.repeated)),
            _seconds(verdict.p50),
            _seconds(verdict.p99),
            str(len(verdict.problems)),
        )
        for verdict in verdicts
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def table(verdicts: Sequence[Verdict]) -> Table:
    """For a terminal."""
    made = Table(*(_COLUMNS[:1]), title=f"seed {verdicts[0].seed}" if verdicts else None)
    for column in _COLUMNS[1:]:
        made.add_column(column, justify="right")
    for row in rows(verdicts):
        made.add_row(*row)
    return made


def write(verdicts: Sequence[Verdict], page: Path) -> None:
    """Replace the figures of a page."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" + "|---:" * (len(_COLUMNS) - 1) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows(verdicts)]
    before, _, rest = page.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    remarks = [f"{verdict.name}: {remark}." for verdict in verdicts for remark in verdict.remarks]
    figures = "\n".join([f"Seed {verdicts[0].seed}.", "", *lines, *(["", *remarks] if remarks else [])])
    page.write_text(f"{before}{_BEGIN}\n{figures}\n{_END}{after}")
