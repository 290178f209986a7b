"""The layouts in which EqBen's annotations are released, all read into items.

In: a released annotation file. Out: two image names and two captions of each item. Never: an image.

1. Items: `{"image0", "image1", "caption0", "caption1"}`, in a list (the whole annotation, the 10 %
   subset, the 20 items a part for chat models, Kubric, Stable Diffusion), by video (YouCook2,
   GEBC), or by video and subject (Action Genome, whose captions are lists: the first counts).
   Winoground's spelling `image_0`, `caption_0` is read too.
2. Scores to fill in: `{"image", "caption", "private_info": {"dataset", "name", "sample_cnt"}}` in
   any order, four an item, named `c0i0`, `c0i1`, `c1i0`, `c1i1`. In a release without
   `private_info`, that of entry i is number `private_random_idx.json[i]` of `private_info.json`,
   both beside the file.

The part an item belongs to is the first folder of its image's name.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired

from pydantic import StrictInt
from typing_extensions import TypedDict

from vlmtune.benchmarks.files import is_text
from vlmtune.storage.files import check_shape, read_json, reading

LAYOUT = "EqBen items with image0, image1, caption0 and caption1"
INFO, ORDER = "private_info.json", "private_random_idx.json"


class _Info(TypedDict):
    """Which of the four scores of which item a record stands for."""

    name: Literal["c0i0", "c0i1", "c1i0", "c1i1"]
    sample_cnt: StrictInt
    dataset: NotRequired[Any]


class _Score(TypedDict):
    """A score to fill in."""

    private_info: _Info
    image: NotRequired[Any]
    caption: NotRequired[Any]


class EqBenEntry(NamedTuple):
    """One item as a file has it: names of two images, and two captions."""

    images: tuple[str, str]
    texts: tuple[str, str]

    @property
    def part(self) -> str:
        """The first folder of the first image's name."""
        return self.images[0].partition("/")[0]


def read_entries(path: Path) -> list[EqBenEntry]:
    """Reads a released file of any layout, in its order or in that of `sample_cnt`."""
    content = read_json(path, LAYOUT)
    first = content[0] if isinstance(content, list) and content else None
    if not (isinstance(first, dict) and {"image", "caption"} <= first.keys()):
        with reading(path, LAYOUT):
            return [_entry(record, where) for record, where in _records(content, "top")]
    if "private_info" not in first:
        content = _with_info(content, path)
    scores = check_shape(content, list[_Score], path, LAYOUT)
    with reading(path, LAYOUT):
        return _from_scores(scores)


def _records(node: Any, where: str) -> Iterator[tuple[dict[str, Any], str]]:
    """All items of a tree of lists and mappings, each with where it stands."""
    if isinstance(node, dict) and ("image0" in node or "image_0" in node):
        yield node, where
    elif isinstance(node, dict | list):
        children = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in children:
            yield from _records(child, f"{where}/{key}")
    else:
        raise ValueError(f"{node!r:.40} at {where}")


def _entry(record: dict[str, Any], where: str) -> EqBenEntry:
    mark = "_" if "image_0" in record else ""
    cells = []
    for key in (f"image{mark}0", f"image{mark}1", f"caption{mark}0", f"caption{mark}1"):
        cell = record.get(key)
        if key.startswith("caption") and isinstance(cell, list) and cell:
            cell = cell[0]
        if not is_text(cell):
            raise ValueError(f"an item without {key} at {where}")
        cells.append(cell)
    first, second, caption, other = cells
    return EqBenEntry((first, second), (caption, other))


def _with_info(scores: list[Any], path: Path) -> list[dict[str, Any]]:
    """Adds `private_info` to shuffled scores, from the two files beside them."""
    fix = f"put {INFO} and {ORDER} of the same release beside the scores"
    infos = read_json(path.with_name(INFO), "EqBen's list of private_info", fix, list[_Info])
    layout = f"a permutation of {len(scores)} scores"
    order = read_json(path.with_name(ORDER), layout, fix, list[StrictInt])
    with reading(path.with_name(ORDER), layout, fix):
        if sorted(order) != list(range(len(scores))):
            raise ValueError(f"{len(order)} numbers")
        return [{**score, "private_info": infos[i]} for score, i in zip(scores, order, strict=True)]


def _from_scores(records: list[Any]) -> list[EqBenEntry]:
    """Puts the four scores of each item together."""
    items: dict[tuple[str, int], dict[str, tuple[Any, Any]]] = {}
    for record in records:
        info = record["private_info"]
        key = str(info.get("dataset")), info["sample_cnt"]
        content = record.get("image"), record.get("caption")
        items.setdefault(key, {})[info["name"]] = content
    entries = []
    for part, number in sorted(items, key=lambda key: key[1]):
        scores = items[part, number]
        image0, caption0 = scores.get("c0i0", (None, None))
        image1, caption1 = scores.get("c1i1", (None, None))
        # The two other scores show the same images and captions, crossed.
        crossed = (image1, caption0), (image0, caption1)
        where = f"sample {number} of {part}"
        if (scores.get("c0i1"), scores.get("c1i0")) != crossed:
            raise ValueError(f"other than four scores of two images and two captions at {where}")
        record = {"image0": image0, "image1": image1, "caption0": caption0, "caption1": caption1}
        entries.append(_entry(record, where))
    return entries
