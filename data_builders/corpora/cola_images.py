"""Annotated images go in; those that training may show come out, and what no query may state.

In: a reader, a file of held-out compositions and images, benchmark files. Out: images. Never: an
image that is opened.

The file of `exclude` is JSON, `{"unseen": [composition, ...], "images": [id, ...]}`. A composition,
`[[attribute, ...], object]` or `[attribute, object]`, forbids its attributes together: without
"square white plate", "square plate" and "white plate" stay (Ray et al. 2023, section 5.1).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_builders.corpora.annotations import AnnotatedImage, SceneReader, parse_json
from data_builders.corpora.cola_queries import Excluded
from data_builders.measured import Measured, measured_sources
from data_builders.missing_files import obtain
from vlmtune.errors import UserError


def kept_images(
    reader: SceneReader, exclude: Path | None, measured: Sequence[Path], counts: Counter[str]
) -> tuple[list[AnnotatedImage], Excluded]:
    """Returns the images and the excluded compositions; `counts` gets what was left out."""
    excluded: Excluded = {}
    removed = frozenset[str]()
    if exclude is not None:
        excluded, removed = parse_json(exclude, "a composition list", _excluded)
    benchmarks = Measured(measured, reader.corpus)
    images: list[AnnotatedImage] = []
    for image in reader.images():
        if benchmarks.has(image.id, image.file.as_posix()):
            counts["skipped: measured"] += 1
        elif image.id in removed:
            counts["skipped: excluded"] += 1
        else:
            images.append(image)
    return images, excluded


def kept_sources(
    reader: SceneReader, exclude: Path | None, measured: Sequence[Path]
) -> Mapping[str, Path]:
    """Returns the files that `kept_images` reads, by name.

    Raises:
        UserError: The file of `exclude` does not exist.
    """
    if exclude is not None and not exclude.is_file():
        raise UserError(
            f"expected a composition list at {exclude}, got no such file: {obtain(exclude)}, or "
            "pass --exclude null to leave out no composition"
        )
    excluded = {} if exclude is None else {exclude.name: exclude}
    return {**reader.sources(), **excluded, **measured_sources(measured)}


def _excluded(content: Any) -> tuple[Excluded, frozenset[str]]:
    excluded: dict[str, set[frozenset[str]]] = defaultdict(set)
    for attributes, name in content["unseen"]:
        words = [attributes] if isinstance(attributes, str) else attributes
        excluded[str(name)].add(frozenset(map(str, words)))
    return excluded, frozenset(map(str, content.get("images") or ()))
