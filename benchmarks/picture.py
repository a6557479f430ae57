"""Draws docs/benchmarks.png: time of a save by iteration, and bytes stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measure import Figures
from benchmarks.report import size
from benchmarks.results import Results

_COLOURS = {
    "ours": ("#0b6e4f", "#16a34a", "#65a30d", "#14b8a6"),
    "naive": ("#d97706",),
    "limit": ("#475569", "#94a3b8"),
    "peer": ("#7c3aed", "#c026d3", "#f472b6", "#e11d48", "#fb923c"),
}
_LINES = {"ours": "-", "naive": "--", "limit": ":", "peer": "--"}
_INK, _FAINT = "#1f2937", "#e5e7eb"
_PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
_TITLE: dict[str, Any] = {"loc": "left", "weight": "bold", "color": _INK, "pad": 14}


def draw(results: Results, path: Path) -> None:
    """Draw both halves."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "text.color": _INK})
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.6), dpi=130, width_ratios=(1.35, 1))
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15))
    colours = _colours(results.figures)
    _draw_saves(left, results.figures, colours)
    _draw_bytes(right, results, colours)
    figure.savefig(path, facecolor="white")
    plt.close(figure)


def _colours(figures: list[Figures]) -> dict[str, str]:
    left = {kind: list(colours) for kind, colours in _COLOURS.items()}
    return {each.name: left[each.kind].pop(0) for each in figures}


def _draw_saves(axes: Any, figures: list[Figures], colours: dict[str, str]) -> None:
    ends = []
    for each in figures:
        points = sorted(each.save)
        times = [each.save[point] * 1e3 for point in points]
        colour, width = colours[each.name], 2.6 if each.kind == "ours" else 1.7
        axes.plot(points, times, _LINES[each.kind], color=colour, lw=width, marker="o", ms=3.5)
        ends.append((points[-1], times[-1], each.name, colour))
    axes.set(xscale="log", yscale="log", xlabel="iteration (each adds 2 KB)")
    axes.set_title("Milliseconds a save takes (median)", **_TITLE)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    last = max(point for point, *_ in ends)
    axes.set_xlim(min(min(each.save) for each in figures) * 0.9, last * 14)
    _label_ends(axes, ends)
    _plain(axes)


def _label_ends(axes: Any, ends: list[tuple[int, float, str, str]]) -> None:
    """Write each name at the end of its line, and move names apart that would overlap."""
    taken: dict[int, float] = {}
    for point, time, name, colour in sorted(ends, key=lambda end: (end[0], end[1])):
        height = max(time, taken.get(point, 0) * 1.45)
        taken[point] = height
        axes.text(
            point * 1.18, height, name, color=colour, va="center", fontsize=9, bbox=_PAPER, zorder=5
        )


def _draw_bytes(axes: Any, results: Results, colours: dict[str, str]) -> None:
    shown = [each for each in results.figures if each.stored][::-1]
    names = [each.name for each in shown]
    stored = [each.stored or 0 for each in shown]
    axes.barh(names, stored, color=[colours[name] for name in names], height=0.62)
    messages = shown[0].message_bytes if shown else 1
    axes.axvline(messages, color=_INK, lw=1, ls=":")
    axes.text(messages * 1.12, len(shown) - 0.5, "the messages themselves", fontsize=9, style="italic")
    for row, value in enumerate(stored):
        axes.text(value * 1.12, row, _with_ratio(value, messages), va="center", fontsize=9)
    axes.set(xscale="log", xlim=(messages / 4, max(stored, default=1) * 30))
    axes.set_title(f"Bytes after {results.plan.read_at:,} iterations", **_TITLE)
    axes.xaxis.set_major_formatter(lambda value, _: size(value).replace(".00", "").replace(".0", ""))
    _plain(axes)
    axes.grid(visible=False, axis="y")


def _with_ratio(value: float, messages: float) -> str:
    ratio = value / messages
    return f"{size(value)}  ({ratio:,.0f} x)" if ratio >= 10 else f"{size(value)}  ({ratio:.2f} x)"


def _plain(axes: Any) -> None:
    axes.grid(which="major", color=_FAINT, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, colors=_INK)
    for side in axes.spines.values():
        side.set_visible(False)
