"""Visual Genome's region descriptions as captions: RegionCap of Cola (section 5.3, table 2b)."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from data_builders.annotations import SceneReader, parsed, read_json
from data_builders.common import Record, ShardBuilder
from data_builders.images import LIMIT, Presence
from data_builders.measured import measured_images
from vlmtune.config import Spec, instantiate
from vlmtune.errors import UserError
from vlmtune.types import Group

_WHAT = "Visual Genome's region descriptions"


class RegionsBuilder(ShardBuilder):
    """A whole image with phrases that people wrote of its regions, a record.

    Cola's queries name attributes and objects in a fixed form; region descriptions are free, "a man
    wearing a red cap". The scene annotations say which images are written and where they lie, so
    that both kinds of captions can be had of the same images. A phrase, lower-cased, is its own id;
    `true_ids` has all phrases of the image, drawn or not.

    Args:
        path: `region_descriptions.json`, `[{"regions": [{"image_id", "phrase", ...}]}]`.
        annotations: The reader of the scene annotations, or its spec.
        measured: JSON files of benchmarks; the images they name are left out.
        phrases: Phrases an image, at most; there are some 50.
        seed: Fixes which phrases are drawn.
        missing: Largest share of image files that may be missing; they are skipped and counted.
        records_per_shard: See `ShardBuilder`.
    """

    def __init__(
        self,
        path: Path,
        annotations: SceneReader | dict[str, Any],
        measured: Sequence[Path] = (),
        phrases: int = 4,
        seed: int = 0,
        missing: float = LIMIT,
        records_per_shard: int = 1000,
    ) -> None:
        super().__init__(records_per_shard)
        if phrases < 1:
            raise UserError(f"expected phrases >= 1, got {phrases}: raise it")
        if isinstance(annotations, dict):
            annotations = instantiate(annotations, SceneReader)
        self.path, self.annotations = Path(path), annotations
        self.measured = tuple(map(Path, measured))
        self.phrases, self.seed, self.missing = phrases, seed, missing

    def spec(self) -> Spec:
        """See `Configured`; the reader is given by its own spec."""
        spec = super().spec()
        return {**spec, "init_args": {**spec["init_args"], "annotations": self.annotations.spec()}}

    def sources(self) -> Mapping[str, Path]:
        """See `Builder`."""
        own = {self.path.name: self.path, **{path.name: path for path in self.measured}}
        return {**self.annotations.sources(), **own}

    def records(self) -> Iterator[Record]:
        """See `ShardBuilder`.

        Raises:
            UserError: A file is missing or of another layout, or too many images are missing.
        """
        measured = measured_images(self.measured)
        content = read_json(self.path, _WHAT)
        described = parsed(self.path, _WHAT, lambda: _phrases(content))
        presence = Presence(self.counts, self.missing)
        for image in self.annotations.images():
            if image.id in measured:
                self.counts["skipped: measured"] += 1
            elif image.id not in described:
                self.counts["skipped: no caption"] += 1
            elif presence.has(image.file):
                group = self._group(image.id, tuple(described[image.id]))
                self.counts["captions"] += len(group.texts)
                yield group, [image.file]
        presence.check()

    def _group(self, image: str, phrases: tuple[str, ...]) -> Group:
        rng = random.Random(f"{self.seed}:{image}")
        drawn = tuple(rng.sample(phrases, min(self.phrases, len(phrases))))
        return Group(
            key=image,
            image_ids=(image,),
            text_ids=drawn,
            texts=drawn,
            truth=torch.ones(1, len(drawn), dtype=torch.bool),
            true_ids=(frozenset(phrases),),
        )


def _phrases(content: Any) -> dict[str, dict[str, None]]:
    """The different phrases of each image, by its id, in the order of the file."""
    found: dict[str, dict[str, None]] = {}
    for region in (region for image in content for region in image["regions"]):
        phrase = " ".join(region["phrase"].lower().split())
        if phrase:
            found.setdefault(str(region["image_id"]), {})[phrase] = None
    return found
