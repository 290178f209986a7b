"""Pictures of retrievals: thumbnails for the page, strips and tables for loggers such as W&B.

Never fails on a missing image: a report may be made after the run and elsewhere.
"""

import base64
from collections.abc import Sequence
from io import BytesIO

from PIL import Image, ImageOps

from vlmtune.data.rgb import to_rgb
from vlmtune.results.result import Example, Result
from vlmtune.storage.files import regular
from vlmtune.types import ImageRef

SIDE = 192  # pixels of the longer side; twice the size on the page, for dense displays
COLUMNS = ("benchmark", "metric", "value", "low", "high", "chance", "n", "unit", "convention")
Cell = str | float | int | None


def thumbnail(reference: ImageRef) -> Image.Image | None:
    """Returns the scored pixels of an image, shrunk, or None if the file cannot be read.

    As for scoring, it is turned upright unless the reference says otherwise, then cropped to its
    box; pixels of the box outside the image are black.
    """
    try:
        with Image.open(regular(reference.path)) as file:
            file.load()
            image = to_rgb(_upright(file)) if reference.upright else file.convert("RGB")
        if reference.box is not None:
            x, y, width, height = reference.box
            if width < 1 or height < 1:
                return None
            image = image.crop((x, y, x + width, y + height))
    except (OSError, ValueError, OverflowError, Image.DecompressionBombError):
        return None
    image.thumbnail((SIDE, SIDE))
    return image


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # unreadable EXIF has no orientation
        return image


def data_uri(reference: ImageRef) -> str | None:
    """Returns the thumbnail as a `data:` URI, or None if there is none."""
    image = thumbnail(reference)
    return None if image is None else encoded(image)


def encoded(image: Image.Image) -> str:
    """Returns a picture as a `data:` URI."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


class Thumbnails:
    """Thumbnails as `data:` URIs, each image read once."""

    def __init__(self) -> None:
        self._uris: dict[ImageRef, str | None] = {}

    def __call__(self, image: ImageRef) -> str | None:
        """The thumbnail of an image, or None if there is none."""
        if image not in self._uris:
            self._uris[image] = data_uri(image)
        return self._uris[image]


def metric_table(results: Sequence[Result]) -> list[list[Cell]]:
    """One row of `COLUMNS` for each metric of each benchmark.

    Example:
        >>> from vlmtune.results.metric_value import MetricValue
        >>> metric_table([Result("cola", "1", "accuracy", {"accuracy": MetricValue(0.5, 4, 0.25)})])
        [['cola', 'accuracy', 0.5, None, None, 0.25, 4, 'fraction', 'strict']]
    """
    return [
        [result.benchmark, name, m.value, m.low, m.high, m.chance, m.n, m.unit, result.convention]
        for result in results
        for name, m in result.metrics.items()
    ]


def retrievals(result: Result) -> tuple[list[Image.Image], list[str]]:
    """Strip and caption of each example that has a readable image."""
    strips = [(strip(example), caption(example)) for example in result.examples]
    readable = [(picture, text) for picture, text in strips if picture is not None]
    return [picture for picture, _ in readable], [text for _, text in readable]


def strip(example: Example) -> Image.Image | None:
    """The images of a retrieval side by side, best first; None if no image can be read."""
    pictures = [picture for ref in example.images if (picture := thumbnail(ref)) is not None]
    if not pictures:
        return None
    size = sum(p.width for p in pictures), max(p.height for p in pictures)
    row = Image.new("RGB", size, "white")
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
    images = ", ".join(
        f"{score:.3g} {'true' if true else 'false'}"
        for score, true in zip(example.scores, example.true, strict=True)
    )
    return f"{'right' if example.correct else 'wrong'}: {example.query} ({images})"
