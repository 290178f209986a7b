"""VSR: a photograph and one statement about where two things are, which is true or false.

In: the JSON lines and COCO's images. Out: items of the statements rule.

File: `all_vsr_validated_data.jsonl` (10,972 statements, 66 relations), or a file of a split, lines
of `{"image", "image_link", "caption", "label", "relation", ...}`; label 1 is true. Images lie in
`train2017` and `val2017`, as the last two parts of the link say. Source: Liu et al. 2023, Visual
Spatial Reasoning, sections 3 and 5.
"""

from pathlib import Path
from typing import Literal

from typing_extensions import TypedDict, override

from vlmtune.benchmarks.coco_files import coco_image
from vlmtune.benchmarks.files import Text, write_image, write_json
from vlmtune.benchmarks.rules.statements import StatementItem, Statements
from vlmtune.storage.files import check_shape

KEYS = ("image", "image_link", "caption", "relation")


class _Row(TypedDict):
    image: Text
    image_link: Text
    caption: Text
    relation: Text
    label: Literal[0, 1]


class VSR(Statements):
    """How often a true statement scores higher than a false one, of any two, by relation.

    With a threshold `acc` is the published number. The paper's models were trained to say true or
    false; for a model that was not, choose the threshold on the split for development.

    Args:
        path: The file with the statements.
        images: The folder with `train2017` and `val2017`, or with all images.
        threshold: The score above which a statement counts as true.
    """

    version = "2"  # outcomes of all statements
    full_name = "VSR"
    asks = "relations"
    citation = "Liu et al. 2023, Visual Spatial Reasoning, section 5 (accuracy)"
    source = "vlmtune download vsr"

    path: str
    images: str
    threshold: float | None = None

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "VSR":
        statements = (("cat", "under", 1), ("cat", "on", 0), ("dog", "under", 0), ("dog", "on", 1))
        rows = []
        for i, (animal, relation, label) in enumerate(statements):
            link = f"train2017/{i // 2}.jpg"
            write_image(folder / link, 60 * i, 90, 0)
            row = {"image": f"{i // 2}.jpg", "image_link": f"http://images.cocodataset.org/{link}"}
            row["caption"] = f"The {animal} is {relation} the car."
            rows.append({**row, "label": label, "relation": relation})
        return cls(write_json(folder / "vsr.jsonl", rows), str(folder))

    @override
    def read(self) -> list[StatementItem]:
        layout = "statements with a label 0 or 1"
        rows = self.rows(self.path, *KEYS)
        checked = check_shape(rows, list[_Row], self.path, layout, self.fix)
        items = []
        for row in checked:
            # The link ends in "train2017/0001.jpg": it alone says which folder has the image.
            split = Path(row["image_link"]).parent.name
            image = coco_image(self.images, split, row["image"])
            is_true = row["label"] == 1
            items.append(StatementItem(image, row["caption"], is_true, row["relation"]))
        return items
