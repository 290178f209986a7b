"""Plots as inline SVG that takes its colours from the page, so that it fits light and dark."""

import re
import warnings
from collections.abc import Sequence
from io import StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from vlmtune.metrics.value import MetricValue
from vlmtune.report.density import density
from vlmtune.report.run_report import Curve
from vlmtune.report.table import SERIES, Row

WIDTH = 3.7  # inches; about the width of a card, so that text is as large as the page's
FEW = 8  # numbers below which a distribution is shown as strokes
POINTS = 160  # of a density curve
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
        figure, axes = _axes()
        for curve, colour in zip(curves, series, strict=True):
            if not curve:
                continue
            steps = [step for step, _ in curve]
            values = [float("nan") if value is None else value for _, value in curve]
            marker = "o" if len(curve) < 25 else ""
            axes.plot(
                steps, values, color=COLOURS[colour], linewidth=1.8, marker=marker, markersize=4
            )
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("step", loc="right", labelpad=2)
        return _svg(figure, key)


def line_plot(
    positions: Sequence[float],
    rows: Sequence[Row],
    series: Sequence[int],
    axis: str,
    key: str,
) -> str:
    """One line for each run over groups that are named by numbers, with intervals and chance.

    Args:
        positions: The number of each group.
        rows: The metric of each group.
        series: Number of the colour of each run.
        axis: What the numbers count.
        key: Prefix of the ids within the SVG, unique within the page.

    Returns:
        An `<svg>` element.
    """
    order = sorted(range(len(positions)), key=positions.__getitem__)
    with mpl.rc_context(STYLE):
        figure, axes = _axes()
        for run, colour in enumerate(series):
            points = [(positions[i], cell) for i in order if (cell := rows[i].cells[run])]
            if points:
                _line(axes, points, colour)
        levels = [(positions[i], rows[i].first.chance) for i in order]
        known = [(at, level) for at, level in levels if level is not None]
        axes.plot(
            [at for at, _ in known],
            [level for _, level in known],
            color=MUTED,
            linewidth=1.1,
            linestyle=(0, (3, 3)),
            zorder=1,
        )
        cosine = rows[0].first.unit == "cosine"
        axes.set_ylim(*((-1.03, 1.03) if cosine else (-0.02, 1.02)))
        axes.yaxis.set_major_locator(FixedLocator((-1, 0, 1) if cosine else QUARTERS))
        if not cosine:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
        ticks = sorted(set(positions))
        axes.xaxis.set_major_locator(FixedLocator(ticks) if len(ticks) < 13 else MaxNLocator(8))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.set_xlabel(axis, loc="right", labelpad=2)
        return _svg(figure, key)


def density_plot(values: Sequence[Sequence[float] | None], series: Sequence[int], key: str) -> str:
    """The distribution of a series over its items, one curve for each run.

    Args:
        values: The numbers of each run, None where it has none.
        series: Number of the colour of each run.
        key: Prefix of the ids within the SVG, unique within the page.

    Returns:
        An `<svg>` element.
    """
    kept = [(np.asarray(own), colour) for own, colour in zip(values, series, strict=True) if own]
    left, right = min(own.min() for own, _ in kept), max(own.max() for own, _ in kept)
    pad = 0.04 * (right - left) or 0.5
    grid = np.linspace(left - pad, right + pad, POINTS)
    with mpl.rc_context(STYLE):
        figure, axes = _axes()
        for own, colour in kept:
            if len(own) < FEW or own.min() == own.max():
                # Too few for a curve: a stroke for each.
                axes.vlines(own, 0, 0.5, color=COLOURS[colour], linewidth=2)
                continue
            heights = density(own, grid)
            # Heights are relative: what counts is where a curve lies and how wide it is.
            heights = heights / heights.max()
            axes.fill_between(grid, heights, color=COLOURS[colour], alpha=0.14, linewidth=0)
            axes.plot(grid, heights, color=COLOURS[colour], linewidth=1.8)
        axes.set_ylim(0, 1.06)
        axes.set_xlim(grid[0], grid[-1])
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        return _svg(figure, key)


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 2.1))
    axes = figure.add_axes((0.13, 0.19, 0.83, 0.76))
    axes.grid(axis="y", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.tick_params(length=0)
    return figure, axes


def _line(axes: Axes, points: Sequence[tuple[float, MetricValue]], colour: int) -> None:
    """The numbers of one run, joined, each with its interval."""
    at = [x for x, _ in points]
    ink = COLOURS[colour]
    axes.plot(at, [m.value for _, m in points], color=ink, linewidth=1.8, marker="o", markersize=5)
    for x, metric in points:
        if metric.low is not None and metric.high is not None:
            axes.plot([x, x], [metric.low, metric.high], color=ink, linewidth=5, alpha=0.28)


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
