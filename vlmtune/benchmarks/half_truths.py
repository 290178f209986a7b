"""Half-truths: a true description against the same with one wrong detail added to it.

In: JSON lines of comparisons, or JSON files of units, and their images. Out: items of the
multiple-choice rule.

- `.jsonl`, as released: rows of `{"image", "triplet_type", "anchor", "half_truth", "full_truth"}`,
  of type "entity" or "relation": 509 (COCO, foils by Qwen), 454 (by Mistral) and 474 (CC3M).
- `.json`, or a folder of them, as the authors' pipeline, `vlmtune build scenes` and `half_truths`
  write: a list of `{"image_path", "entities", "negative_entities": {entity: [{"negative"}]},
  "relations": [{"subject", "relation_type", "object", "negatives": [{"subject", ...}]}]}`.

Source: Kargi et al. 2026, Half-Truths Break Similarity-Based Retrieval.
"""

from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.files import first_file, write_image, write_json
from vlmtune.benchmarks.half_truth_units import LAYOUT, Units, comparisons
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.storage.files import read_json
from vlmtune.types import ImageRef

KEYS = ("image", "triplet_type", "anchor", "half_truth")


class HalfTruths(MultipleChoice):
    """How often the short true description scores higher than the half-truth; a tie is wrong.

    - `accuracy`: over all comparisons; random scores reach 1/2, CLIP ViT-B/32 34.0 % (COCO, Qwen).
    - `accuracy/entity` and `accuracy/relation`: by what was added.

    The authors' second metric, which also compares with `full_truth`, is not computed.

    A half-truth starts with the words of the short description. The released code does not say how
    both are made of units; here, with one comparison for each foil:

    - entity: "person" against "person and cow", where "cow" is the foil of "horse", and "person"
      the entity before it (of the first entity the second one);
    - relation: "person" against "person standing next to horse", a foil of "person riding horse"
      with the same subject; where the foil has another one, "person and horse riding person".

    Records with one entity have no comparison of entities, and foils of words that are not among
    the entities are not used.

    Args:
        path: The file of comparisons, or the file or folder of units.
        images: The folder that `image` and `image_path` start from; an `image_path` that is not
            there is looked for by its last part.
    """

    full_name = "Half-Truths"
    asks = "edited captions"
    citation = "Kargi et al. 2026, Half-Truths (half-truth accuracy)"
    source = "vlmtune download half_truths"

    path: str
    images: str

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "HalfTruths":
        foil = {"subject": "person", "relation_type": "standing next to", "object": "horse"}
        relation = {**foil, "relation_type": "riding", "negatives": [foil]}
        records = []
        for i, animal in enumerate(("horse", "zebra")):
            write_image(folder / f"images/{i}.png", 200 * i, 90, 20)
            record = {"image_path": f"datasets/{i}.png", "entities": ["person", animal]}
            record["negative_entities"] = {animal: [{"negative": "cow"}]}
            record["relations"] = [relation] if animal == "horse" else []
            records.append(record)
        return cls(write_json(folder / "units.json", records), str(folder / "images"))

    @override
    def read(self) -> list[ChoiceItem]:
        path = Path(self.path)
        items = []
        if path.suffix == ".jsonl":
            for row in self.rows(path, *KEYS):
                image = ImageRef(Path(self.images, row["image"]))
                texts = (row["anchor"], row["half_truth"])
                items.append(ChoiceItem(image, texts, row["triplet_type"]))
            return items
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        for file in files:
            records = read_json(file, LAYOUT, self.fix, list[Units])
            for record in records:
                # The authors' pipeline writes paths of its own machine, so the name alone may do.
                named = Path(self.images, record["image_path"])
                bare = Path(self.images, named.name)
                image = ImageRef(first_file([named, bare]))
                for kind, texts in comparisons(record):
                    items.append(ChoiceItem(image, texts, kind))
        return items
