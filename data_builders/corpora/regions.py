"""Visual Genome's region descriptions as shards.

In: descriptions and annotated images. Out: one record an image.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PositiveInt
from typing_extensions import override

from data_builders.corpora.annotations import SceneReader, parse_json
from data_builders.corpora.cola_images import AnnotatedBuilder
from data_builders.left_out import Line
from data_builders.shard_builder import Record, ShardBuilder, image_group
from data_builders.shard_files import all_named


class RegionsBuilder(AnnotatedBuilder, ShardBuilder):
    """An image with phrases that people wrote about its regions (Cola, section 5.3, table 2b).

    The scene annotations choose and locate the images. A phrase, lower-cased, is its own id.

    Args:
        path: `region_descriptions.json`, `[{"regions": [{"image_id", "phrase", ...}]}]`.
        annotations: The reader of the scene annotations.
        measured: Files of benchmarks, or folders of them; the images they name are left out. See
            `data_builders.measured`.
        exclude: JSON file whose `images` are left out, see `data_builders.corpora.cola_images`;
            phrases may state its compositions.
        phrases: Maximum number of phrases an image; there are some 50.
        seed: Seed of the sampled phrases.
    """

    idle: ClassVar[Mapping[str, Any]] = {"exclude": None}

    def __init__(self, path: Path, annotations: SceneReader,
                 measured: Sequence[Path] = (), phrases: PositiveInt = 4, seed: int = 0,
                 records_per_shard: PositiveInt = 1000,
                 exclude: Path | None = None) -> None:  # fmt: skip
        super().__init__(records_per_shard)
        self.choose(annotations, measured, exclude)
        self.path = Path(path)
        self.phrases, self.seed = phrases, seed

    @override
    def sources(self) -> Mapping[str, Path]:
        return all_named(super().sources(), {self.path.name: self.path})

    @override
    def records(self) -> Iterator[Record]:
        images, _ = self.kept()
        phrases = parse_json(self.path, "Visual Genome's region descriptions", _phrases)
        for image in images:
            if image.id not in phrases:
                self.left_out.add(Line(str(image.file), "no caption", unusable=False))
            elif self.exists(image.file):
                true = tuple(phrases[image.id])
                rng = random.Random(f"{self.seed}:{image.id}")
                sampled = rng.sample(true, min(self.phrases, len(true)))
                self.counts["captions"] += len(sampled)
                yield image_group(image.id, dict.fromkeys(sampled, True), true), [image.file]


def _phrases(content: Any) -> dict[str, dict[str, None]]:
    phrases: dict[str, dict[str, None]] = {}
    for image in content:
        for region in image["regions"]:
            phrase = " ".join(region["phrase"].lower().split())
            if phrase:
                phrases.setdefault(str(region["image_id"]), {})[phrase] = None
    return phrases
