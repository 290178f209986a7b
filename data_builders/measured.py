"""Which images a benchmark measures, so that a corpus for training can be built without them."""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from data_builders.annotations import read_json
from vlmtune.errors import UserError

_SUFFIXES = (".jpg", ".jpeg", ".png")


def measured_images(paths: Sequence[Path]) -> frozenset[str]:
    """Returns the ids, `2390970` of `.../2390970.jpg`, of all images that benchmark files name.

    Every string of the JSON that ends like an image file counts, wherever it stands: Cola's files
    have lists of rows, others have objects.

    Raises:
        UserError: A file is missing, is not JSON or names no image.
    """
    found: set[str] = set()
    for path in map(Path, paths):
        texts = _strings(read_json(path, "a benchmark's JSON"))
        stems = {PurePosixPath(t).stem for t in texts if t.lower().endswith(_SUFFIXES)}
        if not stems:
            raise UserError(
                f"expected names of image files in {path}, got none: pass a benchmark's JSON"
            )
        found |= stems
    return frozenset(found)


def _strings(value: Any) -> Iterator[str]:
    """All strings of nested lists and objects, keys apart."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
