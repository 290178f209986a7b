"""A reader of PACO's annotations (Ramanathan et al. 2023).

In: its JSON. Out: images with named objects. Never: an opened image.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from typing_extensions import override

from data_builders.corpora.annotations import (
    AnnotatedImage,
    Center,
    GraphReader,
    box_center,
    inside,
)
from data_builders.measured import COCO

_NO_BOX = (None,) * 4


class PacoObjects(GraphReader):
    """PACO-LVIS's `paco_lvis_v1_train.json` (Ramanathan et al. 2023), whole objects only.

    The images folder is COCO 2017's. Drops parts, and objects with no attribute but "other(...)".
    """

    content = "PACO's annotations"
    corpus = COCO

    @override
    def parse(self, content: Any) -> Iterable[AnnotatedImage]:
        images = {row["id"]: row for row in content["images"]}
        attributes = {row["id"]: row["name"] for row in content["attributes"]}
        whole = {}  # categories but for parts, by id
        for row in sorted(content["categories"], key=lambda row: row["id"]):
            if row["supercategory"] == "OBJECT":
                whole[row["id"]] = row["name"]
        nouns = words(list(whole.values()))
        adjectives = words([n for n in attributes.values() if not n.startswith("other(")])
        objects: dict[int, list[tuple[str, list[str], Center]]] = defaultdict(list)
        for row in content["annotations"]:
            if row["category_id"] not in whole:
                continue
            names = [attributes[id_] for id_ in row.get("attribute_ids") or ()]
            stated = [adjectives[name] for name in names if name in adjectives]
            image = images.get(row["image_id"], {})
            size = (image.get("width"), image.get("height"))
            center = box_center(row.get("bbox", _NO_BOX), size)
            described = (nouns[whole[row["category_id"]]], stated, center)
            objects[row["image_id"]].append(described)
        for id_, row in images.items():
            if id_ in objects:
                name = PurePath(row["file_name"])
                nested = inside(self.folder, name, self.path, f"image '{id_}'")
                file = nested if nested.is_file() else self.folder / nested.name
                yield self._image(str(id_), dict(enumerate(objects[id_])), file)


def words(names: Sequence[str]) -> dict[str, str]:
    """Returns names with spaces for underscores and, unless ambiguous, without qualifiers.

    Example:
        >>> words(["light_blue", "mouse_(animal)"])["light_blue"]
        'light blue'
        >>> sorted(words(["mouse_(animal)", "mouse_(computer)", "car_(automobile)"]).values())
        ['car', 'mouse (animal)', 'mouse (computer)']
    """
    short = {name: _plain(re.sub(r"\([^()]*\)", " ", name)) for name in names}
    times = Counter(short.values())
    # Names that would read the same keep their brackets, which tell them apart.
    alike = {name: _plain(name) for name, text in short.items() if times[text] > 1}
    return short | alike


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").split())
