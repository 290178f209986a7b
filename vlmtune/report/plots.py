"""Plots as inline SVG that takes its colours from the page, so that it fits light and dark."""

import re
import warnings
from collections.abc import Sequence
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from vlmtune.report.results import Curve
from vlmtune.report.table import SERIES, Row, chance, interval, number

WIDTH = 3.7  # inches; about the width of a card, so that text is as large as the page's
LABEL = 26  # characters of a run's name in a plot
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)

# Stand-ins, replaced by the page's CSS variables after drawing.
INK, MUTED, FAINT, CARD = "#010101", "#020202", "#030303", "#040404"
VARIABLES = {INK: "ink", MUTED: "muted", FAINT: "line", CARD: "card"}
COLOURS = [f"#0500{i:02x}" for i in range(SERIES)]
VARIABLES |= {colour: f"series-{i}" for i, colour in enumerate(COLOURS)}

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "vlmtune",  # the same page from the same runs
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": MUTED,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "grid.color": FAINT,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}


def dot_plot(row: Row, names: Sequence[str], series: Sequence[int], key: str) -> str:
    """One dot with its 95 % interval for each run, and a dashed line at chance.

    Args:
        row: The metric.
        names: Names of the runs.
        series: Number of the colour of each run.
        key: Prefix of the ids within the SVG, unique within the page.

    Returns:
        An `<svg>` element.
    """
    with mpl.rc_context(STYLE):
        height = 0.62 + 0.46 * len(names)
        figure = Figure(figsize=(WIDTH, height))
        axes = figure.add_axes((0.01, 0.34 / height, 0.95, 1 - 0.6 / height))
        left, right = _range(row)
        axes.set_xlim(left, right)
        axes.set_ylim(len(names) - 0.45, -0.75)
        for i, name in enumerate(names):
            _dot(axes, row, i, name, COLOURS[series[i]])
        _chance(axes, row)
        unit = row.first.unit
        ticks = FixedLocator(QUARTERS) if row.first.unit == "fraction" else MaxNLocator(4)
        axes.xaxis.set_major_locator(ticks)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _tick(x, unit)))
        axes.set_yticks([])
        axes.spines[["left", "right", "top"]].set_visible(False)
        axes.tick_params(axis="x", length=0)
        return _svg(figure, key)


def curve_plot(curves: Sequence[Curve | None], series: Sequence[int], key: str) -> str:
    """One line for each run that has the curve, over training steps.

    Args:
        curves: The curve of each run, None where it has none; numbers that were not finite leave
            a gap.
        series: Number of the colour of each run.
        key: Prefix of the ids within the SVG, unique within the page.

    Returns:
        An `<svg>` element.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.1))
        axes = figure.add_axes((0.12, 0.19, 0.84, 0.76))
        for curve, colour in zip(curves, series, strict=True):
            if not curve:
                continue
            steps = [step for step, _ in curve]
            values = [float("nan") if value is None else value for _, value in curve]
            marker = "o" if len(curve) < 25 else ""
            axes.plot(
                steps, values, color=COLOURS[colour], linewidth=1.8, marker=marker, markersize=4
            )
        axes.grid(axis="y", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["left", "right", "top"]].set_visible(False)
        axes.tick_params(length=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("step", loc="right", labelpad=2)
        return _svg(figure, key)


def _range(row: Row) -> tuple[float, float]:
    """The axis: all fractions from 0 to 1, so that plots compare; ranks from 0 to the largest."""
    if row.first.unit == "fraction":
        return -0.015, 1.015
    cells = [cell for cell in row.cells if cell is not None]
    top = max(x for cell in cells for x in (cell.value, cell.high, cell.chance) if x is not None)
    return -0.015 * top, 1.05 * top or 1.0


def _dot(axes: Axes, row: Row, i: int, name: str, colour: str) -> None:
    metric = row.cells[i]
    left, right = axes.get_xlim()
    axes.plot([left, right], [i, i], color=FAINT, linewidth=0.8, zorder=0)
    label = name if len(name) <= LABEL else name[: LABEL - 1] + "…"
    # The box keeps the chance line from striking the text out.
    box = {"facecolor": CARD, "edgecolor": "none", "pad": 1.0}
    axes.text(left, i - 0.22, label, ha="left", va="bottom", bbox=box)
    if metric is None:
        axes.text(right, i - 0.22, "not evaluated", ha="right", va="bottom", color=MUTED, bbox=box)
        return
    if metric.low is not None and metric.high is not None:
        axes.plot(
            [metric.low, metric.high],
            [i, i],
            color=colour,
            linewidth=7,
            alpha=0.3,
            solid_capstyle="round",
        )
    axes.plot([metric.value], [i], "o", color=colour, markersize=8)
    weight = "bold" if i in row.best else "normal"
    span = interval(metric)
    text = number(metric.value, metric.unit) + (f"  [{span}]" if span else "")
    axes.text(right, i - 0.22, text, ha="right", va="bottom", fontweight=weight, bbox=box)


def _chance(axes: Axes, row: Row) -> None:
    level = row.first.chance
    if level is None:
        return
    axes.axvline(level, color=MUTED, linewidth=1.1, linestyle=(0, (3, 3)), zorder=1)
    left, right = axes.get_xlim()
    side = "left" if level < (left + right) / 2 else "right"
    pad = 4 if side == "left" else -4
    axes.annotate(
        f"chance {chance(row.first)}",
        (level, 1.0),
        (pad, 1),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha=side,
        va="bottom",
        color=MUTED,
        fontsize=8.5,
    )


def _tick(value: float, unit: str) -> str:
    return f"{100 * value:.0f} %" if unit == "fraction" else f"{value:g}"


def _svg(figure: Figure, key: str) -> str:
    """The figure as an element that can stand in a page beside others."""
    FigureCanvasSVG(figure)
    file = StringIO()
    with warnings.catch_warnings():
        # The browser draws the text with its own fonts; what matplotlib's lacks does not matter.
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font", category=UserWarning
        )
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids are unique within a plot only; the page has many.
    text = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{key}-", text)
    for stand_in, variable in VARIABLES.items():
        text = text.replace(stand_in, f"var(--{variable})")
    size = re.compile(r' width="[\d.]+pt"| height="[\d.]+pt"')
    head, _, body = text.partition(">")
    return f'{size.sub("", head)} aria-hidden="true">{body}'
