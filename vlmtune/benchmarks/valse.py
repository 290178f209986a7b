"""VALSE: an image, its caption, and a foil that differs in one linguistic phenomenon.

Eleven JSON files, each an object of rows by id: `{"dataset", "image_file", "caption", "foil",
"linguistic_phenomena", "mturk": {"caption", "foil", "other"}, ...}`. A row is valid where at least
two of three annotators chose the caption and not the foil: 7,702 of 8,782 rows. Ids recur in other
files, so a row is known by file and id. Source: Parcalabescu et al. 2022, sections 3 and 4.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from vlmtune.benchmarks.base import (
    Benchmark,
    Convention,
    check_images,
    distinct_pairs,
    read_json,
)
from vlmtune.benchmarks.repeats import Item
from vlmtune.benchmarks.sampling import check_limit, sample
from vlmtune.errors import UserError
from vlmtune.metrics.auroc import auroc
from vlmtune.metrics.cluster_robust import cluster_robust_mean, macro_mean
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Example, Result
from vlmtune.types import ImageRef

VOTES = 2  # annotators, of three, who must have chosen the caption
SHOWN = 4  # rows of each kind, right and wrong, in the gallery
PIECES = (
    "existence",
    "plurals",
    "counting-hard",
    "counting-small-quant",
    "counting-adversarial",
    "relations",
    "action-replacement",
    "actant-swap",
    "coreference-standard",
    "coreference-hard",
    "foil-it",
)
WANTED = "a VALSE object of rows by id with image_file, caption, foil and mturk"


@dataclass(frozen=True)
class _Row:
    """One valid row: an image, its caption and the foil."""

    piece: str
    image: ImageRef
    caption: str
    foil: str


@dataclass(frozen=True)
class _Rows:
    """The rows, the distinct images, texts and pairs, and the places of caption and foil."""

    rows: tuple[_Row, ...]
    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    clusters: Int[Tensor, "n"]
    pieces: Int[Tensor, "n"]
    pairs: Int[Tensor, "P 2"]
    places: Int[Tensor, "n 2"]


class Valse(Benchmark):
    """How often the caption scores higher than the foil, over all valid rows and in each piece.

    - `acc_r`: the share of rows whose caption scores higher; random scores reach 1/2.
    - `acc_r/average`: the mean over the pieces, the number of the paper's tables.
    - `auroc`: the share of pairs of any caption and any foil in which the caption scores higher.

    Where a threshold is given, above which a caption is taken to be true of the image (0.5 for
    probabilities): `p_c` and `p_f`, the shares of captions above and of foils below it, `acc`, the
    mean of both, and `min`, the smaller. Cosines have no such threshold, so it has no default.
    "strict": a tie with the foil or with the threshold is wrong, and `acc_r` is primary.
    "reference": a row whose foil lies on the threshold is left out everywhere, as in the paper's
    script, and `acc_r/average` is primary.

    Args:
        path: The folder with the eleven JSON files.
        images: The folder with all images, or for each piece the folder with its images, or the
            folders that are searched for them in turn.
        pieces: The pieces that are evaluated, names of files without `.json`; None for all eleven.
        name: Name in reports, unique within a run.
        convention: "strict" or "reference".
        threshold: The score above which a caption is taken to be true.
        limit: Evaluate at most so many rows of each piece.
        seed: Draw them at random with this seed; None takes the first ones.

    Raises:
        UserError: `limit` is below 1, or the convention or a piece is unknown.
    """

    version: ClassVar[str] = "1"
    primary: str = "acc_r"
    citation: ClassVar[str] = "Parcalabescu et al. 2022, VALSE, section 5 (pairwise accuracy)"
    source: ClassVar[str] = "github.com/Heidelberg-NLP/VALSE and the data sets its rows name"

    def __init__(
        self,
        path: str,
        images: str | dict[str, str | list[str]],
        pieces: Sequence[str] | None = None,
        name: str = "valse",
        convention: Convention = "strict",
        threshold: float | None = None,
        limit: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.pieces = tuple(PIECES if pieces is None else pieces)
        named = {*self.pieces, *(images if isinstance(images, dict) else ())}
        unknown = sorted(named - set(PIECES))
        if unknown or not self.pieces:
            raise UserError(f"expected pieces of VALSE {list(PIECES)}, got {unknown or 'none'}")
        if isinstance(images, dict) and (left := [x for x in self.pieces if x not in images]):
            raise UserError(f"expected a folder of images for each piece, got none for {left}")
        if convention not in ("strict", "reference"):
            raise UserError(
                f"expected the convention 'strict' or 'reference', got {convention!r}: name one"
            )
        check_limit(limit)
        self.path = Path(path)
        by_piece = images if isinstance(images, dict) else dict.fromkeys(self.pieces, images)
        self.folders = {
            piece: [Path(x) for x in (folders if isinstance(folders, list) else [folders])]
            for piece, folders in by_piece.items()
        }
        self.name = name
        self.primary = "acc_r" if convention == "strict" else "acc_r/average"
        self.convention: Convention = convention
        self.threshold = threshold
        self.limit = limit
        self.seed = seed
        self._rows: _Rows | None = None

    @classmethod
    def fixture(cls, folder: Path) -> "Valse":
        """All eleven files, each with a valid row of the same id; some share an image."""
        (folder / "data").mkdir()
        (folder / "images").mkdir()
        for i, piece in enumerate(PIECES):
            file = f"v7w_{i // 2}.png"
            Image.new("RGB", (8, 8), (20 * i, 90, 0)).save(folder / "images" / file)
            row = {"dataset": "visual7w", "original_split": "test", "image_file": file}
            row |= {"linguistic_phenomena": piece, "classes": "a", "classes_foil": "no"}
            row |= {"caption": f"a cat by {i} dogs", "foil": f"a cat by {i} hogs"}
            rows = {
                "test_0": row | {"mturk": {"caption": 3, "foil": 0, "other": 0}},
                "test_1": row | {"foil": "a cat", "mturk": {"caption": 1, "foil": 2, "other": 0}},
            }
            (folder / "data" / f"{piece}.json").write_text(json.dumps(rows), encoding="utf-8")
        return cls(str(folder / "data"), str(folder / "images"))

    def load(self) -> None:
        """Reads the files and finds the images of the valid rows; calling it again does nothing.

        Raises:
            UserError: A file is not what it should be, or an image is missing.
        """
        if self._rows is not None:
            return
        read = [row for piece in self.pieces for row in self._read(piece)]
        rows = tuple(read[i] for i in sample([r.piece for r in read], self.limit, self.seed))
        if not rows:
            raise UserError(f"expected valid rows in {self.path}, got none: download it again")
        numbered = _numbered(rows, self.pieces)
        check_images(numbered.images, self)
        self._rows = numbered

    def images(self) -> tuple[ImageRef, ...]:
        """The distinct images, in order of first appearance."""
        return self._loaded().images

    def texts(self) -> tuple[str, ...]:
        """The distinct captions and foils, in order of first appearance."""
        return self._loaded().texts

    def pairs(self) -> Int[Tensor, "P 2"]:
        """Each image with its captions and foils."""
        return self._loaded().pairs

    def truth(self) -> Bool[Tensor, "P"]:
        """A caption is true of its image, a foil is not."""
        rows = self._loaded()
        truth = torch.zeros(len(rows.pairs), dtype=torch.bool)
        truth[rows.places[:, 0]] = True
        return truth

    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        """Compares captions with foils, and both with the threshold where there is one.

        Raises:
            UserError: By the convention "reference", no row is left.
        """
        rows = self._loaded()
        values = scores.detach().cpu().double()[rows.places]
        kept = self._kept(values)
        every = (values[:, 0] > values[:, 1]).double()
        values, clusters, pieces = values[kept], rows.clusters[kept], rows.pieces[kept]
        counted = torch.where(kept, rows.pieces, -1)
        metrics = self._metrics(values, clusters)
        metrics["acc_r/average"] = macro_mean(every[kept], pieces, clusters, 1 / 2)
        for number in pieces.unique().tolist():
            own = pieces == number
            for key, metric in self._metrics(values[own], clusters[own]).items():
                metrics[f"{key}/{self.pieces[number]}"] = metric
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics=metrics,
            examples=self._examples(values, kept),
            citation=self.citation,
            convention=self.convention,
            outcomes=tuple(every.tolist()),
            clusters=tuple(rows.clusters.tolist()),
            groups=() if self.primary == "acc_r" else tuple(counted.tolist()),
        )

    def compared_items(self) -> tuple[Item, ...]:
        """The valid rows."""
        return tuple(Item((r.image,), (r.caption,), (r.foil,)) for r in self._loaded().rows)

    def _kept(self, values: Float[Tensor, "n 2"]) -> Bool[Tensor, "n"]:
        """The rows that count; the paper's script leaves out foils that lie on the threshold."""
        if self.convention == "strict" or self.threshold is None:
            return torch.ones(len(values), dtype=torch.bool)
        kept = values[:, 1] != self.threshold
        if not kept.any():
            raise UserError(
                f"expected foils of {self.name} off the threshold {self.threshold}, got none: "
                "correct the threshold, or use the convention 'strict'"
            )
        return kept

    def _metrics(
        self, values: Float[Tensor, "n 2"], clusters: Int[Tensor, "n"]
    ) -> dict[str, MetricValue]:
        caption, foil = values.T
        wins = (caption > foil).double()
        metrics = {
            "acc_r": cluster_robust_mean(wins, clusters, 1 / 2),
            "auroc": auroc(caption, foil, torch.cat([clusters, clusters])),
        }
        if self.threshold is None:
            return metrics
        right = (caption > self.threshold).double()
        detected = (foil < self.threshold).double()
        p_c, p_f = (cluster_robust_mean(kind, clusters) for kind in (right, detected))
        metrics["acc"] = cluster_robust_mean((right + detected) / 2, clusters, 1 / 2)
        return metrics | {"p_c": p_c, "p_f": p_f, "min": min(p_c, p_f, key=lambda x: x.value)}

    def _examples(
        self, values: Float[Tensor, "n 2"], kept: Bool[Tensor, "m"]
    ) -> tuple[Example, ...]:
        """The first right and the first wrong rows."""
        every = self._loaded().rows
        rows = [every[i] for i in kept.nonzero().flatten().tolist()]
        wins = values[:, 0] > values[:, 1]
        examples = []
        for correct in (True, False):
            for i in (wins == correct).nonzero().flatten()[:SHOWN].tolist():
                query = f"{rows[i].caption} (foil: {rows[i].foil})"
                score = (float(values[i, 0]),)
                examples.append(Example(query, (rows[i].image,), score, (True,), correct))
        return tuple(examples)

    def _loaded(self) -> _Rows:
        self.load()
        assert self._rows is not None
        return self._rows

    def _read(self, piece: str) -> list[_Row]:
        """The valid rows of a file."""
        path = self.path / f"{piece}.json"
        content = read_json(path, WANTED)
        if not isinstance(content, dict):
            raise UserError(f"expected {WANTED} in {path}, got {type(content).__name__}")
        rows = []
        for key, row in content.items():
            votes = _votes(row)
            if votes is None:
                raise UserError(
                    f"expected {WANTED} in {path}, got row {key!r} without votes: download it again"
                )
            if votes >= VOTES:
                rows.append(self._row(piece, key, row, path))
        return rows

    def _row(self, piece: str, key: str, row: dict[str, Any], path: Path) -> _Row:
        found = [row.get(name) for name in ("image_file", "caption", "foil")]
        # The paper's reader makes lists of captions, and its script takes the first.
        found = [value[0] if isinstance(value, list) and value else value for value in found]
        texts = [value for value in found if isinstance(value, str) and value.strip()]
        if len(texts) != 3:
            raise UserError(
                f"expected {WANTED} in {path}, got row {key!r} without one of them: download it "
                "again"
            )
        image, caption, foil = texts
        if caption == foil:
            raise UserError(
                f"expected a foil that differs from its caption in {path}, got twice "
                f"{caption[:60]!r} in row {key!r}: download it again"
            )
        paths = [folder / image for folder in self.folders[piece]]
        # Where it is in none of them, the first is named as missing.
        found_at = next((place for place in paths if place.is_file()), paths[0])
        return _Row(piece, ImageRef(found_at), caption, foil)


def _votes(row: Any) -> int | None:
    """How many annotators chose the caption and not the foil."""
    votes = row.get("mturk") if isinstance(row, dict) else None
    count = votes.get("caption") if isinstance(votes, dict) else None
    return count if isinstance(count, int) else None


def _numbered(rows: tuple[_Row, ...], names: Sequence[str]) -> _Rows:
    row_of = {ref: i for i, ref in enumerate(dict.fromkeys(row.image for row in rows))}
    texts = dict.fromkeys(text for row in rows for text in (row.caption, row.foil))
    column_of = {text: j for j, text in enumerate(texts)}
    clusters = torch.tensor([row_of[row.image] for row in rows])
    columns = torch.tensor([[column_of[row.caption], column_of[row.foil]] for row in rows])
    pairs, places = distinct_pairs(clusters[:, None].expand(-1, 2), columns)
    pieces = torch.tensor([names.index(row.piece) for row in rows])
    return _Rows(rows, tuple(row_of), tuple(texts), clusters, pieces, pairs, places)
