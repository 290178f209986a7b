"""ARO, Visual Genome Relation and Attribution: a caption against itself with two words exchanged.

In: the JSON file and Visual Genome's images. Out: items of the multiple-choice rule.

Files: `visual_genome_relation.json` and `visual_genome_attribution.json`, JSON lists of objects
with `image_path`, `bbox_x`, `bbox_y`, `bbox_w`, `bbox_h`, `true_caption`, `false_caption`, and
`relation_name` or `attributes` (two of them). The box is cropped from the image; with `crop` False
the whole image is scored. Source: Yuksekgonul et al. 2023, section 2.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import Row, get_file, pixel_box, write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.results.result import Result
from vlmtune.storage.files import read_json, reading
from vlmtune.types import ImageRef

SYMMETRIC = Path(__file__).with_name("aro_symmetric.json")
PHRASES = 2  # in a caption of attributes: "the white horse and the wet grass"
LONGEST = 4  # words of a phrase that is looked for
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

    With `captions`, of attributes: how often the phrases of the captions, such as "white horse",
    are in these. Of the true phrases 79.8 % are in COCO's captions, of the false ones 41.8 %
    (reported in 2026), so a model trained on COCO may choose by what it has read.
    `known_phrases/true` and `/false` are these fractions, and `balanced_accuracy` is the accuracy
    over the items whose two captions have equally many phrases in them. The authors' own balanced
    split was not published where it could be read; this is the split of that name in vlmtune.

    Args:
        images: The folder that `image_path` starts from.
        task: "relation" or "attribution"; the default name is `aro_<task>`.
        crop: Score the box of each item, as published, and not the whole image.
        captions: A text file with a caption a line, or a JSON file of COCO's captions.
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
    captions: str | None = None
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.captions is not None and self.task != "attribution":
            raise UserError(
                "expected captions with task attribution, got task relation: leave them out"
            )
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
            with reading(self.path, layout, self.fix):
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

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        result = super().evaluate(scores)
        if self.captions is None:
            return result
        items = self.items
        texts = [item.candidates for item in items.kept]
        known = known_phrases(texts, read_phrases(self.captions))
        for column, name in enumerate(("true", "false")):
            fraction = cluster_robust_mean(known[:, column] / PHRASES, items.clusters)
            result.metrics[f"known_phrases/{name}"] = fraction
        balanced = known[:, 0] == known[:, 1]
        if balanced.any():
            right = torch.tensor(result.outcomes, dtype=torch.float64)[balanced]
            accuracy = cluster_robust_mean(right, items.clusters[balanced], 1 / 2)
            result.metrics["balanced_accuracy"] = accuracy
        return result


def known_phrases(
    texts: Sequence[Sequence[str]], phrases: Collection[str]
) -> Float[Tensor, "n captions"]:
    """How many of the two phrases of each caption are known.

    Example:
        >>> known_phrases([("the white horse and the wet grass", "a b")], {"wet grass"}).tolist()
        [[1.0, 0.0]]
    """
    counts = []
    for captions in texts:
        row = []
        for caption in captions:
            stated = caption.lower().removeprefix("the ").split(" and the ")
            row.append(sum(phrase in phrases for phrase in stated))
        counts.append(row)
    return torch.tensor(counts, dtype=torch.float64)


def read_phrases(path: str) -> frozenset[str]:
    """All runs of two to `LONGEST` words in the captions of a file."""
    expected = "a text file with a caption a line, or a JSON file of COCO's captions"
    with reading(path, expected, get_file("vlmtune download coco_captions")):
        text = Path(path).read_text(encoding="utf-8")
        lines = text.splitlines()
        if path.endswith(".json"):
            lines = [row["caption"].strip() for row in json.loads(text)["annotations"]]
    phrases = set()
    for line in lines:
        words = re.findall(r"[\w'-]+", line.lower())
        for length in range(2, LONGEST + 1):
            for start in range(len(words) - length + 1):
                phrases.add(" ".join(words[start : start + length]))
    return frozenset(phrases)


@cache
def symmetric() -> frozenset[str]:
    """The 157 relations that the published mean leaves out.

    Example:
        >>> "next to" in symmetric(), "eating" in symmetric()
        (True, False)
    """
    return frozenset(read_json(SYMMETRIC, "the relations that ARO leaves out")["names"])
