"""Items that enough people solved: the human filter of a test set.

In: what people voted on each item, as its file has it. Out: the items with at least so many
agreeing votes, and how many were left out. Never: a score.

Cola showed each of its multi-object items to 10 crowd workers and kept those that the majority
solved (`min_votes: 6`): Ray et al. 2023, section 3. The released file has no votes.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.benchmarks.files import Text, file_error, get_file
from vlmtune.errors import UserError
from vlmtune.results.metric_value import MetricValue, count
from vlmtune.results.result import Result
from vlmtune.storage.files import check_shape, read_json

VOTES = "how many agree, or a list of true and false"
R = TypeVar("R")


@dataclass(eq=False, repr=False)
class VoteOptions:
    """The option of benchmarks whose items people may have voted on.

    - `left_out_by_votes`: how many items have fewer agreeing votes than `min_votes`.

    Args:
        min_votes: How many votes must agree with the file for an item to count; None counts all.
    """

    min_votes: int | None = field(default=None, kw_only=True)

    def agreed(self, rows: Iterable[R], votes: Iterable[tuple[Any, str]]) -> list[R]:
        """Returns the rows with at least `min_votes`, and remembers how many there were.

        Args:
            rows: The rows of the test set.
            votes: Of each row its votes and where they stand, for errors.

        Raises:
            UserError: A row has no votes, or none has enough.
        """
        rows = list(rows)
        if self.min_votes is None:
            return rows
        counts = [agreeing(cell, where) for cell, where in votes]
        kept = [row for row, n in zip(rows, counts, strict=True) if n >= self.min_votes]
        if rows and not kept:
            raise UserError(
                f"expected an item with at least {self.min_votes} agreeing votes, got at most "
                f"{max(counts)}: lower `min_votes`"
            )
        self._left_out = count(len(rows) - len(kept), len(rows))
        return kept

    def agreed_rows(self, path: str, layout: str, source: str, width: int) -> list[Any]:
        """Reads a JSON list of rows of `width` texts, each with or without its votes at the end.

        Args:
            path: The file.
            layout: What it holds, for errors.
            source: Where to get the file.
            width: Number of texts in a row.
        """
        content = read_json(path, layout, get_file(source), list[list[Any]])
        votes: list[tuple[Any, str]] = []
        for i, row in enumerate(content):
            # Without `min_votes`, too: what stands behind the texts is not one of them.
            cell = row.pop() if len(row) == width + 1 else None
            if cell is not None and _agreeing(cell) is None:
                raise file_error(path, layout, f"{cell!r} as votes of row {i}", source)
            votes.append((cell, f"row {i} of {path}"))
        shape = list[tuple[(Text,) * width]]  # type: ignore[misc]
        rows = check_shape(content, shape, path, layout, get_file(source))
        return self.agreed(rows, votes)

    def result(
        self,
        metrics: dict[str, MetricValue],
        outcomes: Float[Tensor, "n"],
        clusters: Int[Tensor, "n"] | None = None,
        **more: Any,
    ) -> Result:
        """Makes the result, with the count of what was left out."""
        rule: Any = super()
        if self.min_votes is not None:
            metrics = {**metrics, "left_out_by_votes": self._left_out}
        return rule.result(metrics, outcomes, clusters, **more)


def agreeing(cell: Any, where: str) -> int:
    """Returns how many votes of a cell agree.

    Args:
        cell: Their number, a list with true or false (1 or 0) of each vote, or the text of either.
        where: The row, for errors.

    Raises:
        UserError: The cell holds anything else.

    Example:
        >>> agreeing(8, "row 0"), agreeing("[1, 0, 1]", "row 1"), agreeing([True, False], "row 2")
        (8, 2, 1)
    """
    if (votes := _agreeing(cell)) is not None:
        return votes
    got = "none" if cell in (None, "") else repr(cell)[:60]
    raise UserError(
        f"expected votes in {where} ({VOTES}), got {got}: add them, or leave `min_votes` out"
    )


def _agreeing(cell: Any) -> int | None:
    """The number of agreeing votes; None for what is neither a number nor a list of votes."""
    if isinstance(cell, str):
        try:
            cell = json.loads(cell.lower())  # "[True, False]" as pandas writes it, too
        except (ValueError, RecursionError):
            return None
    if isinstance(cell, Sequence) and not isinstance(cell, str):
        is_vote = [isinstance(vote, int | float) and vote in (0, 1) for vote in cell]
        return int(sum(cell)) if all(is_vote) else None
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return None
    is_count = cell >= 0 and cell == cell // 1
    return int(cell) if is_count else None
