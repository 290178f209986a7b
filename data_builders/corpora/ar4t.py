"""PUG:AR4T (Bordes et al. 2023) as shards.

In: its csv and images. Out: pairs of scenes, and scenes alone. Never: a pair that is split.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt
from typing_extensions import override

from data_builders.corpora.annotations import inside
from data_builders.corpora.karpathy import distinct_captions
from data_builders.measured import Measured, measured_sources
from data_builders.shard_builder import Record, ShardBuilder, images_group
from data_builders.shard_files import all_named
from vlmtune.data.tables import read_cells
from vlmtune.storage.files import reading

_EMPTY = ("nan", "none")  # as pandas may write an empty cell
_ATTRIBUTES = ("Actor1Attribute", "Actor2Attribute")

Subset = Literal["relations", "attributes", "pairs", "relation_pairs", "attribute_pairs"]
_KIND = {
    "relations": "relations",
    "relation_pairs": "relations",
    "attributes": "attributes",
    "attribute_pairs": "attributes",
}


@dataclass(frozen=True)
class _Scene:
    """An image, the file name of its hard negative ("" if it has none), and its captions."""

    file: str
    negative: str
    captions: tuple[str, ...]
    kind: Literal["relations", "attributes"]


class AR4TBuilder(ShardBuilder):
    """A scene and its hard negative a record, with both captions of both (Bordes et al. 2023).

    Both captions are true of their scene; `data.captions: 1` of a fit shows one of them at random,
    as the paper does. A scene without a hard negative is a record of one image.

    A scene is one of attributes if a column `Actor?Attribute` is filled, else one of relations.
    The manifest counts both: of the 250K training scenes the paper has 101,920 of relations and
    147,976 of attributes, and 78,400 and 146,158 of them in pairs (appendix B.5).

    Args:
        path: The csv.
        images: Folder under which `filepath` names the files.
        subset: Only scenes of relations or of attributes; `pairs` for only scenes with a hard
            negative; or `relation_pairs`, `attribute_pairs`. None for all.
        measured: Files of benchmarks, such as the test csv; scenes whose `filepath` they name are
            left out. File names recur in other folders, so the whole path counts.
    """

    idle: ClassVar[Mapping[str, Any]] = {"measured": []}

    def __init__(
        self,
        path: Path,
        images: Path,
        records_per_shard: PositiveInt = 1000,
        subset: Subset | None = None,
        measured: Sequence[Path] = (),
    ) -> None:
        super().__init__(records_per_shard)
        self.path, self.images = Path(path), Path(images)
        self.subset: Subset | None = subset
        self.measured = tuple(map(Path, measured))

    @override
    def sources(self) -> Mapping[str, Path]:
        return all_named({self.path.name: self.path}, measured_sources(self.measured))

    @override
    def records(self) -> Iterator[Record]:
        measured = Measured(self.measured).files
        scenes = [
            scene
            for number, scene in enumerate(self._scenes(), 1)
            if self._wanted(scene, measured)
            and self.exists(inside(self.images, scene.file, self.path, f"row {number}"))
        ]
        for number, group in enumerate(self._groups(scenes)):
            self.counts["pairs" if len(group) == 2 else "without negative"] += 1
            self.counts.update(scene.kind for scene in group)
            files = [scene.file for scene in group]
            captions = [scene.captions for scene in group]
            texts = tuple(dict.fromkeys(itertools.chain(*captions)))
            images = [self.images / file for file in files]
            yield images_group(f"{number:07d}", files, texts, captions), images

    def _groups(self, scenes: Sequence[_Scene]) -> list[list[_Scene]]:
        captioned = [scene for scene in scenes if scene.captions]
        self.counts["skipped: no caption"] += len(scenes) - len(captioned)
        negative_of = _negatives(captioned)
        pairs: dict[frozenset[str], list[_Scene]] = {}
        for scene in captioned:
            negative = negative_of(scene)
            if negative is not None:
                # Of two rows that name each other the first one makes the pair.
                pairs.setdefault(frozenset((scene.file, negative.file)), [scene, negative])
        paired = frozenset[str]().union(*pairs)
        alone = [[scene] for scene in captioned if scene.file not in paired]
        if (self.subset or "").endswith("pairs"):
            self.counts["skipped: no negative"] += len(alone)
            alone = []
        return [*pairs.values(), *alone]

    def _wanted(self, scene: _Scene, measured: Container[str]) -> bool:
        """Tells whether no benchmark has a scene and `subset` names its kind; counts it if not."""
        if scene.file in measured:
            self.counts["skipped: measured"] += 1
            return False
        wanted = _KIND.get(self.subset or "", scene.kind) == scene.kind
        self.counts["skipped: not in the subset"] += not wanted
        return wanted

    def _scenes(self) -> list[_Scene]:
        # Without a subset, a table may lack the columns that tell its kinds of scenes apart.
        defaults = {} if self.subset in _KIND else dict.fromkeys(_ATTRIBUTES, "")
        with reading(self.path, "PUG:AR4T's csv"):
            return [_scene(defaults | row) for row in read_cells(self.path)]


def _scene(row: Mapping[str, str]) -> _Scene:
    def cell(column: str) -> str:
        text = row[column].strip()
        return "" if text.lower() in _EMPTY else text

    captions = distinct_captions(map(cell, ("caption", "alt_caption")))
    attributed = any([cell(column) for column in _ATTRIBUTES])
    part = "attributes" if attributed else "relations"
    return _Scene(
        row["filepath"].strip().lstrip("/"),
        cell("filename_neg"),
        tuple(captions),
        part,
    )


def _negatives(scenes: Sequence[_Scene]) -> Callable[[_Scene], _Scene | None]:
    """Finds negatives by file name, first in the folder of the scene, as names may recur."""
    by_path = {scene.file: scene for scene in scenes}
    names = Counter(PurePosixPath(scene.file).name for scene in scenes)
    by_name = {PurePosixPath(scene.file).name: scene for scene in scenes}

    def negative_of(scene: _Scene) -> _Scene | None:
        name = PurePosixPath(scene.negative).name
        if not name:
            return None
        beside = str(PurePosixPath(scene.file).parent / name)
        match = by_path.get(scene.negative) or by_path.get(beside)
        if match is None and names[name] == 1:
            match = by_name[name]
        return None if match is scene else match

    return negative_of
