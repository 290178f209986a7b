"""What builders of annotated images share: which images training may show, what no query states.

In: a reader, a file of held-out compositions and images, benchmark files. Out: images. Never: an
image that is opened.

The file of `exclude` is JSON, `{"unseen": [composition, ...], "images": [id, ...]}`. A composition,
`[[attribute, ...], object]` or `[attribute, object]`, forbids its attributes together: without
"square white plate", "square plate" and "white plate" stay (Ray et al. 2023, section 5.1).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from data_builders.corpora.annotations import AnnotatedImage, SceneReader, parse_json
from data_builders.corpora.cola_queries import Excluded
from data_builders.measured import Measured, measured_sources
from data_builders.missing_files import obtain
from data_builders.shard_builder import Builder
from data_builders.shard_files import all_named
from vlmtune.errors import UserError


class AnnotatedBuilder(Builder):
    """A builder of annotated images; its constructor calls `choose`."""

    def choose(
        self, annotations: SceneReader, measured: Sequence[Path], exclude: Path | None = None
    ) -> None:
        """Sets the reader, the benchmark files whose images are left out, and what is held out."""
        self.annotations = annotations
        self.measured = tuple(map(Path, measured))
        self.exclude = None if exclude is None else Path(exclude)

    @override
    def sources(self) -> Mapping[str, Path]:
        exclude = self.exclude
        if exclude is not None and not exclude.is_file():
            raise UserError(
                f"expected a composition list at {exclude}, got no such file: {obtain(exclude)}, "
                "or pass --exclude null to leave out no composition"
            )
        excluded = {} if exclude is None else {exclude.name: exclude}
        measured = measured_sources(self.measured)
        return all_named(self.annotations.sources(), excluded, measured)

    def kept(self) -> tuple[list[AnnotatedImage], Excluded]:
        """Returns the images and the excluded compositions; counts what was left out."""
        excluded: Excluded = {}
        removed = frozenset[str]()
        if self.exclude is not None:
            excluded, removed = parse_json(self.exclude, "a composition list", _excluded)
        benchmarks = Measured(self.measured, self.annotations.corpus)
        images: list[AnnotatedImage] = []
        for image in self.annotations.images():
            if benchmarks.has(image.id, image.file.as_posix()):
                self.counts["skipped: measured"] += 1
            elif image.id in removed:
                self.counts["skipped: excluded"] += 1
            else:
                images.append(image)
        return images, excluded


def _excluded(content: Any) -> tuple[Excluded, frozenset[str]]:
    excluded: dict[str, set[frozenset[str]]] = defaultdict(set)
    for attributes, name in content["unseen"]:
        # A single attribute may stand without a list.
        words = [attributes] if isinstance(attributes, str) else attributes
        composition = frozenset(map(str, words))
        excluded[str(name)].add(composition)
    images = content.get("images") or ()
    return excluded, frozenset(map(str, images))
