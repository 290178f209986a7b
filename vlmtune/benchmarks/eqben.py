"""EqBen: two images that hardly differ, from videos and from synthetic engines, and their captions.

Seven parts, 251,048 items: Action Genome (`eqbenag`), YouCook2, GEBC, Kubric with a changed
location, count or attribute, and Stable Diffusion. The layouts of the released files are those of
`vlmtune.benchmarks.eqben_files`; YouCook2's images are `.npy` video frames. Source: Wang et al.
2023, "Equivariant Similarity for Vision-Language Foundation Models", sections 4 and 5.3.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark, Convention
from vlmtune.benchmarks.eqben_files import read_entries
from vlmtune.benchmarks.squares import CHANCES, Square, Squares, Wins
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import macro_mean
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.value import MetricValue
from vlmtune.types import ImageRef

KUBRIC = "eqbenkubric"
# Part, and its share of the paper's average: five sub-datasets weigh alike, Kubric's is split.
SHARES = {
    "eqbenyoucook2": 1.0,
    "eqbengebc": 1.0,
    "eqbenag": 1.0,
    f"{KUBRIC}_loc": 1 / 3,
    f"{KUBRIC}_cnt": 1 / 3,
    f"{KUBRIC}_attr": 1 / 3,
    "eqbensd": 1.0,
}
PARTS = tuple(SHARES)


class EqBen(Squares):
    """Text, image and group accuracy of each part, and the paper's average of its 15 scores.

    `average` is the mean of text, image and group accuracy over the five sub-datasets, Kubric's
    being the mean of its three parts (`.../eqbenkubric`); where files of some parts only are given,
    it is the mean over those. `text_accuracy` and its kin without a part are over all items alike:
    four of five are Action Genome's. The published script compares strictly, so both conventions
    give the same numbers. In the released data an item may have the same caption twice; it is
    counted and never won.

    Args:
        path: The annotation file, or for each part (`eqbenag`, `eqbenyoucook2`, `eqbengebc`,
            `eqbenkubric_loc`, `eqbenkubric_cnt`, `eqbenkubric_attr`, `eqbensd`) its file.
        images: The folder that holds a folder of images for each part.
        name: Name in reports, unique within a run.
        convention: "strict" or "reference"; here the same.
        limit: Evaluate at most so many items of each part.
        seed: Draw them at random with this seed; None takes the first ones.
        light: The images are those of the light release: JPEG, where the annotation says PNG.

    Raises:
        UserError: `limit` is below 1, or the convention or a part is unknown.
    """

    citation: ClassVar[str] = "Wang et al. 2023, EqSim and EqBen, section 5.3 and table 3"
    source: ClassVar[str] = "github.com/Wangt-CN/EqBen (data download)"
    primary: str = "average"
    limit_per_group: ClassVar[bool] = True
    twins_differ: ClassVar[bool] = False

    def __init__(
        self,
        path: str | dict[str, str],
        images: str,
        name: str = "eqben",
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = 0,
        light: bool = False,
    ) -> None:
        super().__init__(name, convention, limit, seed)
        files = path if isinstance(path, dict) else {"": path}
        if unknown := set(files) - {*PARTS, ""}:
            raise UserError(f"expected parts of EqBen {list(PARTS)}, got {sorted(unknown)}")
        self.files = {part: Path(file) for part, file in files.items()}
        self.folder = Path(images)
        self.light = light

    @classmethod
    def fixture(cls, folder: Path) -> Benchmark:
        """One item of each part in one list, as the 10 % subset has them; two share images."""
        rows = []
        for i, part in enumerate((*PARTS, "eqbensd")):
            kind = "npy" if part == "eqbenyoucook2" else "png"
            names = [f"{part}/{side}.{kind}" for side in (0, 1)]
            for side, image in enumerate(names):
                (folder / image).parent.mkdir(exist_ok=True)
                pixels = np.full((8, 8, 3), (30 * PARTS.index(part), 255 * side, 9), dtype=np.uint8)
                if kind == "npy":
                    np.save(folder / image, pixels)
                else:
                    Image.fromarray(pixels).save(folder / image)
            row: dict[str, Any] = {"image0": names[0], "image1": names[1]}
            rows.append(row | {"caption0": f"first {i}", "caption1": f"second {i}"})
        path = folder / "eqben.json"
        path.write_text(json.dumps(rows), encoding="utf-8")
        return cls(str(path), str(folder))

    def _read(self) -> list[Square]:
        refs: dict[str, ImageRef] = {}
        squares = []
        for part, file in self.files.items():
            for entry in read_entries(file):
                own = part or entry.part
                if own not in SHARES:
                    raise UserError(
                        f"expected images in folders {list(PARTS)} in {file}, got "
                        f"{entry.images[0]!r}: name the part of the file, as in "
                        "path: {eqbensd: FILE}"
                    )
                first, second = (self._ref(name, own, refs) for name in entry.images)
                squares.append(Square((first, second), entry.texts, own))
        return squares

    def _ref(self, name: str, part: str, refs: dict[str, ImageRef]) -> ImageRef:
        """The image of that name; files of one part may leave out the part's folder."""
        if not name.startswith(f"{part}/"):
            name = f"{part}/{name}"
        if self.light and name.endswith(".png"):
            name = f"{name.removesuffix('.png')}.jpg"
        if name not in refs:
            refs[name] = ImageRef(self.folder / name)
        return refs[name]

    def _averages(
        self, wins: Wins, groups: Sequence[str], clusters: Int[Tensor, "n"]
    ) -> dict[str, MetricValue]:
        parts = torch.tensor([PARTS.index(group) for group in groups])
        kubric = torch.tensor([part.startswith(KUBRIC) for part in PARTS])
        chance, weights = sum(CHANCES) / len(CHANCES), _weights(groups)[parts.unique()]
        averages = {"average": macro_mean(_credit(wins), parts, clusters, chance, weights)}
        inside = torch.where(kubric[parts], parts, -1)
        if kubric[parts].any():
            kinds = zip(self.keys, (wins.text, wins.image, wins.group), CHANCES, strict=True)
            for key, kind, by_chance in kinds:
                averages[f"{key}/{KUBRIC}"] = macro_mean(kind.double(), inside, clusters, by_chance)
        return averages

    def _outcomes(self, wins: Wins) -> Float[Tensor, "n"]:
        return _credit(wins)

    def _weighed(self, groups: Sequence[str]) -> ItemGroups | None:
        parts = torch.tensor([PARTS.index(group) for group in groups])
        return None if len(parts.unique()) == 1 else ItemGroups(parts, _weights(groups))


def _weights(groups: Sequence[str]) -> Float[Tensor, "parts"]:
    """What each of `PARTS` weighs; the parts of Kubric that are there stand for all of it."""
    kubric = sum(part.startswith(KUBRIC) for part in set(groups))
    return torch.tensor(
        [
            1 / kubric if kubric and part.startswith(KUBRIC) else share
            for part, share in SHARES.items()
        ],
        dtype=torch.float64,
    )


def _credit(wins: Wins) -> Float[Tensor, "n"]:
    """What an item adds to the average of the three accuracies of its part."""
    return (wins.text.double() + wins.image.double() + wins.group.double()) / 3
