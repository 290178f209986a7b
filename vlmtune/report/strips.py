"""A strip for each group of a benchmark: the dots of all runs beside the group's chance level.

In: the same metric of several groups. Out: an `<svg>` element, as of `plots`. Never: a number that
the tables lack.
"""

from collections.abc import Sequence
from textwrap import wrap

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vlmtune.report.plots import FAINT, INK, MUTED, RUN_COLOURS, STYLE, WIDTH, plot_axes, svg_of
from vlmtune.report.table import MARKERS, Row
from vlmtune.results.metric_value import MetricValue

LEFT = 1.4  # inches for labels
RIGHT = 0.16  # inches beside the axis, for half of its last number
LETTERS = 20  # of a line of a label
LANE = 0.105  # inches for a run
LINE = 0.17  # inches for a line of a label
FOOT = 0.3  # inches for the axis
GAP = 0.07  # inches between strips
FADED = 0.4  # of text-only runs


def strip_plot(
    labels: Sequence[str], rows: Sequence[Row], colours: Sequence[int], key: str
) -> Markup:
    """Draws a strip for each row: a dot and an interval for each run, and a tick at chance.

    `rows` are fractions, `labels` stand beside them, and `colours` are those of the runs.
    """
    texts = []
    heights = []
    for label in labels:
        lines = wrap(label, LETTERS)
        texts.append("\n".join(lines))
        heights.append(max(LANE * len(colours), LINE * len(lines)) + GAP)
    height = sum(heights)
    with mpl.rc_context(STYLE):
        figure, axes = _axes(height)
        top = 0.0
        middles = []
        for row, strip in zip(rows, heights, strict=True):
            middle = top + strip / 2
            middles.append(middle)
            _strip(axes, row, middle, colours)
            if row.first.chance is not None:
                chance = row.first.chance
                half = (strip - GAP) / 2
                above = middle - half
                below = middle + half
                axes.vlines(chance, above, below, color=INK, linewidth=1.1, linestyles=":")
            top += strip
            axes.axhline(top, color=FAINT, linewidth=0.6)
        axes.set_yticks(middles, texts)
        return svg_of(figure, key)


def _axes(height: float) -> tuple[Figure, Axes]:
    """A figure with axes in inches from the top, from 0 to 100 %."""
    whole = height + FOOT
    width = WIDTH - LEFT - RIGHT
    box = (LEFT / WIDTH, FOOT / whole, width / WIDTH, height / whole)
    figure, axes = plot_axes((WIDTH, whole), box, "x")
    axes.set_ylim(height, 0.0)
    axes.set_xlim(0.0, 1.0)
    axes.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0], ["0", "25", "50", "75", "100 %"])
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.tick_params(axis="x", labelcolor=MUTED)
    return figure, axes


def _strip(axes: Axes, row: Row, middle: float, colours: Sequence[int]) -> None:
    """The dots of all runs, one below the other so that intervals do not hide each other."""
    y = middle - LANE * (len(colours) - 1) / 2
    for number, colour in enumerate(colours):
        cell = row.cells[number]
        strength = FADED if number in row.text_only else 1.0
        if cell is not None:
            _dot(axes, cell, y, colour, strength)
        y += LANE


def _dot(axes: Axes, cell: MetricValue, y: float, colour: int, strength: float) -> None:
    tone = RUN_COLOURS[colour]
    if cell.low is not None and cell.high is not None:
        axes.hlines(y, cell.low, cell.high, color=tone, linewidth=3.2, alpha=0.35 * strength)
    axes.plot(
        [cell.value],
        [y],
        MARKERS[colour],
        color=tone,
        markersize=4.6,
        markeredgewidth=0,
        alpha=strength,
        clip_on=False,
    )
