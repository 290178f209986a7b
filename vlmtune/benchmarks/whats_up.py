"""What'sUp: where one object is of another, or in the image, when only the preposition changes.

In: six JSON files and their images. Out: items of the multiple-choice rule.

Files: `controlled_images_dataset.json` (part A, 412 items) and `controlled_clevr_dataset.json` (B,
408), lists of `{"image_path", "caption_options"}` with four captions, the first one true; an image
is called `<object>_<preposition>_..._<object>.jpeg`. `coco_qa_one_obj.json` (2,247),
`coco_qa_two_obj.json` (440), `vg_qa_one_obj.json` (1,160) and `vg_qa_two_obj.json` (291), lists of
`[image id, true caption, false caption]`. Source: Kamath et al. 2023, table 3.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import Text, get_file, write_image, write_json
from vlmtune.benchmarks.items import numbered
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.metrics.paired_accuracy import matching_chance, matching_correct
from vlmtune.results.result import Result
from vlmtune.storage.files import read_json, reading
from vlmtune.types import ImageRef

CONTROLLED = {  # part -> its file, and the folder of its images
    "controlled_a": ("controlled_images_dataset.json", "controlled_images"),
    "controlled_b": ("controlled_clevr_dataset.json", "controlled_clevr"),
}
QUESTIONS = {
    "coco_one": "coco_qa_one_obj.json",
    "coco_two": "coco_qa_two_obj.json",
    "vg_one": "vg_qa_one_obj.json",
    "vg_two": "vg_qa_two_obj.json",
}
PARTS = (*CONTROLLED, *QUESTIONS)
LAYOUTS = (
    'a list of {"image_path": "<object>_<preposition>_<object>.jpeg", "caption_options": [...]}',
    "a list of [image id, true caption, false caption]",
)


class _Controlled(TypedDict):
    """A photograph of two objects, with its captions."""

    image_path: Text
    caption_options: Annotated[list[Text], Field(min_length=2)]


@dataclass(frozen=True)
class ControlledItem(ChoiceItem):
    """An item of part A or B: its two objects, and the two prepositions that it is one of."""

    objects: str = ""
    axis: str = ""


class WhatsUp(MultipleChoice):
    """Accuracy of each part, their mean, and of parts A and B that of pairs and of sets.

    - `macro_accuracy`: the mean over the parts, each weighted alike; what vl_compo reports.
    - `accuracy/<part>`: chance 1/4 in `controlled_a` and `controlled_b`, 1/2 in the others
      (`coco_one`, `coco_two`, `vg_one`, `vg_two`). `accuracy`: over all items, one pool.
    - `pair_accuracy/<part>`, of A and B: both images of a pair are right, left with right of the
      same two objects, on with under (A), in front with behind (B); chance 1/16.
    - `set_accuracy/<part>`: all four images of the same two objects are right; chance 1/256.
    - `group_match/<part>`: the true matching of these four images with their four captions has the
      highest total score (`matching_correct`); chance 1/24, so it compares with no set accuracy.

    The script divides by half and a quarter of the items, which are all in pairs and sets. Here
    pairs and sets that `limit` has cut are left out; their intervals count sets.

    Conventions: "strict": a tie is wrong. "reference", as in the released script: a tie is right,
    since argmax takes the first caption and that is the true one in every row.

    Args:
        path: The folder with the six JSON files.
        images: The folder with the folders `controlled_images`, `controlled_clevr`, `vg_images`.
        coco: The folder with the images of COCO val2017.
        parts: The parts to evaluate.
    """

    primary_metric = "macro_accuracy"
    reference_ties = "right"
    full_name = "What'sUp"
    asks = "relations"
    citation = "Kamath et al. 2023, What'sUp, table 3 (individual, pairs, sets)"
    source = "vlmtune download whats_up"
    limit_per_group = True
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"parts": PARTS}

    path: str
    images: str
    coco: str
    parts: Sequence[str] = PARTS
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "WhatsUp":
        sides = {"left_of": "left of", "right_of": "right of", "on": "on", "under": "under"}
        rows = []
        for number, (name, words) in enumerate(sides.items()):
            file = f"controlled_images/mug_{name}_table.jpeg"
            write_image(folder / file, 50 * number, 90, 20)
            others = [side for side in sides.values() if side != words]
            captions = [f"A mug {side} a table" for side in (words, *others)]
            rows.append({"image_path": f"data/{file}", "caption_options": captions})
        write_json(folder / "controlled_images_dataset.json", rows)
        questions = [[7, "A dog on the left", "A dog on the right"]]
        for file in ("coco_qa_one_obj.json", "vg_qa_two_obj.json"):
            write_json(folder / file, questions)
        write_image(folder / "val2017" / "000000000007.jpg", 9, 90, 200)
        write_image(folder / "vg_images" / "7.jpg", 9, 200, 90)
        parts = ["controlled_a", "coco_one", "vg_two"]
        return cls(str(folder), str(folder), str(folder / "val2017"), parts)

    @override
    def read(self) -> list[ChoiceItem]:
        items: list[ChoiceItem] = []
        for part in self.parts:
            items += self._controlled(part) if part in CONTROLLED else self._questions(part)
        return items

    def _controlled(self, part: str) -> list[ChoiceItem]:
        file, folder = CONTROLLED[part]
        path = Path(self.path, file)
        fix = get_file(self.source)
        items: list[ChoiceItem] = []
        rows: list[_Controlled] = read_json(path, LAYOUTS[0], fix, list[_Controlled])
        for row in rows:
            # The published paths start from another working directory.
            name = PurePosixPath(row["image_path"])
            with reading(path, LAYOUTS[0], fix):
                first, side, *_, second = name.stem.split("_")
            axis = "left or right" if side in ("left", "right") else "other"
            image = ImageRef(Path(self.images, folder, name.name))
            texts = tuple(row["caption_options"])
            items.append(ControlledItem(image, texts, part, 1, f"{first} {second}", axis))
        return items

    def _questions(self, part: str) -> list[ChoiceItem]:
        path = Path(self.path, QUESTIONS[part])
        shape = list[tuple[int, Text, Text]]
        questions = read_json(path, LAYOUTS[1], get_file(self.source), shape)
        items = []
        for number, true, false in questions:
            image = Path(self.images, "vg_images", f"{number}.jpg")
            # COCO pads its ids to twelve digits, Visual Genome does not.
            if part.startswith("coco"):
                image = Path(self.coco, f"{number:012d}.jpg")
            items.append(ChoiceItem(ImageRef(image), (true, false), part))
        return items

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        result = super().evaluate(scores)
        values = scores.double()
        right = torch.tensor(result.outcomes, dtype=torch.float64)
        chance = self.items.chance()
        for part in CONTROLLED:
            for name, size in (("pair", 2), ("set", 4)):
                together = self._together(part, size)
                if not together:
                    continue
                rows = torch.tensor(list(together.values()))
                # Pairs of one set show the same objects.
                _, sets = numbered(objects for objects, _ in together)
                all_right = right[rows].amin(dim=1)
                by_chance = chance[rows].prod(dim=1)
                metric = cluster_robust_mean(all_right, sets, float(by_chance.mean()))
                result.metrics[f"{name}_accuracy/{part}"] = metric
            matchings = self._matchings(part)
            if matchings:
                matched = matching_correct(values[torch.tensor(matchings)]).double()
                sets = torch.arange(len(matchings))
                metric = cluster_robust_mean(matched, sets, matching_chance(4))
                result.metrics[f"group_match/{part}"] = metric
        return result

    def _matchings(self, part: str) -> list[list[list[int]]]:
        """Of each whole set the positions in `pairs` of its four images with its four captions."""
        items = self.items
        matchings = []
        for rows in self._together(part, 4).values():
            true = [items.kept[row].candidates[0] for row in rows]
            positions = []
            for row in rows:
                candidates = items.kept[row].candidates
                if sorted(candidates) == sorted(true):
                    columns = [candidates.index(caption) for caption in true]
                    positions.append(items.positions[row, columns].tolist())
            if len(positions) == len(rows):
                matchings.append(positions)
        return matchings

    def _together(self, part: str, size: int) -> dict[tuple[str, str], list[int]]:
        """The items of each whole pair (`size` 2) or set (4) of a part."""
        rows_of: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row, item in enumerate(self.items.kept):
            if isinstance(item, ControlledItem) and item.group == part:
                # A set has both axes, a pair one of them.
                axis = item.axis if size == 2 else ""
                rows_of[item.objects, axis].append(row)
        # `limit` may have left a part of a pair or set, which says nothing of the whole.
        return {key: rows for key, rows in rows_of.items() if len(rows) == size}
