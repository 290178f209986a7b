"""PUG: AR4T: a scene of two objects and its hard-negative scene, with the captions of both.

In: the csv and its images. Out: items of the paired rule.

File: a csv, `PUG_ARmerged_test.csv`, with at least the columns Relation, caption, alt_caption,
filename, filename_neg and filepath; an image is `filepath` under the folder. `alt_caption` says the
same as `caption` with the objects exchanged; `filename_neg` names the scene with the opposite
relation, or with the two attributes exchanged. Scenes of one object have none.
Source: Bordes et al. 2023, PUG, section 3.4.1 and appendix B.5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from jaxtyping import Int
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import read_csv, write_csv, write_image
from vlmtune.benchmarks.pug_files import spoken
from vlmtune.benchmarks.rules.paired import Paired, PairedItem, Wins
from vlmtune.results.metric_value import MetricValue, count
from vlmtune.types import ImageRef

COLUMNS = ("Relation", "caption", "alt_caption", "filename_neg", "filepath")
KINDS = {  # table 8
    "material": "brick metal wood glass cloth plastic rock",
    "size": "big long tall large short small little tiny",
    "colour": "black blue yellow white green gray brown red silver orange pink gold",
    "texture": "striped dark cloudy",
}
_KIND_OF = {word: kind for kind, words in KINDS.items() for word in words.split()}


@dataclass(frozen=True)
class _Scene:
    """A row: the image, its relation, its two captions, and the file name of its negative."""

    file: str
    relation: str
    caption: str
    alternative: str
    negative: str


class PugAR4T(Paired):
    """Text, image and group accuracy over pairs of a scene and its hard negative.

    Items are the unordered pairs of rows of which one names the other as its negative. They are
    `/relations` or `/attributes`: exchanging attributes leaves the words of the caption the same,
    an opposite relation does not. Within them the numbers are reported by relation (`/to the left
    of`, ...; an item has two) and by kind of attribute (`/material`, `/size`, `/colour`,
    `/texture`; an item has one or two), that of the first word of each caption. The paper proposes
    these scores and prints none.

    Conventions: "strict" leaves out pairs whose captions mean the same, so that no model could tell
    them apart: the negative's caption is the caption or its `alt_caption` (equal attributes, or two
    objects of one name). "reference" keeps them: the test set has 4,200 + 5,618 pairs. Both count
    them as `pairs_alike`, and as `negatives_missing` the rows whose negative is not in the csv.

    Args:
        images: The folder under which `filepath` names the files.
    """

    full_name = "PUG: AR4T"
    asks = "relations"
    citation = "Bordes et al. 2023, PUG, appendix B.5; Thrush et al. 2022"
    source = "vlmtune download pug_ar4t"

    path: str
    images: str
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "PugAR4T":
        left = "Banana to the left of chair in museum"
        right = left.replace("left", "right")
        green = "Green mug and large vase at beach"
        large = "Large mug and green vase at beach"
        rows = [
            ("To the left of", left, "Chair to the right of banana in museum", "0.png", "1.png"),
            ("To the right of", right, "Chair to the left of banana in museum", "1.png", "0.png"),
            ("On", green, "Large vase and green mug at beach", "2.png", "3.png"),
            ("On", large, "Green vase and large mug at beach", "3.png", "2.png"),
            ("Inside", "Pizza inside temple", "", "4.png", ""),
        ]
        cells = []
        for i, row in enumerate(rows):
            file = row[3]
            write_image(folder / "test" / file, 50 * i, 90, 200)
            cells.append([i, *row, f"test/{file}"])
        header = ["", "Relation", "caption", "alt_caption", "filename", *COLUMNS[3:]]
        return cls(write_csv(folder / "PUG_ARmerged_test.csv", header, cells), str(folder))

    @override
    def read(self) -> list[PairedItem]:
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[list[PairedItem], dict[str, MetricValue]]:
        """The pairs, and how many the csv lacks or the convention leaves out."""
        scenes = [_scene(values) for values in read_csv(self.path, COLUMNS, self.source)]
        index = _Index(scenes)
        pairs: dict[frozenset[str], tuple[_Scene, _Scene]] = {}
        missing = 0
        for scene in scenes:
            negative = index.negative(scene)
            if negative is not None:
                # Two scenes that name each other are one pair.
                files = frozenset((scene.file, negative.file))
                pairs.setdefault(files, (scene, negative))
            elif scene.negative:
                missing += 1  # it may be of another split
        listed = list(pairs.values())
        apart = [pair for pair in listed if not _alike(*pair)]
        counts = {
            "pairs_alike": count(len(listed) - len(apart), len(listed)),
            "negatives_missing": count(missing, len(scenes)),
        }
        if self.strict:
            listed = apart
        items = [self._item(scene, negative) for scene, negative in listed]
        return items, counts

    def _item(self, scene: _Scene, negative: _Scene) -> PairedItem:
        first = ImageRef(Path(self.images, scene.file))
        second = ImageRef(Path(self.images, negative.file))
        # Exchanged attributes leave the words of a caption the same.
        if _words(scene.caption) == _words(negative.caption):
            group = "attributes"
            tags = _kinds(scene, negative)
        else:
            group = "relations"
            relations = dict.fromkeys((spoken(scene.relation), spoken(negative.relation)))
            tags = tuple(filter(None, relations))
        return PairedItem((first, second), (scene.caption, negative.caption), group, tags)

    @override
    def more_metrics(
        self, wins: Wins, groups: Sequence[str], clusters: Int[Tensor, "n *ways"]
    ) -> dict[str, MetricValue]:
        return self._read[1]


def _scene(values: dict[str, str]) -> _Scene:
    cells = []
    for name in COLUMNS:
        cell = " ".join(values[name].split())
        # pandas may write an empty cell as "nan".
        if cell.lower() == "nan":
            cell = ""
        cells.append(cell)
    relation, caption, alternative, negative, file = cells
    return _Scene(file.lstrip("/"), relation, caption, alternative, negative)


def _alike(scene: _Scene, negative: _Scene) -> bool:
    """Whether the caption of the negative is true of the scene too."""
    captions = (scene.caption.lower(), scene.alternative.lower())
    return negative.caption.lower() in captions


def _words(caption: str) -> list[str]:
    return sorted(caption.lower().split())


def _kinds(*scenes: _Scene) -> tuple[str, ...]:
    kinds: dict[str, None] = {}
    for scene in scenes:
        first_word = scene.caption.split()[0].lower()
        if first_word in _KIND_OF:
            kinds[_KIND_OF[first_word]] = None
    return tuple(kinds)


class _Index:
    """Finds scenes by file name, first in the folder of the scene that names it."""

    def __init__(self, scenes: Sequence[_Scene]) -> None:
        # The csv names a negative by its file name, and files of two folders may share one.
        self.by_path = {scene.file: scene for scene in scenes}
        self.by_name: dict[str, _Scene | None] = {}
        for scene in scenes:
            name = PurePosixPath(scene.file).name
            # A name that two folders have does not tell which scene is meant.
            self.by_name[name] = None if name in self.by_name else scene

    def negative(self, scene: _Scene) -> _Scene | None:
        """The negative of a scene; None where it has none, or it is missing or ambiguous."""
        if not scene.negative:
            return None
        name = PurePosixPath(scene.negative).name
        folder = PurePosixPath(scene.file).parent
        beside = self.by_path.get(str(folder / name))
        named = self.by_path.get(scene.negative)
        has_path = name != scene.negative  # a path says more than a name
        negative = (named or beside) if has_path else (beside or named)
        negative = negative or self.by_name.get(name)
        return None if negative is scene else negative
