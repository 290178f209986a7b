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

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired

from pydantic import StrictInt
from typing_extensions import TypedDict

from vlmtune.benchmarks.files import file_error, is_text
from vlmtune.errors import UserError
from vlmtune.storage.files import check_shape, read_json

LAYOUT = "EqBen items with image0, image1, caption0 and caption1"
SLOTS = ("c0i0", "c0i1", "c1i0", "c1i1")
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

    def fail(where: str, came: str) -> UserError:
        return file_error(path, LAYOUT, f"{came} at {where}")

    content = read_json(path, LAYOUT)
    first = content[0] if isinstance(content, list) and content else None
    if isinstance(first, dict) and {"image", "caption"} <= first.keys():
        content = content if "private_info" in first else _with_info(content, path)
        return _from_scores(check_shape(content, list[_Score], path, LAYOUT), fail)
    return [_entry(record, where, fail) for record, where in _records(content, "top", fail)]


Fail = Callable[[str, str], UserError]


def _records(node: Any, where: str, fail: Fail) -> Iterator[tuple[dict[str, Any], str]]:
    """All items of a tree of lists and mappings, each with where it stands."""
    if isinstance(node, dict) and ("image0" in node or "image_0" in node):
        yield node, where
    elif isinstance(node, dict | list):
        children = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in children:
            yield from _records(child, f"{where}/{key}", fail)
    else:
        raise fail(where, f"{type(node).__name__} {str(node)[:40]!r}")


def _entry(record: dict[str, Any], where: str, fail: Fail) -> EqBenEntry:
    mark = "_" if "image_0" in record else ""
    cells = []
    for key in (f"image{mark}0", f"image{mark}1", f"caption{mark}0", f"caption{mark}1"):
        cell = record.get(key)
        if key.startswith("caption") and isinstance(cell, list) and cell:
            cell = cell[0]
        if not is_text(cell):
            raise fail(where, "an item without two image names and two captions")
        cells.append(cell)
    first, second, caption, other = cells
    return EqBenEntry((first, second), (caption, other))


def _with_info(scores: list[Any], path: Path) -> list[dict[str, Any]]:
    """Adds `private_info` to shuffled scores, from the two files beside them."""
    files = [path.with_name(name) for name in (INFO, ORDER)]
    if not all(file.is_file() for file in files):
        raise UserError(
            f"expected {LAYOUT} in {path}, got the shuffled scores without private_info: put "
            f"{INFO} and {ORDER} beside the file, or merge private_info into each entry first"
        )
    infos = read_json(files[0], "EqBen's list of private_info", shape=list[_Info])
    order = read_json(files[1], "EqBen's order of the scores", shape=list[StrictInt])
    is_permutation = sorted(order) == list(range(len(scores)))
    if len(infos) != len(scores) or not is_permutation:
        raise UserError(
            f"expected {len(scores)} entries in {INFO} and a permutation in {ORDER} for {path}, "
            f"got {len(infos)} and {len(order)}: get all three files from one release"
        )
    scores = check_shape(scores, list[dict[str, Any]], path, LAYOUT)
    return [{**score, "private_info": infos[i]} for score, i in zip(scores, order, strict=True)]


def _from_scores(records: list[Any], fail: Fail) -> list[EqBenEntry]:
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
        where = f"sample {number} of {part}"
        if set(scores) != set(SLOTS):
            raise fail(where, f"only {sorted(scores)} of {list(SLOTS)}")
        image0, caption0 = scores["c0i0"]
        image1, caption1 = scores["c1i1"]
        crossed = (image1, caption0), (image0, caption1)
        if (scores["c0i1"], scores["c1i0"]) != crossed:
            raise fail(where, "four scores that are not of two images and two captions")
        record = {"image0": image0, "image1": image1, "caption0": caption0, "caption1": caption1}
        entries.append(_entry(record, where, fail))
    return entries
