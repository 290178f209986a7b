"""PUG: ImageNet: zero-shot classification while one factor of the scene changes at a time.

Files: ten folders, one for each factor (`FACTORS`), each with a folder for each of 151 classes, and
in these the images: 88,328 in all, 46,336 of them in `Worlds`. Source: Bordes et al. 2023, PUG,
section 3.3 and appendices B.3 and C.3.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark, Convention, check_images, read_json
from vlmtune.benchmarks.pug_files import SITE, check_options, drawn, spoken
from vlmtune.errors import UserError
from vlmtune.metrics.class_mapping import class_of_id
from vlmtune.metrics.cluster_robust import cluster_robust_mean, macro_mean
from vlmtune.metrics.ranking import true_ranks
from vlmtune.report.result import Example, Result
from vlmtune.types import ImageRef

FACTORS = (
    "Worlds",
    "Camera_Pitch",
    "Camera_Yaw",
    "Camera_Roll",
    "Object_Pitch",
    "Object_Yaw",
    "Object_Roll",
    "Object_Scale",
    "Object_Texture",
    "Scene_Light",
)
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
IDS = 1000  # classes of ImageNet


@dataclass(frozen=True)
class _Items:
    """n images, their true class and factor; M prompts and what each candidate stands for.

    Attributes:
        images: The images, factor by factor, class by class.
        texts: The distinct prompts.
        labels: Number of the true class of each image.
        factors: Number of the factor of each image.
        columns: Number of the prompt of each of m candidates (classes, or ImageNet's ids).
        classes: The class each candidate stands for, -1 for none.
    """

    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    labels: Int[Tensor, "n"]
    factors: Int[Tensor, "n"]
    columns: Int[Tensor, "m"]
    classes: Int[Tensor, "m"]


class PugImageNet(Benchmark):
    """Top-1 accuracy by factor: the class whose prompt scores best.

    `accuracy/<factor>` is micro over the images of a factor, `accuracy` over all of them (more than
    half are `Worlds`), and `macro_accuracy` the mean over factors. Intervals resample classes,
    whose images show the same few objects and share a prompt. `series` has the accuracy of each
    class, in the order of their names.

    Conventions:

    - "strict": the candidates are the 151 classes; a tie is wrong; chance 1/151. A class is called
      by its folder's name, split at underscores and capitals and lower case ("Jack_O_Lantern":
      "jack o lantern", "BirdHouse": "bird house", "JellyFish": "jelly fish"); the data's
      misspellings stay ("kangarou", "table lamb"), unless `words` calls the class otherwise.
    - "reference", as the published notebook does with an ImageNet classifier: the candidates are
      ImageNet's 1,000 classes by the names in `imagenet_names`; the first of tied ones is taken; it
      counts where `mapping` says it stands for the true class. One id is shared by "Shirt" and
      "Sweatshirt" and goes to the latter, so "Shirt" is never right; chance is the mean over
      images of the share of ids that stand for their class.

    The paper's zero-shot prompt is "This is a photo of a [ ]" (BLIP; its CLIP numbers come from
    OpenCLIP's own templates). The notebook crops the middle 256 x 256 of an image before it
    resizes; here the backbone's preprocessing does what it does.

    Args:
        images: The folder with a folder for each factor.
        name: Name in reports.
        factors: Which factors; None for all ten.
        prompt: The prompt, with {} for the name of the class.
        words: JSON object `{folder: words}` of classes that are to be called otherwise.
        convention: See above.
        mapping: `class_to_imagenet_idx.json`, for "reference".
        imagenet_names: JSON list of the 1,000 names in the order of the ids, for "reference".
        limit: At most so many images of each factor, drawn with `seed`.
        seed: Seed of that draw.

    Raises:
        UserError: An argument is none of its values, or "reference" lacks its files.
    """

    version: ClassVar[str] = "1"
    primary: str = "accuracy"
    citation: ClassVar[str] = "Bordes et al. 2023, PUG, section 3.3 and table 1"
    source: ClassVar[str] = f"PUG_IMAGENET.tar.gz (27 GB), {SITE}"
    kind: ClassVar[Literal["compositional", "retained"]] = "retained"

    def __init__(
        self,
        images: str,
        name: str = "pug_imagenet",
        factors: list[str] | None = None,
        prompt: str = "This is a photo of a {}",
        words: str | None = None,
        convention: Convention = "strict",
        mapping: str | None = None,
        imagenet_names: str | None = None,
        limit: int | None = None,
        seed: int = 0,
    ) -> None:
        check_options(convention, limit)
        wanted = FACTORS if factors is None else tuple(factors)
        if not wanted or not set(wanted) <= set(FACTORS):
            raise UserError(f"expected factors of {FACTORS}, got {list(wanted)}: correct them")
        if prompt.count("{}") != 1:
            raise UserError(f"expected {{}} once in the prompt, got {prompt!r}: correct it")
        if convention == "reference" and (mapping is None or imagenet_names is None):
            raise UserError(
                "expected `mapping` and `imagenet_names` with the convention 'reference', one is "
                "missing: pass class_to_imagenet_idx.json and a JSON list of ImageNet's 1,000 names"
            )
        self.folder = Path(images)
        self.name = name
        self.factors = tuple(factor for factor in FACTORS if factor in wanted)
        self.prompt = prompt
        self.words = None if words is None else Path(words)
        self.convention: Convention = convention
        self.mapping = Path(mapping or "")
        self.imagenet_names = Path(imagenet_names or "")
        self.limit = limit
        self.seed = seed
        self._items: _Items | None = None

    @classmethod
    def fixture(cls, folder: Path) -> "PugImageNet":
        """Two images of each of three classes, for each factor."""
        for i, factor in enumerate(FACTORS):
            for j, label in enumerate(("BirdHouse", "Jack_O_Lantern", "Wolf")):
                (folder / factor / label).mkdir(parents=True)
                for k in range(2):
                    colour = (20 * i, 100 * j, 200 * k)
                    Image.new("RGB", (8, 8), colour).save(folder / factor / label / f"{k}.png")
        return cls(str(folder))

    def load(self) -> None:
        """Lists the images and reads the names; calling it again does nothing.

        Raises:
            UserError: A folder is missing or has other classes, or a file is not what it should be.
        """
        if self._items is None:
            self._items = self._read()

    def images(self) -> tuple[ImageRef, ...]:
        """The images, factor by factor."""
        return self._loaded().images

    def texts(self) -> tuple[str, ...]:
        """The distinct prompts."""
        return self._loaded().texts

    def pairs(self) -> None:
        """All pairs."""
        return

    def truth(self) -> Bool[Tensor, "N M"]:
        """The prompt stands for the class of the image."""
        items = self._loaded()
        truth = torch.zeros(len(items.images), len(items.texts), dtype=torch.bool)
        for column, label in zip(items.columns.tolist(), items.classes.tolist(), strict=True):
            truth[:, column] |= items.labels == label
        return truth

    def evaluate(self, scores: Float[Tensor, "N M"]) -> Result:
        """Counts the images whose class is chosen, over all and by factor."""
        items = self._loaded()
        wins = self._wins(scores, items).double()
        ids = torch.bincount(
            items.classes[items.classes >= 0], minlength=int(items.labels.max()) + 1
        )
        chance = ids.double()[items.labels] / len(items.classes)
        names = dict(enumerate(self.factors))
        factors = {number: items.factors == number for number in names}
        metrics = {
            "accuracy": cluster_robust_mean(wins, items.labels, float(chance.mean())),
            "macro_accuracy": macro_mean(
                wins,
                items.factors,
                items.labels,
                sum(float(chance[own].mean()) for own in factors.values()) / len(factors),
            ),
        }
        for number, own in factors.items():
            metrics[f"accuracy/{names[number]}"] = cluster_robust_mean(
                wins[own], items.labels[own], float(chance[own].mean())
            )
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics=metrics,
            examples=tuple(self._examples(scores, wins)),
            citation=self.citation,
            convention=self.convention,
            outcomes=tuple(wins.tolist()),
            clusters=tuple(items.labels.tolist()),
            series={"accuracy_by_class": _by_class(wins, items.labels)},
        )

    def _wins(self, scores: Float[Tensor, "N M"], items: _Items) -> Bool[Tensor, "N"]:
        if self.convention == "strict":
            return true_ranks(scores, items.labels) == 1
        predicted = scores[:, items.columns].argmax(dim=1)
        return items.classes[predicted] == items.labels

    def _examples(
        self, scores: Float[Tensor, "N M"], wins: Float[Tensor, "N"]
    ) -> Iterator[Example]:
        """The first right and the first wrong image of each factor, with its best prompt."""
        items, truth = self._loaded(), self.truth()
        for factor in range(len(self.factors)):
            for won in (1.0, 0.0):
                for i in ((items.factors == factor) & (wins == won)).nonzero()[:1, 0].tolist():
                    best = int(scores[i].argmax())
                    score, true = float(scores[i, best]), bool(truth[i, best])
                    query = items.texts[best]
                    yield Example(query, (items.images[i],), (score,), (true,), won == 1)

    def _loaded(self) -> _Items:
        self.load()
        assert self._items is not None
        return self._items

    def _read(self) -> _Items:
        labels = self._labels()
        number = {label: i for i, label in enumerate(labels)}
        images: list[ImageRef] = []
        classes: list[int] = []
        factors: list[int] = []
        for i, factor in enumerate(self.factors):
            found = [
                (ImageRef(path), number[label])
                for label in labels
                for path in sorted((self.folder / factor / label).rglob("*"))
                if path.suffix.lower() in SUFFIXES
            ]
            there = {label for _, label in found}
            if empty := [label for label in labels if number[label] not in there]:
                raise UserError(
                    f"expected images of each class in {self.folder / factor}, {len(empty)} of "
                    f"{len(labels)} have none, first {empty[0]!r}: unpack the archive again, or "
                    f"get {self.source}"
                )
            kept = [found[k] for k in drawn(len(found), self.limit, self.seed)]
            images += [image for image, _ in kept]
            classes += [label for _, label in kept]
            factors += [i] * len(kept)
        check_images(images, self)
        names, stands_for = self._candidates(labels)
        prompts = [self.prompt.format(name) for name in names]
        texts = list(dict.fromkeys(prompts))
        return _Items(
            tuple(images),
            tuple(texts),
            torch.tensor(classes),
            torch.tensor(factors),
            torch.tensor([texts.index(prompt) for prompt in prompts]),
            stands_for,
        )

    def _labels(self) -> list[str]:
        """The classes: the folders of each factor, which must be the same."""
        known: list[str] = []
        for factor in self.factors:
            folder = self.folder / factor
            if not folder.is_dir():
                raise UserError(f"expected a folder {folder}, got none: get {self.source}")
            labels = sorted(path.name for path in folder.iterdir() if path.is_dir())
            if known and labels != known:
                odd = sorted(set(labels) ^ set(known))
                raise UserError(
                    f"expected the same classes for each factor in {self.folder}, got "
                    f"{len(odd)} not in all, first {odd[0]!r}: unpack the archive again"
                )
            known = labels
        if len(known) < 2:
            raise UserError(
                f"expected folders of classes in {self.folder / self.factors[0]}, got "
                f"{len(known)}: get {self.source}"
            )
        return known

    def _candidates(self, labels: Sequence[str]) -> tuple[list[str], Int[Tensor, "m"]]:
        """Names of the candidates, and the class each stands for."""
        if self.convention == "reference":
            return self._imagenet(labels)
        called = {} if self.words is None else _called(self.words, labels)
        names = [called.get(label, spoken(label)) for label in labels]
        if len(set(names)) < len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise UserError(
                f"expected a name of its own for each class, two are {double!r}: call one "
                "otherwise in `words`"
            )
        return names, torch.arange(len(names))

    def _imagenet(self, labels: Sequence[str]) -> tuple[list[str], Int[Tensor, "m"]]:
        names = read_json(self.imagenet_names, f"a JSON list of {IDS} names")
        fits = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not fits or len(names) != IDS:
            raise UserError(
                f"expected a JSON list of {IDS} names in {self.imagenet_names}, got another "
                "layout: pass ImageNet's names in the order of the ids"
            )
        wanted = "a JSON object {class: [id, ...]}"
        ids = read_json(self.mapping, wanted)
        if not isinstance(ids, dict) or any(not isinstance(own, list) for own in ids.values()):
            raise UserError(f"expected {wanted} in {self.mapping}, got another layout: correct it")
        if sorted(ids) != list(labels):
            raise UserError(
                f"expected the classes of {self.folder} in {self.mapping}, got {len(ids)} of "
                f"which {len(set(ids) & set(labels))} are folders: pass both of one release"
            )
        return names, class_of_id(ids, IDS)


def _called(path: Path, labels: Sequence[str]) -> dict[str, str]:
    wanted = "a JSON object {folder: words}"
    called = read_json(path, wanted)
    if not isinstance(called, dict) or any(not isinstance(name, str) for name in called.values()):
        raise UserError(f"expected {wanted} in {path}, got another layout: correct it")
    if unknown := sorted(set(called) - set(labels)):
        raise UserError(
            f"expected folders in {path}, got {unknown[0]!r}, which is none: correct it"
        )
    return called


def _by_class(wins: Float[Tensor, "n"], labels: Int[Tensor, "n"]) -> tuple[float, ...]:
    """The accuracy of each class that has images."""
    counts = torch.bincount(labels)
    totals = torch.zeros(len(counts), dtype=wins.dtype).index_add(0, labels, wins)
    return tuple((totals / counts)[counts > 0].tolist())
