"""VALSE: an image, its caption, and a foil that differs in one linguistic phenomenon.

In: eleven JSON files and folders of images. Out: items of the multiple-choice rule.

Eleven JSON files, each an object of rows by id: `{"dataset", "image_file", "caption", "foil",
"linguistic_phenomena", "mturk": {"caption", "foil", "other"}, ...}`. A row is valid where at least
two of three annotators chose the caption and not the foil: 7,702 of 8,782 rows. Ids recur in other
files, so a row is known by file and id. Source: Parcalabescu et al. 2022, sections 3 and 4.

Table 1 of EqSim (Wang et al. 2023) counts 6,795 rows of VALSE. No choice of the files has so many;
without `foil-it` 6,759 rows are valid. EqSim's evaluation read a file that was never published.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BeforeValidator, ConfigDict
from torch import Tensor
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import Text, first_file, write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.metrics.auroc import auroc
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.results.metric_value import MetricValue
from vlmtune.storage.files import check_shape, read_json
from vlmtune.types import ImageRef

VOTES = 2  # annotators, of three, who must have chosen the caption
PIECES = (
    *("existence", "plurals", "counting-hard", "counting-small-quant", "counting-adversarial"),
    *("relations", "action-replacement", "actant-swap"),
    *("coreference-standard", "coreference-hard", "foil-it"),
)
LAYOUT = "a VALSE object of rows by id with image_file, caption, foil and mturk"


class _Votes(TypedDict):
    """How many annotators chose the caption and not the foil."""

    caption: int


class _Row(TypedDict):
    """A row of a file; with too few votes it may lack the rest."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    mturk: _Votes


def _first(cell: Any) -> Any:
    """A text; the paper's reader makes lists of captions, and its script takes the first."""
    return cell[0] if isinstance(cell, list) and cell else cell


_Cell = Annotated[Text, BeforeValidator(_first)]


class _ValidRow(TypedDict):
    """A row that enough annotators agreed with."""

    image_file: _Cell
    caption: _Cell
    foil: _Cell


class Valse(MultipleChoice):
    """How often the caption scores higher than the foil, over all valid rows and in each piece.

    - `acc_r`: fraction of rows whose caption scores higher; random scores reach 1/2.
    - `acc_r/average`: mean over the pieces, the number of the paper's tables.
    - `auroc`: fraction of pairs of any caption and any foil in which the caption scores higher.

    With a threshold above which a caption counts as true of the image (0.5 for probabilities):
    `p_c` and `p_f`, the fractions of captions above and of foils below it, `acc`, the mean of both,
    and `min`, the smaller. Cosines have no such threshold, so it has no default. "strict": a tie
    with the foil or with the threshold is wrong, and `acc_r` is primary. "reference": a row whose
    foil lies on the threshold is left out everywhere, as in the paper's script, and `acc_r/average`
    is primary.

    Args:
        path: The folder with the eleven JSON files.
        images: The folder with all images, or for each piece the folder with its images, or the
            folders that are searched for them in turn.
        pieces: The pieces to evaluate, names of files without `.json`.
        threshold: The score above which a caption counts as true.
    """

    primary_metric = "acc_r"
    reference_metric = "acc_r/average"
    keys: ClassVar[tuple[str, str]] = ("acc_r", "acc_r/average")
    full_name = "VALSE"
    asks = "edited captions"
    citation = "Parcalabescu et al. 2022, VALSE, section 5 (pairwise accuracy)"
    source = "vlmtune download valse"
    limit_per_group = True
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"pieces": PIECES}

    path: str
    images: str | dict[str, str | list[str]]
    pieces: Sequence[str] = PIECES
    convention: Convention = "strict"
    threshold: float | None = None

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "Valse":
        for i, piece in enumerate(PIECES):
            file = f"v7w_{i // 2}.jpg"
            write_image(folder / "images" / file, 20 * i, 90, 0)
            row = {
                "dataset": "visual7w",
                "original_split": "test",
                "image_file": file,
                "linguistic_phenomena": piece,
                "classes": "a",
                "classes_foil": "no",
                "caption": f"a cat by {i} dogs",
                "foil": f"a cat by {i} hogs",
            }
            valid = {"mturk": {"caption": 3, "foil": 0, "other": 0}}
            invalid = {"foil": "a cat", "mturk": {"caption": 1, "foil": 2, "other": 0}}
            rows = {"test_0": row | valid, "test_1": row | invalid}
            write_json(folder / "data" / f"{piece}.json", rows)
        return cls(str(folder / "data"), str(folder / "images"))

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        for piece in self.pieces:
            path = Path(self.path, f"{piece}.json")
            rows = read_json(path, LAYOUT, self.fix, dict[str, _Row])
            # Rows with too few votes may lack the rest, so only valid rows are checked in full.
            valid = {}
            for key, row in rows.items():
                if row["mturk"]["caption"] >= VOTES:
                    valid[key] = row
            checked = check_shape(valid, dict[str, _ValidRow], path, LAYOUT, self.fix)
            for row in checked.values():
                image = self._image(piece, row["image_file"])
                texts = (row["caption"], row["foil"])
                items.append(ChoiceItem(image, texts, piece))
        return items

    def _image(self, piece: str, file: str) -> ImageRef:
        folders = self.images
        if isinstance(folders, dict):
            # Images of a piece without a folder are then missing, which `check_images` says.
            folders = folders.get(piece, piece)
        if isinstance(folders, str):
            folders = [folders]
        paths = [Path(folder, file) for folder in folders]
        return ImageRef(first_file(paths))

    @override
    def counted(self, values: Float[Tensor, "n 2"]) -> Bool[Tensor, "n"]:
        if self.strict or self.threshold is None:
            return super().counted(values)
        return values[:, 1] != self.threshold

    @override
    def more_metrics(
        self, values: Float[Tensor, "n 2"], clusters: Int[Tensor, "n"]
    ) -> dict[str, MetricValue]:
        caption, foil = values.T
        # Captions and foils of one image vary together.
        metrics = {"auroc": auroc(caption, foil, torch.cat([clusters, clusters]))}
        if self.threshold is None:
            return metrics
        right = (caption > self.threshold).double()
        detected = (foil < self.threshold).double()
        p_c = cluster_robust_mean(right, clusters)
        p_f = cluster_robust_mean(detected, clusters)
        metrics["acc"] = cluster_robust_mean((right + detected) / 2, clusters, 1 / 2)
        metrics["p_c"] = p_c
        metrics["p_f"] = p_f
        metrics["min"] = p_f if p_f.value < p_c.value else p_c
        return metrics
