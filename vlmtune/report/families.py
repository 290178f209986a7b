"""Metrics of groups: `accuracy/swap` and `accuracy/replace` are two members of one family."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vlmtune.report.table import Row

DRAWN = 3  # members from which on a family is worth a drawing
NUMBER = re.compile(r"(?:[^=]*=)?\s*(-?\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Family:
    """Metrics that measure the same on several groups of items.

    Attributes:
        name: What is measured: all of the metrics' names before the last "/".
        members: The group of each metric, and its row.
    """

    name: str
    members: tuple[tuple[str, Row], ...]

    @property
    def positions(self) -> tuple[float, ...] | None:
        """The numbers the groups are named by, or None where one is named otherwise.

        They are those of `attributes=1, attributes=2, ...` or of `4, 5, ...`; numbers of other
        things (`attributes=1`, `objects=2`) are no axis.
        """
        found = [NUMBER.fullmatch(group) for group, _ in self.members]
        things = {group.rpartition("=")[0] for group, _ in self.members}
        if len(things) > 1 or None in found:
            return None
        return tuple(float(match[1]) for match in found if match)

    @property
    def axis(self) -> str:
        """What the numbers count, where the groups' names say so."""
        return self.members[0][0].rpartition("=")[0]


def families(rows: Sequence[Row]) -> tuple[tuple[Family, ...], tuple[Row, ...]]:
    """The families with at least `DRAWN` members, and the rows that are in none.

    Counts and ranks are in none: they have no common scale to be drawn on. A primary metric is
    among the other rows in any case.

    Example:
        >>> from vlmtune.metrics.value import MetricValue
        >>> names = ["ap", "ap/n=1", "ap/n=2", "ap/n=4"]
        >>> found, others = families(
        ...     [Row("b", "1", "strict", name, False, (MetricValue(0.5, 9),)) for name in names]
        ... )
        >>> found[0].name, found[0].positions, found[0].axis, [row.metric for row in others]
        ('ap', (1.0, 2.0, 4.0), 'n', ['ap'])
    """
    parts: dict[str, list[tuple[str, Row]]] = {}
    for row in rows:
        name, slash, group = row.metric.rpartition("/")
        if slash and row.first.unit in ("fraction", "cosine"):
            parts.setdefault(name, []).append((group, row))
    found = tuple(
        Family(name, tuple(members))
        for name, members in parts.items()
        if len({group for group, _ in members}) >= DRAWN
    )
    inside = {row.metric for family in found for _, row in family.members}
    return found, tuple(row for row in rows if row.primary or row.metric not in inside)
