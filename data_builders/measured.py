"""Benchmark files go in, the images they name come out. Never opens an image."""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from vlmtune.errors import UserError
from vlmtune.storage.files import read_json


def measured_images(paths: Sequence[Path]) -> frozenset[str]:
    """Returns the ids, `2390970` of `.../2390970.jpg`, of all images that benchmark files name.

    Any JSON string at any depth that ends like an image file counts.
    """
    images: set[str] = set()
    for path in map(Path, paths):
        texts = _strings(read_json(path, "a benchmark's JSON"))
        files = (t for t in texts if t.lower().endswith((".jpg", ".jpeg", ".png")))
        stems = {PurePosixPath(file).stem for file in files}
        if not stems:
            raise UserError(
                f"expected names of image files in {path}, got none: pass a benchmark's JSON"
            )
        images |= stems
    return frozenset(images)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
