"""What a benchmark is: images, texts and pairs to score, and the numbers that follow from them.

A benchmark never sees a model. Laws (tests/contracts/test_benchmarks.py): an oracle reaches 1.0,
its inverse 0.0, a constant scorer never wins, NaN raises, the order of candidates is irrelevant.
"""

import json
import stat
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.benchmarks.repeats import Item, find_repeats
from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.report.result import Repeat, Result
from vlmtune.types import ImageRef

Convention = Literal["strict", "reference"]


@runtime_checkable
class Score(Protocol):
    """Anything that scores images against texts."""

    def __call__(
        self,
        images: Sequence[ImageRef],
        texts: Sequence[str],
        pairs: Int[Tensor, "P 2"] | None = None,
    ) -> Float[Tensor, "P"] | Float[Tensor, "N M"]:
        """Scores the P pairs (row of `images`, row of `texts`), or all N x M without `pairs`."""
        ...


@runtime_checkable
class Embed(Protocol):
    """Anything that embeds images and texts in one space; rows need not be normalised."""

    def embed_images(self, images: Sequence[ImageRef]) -> Float[Tensor, "N d"]:
        """Embeds N images."""
        ...

    def embed_texts(self, texts: Sequence[str]) -> Float[Tensor, "M d"]:
        """Embeds M texts."""
        ...


class Benchmark(Configured, ABC):
    """A set of images and captions with a rule that turns scores into numbers.

    Subclasses read their files lazily, in `load`, so that a config may name files that a builder
    has yet to write.

    Attributes:
        name: Name in reports and logs, unique within a run; a constructor argument.
        version: Version of the metric's definition.
        primary: Key of the metric that stands for the whole.
        citation: Where the metric is defined.
        source: Where the files are to be had.
        partial_credit: True where the primary metric gives credit for part of an item (average
            precision), so that inverse and constant scorers reach at most chance instead of 0.
        reads: What `run` asks of the model: "scores", or "embeddings" of a dual one (`Embed`).
        kind: "compositional", or "retained" for an ability the model had before training, such as
            retrieval or classification: reports show what became of it as "what it forgot".
    """

    name: str
    version: ClassVar[str]
    primary: str
    citation: ClassVar[str]
    source: ClassVar[str] = ""
    partial_credit: ClassVar[bool] = False
    reads: Literal["scores", "embeddings"] = "scores"
    kind: ClassVar[Literal["compositional", "retained"]] = "compositional"

    @classmethod
    @abstractmethod
    def fixture(cls, folder: Path) -> "Benchmark":
        """Writes about three items with tiny images into `folder`; returns the benchmark of them.

        What contract tests run on: the files have the real layout.
        """

    @abstractmethod
    def load(self) -> None:
        """Reads the annotation files and finds the images; calling it again does nothing.

        Raises:
            UserError: A file is missing or is not what it should be; says where it is to be had.
        """

    @abstractmethod
    def images(self) -> Sequence[ImageRef]:
        """The N distinct images."""

    @abstractmethod
    def texts(self) -> Sequence[str]:
        """The M distinct captions."""

    @abstractmethod
    def pairs(self) -> Int[Tensor, "P 2"] | None:
        """The distinct pairs (image, text) whose score is needed; None for all N x M."""

    @abstractmethod
    def truth(self) -> Bool[Tensor, "P"] | Bool[Tensor, "N M"]:
        """True where the text is stated to be true of the image, what an oracle would score.

        In the order of `pairs`, or of all pairs.
        """

    def compared_items(self) -> Sequence[Item]:
        """What is compared, item by item, in the order of the file; empty where nothing can repeat.

        That is so where images are listed from folders, or files with anything twice are refused.
        """
        return ()

    def repeats(self) -> tuple[Repeat, ...]:
        """What occurs twice among the items, for the report."""
        return find_repeats(self.compared_items())

    @abstractmethod
    def evaluate(self, scores: Float[Tensor, "P"] | Float[Tensor, "N M"]) -> Result:
        """Turns the scores, in the order of `pairs`, into numbers."""

    def run(self, score: Score) -> Result:
        """Loads, has everything scored once, and evaluates.

        Raises:
            UserError: A needed score is missing, NaN or infinite.
        """
        self.load()
        pairs = self.pairs()
        scores = score(self.images(), self.texts(), pairs).detach().cpu()
        wanted = (len(self.images()), len(self.texts())) if pairs is None else (len(pairs),)
        check_scores(scores, wanted, self.name)
        return self.evaluate(scores)


def check_scores(scores: Tensor, wanted: tuple[int, ...], name: str) -> None:
    """Raises `UserError` unless every needed score is there and finite."""
    if tuple(scores.shape) != wanted:
        raise UserError(
            f"expected scores of shape {wanted} for {name}, got {tuple(scores.shape)}: "
            "the scorer must score every pair it is asked for"
        )
    wrong = int((~torch.isfinite(scores)).sum())
    if wrong:
        raise UserError(
            f"expected finite scores for {name}, {wrong} are NaN or infinite: "
            "lower the learning rate or use fp32, then evaluate again"
        )


def distinct_pairs(
    rows: Int[Tensor, "*items"], columns: Int[Tensor, "*items"]
) -> tuple[Int[Tensor, "P 2"], Int[Tensor, "*items"]]:
    """Each pair (row, column) once, and where every given one stands among them.

    Scores of the P pairs become those of the items by `scores[where]`.

    Args:
        rows: Positions of images.
        columns: Positions of texts, of the same shape.

    Example:
        >>> rows, columns = torch.tensor([[1, 0], [1, 1]]), torch.tensor([[0, 2], [0, 2]])
        >>> pairs, where = distinct_pairs(rows, columns)
        >>> pairs.tolist(), where.tolist()
        ([[0, 2], [1, 0], [1, 2]], [[1, 0], [1, 2]])
    """
    width = int(columns.max()) + 1 if columns.numel() else 1
    # One number per pair: far faster than comparing rows of two.
    numbers, where = (rows * width + columns).unique(return_inverse=True)
    return torch.stack([numbers // width, numbers % width], dim=1), where


def read_json(path: Path, wanted: str) -> Any:
    """Reads a JSON file.

    Args:
        path: The file.
        wanted: What it should be, for the error ("a JSON list of ...").

    Raises:
        UserError: The file cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"expected {wanted} in {path}, got {type(error).__name__} ({error}): correct the path"
        ) from error


def check_images(images: Sequence[ImageRef], benchmark: Benchmark) -> None:
    """Raises `UserError` that counts the image files that are missing or empty; names the first.

    An empty file is what a download that stopped leaves behind. Each file is asked for its size
    once and none is opened: that would take minutes where there are many, and bytes behind the end
    of a JPEG or PNG are no fault. One that is damaged inside is told when it is encoded.
    """
    paths = dict.fromkeys(image.path for image in images)
    sizes = {path: _size(path) for path in paths}
    faults = []
    for fault, size in (("missing", None), ("empty files", 0)):
        if found := [path for path in paths if sizes[path] == size]:
            faults.append(f"{len(found)} are {fault}, first {str(found[0])!r}")
    if faults:
        raise UserError(
            f"expected {len(paths)} images for {benchmark.name}, {' and '.join(faults)}: "
            f"{files_from(benchmark)}, or correct `images`"
        )


def files_from(benchmark: Benchmark) -> str:
    """What to do where files of a benchmark are missing or damaged: where they are to be had."""
    return f"get them from {benchmark.source}" if benchmark.source else "download them again"


def _size(path: Path) -> int | None:
    """Bytes of a file; None where there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # the latter for names no file can have
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
