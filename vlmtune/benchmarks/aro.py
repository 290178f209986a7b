"""ARO, Visual Genome Relation and Attribution: a caption against itself with two words exchanged.

Files: `visual_genome_relation.json` and `visual_genome_attribution.json`, JSON lists of objects
with `image_path`, `bbox_x`, `bbox_y`, `bbox_w`, `bbox_h`, `true_caption`, `false_caption`, and
`relation_name` or `attributes` (two of them). The box is cropped from the image; with `crop` False
the whole image is scored. Source: Yuksekgonul et al. 2023, section 2.
"""

import json
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from PIL import Image

from vlmtune.benchmarks.base import Benchmark, Convention, read_json
from vlmtune.benchmarks.boxes import whole_box
from vlmtune.benchmarks.choices import Choice, Choices
from vlmtune.errors import UserError
from vlmtune.types import ImageRef

SYMMETRIC = Path(__file__).with_name("aro_symmetric.json")
MINIMUM = 25  # items of an attribute pair that counts in the published mean
BOX = ("bbox_x", "bbox_y", "bbox_w", "bbox_h")
TEXTS = ("image_path", "true_caption", "false_caption")


class Aro(Choices):
    """Accuracy over all items, and its mean over relations or over pairs of attributes.

    - `accuracy`: over all items (micro).
    - `macro_accuracy`: mean over `relation_name`, or over ordered pairs of attributes
      ("first_second"), of the accuracy within each.
    - `accuracy/<relation or pair>`: those that count in the published mean.

    In "strict" every item and every group counts. The released relations include symmetric ones,
    such as "next to", whose two captions are both true; a model that knows this reaches half of
    them. In "reference" the mean leaves out the 157 names that the authors' notebook takes for
    symmetric or unclear (`aro_symmetric.json`), or the pairs of attributes with fewer than 25
    items, and it is what stands for the whole. Both count a tie as wrong: the authors take the
    argmax with the false caption first. Other readers put the true caption first, so that ties are
    right, or score whole images; their numbers differ.

    Args:
        path: The JSON file.
        images: The folder that `image_path` starts from.
        task: "relation" or "attribution".
        name: Name in reports, unique within a run; `aro_<task>` where it is None.
        convention: "strict" or "reference".
        limit: Evaluate at most so many items.
        seed: Draw them at random with this seed; None takes the first ones.
        crop: Score the box of each item, as published, and not the whole image.

    Raises:
        UserError: The task or the convention is unknown, or `limit` is below 1.
    """

    version: ClassVar[str] = "1"
    citation: ClassVar[str] = "Yuksekgonul et al. 2023, ARO, section 2 (VG-Relation, -Attribution)"
    source: ClassVar[str] = "github.com/mertyg/vision-language-models-are-bows"
    reference_primary: ClassVar[str] = "macro_accuracy"

    def __init__(
        self,
        path: str,
        images: str,
        task: Literal["relation", "attribution"] = "relation",
        name: str | None = None,
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = 0,
        crop: bool = True,
    ) -> None:
        if task not in ("relation", "attribution"):
            raise UserError(f"expected the task relation or attribution, got {task!r}: name one")
        super().__init__(f"aro_{task}" if name is None else name, convention, limit, seed)
        self.path = Path(path)
        self.folder = Path(images)
        self.task = task
        self.crop = crop

    @classmethod
    def fixture(cls, folder: Path) -> Benchmark:
        """Three items of two relations, one of them symmetric, on two images."""
        (folder / "images").mkdir()
        made = (
            ("0.jpg", (0, 0, 6, 4), "the horse is eating the grass", "eating"),
            ("0.jpg", (2, 2, 6, 6), "the man is riding the horse", "riding"),
            ("1.jpg", (1, 0, 8, 5), "the cup is next to the box", "next to"),
        )
        rows = []
        for i, (image, box, true, relation) in enumerate(made):
            Image.new("RGB", (8, 8), (70 * i, 140, 30)).save(folder / "images" / image)
            first, second = true.split()[1], true.split()[-1]
            false = f"the {second} is {relation} the {first}"
            texts = {"true_caption": true, "false_caption": false, "relation_name": relation}
            rows.append({"image_path": image, **dict(zip(BOX, box, strict=True)), **texts})
        path = folder / "visual_genome_relation.json"
        path.write_text(json.dumps(rows), encoding="utf-8")
        return cls(str(path), str(folder / "images"))

    def _read(self) -> list[Choice]:
        rows = read_json(self.path, f"{self._wanted()} from {self.source}")
        if not isinstance(rows, list):
            raise UserError(f"expected {self._wanted()} in {self.path}, got no list")
        return [self._choice(i, row) for i, row in enumerate(rows)]

    def _choice(self, i: int, row: Any) -> Choice:
        try:
            box = whole_box(*(row[key] for key in BOX)) if self.crop else None
            image, true, false = (_text(row[k]) for k in TEXTS)
            if self.task == "relation":
                group = _text(row["relation_name"])
            else:
                first, second = row["attributes"]
                group = f"{_text(first)}_{_text(second)}"
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"expected {self._wanted()} in {self.path}, got item {i} with "
                f"{type(error).__name__} ({error}): download the file again"
            ) from error
        return Choice(ImageRef(self.folder / image, box), (true, false), group)

    def _wanted(self) -> str:
        group = "relation_name" if self.task == "relation" else "attributes"
        return f"a JSON list of objects with {', '.join((*TEXTS, *BOX, group))}"

    def _reference_groups(self, sizes: Mapping[str, int]) -> Collection[str]:
        if self.task == "relation":
            return sizes.keys() - symmetric()
        return {pair for pair, count in sizes.items() if count >= MINIMUM}


@cache
def symmetric() -> frozenset[str]:
    """The 157 relations that the published mean leaves out.

    Example:
        >>> "next to" in symmetric(), "eating" in symmetric()
        (True, False)
    """
    return frozenset(read_json(SYMMETRIC, "the relations that ARO leaves out")["names"])


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} where a text should be")
    return value
