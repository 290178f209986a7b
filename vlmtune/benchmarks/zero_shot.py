"""Zero-shot classification of a folder of images: what a model still knows after it was trained.

Files: a folder for each class with its images, at any depth (`root/class/image.png`), as CIFAR-10
(10 classes, 10,000 test images) and ImageNet's validation split (1,000 classes, 50,000 images) are
exported. Source: Radford et al. 2021, CLIP, sections 3.1.2 and 3.1.4.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from vlmtune.benchmarks.base import (
    Benchmark,
    Convention,
    Embed,
    Score,
    check_images,
    check_scores,
    files_from,
)
from vlmtune.benchmarks.class_names import class_names
from vlmtune.benchmarks.sampling import check_limit, sample
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean, macro_mean
from vlmtune.metrics.ranking import recall_at, true_ranks
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Example, Result
from vlmtune.types import ImageRef

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm")
TOP = 5
SHOWN = 4  # right and wrong images each in the gallery
NUMBERS = 2**28  # scores held at a time; images are scored in parts where there are more


@dataclass(frozen=True)
class _Items:
    """n images of C classes, and the prompts of each class.

    Attributes:
        images: The images, class by class.
        names: What each class is called.
        labels: The class of each image.
        texts: The M distinct prompts.
        columns: The prompts of each class, one for each of t templates.
    """

    images: tuple[ImageRef, ...]
    names: tuple[str, ...]
    labels: Int[Tensor, "n"]
    texts: tuple[str, ...]
    columns: Int[Tensor, "C t"]


class Classification(Benchmark):
    """Top-1 and top-5 accuracy of the class whose prompts score best.

    - `accuracy`: share of images whose class scores best.
    - `accuracy@5`: share whose class is among the five best, with more than five classes.
    - `macro_accuracy`: the mean over classes of the accuracy within each. `series` has the latter
      as `class_accuracy`, in the order of the folders' names.

    Several templates are one classifier. With `ensemble: scores` a class scores the mean of the
    scores of its prompts, which any model has, also one that scores pairs jointly. With
    `ensemble: embeddings` it is the normalised mean of their normalised embeddings that is compared
    with the image, as CLIP's authors do; it needs a dual model. For cosines the former is the
    latter times the length of that mean, which differs from class to class, so published numbers of
    several templates need the latter. With one template they agree.

    Conventions differ in ties: "strict" counts one as wrong, "reference" takes the class that comes
    first, as argmax does.

    Args:
        images: The folder with a folder for each class.
        name: Name in reports.
        classes: JSON file with the names of the classes, either a list in the order of the sorted
            folders or an object `{folder: name}`; None takes the folders' names with blanks for
            underscores. Names without a folder are refused: with fewer candidates the numbers would
            be higher. Without the file nothing tells that a folder is gone.
        templates: The prompts, each with {} for the name of the class.
        ensemble: See above.
        convention: See above.
        limit: Evaluate at most so many images of each class. All classes stay candidates.
        seed: Draw them at random with this seed; None takes the first ones.

    Raises:
        UserError: `limit` is below 1, an argument is none of its values, or a template has not {}
            exactly once or is given twice.
    """

    version: ClassVar[str] = "1"
    kind: ClassVar[Literal["compositional", "retained"]] = "retained"
    primary: str = "accuracy"
    citation: ClassVar[str] = "Radford et al. 2021, CLIP, section 3.1 (zero-shot transfer)"
    source: ClassVar[str] = "cs.toronto.edu/~kriz/cifar.html or image-net.org, as class folders"

    def __init__(
        self,
        images: str,
        name: str = "zero_shot",
        classes: str | None = None,
        templates: Sequence[str] = ("a photo of a {}.",),
        ensemble: Literal["scores", "embeddings"] = "scores",
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = None,
    ) -> None:
        if convention not in ("strict", "reference") or ensemble not in ("scores", "embeddings"):
            raise UserError(
                "expected the convention 'strict' or 'reference' and the ensemble 'scores' or "
                f"'embeddings', got {convention!r} and {ensemble!r}: choose of these"
            )
        wrong = [one for one in templates if one.count("{}") != 1]
        if wrong or not templates or len(set(templates)) != len(templates):
            raise UserError(
                "expected different templates, each with {} once, got "
                f"{wrong[0] if wrong else list(templates)!r}: correct them"
            )
        check_limit(limit)
        self.folder, self.name = Path(images), name
        self.classes = None if classes is None else Path(classes)
        self.templates, self.ensemble = tuple(templates), ensemble
        self.reads: Literal["scores", "embeddings"] = ensemble
        self.convention: Convention = convention
        self.limit, self.seed = limit, seed
        self._items: _Items | None = None

    @classmethod
    def fixture(cls, folder: Path) -> "Classification":
        """Six classes of one or two images, two templates, names in a file."""
        names = {}
        for i, word in enumerate(("airplane", "bird", "fire truck", "horse", "ship", "tree frog")):
            label = f"n{i:04d}"
            (folder / "val" / label).mkdir(parents=True)
            names[label] = word
            for k in range(1 + i % 2):
                colour = (40 * i, 100 * k, 250 - 40 * i)
                Image.new("RGB", (8, 8), colour).save(folder / "val" / label / f"{k}.png")
        (folder / "names.json").write_text(json.dumps(names), encoding="utf-8")
        templates = ("a photo of a {}.", "art of the {}.")
        return cls(str(folder / "val"), classes=str(folder / "names.json"), templates=templates)

    def load(self) -> None:
        """Lists the images and reads the names; calling it again does nothing.

        Raises:
            UserError: There are fewer than two classes, a class has no folder or no image, an image
                is empty, or the file with the names is not what it should be.
        """
        if self._items is None:
            items = self._read()
            check_images(items.images, self)
            self._items = items

    def images(self) -> tuple[ImageRef, ...]:
        """The images, class by class."""
        return self._loaded().images

    def texts(self) -> tuple[str, ...]:
        """The distinct prompts."""
        return self._loaded().texts

    def pairs(self) -> None:
        """All pairs."""
        return

    def truth(self) -> Bool[Tensor, "N M"]:
        """The prompt is one of the image's class."""
        items = self._loaded()
        truth = torch.zeros(len(items.images), len(items.texts), dtype=torch.bool)
        return truth.scatter_(1, items.columns[items.labels], True)

    def run(self, score: Score) -> Result:
        """Has everything scored, or embedded, once, and evaluates.

        Raises:
            UserError: A score or embedding is missing, NaN or infinite, or embeddings are wanted of
                a model that has none.
        """
        self.load()
        if self.ensemble == "embeddings":
            return self._judged(self._compared(score))
        parts = []
        for own in self._parts():
            images = self.images()[own]
            scores = score(images, self.texts(), None).detach().cpu()
            check_scores(scores, (len(images), len(self.texts())), self.name)
            parts.append(self._by_class(scores))
        return self._judged(torch.cat(parts))

    def evaluate(self, scores: Float[Tensor, "N M"]) -> Result:
        """Counts the images whose class scores best, by the mean score of its prompts."""
        return self._judged(self._by_class(scores.detach().cpu()))

    def _parts(self) -> Iterator[slice]:
        size = max(1, NUMBERS // len(self.texts()))
        for start in range(0, len(self.images()), size):
            yield slice(start, start + size)

    def _by_class(self, scores: Float[Tensor, "N M"]) -> Float[Tensor, "N C"]:
        """The mean score of the prompts of each class."""
        columns = self._loaded().columns
        total = torch.zeros(len(scores), len(columns), dtype=torch.float64)
        for own in columns.unbind(dim=1):
            total += scores[:, own]
        return total / columns.shape[1]

    def _compared(self, score: Score) -> Float[Tensor, "N C"]:
        """The cosine of each image with the mean of the prompts of each class."""
        if not isinstance(score, Embed):
            raise UserError(
                f"expected a model that embeds images and texts for {self.name}, got one that only "
                "scores pairs: use a dual adapter, or `ensemble: scores`"
            )
        columns = self._loaded().columns
        images, texts = score.embed_images(self.images()), score.embed_texts(self.texts())
        for rows, size in ((images, len(self.images())), (texts, len(self.texts()))):
            if rows.shape != (size, images.shape[1]) or not bool(torch.isfinite(rows).all()):
                raise UserError(
                    f"expected {size} finite embeddings of width {images.shape[1]} for "
                    f"{self.name}, got others, of shape {tuple(rows.shape)}: use an adapter that "
                    "projects both into one space, or fp32"
                )
        unit = normalize(texts.detach().cpu().double(), dim=1)
        classes = torch.zeros(len(columns), unit.shape[1], dtype=torch.float64)
        for own in columns.unbind(dim=1):
            classes += unit[own]
        return normalize(images.detach().cpu().double(), dim=1) @ normalize(classes, dim=1).T

    def _judged(self, values: Float[Tensor, "N C"]) -> Result:
        items = self._loaded()
        ranks = true_ranks(
            values, items.labels, "wrong" if self.convention == "strict" else "first"
        )
        right = recall_at(ranks, 1).double()
        classes, own = len(items.names), torch.arange(len(items.labels))
        metrics: dict[str, MetricValue] = {"accuracy": cluster_robust_mean(right, own, 1 / classes)}
        if classes > TOP:
            hits = recall_at(ranks, TOP).double()
            metrics[f"accuracy@{TOP}"] = cluster_robust_mean(hits, own, TOP / classes)
        metrics["macro_accuracy"] = macro_mean(right, items.labels, own, 1 / classes)
        sizes = torch.bincount(items.labels, minlength=classes)
        by_class = torch.bincount(items.labels, weights=right, minlength=classes) / sizes
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics=metrics,
            examples=_examples(values, right, items),
            citation=self.citation,
            convention=self.convention,
            outcomes=tuple(right.tolist()),
            clusters=tuple(own.tolist()),
            series={"class_accuracy": tuple(by_class.tolist())},
        )

    def _loaded(self) -> _Items:
        self.load()
        assert self._items is not None
        return self._items

    def _read(self) -> _Items:
        wanted = "at least two folders of images, one for each class,"
        try:
            listed = [path for path in self.folder.iterdir() if path.is_dir()]
        except OSError as error:
            raise UserError(
                f"expected {wanted} in {self.folder}, got {error.strerror}: correct `images`; the "
                f"files come from {self.source}"
            ) from error
        folders = sorted(path for path in listed if not path.name.startswith("."))
        found = [_images(folder) for folder in folders]
        empty = [path.name for path, own in zip(folders, found, strict=True) if not own]
        if len(folders) < 2 or empty:
            came = f"no image in {empty[0]!r}" if empty else f"{len(folders)} folders"
            cure = f"{files_from(self)}, or correct `images`"
            raise UserError(f"expected {wanted} in {self.folder}, got {came}: {cure}")
        names = class_names(self.classes, [path.name for path in folders], self)
        prompts = [[one.replace("{}", name) for one in self.templates] for name in names]
        texts = dict.fromkeys(text for row in prompts for text in row)
        column_of = {text: j for j, text in enumerate(texts)}
        kept = [[own[i] for i in sample([""] * len(own), self.limit, self.seed)] for own in found]
        return _Items(
            images=tuple(ImageRef(path) for own in kept for path in own),
            names=names,
            labels=torch.arange(len(kept)).repeat_interleave(torch.tensor([*map(len, kept)])),
            texts=tuple(column_of),
            columns=torch.tensor([[column_of[text] for text in row] for row in prompts]),
        )


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def _examples(
    values: Float[Tensor, "N C"], right: Float[Tensor, "N"], items: _Items
) -> tuple[Example, ...]:
    """The first right and the first wrong images, each of another class."""
    shown: list[Example] = []
    for correct in (True, False):
        chosen: dict[int, int] = {}
        for i in (right == float(correct)).nonzero().flatten().tolist():
            chosen.setdefault(int(items.labels[i]), i)
        for label, i in list(chosen.items())[:SHOWN]:
            others = values[i].clone()
            others[label] = -torch.inf
            rival = int(others.argmax())
            first, second = (label, rival) if correct else (rival, label)
            shown.append(
                Example(
                    query=f"{items.names[first]} ({'not' if correct else 'true'}: "
                    f"{items.names[second]})",
                    images=(items.images[i],),
                    scores=(float(values[i, first]),),
                    true=(correct,),
                    correct=correct,
                )
            )
    return tuple(shown)
