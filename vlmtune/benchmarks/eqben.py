"""EqBen: two images that hardly differ, from videos and from synthetic engines, and their captions.

In: annotation files of some parts, and images. Out: items of the paired rule.

Seven parts, 251,048 items: Action Genome (`eqbenag`), YouCook2 (images are `.npy` video frames),
GEBC, Kubric with a changed location, count or attribute, and Stable Diffusion. An item belongs to
the part that is the first folder of its image's name. Two layouts are released:

1. Items: `{"image0", "image1", "caption0", "caption1"}`, in a list (the whole annotation, the 10 %
   subset, the 20 items a part for chat models, Kubric, Stable Diffusion), by video (YouCook2,
   GEBC), or by video and subject (Action Genome, whose captions are lists: the first counts).
   Winoground's spelling `image_0`, `caption_0` is read too.
2. Scores to fill in: `{"image", "caption", "private_info": {"dataset", "name", "sample_cnt"}}` in
   any order, four an item, named `c0i0`, `c0i1`, `c1i0`, `c1i1`. In a release without
   `private_info`, that of entry i is number `private_random_idx.json[i]` of `private_info.json`,
   both beside the file.

Source: Wang et al. 2023, "Equivariant Similarity for Vision-Language Foundation Models", sections 4
and 5.3.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import StrictInt
from torch import Tensor
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.files import is_text, write_image, write_json
from vlmtune.benchmarks.rules.paired import CHANCES, Paired, PairedItem, Wins
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import macro_mean
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.results.metric_value import MetricValue
from vlmtune.storage.files import check_shape, read_json, reading
from vlmtune.types import ImageRef

LAYOUT = "EqBen items with image0, image1, caption0 and caption1"
INFO, ORDER = "private_info.json", "private_random_idx.json"
KUBRIC = "eqbenkubric"
# Part, and its weight in the paper's average: five sub-datasets weigh alike, Kubric's is split.
WEIGHTS = {
    "eqbenyoucook2": 1.0,
    "eqbengebc": 1.0,
    "eqbenag": 1.0,
    f"{KUBRIC}_loc": 1 / 3,
    f"{KUBRIC}_cnt": 1 / 3,
    f"{KUBRIC}_attr": 1 / 3,
    "eqbensd": 1.0,
}
PARTS = tuple(WEIGHTS)


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
    # The layout of scores has "image" and "caption" in each record, without a number.
    first = content[0] if isinstance(content, list) and content else None
    if not isinstance(first, dict) or not {"image", "caption"} <= first.keys():
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
            cell = cell[0]  # Action Genome has lists of wordings
        if not is_text(cell):
            raise ValueError(f"an item without {key} at {where}")
        cells.append(cell)
    first, second, caption, other = cells
    return EqBenEntry((first, second), (caption, other))


def _with_info(scores: list[Any], path: Path) -> list[dict[str, Any]]:
    """Adds `private_info` to shuffled scores, from the two files beside them."""
    fix = f"put {INFO} and {ORDER} of the same release beside the scores"
    infos = read_json(path.with_name(INFO), "EqBen's list of private_info", fix, list[_Info])
    order_path = path.with_name(ORDER)
    layout = f"the order of {len(scores)} scores"
    order = read_json(order_path, layout, fix, list[StrictInt])
    complete = []
    with reading(order_path, layout, fix):
        for score, position in zip(scores, order, strict=True):
            complete.append({**score, "private_info": infos[position]})
    return complete


def _from_scores(records: list[Any]) -> list[EqBenEntry]:
    """Puts the four scores of each item together."""
    items: dict[tuple[str, int], dict[str, tuple[Any, Any]]] = {}
    for record in records:
        info = record["private_info"]
        key = (str(info.get("dataset")), info["sample_cnt"])
        content = (record.get("image"), record.get("caption"))
        items.setdefault(key, {})[info["name"]] = content
    entries = []
    blank = (None, None)
    # `sample_cnt` counts over all parts, so that it orders the items.
    for part, number in sorted(items, key=lambda key: key[1]):
        scores = items[part, number]
        image0, caption0 = scores.get("c0i0", blank)
        image1, caption1 = scores.get("c1i1", blank)
        # The two other scores show the same images and captions, crossed.
        crossed = (scores.get("c0i1"), scores.get("c1i0"))
        is_crossed = crossed == ((image1, caption0), (image0, caption1))
        where = f"sample {number} of {part}"
        if not is_crossed:
            raise ValueError(f"other than four scores of two images and two captions at {where}")
        record = {
            "image0": image0,
            "image1": image1,
            "caption0": caption0,
            "caption1": caption1,
        }
        entries.append(_entry(record, where))
    return entries


class EqBen(Paired):
    """Text, image and group accuracy of each part, and the paper's average of its 15 scores.

    `average` is the mean of text, image and group accuracy over the five sub-datasets. Kubric's is
    the mean of its three parts (`.../eqbenkubric`). With the files of some parts only, it is the
    mean over those. `text_accuracy` and the like without a part are over all items alike.

    Args:
        path: The annotation file, or for each part (`eqbenag`, `eqbenyoucook2`, `eqbengebc`,
            `eqbenkubric_loc`, `eqbenkubric_cnt`, `eqbenkubric_attr`, `eqbensd`) its file.
        images: The folder that holds a folder of images for each part.
        light: The images are those of the light release: JPEG, where the annotation says PNG.
    """

    full_name = "EqBen"
    asks = "changes of an image"
    citation = "Wang et al. 2023, EqSim and EqBen, section 5.3 and table 3"
    source = "vlmtune download eqben"
    primary_metric = "average"
    limit_per_group = True

    path: str | dict[str, str]
    images: str
    light: bool = False

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "EqBen":
        rows = []
        for i, part in enumerate((*PARTS, "eqbensd")):
            kind = "npy" if part == "eqbenyoucook2" else "png"
            row = {"caption0": f"first {i}", "caption1": f"second {i}"}
            for side in (0, 1):
                name = f"{part}/{side}.{kind}"
                colour = (30 * PARTS.index(part), 255 * side, 9)
                row[f"image{side}"] = name
                if kind == "png":
                    write_image(folder / name, *colour)
                else:
                    frame = np.full((8, 8, 3), colour, dtype=np.uint8)
                    (folder / name).parent.mkdir(exist_ok=True)
                    np.save(folder / name, frame)
            rows.append(row)
        return cls(write_json(folder / "eqben.json", rows), str(folder))

    @override
    def read(self) -> list[PairedItem]:
        refs: dict[str, ImageRef] = {}
        items = []
        files = self.path if isinstance(self.path, dict) else {"": self.path}
        for named_part, file in files.items():
            for entry in read_entries(Path(file)):
                part = named_part or entry.part
                if part not in WEIGHTS:
                    raise UserError(
                        f"expected images in folders {list(PARTS)} in {file}, got "
                        f"{entry.images[0]!r}: name the part of the file, as in "
                        "path: {eqbensd: FILE}"
                    )
                first_name, second_name = entry.images
                first = self._image(first_name, part, refs)
                second = self._image(second_name, part, refs)
                items.append(PairedItem((first, second), entry.texts, part))
        return items

    def _image(self, name: str, part: str, refs: dict[str, ImageRef]) -> ImageRef:
        """The image of that name; files of one part may omit the part's folder."""
        if not name.startswith(f"{part}/"):
            name = f"{part}/{name}"
        if self.light and name.endswith(".png"):
            name = f"{name.removesuffix('.png')}.jpg"
        if name not in refs:
            refs[name] = ImageRef(Path(self.images, name))
        return refs[name]

    @override
    def more_metrics(
        self, wins: Wins, groups: Sequence[str], clusters: Int[Tensor, "n *ways"]
    ) -> dict[str, MetricValue]:
        by_part = _by_part(groups)
        parts = by_part.members
        # A part that is not there has no weight: the others then make the whole average.
        weights = by_part.present_weights()
        chance = sum(CHANCES) / len(CHANCES)
        credit = self.outcomes(wins)
        metrics = {"average": macro_mean(credit, parts, clusters, chance, weights)}
        is_kubric = torch.tensor([group.startswith(KUBRIC) for group in groups])
        if not is_kubric.any():
            return metrics
        # -1 leaves the items of other parts out of the mean.
        kubric_parts = torch.where(is_kubric, parts, -1)
        for key, won, by_chance in zip(self.keys, wins, CHANCES, strict=True):
            mean = macro_mean(won.double(), kubric_parts, clusters, by_chance)
            metrics[f"{key}/{KUBRIC}"] = mean
        return metrics

    @override
    def outcomes(self, wins: Wins) -> Float[Tensor, "n"]:
        text, image, group = (won.double() for won in wins)
        return (text + image + group) / 3

    @override
    def weighted_groups(self, groups: Sequence[str]) -> ItemGroups | None:
        return _by_part(groups) if len(set(groups)) > 1 else None


def _by_part(groups: Sequence[str]) -> ItemGroups:
    """The part of each item; the parts of Kubric that are there stand for all of it."""
    weights = dict(WEIGHTS)
    kubric = [part for part in set(groups) if part.startswith(KUBRIC)]
    for part in PARTS:
        if kubric and part.startswith(KUBRIC):
            weights[part] = 1 / len(kubric)
    members = [PARTS.index(group) for group in groups]
    by_number = torch.tensor(list(weights.values()), dtype=torch.float64)
    return ItemGroups(torch.tensor(members), by_number)
