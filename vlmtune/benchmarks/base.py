"""What a benchmark is: images, texts and pairs to score, and the numbers that follow from them.

A benchmark never sees a model. Laws (tests/contracts/test_benchmarks.py): an oracle reaches 1.0,
its inverse 0.0, a constant scorer never wins, NaN raises, the order of candidates is irrelevant.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.types import ImageRef, Result, Scores


@runtime_checkable
class Score(Protocol):
    """Anything that scores images against texts, at least where `pairs` is True."""

    def __call__(
        self,
        images: Sequence[ImageRef],
        texts: Sequence[str],
        pairs: Bool[Tensor, "N M"] | None = None,
    ) -> Scores:
        """Scores N images against M texts."""
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
        partial_credit: True where the primary metric gives credit for part of an item (average
            precision), so that inverse and constant scorers reach at most chance instead of 0.
    """

    name: str
    version: ClassVar[str]
    primary: str
    citation: ClassVar[str]
    partial_credit: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def fixture(cls, folder: Path) -> "Benchmark":
        """Writes about three items with tiny images into `folder`; returns the benchmark of them.

        What contract tests run on: the files have the real layout.
        """

    @abstractmethod
    def load(self) -> None:
        """Reads the annotation files; calling it again does nothing.

        Raises:
            UserError: A file is missing or is not what it should be.
        """

    @abstractmethod
    def images(self) -> Sequence[ImageRef]:
        """The N distinct images."""

    @abstractmethod
    def texts(self) -> Sequence[str]:
        """The M distinct captions."""

    @abstractmethod
    def pairs(self) -> Bool[Tensor, "N M"]:
        """True where a score is needed."""

    @abstractmethod
    def truth(self) -> Bool[Tensor, "N M"]:
        """True where the text is stated to be true of the image: what an oracle would score."""

    @abstractmethod
    def evaluate(self, scores: Scores) -> Result:
        """Turns the scores into numbers."""

    def run(self, score: Score) -> Result:
        """Loads, has everything scored once, and evaluates.

        Raises:
            UserError: A needed score is missing, NaN or infinite.
        """
        self.load()
        scores = score(self.images(), self.texts(), self.pairs())
        check_scores(scores, self.pairs(), self.name)
        return self.evaluate(scores)


def check_scores(scores: Scores, pairs: Bool[Tensor, "N M"], name: str) -> None:
    """Raises `UserError` unless every needed score was computed and is finite."""
    pairs = pairs.to(scores.values.device)
    missing = int((pairs & ~scores.computed).sum())
    if missing:
        raise UserError(
            f"expected {int(pairs.sum())} scores for {name}, {missing} were not computed: "
            "the scorer must score every pair it is asked for"
        )
    wrong = int((pairs & ~torch.isfinite(scores.values)).sum())
    if wrong:
        raise UserError(
            f"expected finite scores for {name}, {wrong} are NaN or infinite: "
            "lower the learning rate or use fp32, then evaluate again"
        )


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


def find_images(folder: Path, names: Sequence[str]) -> tuple[ImageRef, ...]:
    """Returns the images called `names` in `folder`.

    Raises:
        UserError: A file is missing; says how many are, and the first.
    """
    images = tuple(ImageRef(folder / name) for name in names)
    missing = [image.path for image in images if not image.path.is_file()]
    if missing:
        raise UserError(
            f"expected {len(images)} images in {folder}, {len(missing)} are missing, first "
            f"{missing[0].name!r}: download them or correct `images`"
        )
    return images
