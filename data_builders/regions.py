"""Reads Visual Genome's region descriptions: phrases go in, one record an image comes out.

RegionCap of Cola (section 5.3, table 2b). Never makes hard negatives.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from data_builders.annotations import SceneReader, measured_images, parse_json
from data_builders.common import MISSING, Record, ShardBuilder, image_group
from vlmtune.config import instantiate
from vlmtune.errors import UserError


class RegionsBuilder(ShardBuilder):
    """A whole image with phrases that people wrote about its regions, a record.

    Cola's queries name attributes and objects in a fixed form; region descriptions are free, "a man
    wearing a red cap". The scene annotations choose the images and locate them, so that both kinds
    of captions can cover the same images. A phrase, lower-cased, is its own id; `true_ids` holds
    all phrases of the image, sampled or not.

    Args:
        path: `region_descriptions.json`, `[{"regions": [{"image_id", "phrase", ...}]}]`.
        annotations: The reader of the scene annotations, or its spec.
        measured: JSON files of benchmarks; the images they name are left out.
        phrases: Maximum number of phrases an image; there are some 50.
        seed: Seed of the sampled phrases.
        missing: Largest fraction of image files that may be missing; they are skipped and counted.
        records_per_shard: Number of images in one tar.
    """

    def __init__(
        self,
        path: Path,
        annotations: SceneReader | dict[str, Any],
        measured: Sequence[Path] = (),
        phrases: int = 4,
        seed: int = 0,
        missing: float = MISSING,
        records_per_shard: int = 1000,
    ) -> None:
        super().__init__(records_per_shard, missing)
        if phrases < 1:
            raise UserError(f"expected phrases >= 1, got {phrases}: raise it")
        if isinstance(annotations, dict):
            annotations = instantiate(annotations, SceneReader)
        self.path = Path(path)
        # The spec records all arguments of the reader, defaults included.
        self.annotations = self.init_args["annotations"] = annotations
        self.measured = tuple(map(Path, measured))
        self.phrases, self.seed = phrases, seed

    @override
    def sources(self) -> Mapping[str, Path]:
        files = {path.name: path for path in (self.path, *self.measured)}
        return {**self.annotations.sources(), **files}

    @override
    def records(self) -> Iterator[Record]:
        measured = measured_images(self.measured)
        phrases = parse_json(self.path, "Visual Genome's region descriptions", _phrases)
        for image in self.annotations.images():
            if image.id in measured:
                self.counts["skipped: measured"] += 1
            elif image.id not in phrases:
                self.counts["skipped: no caption"] += 1
            elif self.exists(image.file):
                true = tuple(phrases[image.id])
                rng = random.Random(f"{self.seed}:{image.id}")
                sampled = rng.sample(true, min(self.phrases, len(true)))
                self.counts["captions"] += len(sampled)
                yield image_group(image.id, dict.fromkeys(sampled, True), true), [image.file]


def _phrases(content: Any) -> dict[str, dict[str, None]]:
    """The different phrases of each image, by its id, in the order of the file."""
    phrases: dict[str, dict[str, None]] = {}
    for region in (region for image in content for region in image["regions"]):
        phrase = " ".join(region["phrase"].lower().split())
        if phrase:
            phrases.setdefault(str(region["image_id"]), {})[phrase] = None
    return phrases
