"""PUG: ImageNet: zero-shot classification while one factor of the scene changes at a time.

In: a folder of images for each factor and class. Out: items of the classification rule.

Files: ten folders, one for each factor (`FACTORS`), each with a folder for each of 151 classes, and
in these the images: 88,328 in all, 46,336 of them in `Worlds`. Source: Bordes et al. 2023, PUG,
section 3.3 and appendices B.3 and C.3.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import Prompt, Text, class_folders, file_error, write_image
from vlmtune.benchmarks.pug_files import spoken
from vlmtune.benchmarks.rules.classification import Candidate, Classification, ClassItem
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json
from vlmtune.types import ImageRef

FACTORS = (
    *("Worlds", "Camera_Pitch", "Camera_Yaw", "Camera_Roll", "Object_Pitch", "Object_Yaw"),
    *("Object_Roll", "Object_Scale", "Object_Texture", "Scene_Light"),
)
IDS = 1000  # classes of ImageNet
OutputId = Annotated[int, Field(strict=True, ge=0, lt=IDS)]


class PugImageNet(Classification):
    """Top-1 accuracy by factor: the class whose prompt scores best.

    `accuracy/<factor>` is micro over the images of a factor, `accuracy` over all of them (more than
    half are `Worlds`), and `macro_accuracy` the mean over factors. Intervals count classes, whose
    images show the same few objects and share a prompt.

    Conventions:

    - "strict": the candidates are the 151 classes; a tie is wrong; chance 1/151. A class is called
      by its folder's name, split at underscores and capitals and lower case ("Jack_O_Lantern":
      "jack o lantern", "BirdHouse": "bird house", "JellyFish": "jelly fish"); the data's
      misspellings stay ("kangarou", "table lamb").
    - "reference", as the published notebook does with an ImageNet classifier: the candidates are
      ImageNet's 1,000 classes by the names in `imagenet_names`; the first of tied ones is taken; it
      counts where `mapping` says it stands for the true class. One id is shared by "Shirt" and
      "Sweatshirt" and goes to the latter, so "Shirt" is never right; chance is the mean over
      images of the fraction of ids that stand for their class.

    The paper's zero-shot prompt is "This is a photo of a [ ]" (BLIP; its CLIP numbers come from
    OpenCLIP's own templates). The notebook crops the middle 256 x 256 of an image first.

    An image classifier of ImageNet's 1,000 classes (`--model timm:...`) reads no prompts. It is
    measured in "reference", as the paper's supervised models are: candidate i is its output i.

    Args:
        images: The folder with a folder for each factor.
        prompt: The prompt, with {} for the name of the class.
        mapping: `class_to_imagenet_idx.json`, for "reference".
        imagenet_names: JSON list of the 1,000 names in the order of the ids, for "reference".
    """

    full_name = "PUG: ImageNet"
    asks = "classification"
    citation = "Bordes et al. 2023, PUG, section 3.3 and table 1"
    source = "vlmtune download pug_imagenet"
    kind = "retained"
    shown = 1
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"factors": FACTORS}

    images: str
    factors: Sequence[str] = FACTORS
    prompt: Prompt = "This is a photo of a {}"
    convention: Convention = "strict"
    mapping: str | None = None
    imagenet_names: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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
        for factor, files_of in self._files.items():
            for label, files in files_of.items():
                for path in files:
                    items.append(ClassItem(ImageRef(path), label, factor, label))
        return items

    @cached_property
    def _files(self) -> dict[str, dict[str, list[Path]]]:
        """The images of each class for each factor."""
        files: dict[str, dict[str, list[Path]]] = {}
        for factor in FACTORS:
            if factor not in self.factors:
                continue
            files[factor] = class_folders(Path(self.images, factor), self.source)
            expected, *_ = files.values()
            odd = sorted(files[factor].keys() ^ expected.keys())
            if odd:
                raise UserError(
                    f"expected the same classes for each factor in {self.images}, got "
                    f"{len(odd)} not in all, first {odd[0]!r}: unpack the archive again"
                )
        return files

    @property
    def _labels(self) -> list[str]:
        files_of, *_ = self._files.values()  # every factor has the same classes
        return list(files_of)

    @override
    def candidates(self, group: str) -> list[Candidate]:
        if self.strict:
            named = [(spoken(label), label) for label in self._labels]
        else:
            named = self._imagenet_names()
        candidates = []
        for name, label in named:
            prompt = self.prompt.format(name)
            candidates.append(Candidate((prompt,), label, name))
        return candidates

    @override
    def outputs(self, labels: Sequence[str]) -> Sequence[int]:
        if self.strict or len(labels) != IDS:
            raise UserError(
                f"expected a classifier of {IDS} classes and the convention 'reference' for "
                f"{self.name}, got {len(labels)} and {self.convention!r}: choose another model, or "
                "set `convention`, `mapping` and `imagenet_names`"
            )
        return range(IDS)

    def _imagenet_names(self) -> list[tuple[str, str | None]]:
        """ImageNet's names, each with the class that its id stands for."""
        assert self.imagenet_names is not None
        assert self.mapping is not None
        names_shape = Annotated[list[Text], Field(min_length=IDS, max_length=IDS)]
        names_layout = f"a JSON list of {IDS} names in the order of the ids"
        names = read_json(self.imagenet_names, names_layout, shape=names_shape)
        layout = f"{{class: [id, ...]}} with the folders of {self.images}"
        ids = read_json(self.mapping, layout, shape=dict[str, list[OutputId]])
        if sorted(ids) != self._labels:
            count = len(set(ids) & set(self._labels))
            raise file_error(self.mapping, layout, f"{len(ids)} of which {count} are folders")
        # An id of two classes goes to the last, as in the notebook's dictionary: the only id of
        # "Shirt", 841, goes to "Sweatshirt". An id without a class is never right.
        label_of: dict[int, str] = {}
        for label in self._labels:
            label_of |= dict.fromkeys(ids[label], label)
        return [(name, label_of.get(i)) for i, name in enumerate(names)]
