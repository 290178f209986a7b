"""The four scores of two images and two captions as shaded cells, and how they change.

In: four scores, or the rows of an item. Out: cells and changes for the page. Never: a mean.
"""

from collections.abc import Sequence
from typing import Any

from vlmtune.results.item_row import ItemRow


def matrix(scores: Sequence[float]) -> list[list[dict[str, Any]]]:
    """A 2 x 2 matrix by rows (images) as shaded cells; "wrong" marks false pairs that score high.

    Example:
        >>> cells = matrix((2.0, 1.0, 0.5, 0.75))
        >>> [[cell["shade"] for cell in row] for row in cells]
        [[100, 33], [0, 17]]
        >>> [[cell["wrong"] for cell in row] for row in cells]  # 1.0 is above 0.75
        [[False, True], [False, False]]
    """
    low = min(scores)
    spread = (max(scores) - low) or 1.0
    # Both true pairs must score above a false one.
    rivals = min(scores[0], scores[3])
    cells = []
    for i, value in enumerate(scores):
        true = i in (0, 3)  # the diagonal
        cell = {
            "text": f"{value:.3g}",
            "shade": round(100 * (value - low) / spread),
            "true": true,
            "wrong": not true and value >= rivals,
        }
        cells.append(cell)
    return [cells[:2], cells[2:]]


def square(row: ItemRow | None) -> dict[str, Any] | None:
    r"""The square of an item of two images and two captions; None of any other.

    Rows are images, columns the caption that is true of the first image, then that of the second.
    An equivariant model has equal numbers in each pair of changes: $s_{11} - s_{12}$ and
    $s_{22} - s_{21}$ where the caption changes, $s_{11} - s_{21}$ and $s_{22} - s_{12}$ where the
    image does.

    Source: Wang et al. 2023 (EqSim), figure 8 and eq. 6.

    Example:
        >>> from pathlib import Path
        >>> from vlmtune.types import ImageRef
        >>> truth, scores = ((True, False), (False, True)), ((2.0, 1.0), (0.5, 0.75))
        >>> images = ImageRef(Path("x.png")), ImageRef(Path("y.png"))
        >>> made = square(ItemRow("a/0", "a", 0.0, images, ("p", "q"), truth, scores))
        >>> made["changes"]
        {'caption': ('1', '0.25'), 'image': ('1.5', '-0.25')}
    """
    if row is None or len(row.images) != 2 or len(row.captions) != 2:
        return None
    if row.true == ((True, False), (False, True)):
        columns = (0, 1)
    elif row.true == ((False, True), (True, False)):
        columns = (1, 0)
    else:
        return None
    scores: list[float] = []
    for line in row.scores:
        for column in columns:
            score = line[column]
            if score is None:
                return None
            scores.append(score)
    s11, s12, s21, s22 = scores
    of_caption = (f"{s11 - s12:.3g}", f"{s22 - s21:.3g}")
    of_image = (f"{s11 - s21:.3g}", f"{s22 - s12:.3g}")
    changes = {"caption": of_caption, "image": of_image}
    return {"rows": matrix(scores), "changes": changes}
