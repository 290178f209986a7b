"""PACO's annotations of objects, read as images with named objects."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_builders.annotations import AnnotatedImage, VisualGenomeGraphs, parsed, read_json

_WHAT = "PACO's annotations"


class PacoObjects(VisualGenomeGraphs):
    """PACO-LVIS's `paco_lvis_v1_train.json` (Ramanathan et al. 2023), whole objects only.

    Names are read as words, "light_blue car_(automobile)" as "light blue car"; names that would
    then read alike keep their qualifiers. The attributes "other(...)" say nothing and are left out,
    as are objects without others and annotations of parts.

    Args:
        path: `paco_lvis_v1_train.json`.
        images: Folder of COCO 2017, with `train2017` and `val2017`.
        single: Most attributes that a single-object query states.
        multi: Most attributes that a two-object query states of each object.
    """

    def __init__(self, path: Path, images: Path, single: int = 2, multi: int = 1) -> None:
        super().__init__(path, images, None, single, multi)

    def sources(self) -> Mapping[str, Path]:
        """See `SceneReader`."""
        return {self.path.name: self.path}

    def images(self) -> Iterator[AnnotatedImage]:
        """See `SceneReader`."""
        content = read_json(self.path, _WHAT)
        yield from parsed(self.path, _WHAT, lambda: list(self._read(content)))

    def _read(self, content: dict[str, Any]) -> Iterator[AnnotatedImage]:
        nouns = {row["id"]: row["name"] for row in content["categories"]}
        adjectives = {row["id"]: row["name"] for row in content["attributes"]}
        objects = {row["id"] for row in content["categories"] if row["supercategory"] == "OBJECT"}
        read = words([nouns[id_] for id_ in sorted(objects)])
        said = words([name for name in adjectives.values() if not name.startswith("other(")])
        things: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in content["annotations"]:
            if row["category_id"] in objects:
                stated = [adjectives[id_] for id_ in row.get("attribute_ids") or ()]
                attributes = [said[name] for name in stated if name in said]
                named = {"names": [read[nouns[row["category_id"]]]], "attributes": attributes}
                things[row["image_id"]].append(named)
        for row in content["images"]:
            if found := things.get(row["id"]):
                graph = {"image_id": row["id"], "objects": found}
                yield self._image(graph, {str(row["id"]): Path(row["file_name"])})


def words(names: Sequence[str]) -> dict[str, str]:
    """Names with blanks for underscores and, where they stay different, without qualifiers.

    Example:
        >>> words(["light_blue", "mouse_(animal)"])["light_blue"]
        'light blue'
        >>> sorted(words(["mouse_(animal)", "mouse_(computer)", "car_(automobile)"]).values())
        ['car', 'mouse (animal)', 'mouse (computer)']
    """
    short = {name: _plain(re.sub(r"\([^()]*\)", " ", name)) for name in names}
    times = Counter(short.values())
    return {name: one if times[one] == 1 else _plain(name) for name, one in short.items()}


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").split())
