"""Items that enough people solved: the human filter of a test set.

In: what people voted on each item, as its file has it. Out: the items with at least so many
agreeing votes, and how many were left out. Never: a score.

Cola showed each of its multi-object items to 10 crowd workers and kept those that the majority
solved (`min_votes: 6`): Ray et al. 2023, section 3. The released file has no votes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from vlmtune.errors import UserError
from vlmtune.results.metric_value import MetricValue, count
from vlmtune.results.result import Result

Votes = NonNegativeInt | list[bool]
"""How many votes agree, or whether each does, as true and false or as 1 and 0."""
R = TypeVar("R")
_VOTES: TypeAdapter[Votes] = TypeAdapter(Votes)


@dataclass(eq=False, repr=False)
class VoteOptions:
    """The option of benchmarks whose items people may have voted on.

    - `left_out_by_votes`: how many items have fewer agreeing votes than `min_votes`.

    Args:
        min_votes: How many votes must agree with the file for an item to count; None counts all.
    """

    min_votes: PositiveInt | None = field(default=None, kw_only=True)

    def agreed(self, rows: Iterable[R], votes: Iterable[tuple[Any, str]]) -> list[R]:
        """Returns the rows with at least `min_votes`, and remembers how many there were.

        `votes` has the votes of each row and where they stand, for errors.
        """
        rows = list(rows)
        if self.min_votes is None:
            return rows
        kept = []
        for row, (cell, where) in zip(rows, votes, strict=True):
            if agreeing(cell, where) >= self.min_votes:
                kept.append(row)
        self._left_out = count(len(rows) - len(kept), len(rows))
        return kept

    def result(self, metrics: dict[str, MetricValue], *outcomes: Any, **more: Any) -> Result:
        """Makes the result, with the count of what was left out."""
        rule: Any = super()
        if self.min_votes is not None:
            metrics = {**metrics, "left_out_by_votes": self._left_out}
        return rule.result(metrics, *outcomes, **more)


def agreeing(cell: Any, where: str) -> int:
    """Returns how many votes of a cell agree; of a text, as JSON or as pandas writes a list.

    Example:
        >>> agreeing(8, "row 0"), agreeing("[1, 0, 1]", "row 1"), agreeing([True, False], "row 2")
        (8, 2, 1)
    """
    try:
        if isinstance(cell, str):
            votes = _VOTES.validate_json(cell.lower())  # pandas writes True
        else:
            votes = _VOTES.validate_python(cell)
    except ValidationError:
        raise UserError(
            f"expected votes in {where} (how many agree, or a list of true and false), got "
            f"{cell!r:.60}: add them, or leave `min_votes` out"
        ) from None
    return votes if isinstance(votes, int) else sum(votes)
