"""PUG: ImageNet: zero-shot classification while one factor of the scene changes at a time.

In: a folder of images for each factor and class. Out: items of the classification rule.

Files: ten folders, one for each factor (`FACTORS`), each with a folder for each of 151 classes, and
in these the images: 88,328 in all, 46,336 of them in `Worlds`. Source: Bordes et al. 2023, PUG,
section 3.3 and appendices B.3 and C.3.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import (
    Text,
    check_chosen,
    file_error,
    find_images,
    write_image,
)
from vlmtune.benchmarks.pug_files import SITE, spoken
from vlmtune.benchmarks.rules.classification import Candidate, Classification, ClassItem
from vlmtune.errors import UserError
from vlmtune.metrics.class_mapping import class_of_id
from vlmtune.storage.files import read_json, reading
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
IDS = 1000  # classes of ImageNet
OutputId = Annotated[int, Field(strict=True, ge=0, lt=IDS)]


class PugImageNet(Classification):
    """Top-1 accuracy by factor: the class whose prompt scores best.

    `accuracy/<factor>` is micro over the images of a factor, `accuracy` over all of them (more than
    half are `Worlds`), and `macro_accuracy` the mean over factors. Intervals count classes,
    whose images show the same few objects and share a prompt. `series` has the accuracy of each
    class as `class_accuracy`, in the order of their names.

    Conventions:

    - "strict": the candidates are the 151 classes; a tie is wrong; chance 1/151. A class is called
      by its folder's name, split at underscores and capitals and lower case ("Jack_O_Lantern":
      "jack o lantern", "BirdHouse": "bird house", "JellyFish": "jelly fish"); the data's
      misspellings stay ("kangarou", "table lamb"), unless `words` renames the class.
    - "reference", as the published notebook does with an ImageNet classifier: the candidates are
      ImageNet's 1,000 classes by the names in `imagenet_names`; the first of tied ones is taken; it
      counts where `mapping` says it stands for the true class. One id is shared by "Shirt" and
      "Sweatshirt" and goes to the latter, so "Shirt" is never right; chance is the mean over
      images of the fraction of ids that stand for their class.

    The paper's zero-shot prompt is "This is a photo of a [ ]" (BLIP; its CLIP numbers come from
    OpenCLIP's own templates). The notebook crops the middle 256 x 256 of an image before it
    resizes; here the backbone's own preprocessing applies.

    An image classifier of ImageNet's 1,000 classes (`--model timm:...`) reads no prompts. It is
    measured in "reference", as the paper's supervised models are: candidate i is its output i.

    Args:
        images: The folder with a folder for each factor.
        prompt: The prompt, with {} for the name of the class.
        words: JSON object `{folder: words}` with other names of classes.
        mapping: `class_to_imagenet_idx.json`, for "reference".
        imagenet_names: JSON list of the 1,000 names in the order of the ids, for "reference".
    """

    citation: ClassVar[str] = "Bordes et al. 2023, PUG, section 3.3 and table 1"
    source: ClassVar[str] = f"PUG_IMAGENET.tar.gz (27 GB), {SITE}"
    kind: ClassVar[Literal["compositional", "retained"]] = "retained"
    shown: ClassVar[int] = 1

    images: str
    factors: Sequence[str] = FACTORS
    prompt: str = "This is a photo of a {}"
    words: str | None = None
    convention: Convention = "strict"
    mapping: str | None = None
    imagenet_names: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_chosen("factors", self.factors, FACTORS)
        if self.prompt.count("{}") != 1:
            raise UserError(f"expected {{}} once in the prompt, got {self.prompt!r}")
        if not self.strict and (self.mapping is None or self.imagenet_names is None):
            raise UserError(
                "expected `mapping` and `imagenet_names` with the convention 'reference', one is "
                "missing: pass class_to_imagenet_idx.json and a JSON list of ImageNet's 1,000 names"
            )

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "PugImageNet":
        for i, factor in enumerate(FACTORS):
            for j, label in enumerate(("BirdHouse", "Jack_O_Lantern", "Wolf")):
                for k in range(2):
                    write_image(folder / factor / label / f"{k}.png", 20 * i, 100 * j, 200 * k)
        return cls(str(folder))

    @override
    def read(self) -> list[ClassItem]:
        items = []
        for factor in FACTORS:
            if factor not in self.factors:
                continue
            empty = []
            for label in self._labels:
                files = find_images(Path(self.images, factor, label))
                items += [ClassItem(ImageRef(path), label, factor, label) for path in files]
                if not files:
                    empty.append(label)
            if empty:
                raise UserError(
                    f"expected images of each class in {Path(self.images, factor)}, {len(empty)} "
                    f"of {len(self._labels)} have none, first {empty[0]!r}: unpack the archive "
                    f"again, or get {self.source}"
                )
        return items

    @cached_property
    def _labels(self) -> list[str]:
        """The classes: the folders of each factor, which must be the same."""
        known: list[str] = []
        for factor in self.factors:
            folder = Path(self.images, factor)
            with reading(folder, "folders of classes", f"get {self.source}"):
                labels = sorted(path.name for path in folder.iterdir() if path.is_dir())
            if known and labels != known:
                odd = sorted(set(labels) ^ set(known))
                raise UserError(
                    f"expected the same classes for each factor in {self.images}, got "
                    f"{len(odd)} not in all, first {odd[0]!r}: unpack the archive again"
                )
            known = labels
        return known

    @override
    def candidates(self, group: str) -> list[Candidate]:
        named = self._folder_names() if self.strict else self._imagenet_names()
        return [Candidate((self.prompt.format(name),), label, name) for name, label in named]

    @override
    def outputs(self, labels: Sequence[str]) -> Sequence[int]:
        if self.strict or len(labels) != IDS:
            came = "strict" if self.strict else "reference"
            raise UserError(
                f"expected a classifier of {IDS} classes and the convention 'reference' for "
                f"{self.name}, got {len(labels)} and {came!r}: choose another model, or set "
                "`convention`, `mapping` and `imagenet_names`"
            )
        return range(IDS)

    def _folder_names(self) -> list[tuple[str, str | None]]:
        layout = "a JSON object {folder: words}"
        path = self.words or ""
        words = read_json(path, layout, shape=dict[str, Text]) if path else {}
        if unknown := sorted(set(words) - set(self._labels)):
            raise file_error(path, layout, f"{unknown[0]!r}, which is not a folder")
        names = [words.get(label, spoken(label)) for label in self._labels]
        if len(set(names)) < len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise UserError(
                f"expected a different name for each class, two are {double!r}: rename one in "
                "`words`"
            )
        return list(zip(names, self._labels, strict=True))

    def _imagenet_names(self) -> list[tuple[str, str | None]]:
        """ImageNet's names, each with the class that its id stands for."""
        assert self.imagenet_names is not None
        assert self.mapping is not None
        shape = Annotated[list[Text], Field(min_length=IDS, max_length=IDS)]
        layout = f"a JSON list of {IDS} names in the order of the ids"
        names = read_json(self.imagenet_names, layout, shape=shape)
        layout = f"{{class: [id, ...]}} with the folders of {self.images}"
        ids = read_json(self.mapping, layout, shape=dict[str, list[OutputId]])
        if sorted(ids) != self._labels:
            count = len(set(ids) & set(self._labels))
            raise file_error(self.mapping, layout, f"{len(ids)} of which {count} are folders")
        classes = class_of_id(ids, IDS).tolist()
        labelled = []
        for name, number in zip(names, classes, strict=True):
            label = None if number < 0 else self._labels[number]
            labelled.append((name, label))
        return labelled
