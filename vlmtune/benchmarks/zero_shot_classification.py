"""Zero-shot classification of a folder of images: what a model still knows after training.

In: a folder of images for each class. Out: items of the classification rule.

Files: a folder for each class with its images, at any depth (`root/class/image.png`), as CIFAR-10
(10 classes, 10,000 test images) and ImageNet's validation split (1,000 classes, 50,000 images) are
exported. Source: Radford et al. 2021, CLIP, sections 3.1.2 and 3.1.4.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch.nn.functional import normalize
from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import Prompt, Text, class_folders, write_image, write_json
from vlmtune.benchmarks.pair_scorer import MatrixFunction, PairScorer, embed
from vlmtune.benchmarks.rules.classification import (
    Candidate,
    Classification,
    ClassItem,
    ImageClassifier,
)
from vlmtune.errors import UserError
from vlmtune.results.result import Result
from vlmtune.storage.files import read_json
from vlmtune.types import ImageRef


class ZeroShotClassification(Classification):
    """Top-1 and top-5 accuracy of the class whose prompts score best.

    - `accuracy`: fraction of images whose class scores best.
    - `accuracy@5`: fraction whose class is among the five best, with more than five classes.
    - `macro_accuracy`: mean over classes of the accuracy within each. `series` has the latter as
      `class_accuracy`, in the order of the folders' names.

    Several templates are one classifier. With `ensemble: scores` a class scores the mean of the
    scores of its prompts, which works for any model. With `ensemble: embeddings` the image is
    compared with the normalised mean of their normalised embeddings, as CLIP's authors do; it needs
    a dual model, as do published numbers of several templates. With one template they agree.

    An image classifier (`--model timm:...`) reads no prompts: each folder is the class of its name
    (ImageNet's WordNet ids, "n01440764"), or, with as many folders as classes, of its place among
    the sorted folders. With fewer folders only their classes are candidates.

    Args:
        images: The folder with a folder for each class.
        classes: JSON file with the names of the classes, either a list in the order of the sorted
            folders or an object `{folder: name}`; None takes the folders' names with blanks for
            underscores. With fewer folders than names the numbers would be higher, so that is an
            error; without the file a missing folder goes unnoticed.
        templates: The prompts, each with {} for the name of the class.
        ensemble: "scores" or "embeddings".
        convention: "strict" counts a tie as wrong; "reference" takes the first class, as argmax.
    """

    keys: ClassVar[Mapping[str, int]] = {"accuracy": 1, "accuracy@5": 5}
    group_keys: ClassVar[Mapping[str, int]] = {}
    kind = "retained"
    full_name = "Zero-shot classification"
    asks = "classification"
    citation = "Radford et al. 2021, CLIP, section 3.1 (zero-shot transfer)"
    source = "vlmtune download zero_shot_classification"

    images: str
    classes: str | None = None
    templates: Annotated[Sequence[Prompt], Field(min_length=1)] = ("a photo of a {}.",)
    ensemble: Literal["scores", "embeddings"] = "scores"
    convention: Convention = "strict"

    @property
    @override
    def needs(self) -> Literal["scores", "embeddings"]:
        return self.ensemble

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "ZeroShotClassification":
        names = {}
        words = ("airplane", "bird", "fire truck", "horse", "ship", "tree frog")
        for i, word in enumerate(words):
            label = f"n{i:04d}"
            names[label] = word
            for k in range(1 + i % 2):
                write_image(folder / "val" / label / f"{k}.png", 40 * i, 100 * k, 250 - 40 * i)
        classes = write_json(folder / "names.json", names)
        templates = ("a photo of a {}.", "art of the {}.")
        return cls(str(folder / "val"), classes=classes, templates=templates)

    @override
    def read(self) -> list[ClassItem]:
        items = []
        for label, paths in self._paths.items():
            for path in paths:
                items.append(ClassItem(ImageRef(path), label, label, path))
        return items

    @cached_property
    def _paths(self) -> dict[str, list[Path]]:
        """The images of each folder."""
        return class_folders(self.images, self.source)

    @override
    def candidates(self, group: str) -> list[Candidate]:
        candidates = []
        for label, name in self._names().items():
            prompts = tuple(template.replace("{}", name) for template in self.templates)
            candidates.append(Candidate(prompts, label, name))
        return candidates

    @override
    def outputs(self, labels: Sequence[str]) -> Sequence[int]:
        folders = list(self._paths)
        if set(folders) <= set(labels):
            return [labels.index(folder) for folder in folders]
        if len(folders) == len(labels):
            return range(len(labels))
        raise UserError(
            f"expected a folder in {self.images} for each of the classifier's {len(labels)} "
            f"classes, or folders called as they are (such as {labels[0]}), got {len(folders)}, "
            f"first {folders[0]!r}: rename them, or choose another model"
        )

    def _names(self) -> dict[str, str]:
        """The name of the class of each folder, no two alike."""
        names = {folder: folder.replace("_", " ") for folder in self._paths}
        if self.classes is not None:
            names = self._read_names(self.classes)
        folder_of: dict[str, str] = {}
        for folder, name in names.items():
            if folder_of.setdefault(name, folder) != folder:
                raise UserError(
                    f"expected a different name for each class of {self.name}, got {name!r} for "
                    f"{folder!r} and {folder_of[name]!r}: rename one in `classes`"
                )
        return names

    def _read_names(self, path: str) -> dict[str, str]:
        """The name of each folder; with a class missing the numbers would be higher."""
        n = len(self._paths)
        layout = f"a JSON list of {n} names, or an object {{folder: name}} of {n} folders,"
        listed = Annotated[list[Text], Field(min_length=n, max_length=n)]
        names = read_json(path, layout, self.fix, listed | dict[str, Text])
        if isinstance(names, list):
            return dict(zip(self._paths, names, strict=True))
        odd = sorted(names.keys() ^ self._paths.keys())
        if odd:
            raise UserError(
                f"expected a folder and a name in {path} for each class, got one of both for "
                f"{len(odd)}, first {odd[0]!r}: {self.fix}"
            )
        return {folder: names[folder] for folder in self._paths}

    @override
    def run(self, score: PairScorer | MatrixFunction | ImageClassifier) -> Result:
        if self.ensemble == "scores" or isinstance(score, ImageClassifier):
            return super().run(score)
        items = self.items
        prompts = items.banks[0].prompts
        images, texts = embed(score, items, self.name)
        images = normalize(images, dim=1)
        texts = normalize(texts, dim=1)
        # CLIP's classifier: the mean direction of a class's prompts.
        sums = torch.zeros(len(prompts), texts.shape[1], dtype=texts.dtype)
        for columns in prompts.unbind(dim=1):
            sums += texts[columns]
        classes = normalize(sums, dim=1)  # sums and means have one direction
        return self.ranked(images @ classes.T)
