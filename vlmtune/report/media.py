"""Results for a logger that shows tables and pictures, such as Weights & Biases."""

from collections.abc import Sequence

from PIL import Image

from vlmtune.report.result import Example, Result
from vlmtune.report.thumbnails import SIDE, thumbnail

COLUMNS = ("benchmark", "metric", "value", "low", "high", "chance", "n", "unit", "convention")
Cell = str | float | int | None


def metric_table(results: Sequence[Result]) -> list[list[Cell]]:
    """One row of `COLUMNS` for each metric of each benchmark.

    Example:
        >>> from vlmtune.metrics.value import MetricValue
        >>> metric_table([Result("cola", "1", "accuracy", {"accuracy": MetricValue(0.5, 4, 0.25)})])
        [['cola', 'accuracy', 0.5, None, None, 0.25, 4, 'fraction', 'strict']]
    """
    return [
        [result.benchmark, name, m.value, m.low, m.high, m.chance, m.n, m.unit, result.convention]
        for result in results
        for name, m in result.metrics.items()
    ]


def retrievals(result: Result) -> tuple[list[Image.Image], list[str]]:
    """Strip and caption of each example of which an image can be opened."""
    strips = [(strip(example), caption(example)) for example in result.examples]
    shown = [(picture, text) for picture, text in strips if picture is not None]
    return [picture for picture, _ in shown], [text for _, text in shown]


def strip(example: Example) -> Image.Image | None:
    """The images of a retrieval side by side, best first; None where none can be opened."""
    pictures = [picture for ref in example.images if (picture := thumbnail(ref)) is not None]
    if not pictures:
        return None
    whole = Image.new("RGB", (sum(p.width for p in pictures), SIDE), "white")
    left = 0
    for picture in pictures:
        whole.paste(picture, (left, 0))
        left += picture.width
    return whole


def caption(example: Example) -> str:
    """The query with its verdict, the scores, and which images it is true of.

    Example:
        >>> caption(Example("a cat", (), (0.5, 0.25), (False, True), False))
        'wrong: a cat (0.5 false, 0.25 true)'
    """
    images = ", ".join(
        f"{score:.3g} {'true' if true else 'false'}"
        for score, true in zip(example.scores, example.true, strict=True)
    )
    return f"{'right' if example.correct else 'wrong'}: {example.query} ({images})"
