"""What models gained against what they lost: means over benchmarks, the Pareto front, its plot.

In: comparisons of runs with a first one. Out: mean changes, and an SVG. Never: a new score.
"""

import math
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes

from vlmtune.report.differences import Comparison
from vlmtune.report.plots import FAINT, INK, MUTED, RUN_COLOURS, STYLE, plot_axes, svg_of
from vlmtune.results.metric_value import MetricValue

FIGURE = (4.4, 3.4)  # inches
CLOSE = 0.07
"""Models that lie so close together, as a fraction of the plot, share a label."""

Point = tuple[float, float]
"""What a model lost on retained benchmarks, and gained on compositional ones, in points."""


def mean_change(of_run: Sequence[Comparison], kind: str) -> MetricValue | None:
    r"""The mean change of primary metrics that are fractions, on benchmarks of one kind.

    Above 0 is better. The 95 % interval is as if the B benchmarks shared no image: each end is
    $\sqrt{\sum_b h_b^2} / B$ from the mean, with the distance $h_b$ of that end in the interval of
    each benchmark. There is none where that of a benchmark is unknown. None without a benchmark.
    Source: Zou and Donner 2008 ("method of variance estimates recovery").
    """
    changes = []
    below = []
    above = []
    for one in of_run:
        if one.result.kind != kind or one.change is None or one.metric.unit != "fraction":
            continue
        sign = 1 if one.metric.higher_is_better else -1
        changes.append(sign * one.change)
        paired = one.paired
        if paired is not None and paired.low is not None and paired.high is not None:
            ends = sorted((sign * paired.low, sign * paired.high))
            middle = sign * paired.difference
            below.append(middle - ends[0])
            above.append(ends[1] - middle)
    if not changes:
        return None
    mean = sum(changes) / len(changes)
    if len(below) < len(changes):
        return MetricValue(mean, len(changes))
    low = mean - math.hypot(*below) / len(changes)
    high = mean + math.hypot(*above) / len(changes)
    return MetricValue(mean, len(changes), low=low, high=high)


def pareto_front(points: Mapping[int, Point]) -> list[int]:
    """The keys of the points (loss, gain) for which no other loses less and gains more.

    Of equal points all are in front.

    Example:
        >>> pareto_front({0: (0.0, 0.0), 1: (1.0, 9.0), 2: (2.0, 5.0), 3: (-1.0, -3.0)})
        [3, 0, 1]
        >>> pareto_front({0: (0.0, 1.0), 1: (0.0, 2.0), 2: (0.0, 2.0), 3: (1.0, 2.0)})
        [1, 2]
    """
    front = []
    for key, (loss, gain) in points.items():
        # A point is as good as itself, and as its equals.
        as_good = set()
        for other_loss, other_gain in points.values():
            if other_loss <= loss and other_gain >= gain:
                as_good.add((other_loss, other_gain))
        if len(as_good) <= 1:
            front.append(key)
    return sorted(front, key=points.__getitem__)


def pareto_plot(
    points: Mapping[int, Point],
    means: Sequence[tuple[MetricValue | None, MetricValue | None]],
    run_colours: Sequence[int],
) -> Markup:
    """Draws the models, each with its number and both intervals, and their front.

    `points` and `means` belong to the runs by position, `run_colours` too.
    """
    with mpl.rc_context(STYLE):
        figure, axes = plot_axes(FIGURE, (0.16, 0.14, 0.82, 0.83), "both")
        axes.axhline(0, color=FAINT, linewidth=1.4)
        axes.axvline(0, color=FAINT, linewidth=1.4)
        front = [points[i] for i in pareto_front(points)]
        losses = [loss for loss, _ in front]
        gains = [gain for _, gain in front]
        axes.plot(losses, gains, color=MUTED, linewidth=1, linestyle="--")
        for i, (loss, gain) in points.items():
            colour = RUN_COLOURS[run_colours[i]]
            gained, retained = means[i]
            if gained is not None:
                _interval(axes, [loss, loss], _ends(gained), colour)
            if retained is not None:
                lost = [-end for end in _ends(retained)]
                _interval(axes, lost, [gain, gain], colour)
            axes.scatter([loss], [gain], color=colour, s=26, linewidth=0, zorder=3)
        _label(axes, points)
        axes.set_xlabel("lost on retained abilities, points", loc="right", labelpad=2)
        axes.set_ylabel("gained, points", loc="top", labelpad=2)
        return svg_of(figure, "front")


def _ends(mean: MetricValue) -> list[float]:
    """The ends of an interval in points; empty without an interval."""
    if mean.low is None or mean.high is None:
        return []
    return [100 * mean.low, 100 * mean.high]


def _interval(axes: Axes, xs: list[float], ys: list[float], colour: str) -> None:
    """Draws an interval, if there is one."""
    if xs and ys:
        axes.plot(xs, ys, color=colour, alpha=0.4)


def _label(axes: Axes, points: Mapping[int, Point]) -> None:
    """Writes the numbers of the models beside their points."""
    for point, numbers in _close_together(points).items():
        # A long label has more room below its models, where few lose more than they gain.
        above = 4 if len(numbers) <= 2 else -14
        text = ", ".join(numbers)
        axes.annotate(text, point, (4, above), textcoords="offset points", color=INK)


def _close_together(points: Mapping[int, Point]) -> dict[Point, list[str]]:
    """The numbers of models by the first point that they lie close to: one label for all."""
    losses = [loss for loss, _ in points.values()]
    gains = [gain for _, gain in points.values()]
    width = max(losses) - min(losses) or 1.0
    height = max(gains) - min(gains) or 1.0
    labels: dict[Point, list[str]] = {}
    for i, (loss, gain) in points.items():
        number = str(i + 1)
        for other_loss, other_gain in labels:
            across = abs(loss - other_loss) / width
            up = abs(gain - other_gain) / height
            if max(across, up) < CLOSE:
                labels[other_loss, other_gain].append(number)
                break
        else:
            labels[loss, gain] = [number]
    return labels
