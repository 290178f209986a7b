"""EqBen: two images that hardly differ, from videos and from synthetic engines, and their captions.

In: annotation files of some parts, and images. Out: items of the paired rule.

Seven parts, 251,048 items: Action Genome (`eqbenag`), YouCook2, GEBC, Kubric with a changed
location, count or attribute, and Stable Diffusion. The layouts of the released files are those of
`vlmtune.benchmarks.eqben_files`; YouCook2's images are `.npy` video frames. Source: Wang et al.
2023, "Equivariant Similarity for Vision-Language Foundation Models", sections 4 and 5.3.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.eqben_files import read_entries
from vlmtune.benchmarks.files import write_image, write_json
from vlmtune.benchmarks.rules.paired import CHANCES, Paired, PairedItem, PairedWins
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import macro_mean
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.results.metric_value import MetricValue
from vlmtune.types import ImageRef

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


class EqBen(Paired):
    """Text, image and group accuracy of each part, and the paper's average of its 15 scores.

    `average` is the mean of text, image and group accuracy over the five sub-datasets. Kubric's is
    the mean of its three parts (`.../eqbenkubric`). With the files of some parts only, it is the
    mean over those. `text_accuracy` and the like without a part are over all items alike. An item
    that has the same caption twice counts and is never won.

    Args:
        path: The annotation file, or for each part (`eqbenag`, `eqbenyoucook2`, `eqbengebc`,
            `eqbenkubric_loc`, `eqbenkubric_cnt`, `eqbenkubric_attr`, `eqbensd`) its file.
        images: The folder that holds a folder of images for each part.
        light: The images are those of the light release: JPEG, where the annotation says PNG.
    """

    citation: ClassVar[str] = "Wang et al. 2023, EqSim and EqBen, section 5.3 and table 3"
    source: ClassVar[str] = "github.com/Wangt-CN/EqBen (data download)"
    primary_metric: ClassVar[str] = "average"
    limit_per_group: ClassVar[bool] = True
    twins_differ: ClassVar[bool] = False

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
                name, colour = f"{part}/{side}.{kind}", (30 * PARTS.index(part), 255 * side, 9)
                row[f"image{side}"] = name
                if kind == "png":
                    write_image(folder / name, *colour)
                else:
                    (folder / name).parent.mkdir(exist_ok=True)
                    np.save(folder / name, np.full((8, 8, 3), colour, dtype=np.uint8))
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
                first, second = entry.images
                images = (self._image(first, part, refs), self._image(second, part, refs))
                items.append(PairedItem(images, entry.texts, part))
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
        self, accuracy: PairedWins, groups: Sequence[str], clusters: Int[Tensor, "n *ways"]
    ) -> dict[str, MetricValue]:
        parts = torch.tensor([PARTS.index(group) for group in groups])
        weights = _weights(groups)[parts.unique()]
        chance = sum(CHANCES) / len(CHANCES)
        credit = self.outcomes(accuracy)
        metrics = {"average": macro_mean(credit, parts, clusters, chance, weights)}
        is_kubric = torch.tensor([group.startswith(KUBRIC) for group in groups])
        inside = torch.where(is_kubric, parts, -1)
        if is_kubric.any():
            for key, wins, by_chance in zip(self.keys, accuracy.sides, CHANCES, strict=True):
                metrics[f"{key}/{KUBRIC}"] = macro_mean(wins.double(), inside, clusters, by_chance)
        return metrics

    @override
    def outcomes(self, accuracy: PairedWins) -> Float[Tensor, "n"]:
        text, image, group = (wins.double() for wins in accuracy.sides)
        return (text + image + group) / 3

    @override
    def weighted_groups(self, groups: Sequence[str]) -> ItemGroups | None:
        parts = torch.tensor([PARTS.index(group) for group in groups])
        if len(parts.unique()) == 1:
            return None
        return ItemGroups(parts, _weights(groups))


def _weights(groups: Sequence[str]) -> Float[Tensor, "parts"]:
    """The weight of each of `PARTS`; the parts of Kubric that are there stand for all of it."""
    weights = dict(WEIGHTS)
    kubric = [part for part in set(groups) if part.startswith(KUBRIC)]
    if kubric:
        for part in PARTS:
            if part.startswith(KUBRIC):
                weights[part] = 1 / len(kubric)
    return torch.tensor(list(weights.values()), dtype=torch.float64)
