"""The numbers of arms over rounds and seeds, as a table and as a plot.

In: a row of each seed, arm and round. Out: Markdown, and a picture. Never: a measurement.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

Row = dict[str, Any]
COLOURS = ("tab:orange", "tab:blue")


def table(rows: Sequence[Row], arms: Sequence[str], names: Sequence[str]) -> str:
    """The numbers of each arm by round, in %: the mean, and in brackets each seed.

    Example:
        >>> rows = [{"round": 0, "arm": "a", "x": 0.25}, {"round": 0, "arm": "a", "x": 0.75}]
        >>> print(table(rows, ["a"], ["x"]))
        | round | arm | x |
        | ---: | --- | ---: |
        | 0 | a | 50.0 (25 / 75) |
    """
    lines = [f"| round | arm | {' | '.join(names)} |", "| ---: | --- |" + " ---: |" * len(names)]
    for number in _rounds(rows):
        for arm in arms:
            cells = [_cell(_values(rows, arm, number, name)) for name in names]
            lines.append(f"| {number} | {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(rows: Sequence[Row], arms: Sequence[str], names: Sequence[str], path: Path) -> None:
    """Draws each number over rounds: the mean of the seeds, and their range."""
    figure, rounds = Figure(figsize=(10, 2.6), layout="constrained"), _rounds(rows)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        for arm, colour in zip(arms, COLOURS, strict=True):
            several = [_values(rows, arm, number, name) for number in rounds]
            means = [sum(values) / len(values) for values in several]
            axes.plot(rounds, means, color=colour, label=arm)
            low, high = list(map(min, several)), list(map(max, several))
            axes.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("round", fontsize=8)
        axes.set_xticks(rounds)
        axes.tick_params(labelsize=8)
    panels[0].set_ylabel("%", fontsize=8)
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _rounds(rows: Sequence[Row]) -> list[int]:
    return sorted({row["round"] for row in rows})


def _values(rows: Sequence[Row], arm: str, number: int, name: str) -> list[float]:
    """A number of each seed, in %."""
    return [100 * row[name] for row in rows if (row["arm"], row["round"]) == (arm, number)]


def _cell(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.1f} ({' / '.join(f'{x:.0f}' for x in values)})"
