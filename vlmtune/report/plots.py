"""Plots as inline SVG with the colours of the page, for light and dark mode.

In: numbers of runs, the number of each run's colour, and a prefix for the ids of the SVG (`key`),
unique within the page. Out: `<svg>` elements. Never: a file or a fixed colour.
"""

import re
import warnings
from collections.abc import Sequence
from io import StringIO
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy import ndarray
from scipy.stats import gaussian_kde

from vlmtune.report.run_report import Curve
from vlmtune.report.table import COLOURS

WIDTH = 3.7  # inches; about the width of a card, so that text is as large as on the page
FEW = 8  # with fewer numbers, a distribution is drawn as strokes
POINTS = 160  # of a density curve

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


def curve_plot(curves: Sequence[Curve | None], colours: Sequence[int], key: str) -> str:
    """Draws one line over training steps for each run with a curve; None values leave gaps."""
    with mpl.rc_context(STYLE):
        figure, axes = plot_axes()
        for curve, colour in zip(curves, colours, strict=True):
            if not curve:
                continue
            steps = [step for step, _ in curve]
            values = np.array([value for _, value in curve], dtype=float)  # None becomes NaN
            marker = "o" if len(curve) < 25 else ""
            axes.plot(
                steps, values, color=RUN_COLOURS[colour], linewidth=1.8, marker=marker, markersize=4
            )
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("step", loc="right", labelpad=2)
        return svg_of(figure, key)


def density_plot(values: Sequence[Sequence[float] | None], colours: Sequence[int], key: str) -> str:
    """Draws the distribution of each run's numbers over the items; None leaves a run out."""
    arrays = []
    for numbers, colour in zip(values, colours, strict=True):
        if numbers:
            arrays.append((np.asarray(numbers), colour))
    left = min(array.min() for array, _ in arrays)
    right = max(array.max() for array, _ in arrays)
    # A little room at both ends, for the tails of the curves.
    pad = 0.04 * (right - left) or 0.5
    grid = np.linspace(left - pad, right + pad, POINTS)
    with mpl.rc_context(STYLE):
        figure, axes = plot_axes()
        for array, colour in arrays:
            if len(array) < FEW or array.min() == array.max():
                axes.vlines(array, 0, 0.5, color=RUN_COLOURS[colour], linewidth=2)
                continue
            heights = density(array, grid)
            heights = heights / heights.max()  # position and width matter, not height
            axes.fill_between(grid, heights, color=RUN_COLOURS[colour], alpha=0.14, linewidth=0)
            axes.plot(grid, heights, color=RUN_COLOURS[colour], linewidth=1.8)
        axes.set_ylim(0, 1.06)
        axes.set_xlim(grid[0], grid[-1])
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        return svg_of(figure, key)


def density(values: Float[ndarray, "n"], grid: Float[ndarray, "p"]) -> Float[ndarray, "p"]:
    r"""Gaussian kernel estimate of the density of `values`, of which two differ, at points `grid`.

    The bandwidth is $0.9 \min(s, IQR / 1.34)\, n^{-1/5}$. Values that are never negative (or all
    within 0 and 1) keep all their weight there: the part of a kernel beyond the bound is folded
    back. Source: Silverman 1986, sections 2.10 and 3.4.2.

    Example:
        >>> grid = np.linspace(0.0, 3.0, 301)
        >>> curve = density(np.array([0.0, 0.1, 0.2, 0.5]), grid)
        >>> round(float(np.trapezoid(curve, grid)), 3)
        1.0
    """
    # scipy's factor is in units of the standard deviation.
    factor = 0.9 * len(values) ** -0.2
    first, third = np.quantile(values, [0.25, 0.75])
    middle = (third - first) / 1.34 / values.std(ddof=1)
    if middle > 0:  # 0 if half of the values are equal
        factor *= min(1.0, middle)
    kernels = gaussian_kde(values, factor)
    curve = kernels(grid)
    # A kernel's tail beyond a bound comes back as the kernel of the mirrored value.
    if values.min() >= 0:
        curve += kernels(-grid)
        if values.max() <= 1:
            curve += kernels(2 - grid)
            curve[grid > 1] = 0
        curve[grid < 0] = 0
    return curve


def plot_axes() -> tuple[Figure, Axes]:
    """A figure of the width of a card."""
    figure = Figure(figsize=(WIDTH, 2.1))
    axes = figure.add_axes((0.13, 0.19, 0.83, 0.76))
    axes.grid(axis="y", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.tick_params(length=0)
    return figure, axes


def svg_of(figure: Figure, key: str) -> str:
    """The figure as an element for a page with many of them."""
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
    return f'{size.sub("", head)} aria-hidden="true">{body}'
