"""ARO, Visual Genome Relation and Attribution: a caption against itself with two words exchanged.

In: the JSON file and Visual Genome's images. Out: items of the multiple-choice rule.

Files: `visual_genome_relation.json` and `visual_genome_attribution.json`, JSON lists of objects
with `image_path`, `bbox_x`, `bbox_y`, `bbox_w`, `bbox_h`, `true_caption`, `false_caption`, and
`relation_name` or `attributes` (two of them). The box is cropped from the image; with `crop` False
the whole image is scored. Source: Yuksekgonul et al. 2023, section 2.
"""

from collections.abc import Collection, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import Row, get_file, pixel_box, write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.storage.files import read_json, reading
from vlmtune.types import ImageRef

SYMMETRIC = Path(__file__).with_name("aro_symmetric.json")
MINIMUM = 25  # items of an attribute pair that counts in the published mean
BOX = ("bbox_x", "bbox_y", "bbox_w", "bbox_h")
TEXTS = ("image_path", "true_caption", "false_caption")


class Aro(MultipleChoice):
    """Accuracy over all items, and its mean over relations or over pairs of attributes.

    - `accuracy`: over all items (micro).
    - `macro_accuracy`: mean over `relation_name`, or over ordered pairs of attributes
      ("first_second"), of the accuracy within each.
    - `accuracy/<relation or pair>`: those that count in the published mean.

    In "strict" every item and every group counts. The released relations include symmetric ones,
    such as "next to", whose two captions are both true; a model that knows this reaches half of
    them. In "reference" the mean leaves out the 157 names that the authors' notebook takes for
    symmetric or unclear (`aro_symmetric.json`), or the pairs of attributes with fewer than 25
    items, and it is the primary metric. Both count a tie as wrong: the authors take the argmax with
    the false caption first. Readers that put the true caption first have other numbers.

    Args:
        images: The folder that `image_path` starts from.
        task: "relation" or "attribution"; the default name is `aro_<task>`.
        crop: Score the box of each item, as published, and not the whole image.
    """

    full_name: ClassVar[str] = "ARO"
    citation: ClassVar[str] = "Yuksekgonul et al. 2023, ARO, section 2 (VG-Relation, -Attribution)"
    source: ClassVar[str] = "vlmtune download aro"
    reference_metric: ClassVar[str] = "macro_accuracy"

    path: str
    images: str
    task: Literal["relation", "attribution"] = "relation"
    convention: Convention = "strict"
    crop: bool = True
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.name = self.name or f"aro_{self.task}"

    @property
    @override
    def asks(self) -> str:  # type: ignore[override]
        return "attributes" if self.task == "attribution" else "relations"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "Aro":
        rows_of = (
            ("0.jpg", (0, 0, 6, 4), "the horse is eating the grass", "eating"),
            ("0.jpg", (2, 2, 6, 6), "the man is riding the horse", "riding"),
            ("1.jpg", (1, 0, 8, 5), "the cup is next to the box", "next to"),
        )
        rows = []
        for i, (image, box, true, relation) in enumerate(rows_of):
            write_image(folder / "images" / image, 70 * i, 140, 30)
            _, first, *_, second = true.split()
            row = {
                "image_path": image,
                "true_caption": true,
                "false_caption": f"the {second} is {relation} the {first}",
                "relation_name": relation,
            }
            rows.append(row | dict(zip(BOX, box, strict=True)))
        path = write_json(folder / "visual_genome_relation.json", rows)
        return cls(path, str(folder / "images"))

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        layout = f"{', '.join(BOX)} and a {self.task} of each item"
        for row in self.rows(self.path, *TEXTS):
            box = None
            with reading(self.path, layout, get_file(self.source)):
                if self.crop:
                    sides = [row[key] for key in BOX]
                    box = pixel_box(*sides)
                group = self._group(row)
            image = ImageRef(Path(self.images, row["image_path"]), box)
            texts = (row["true_caption"], row["false_caption"])
            items.append(ChoiceItem(image, texts, group))
        return items

    def _group(self, row: Row) -> str:
        """The relation of an item, or its two attributes."""
        if self.task == "relation":
            names = [row["relation_name"]]
        else:
            first, second = row["attributes"]
            names = [first, second]
        # Other values than texts cannot be joined, and are an error of the file.
        return "_".join(names)

    @override
    def reference_groups(self, sizes: Mapping[str, int]) -> Collection[str]:
        if self.task == "relation":
            return sizes.keys() - symmetric()
        # The authors' notebook leaves rare pairs out of its mean.
        return {pair for pair, count in sizes.items() if count >= MINIMUM}


@cache
def symmetric() -> frozenset[str]:
    """The 157 relations that the published mean leaves out.

    Example:
        >>> "next to" in symmetric(), "eating" in symmetric()
        (True, False)
    """
    return frozenset(read_json(SYMMETRIC, "the relations that ARO leaves out")["names"])
