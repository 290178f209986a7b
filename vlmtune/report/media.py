"""Pictures of retrievals: thumbnails for the page, strips and tables for loggers such as W&B.

In: references to images, results. Out: pictures and rows. Never: an error for a missing image, as a
report may be made after the run and elsewhere.
"""

import base64
from collections.abc import Sequence
from io import BytesIO

from PIL import Image

from vlmtune.data.images import read
from vlmtune.errors import ImageFileError
from vlmtune.features.stored_pixels import read_stored
from vlmtune.report import table
from vlmtune.results.result import Example, Result
from vlmtune.types import ImageRef

SIDE = 192  # pixels of the longer side; twice the size on the page, for dense displays
COLUMNS = (
    *("benchmark", "metric", "value", "low", "high"),
    *(column.title for column in table.COLUMNS),
    *("unit", "convention"),
)
Cell = str | float | int | None


def thumbnail(reference: ImageRef, side: int = SIDE) -> Image.Image | None:
    """Returns the pixels that were scored, shrunk to `side`, or None if the file is unreadable."""
    try:
        image = read(reference) if reference.upright else read_stored(reference)
    except ImageFileError:
        return None
    image.thumbnail((side, side))
    return image


def data_uri(reference: ImageRef, side: int = SIDE) -> str | None:
    """Returns the thumbnail as a `data:` URI, or None if there is none."""
    image = thumbnail(reference, side)
    return None if image is None else encoded(image)


def encoded(image: Image.Image) -> str:
    """Returns a picture as a `data:` URI."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=80)
    letters = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/jpeg;base64,{letters}"


def metric_table(results: Sequence[Result]) -> list[list[Cell]]:
    """One row of `COLUMNS` for each metric of each benchmark.

    Example:
        >>> from vlmtune.results.metric_value import MetricValue
        >>> metric_table([Result("cola", "1", "accuracy", {"accuracy": MetricValue(0.5, 4, 0.25)})])
        [['cola', 'accuracy', 0.5, None, None, 4, None, 0.25, 'fraction', 'strict']]
    """
    out: list[list[Cell]] = []
    for result in results:
        for name, metric in result.metrics.items():
            row: list[Cell] = [result.benchmark, name]
            row += [metric.value, metric.low, metric.high]
            row += [column.value(metric) for column in table.COLUMNS]
            row += [metric.unit, result.convention]
            out.append(row)
    return out


def retrievals(result: Result) -> tuple[list[Image.Image], list[str]]:
    """Strip and caption of each example that has a readable image."""
    pictures, captions = [], []
    for example in result.examples:
        picture = strip(example.images)
        if picture is not None:
            pictures.append(picture)
            captions.append(caption(example))
    return pictures, captions


def strip(images: Sequence[ImageRef]) -> Image.Image | None:
    """The images side by side; None if none can be read."""
    thumbnails = map(thumbnail, images)
    pictures = [picture for picture in thumbnails if picture is not None]
    if not pictures:
        return None
    width = sum(picture.width for picture in pictures)
    height = max(picture.height for picture in pictures)
    row = Image.new("RGB", (width, height), "white")
    left = 0
    for picture in pictures:
        row.paste(picture, (left, 0))
        left += picture.width
    return row


def caption(example: Example) -> str:
    """The verdict, the query, and the score and truth of each image.

    Example:
        >>> caption(Example("a cat", (), (0.5, 0.25), (False, True), False))
        'wrong: a cat (0.5 false, 0.25 true)'
    """
    images = []
    for score, true in zip(example.scores, example.true, strict=True):
        images.append(f"{score:.3g} {str(true).lower()}")
    verdict = "right" if example.correct else "wrong"
    return f"{verdict}: {example.query} ({', '.join(images)})"
