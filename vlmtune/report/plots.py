"""Plots as inline SVG with the colours of the page, for light and dark mode.

In: numbers of runs, the number of each run's colour, and a prefix for the ids of the SVG (`key`),
unique within the page. Out: `<svg>` elements. Never: a file or a fixed colour.
"""

import re
import warnings
from collections.abc import Sequence
from io import StringIO
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vlmtune.report.run_report import Curve
from vlmtune.report.table import COLOURS, MARKERS

Box = tuple[float, float, float, float]
Grid = Literal["both", "x", "y"]
WIDTH = 3.7  # inches; about the width of a card, so that text is as large as on the page
FEW = 8  # with fewer numbers, a distribution is drawn as strokes
BINS = 30  # of a distribution, the same for all runs

# Placeholders that become CSS variables of the page after drawing.
INK, MUTED, FAINT, CARD = "#010101", "#020202", "#030303", "#040404"
VARIABLES = {INK: "ink", MUTED: "muted", FAINT: "line", CARD: "card"}
RUN_COLOURS = [f"#0500{i:02x}" for i in range(COLOURS)]
VARIABLES |= {colour: f"series-{i}" for i, colour in enumerate(RUN_COLOURS)}

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "vlmtune",  # the same runs give the same page
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


def curve_plot(curves: Sequence[Curve | None], colours: Sequence[int], key: str) -> Markup:
    """Draws one line over training steps for each run with a curve; None values leave gaps."""
    with mpl.rc_context(STYLE):
        figure, axes = plot_axes()
        for curve, colour in zip(curves, colours, strict=True):
            if not curve:
                continue
            # Points of a curve without gaps are joined; few points get a mark each.
            steps, values = zip(*curve, strict=True)
            marker = MARKERS[colour] if len(curve) < 25 else ""
            axes.plot(
                steps,
                np.array(values, dtype=float),  # None becomes NaN
                color=RUN_COLOURS[colour],
                linewidth=1.8,
                marker=marker,
                markersize=4,
            )
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("step", loc="right", labelpad=2)
        return svg_of(figure, key)


def distribution_plot(
    values: Sequence[Sequence[float] | None], colours: Sequence[int], key: str
) -> Markup:
    """Draws a histogram of each run's numbers over the items; None leaves a run out."""
    arrays = []
    for numbers, colour in zip(values, colours, strict=True):
        if numbers:
            arrays.append((np.asarray(numbers), RUN_COLOURS[colour]))
    left = min(array.min() for array, _ in arrays)
    right = max(array.max() for array, _ in arrays)
    with mpl.rc_context(STYLE):
        figure, axes = plot_axes()
        for array, colour in arrays:
            is_constant = array.min() == array.max()
            if len(array) < FEW or is_constant:
                axes.vlines(array, 0, 0.5, color=colour, linewidth=2)
                continue
            counts, edges = np.histogram(array, BINS, (left, right))
            heights = counts / counts.max()  # position and width matter, not height
            axes.stairs(heights, edges, color=colour, alpha=0.14, fill=True)
            axes.stairs(heights, edges, color=colour, linewidth=1.8)
        axes.set_ylim(0, 1.06)
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        return svg_of(figure, key)


def plot_axes(
    size: tuple[float, float] = (WIDTH, 2.1), box: Box = (0.13, 0.19, 0.83, 0.76), grid: Grid = "y"
) -> tuple[Figure, Axes]:
    """A figure, by default of the width of a card, with axes in a box of its fractions."""
    figure = Figure(figsize=size)
    axes = figure.add_axes(box)
    axes.grid(axis=grid, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.tick_params(length=0)
    return figure, axes


def svg_of(figure: Figure, key: str) -> Markup:
    """The figure as an element for a page with many of them; matplotlib has escaped its texts."""
    FigureCanvasSVG(figure)
    file = StringIO()
    with warnings.catch_warnings():
        # The browser draws the text with its own fonts, so glyphs that matplotlib lacks are fine.
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font", category=UserWarning
        )
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    # Inside a page an element needs neither the XML head nor metadata.
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Make ids unique within the page.
    text = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{key}-", text)
    for placeholder, variable in VARIABLES.items():
        text = text.replace(placeholder, f"var(--{variable})")
    # Without a size the picture is as wide as its card.
    size = re.compile(r' width="[\d.]+pt"| height="[\d.]+pt"')
    head, _, body = text.partition(">")
    return Markup(f'{size.sub("", head)} aria-hidden="true">{body}')  # noqa: S704
