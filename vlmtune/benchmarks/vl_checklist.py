"""VL-CheckList: a short phrase against the same with one object, attribute or relation exchanged.

In: a folder of JSON files and three folders of images. Out: items of the multiple-choice rule.

Files: `Attribute/vg/size.json`, `Object/Location/hake_location/hake_obj_margin.json`,
`Relation/swig_action.json` and so on, each a list of `[image, {"POS": [true], "NEG": [false]}]`
with a path in the folder `vg`, `hake` or `swig`. Source: Zhao et al. 2022, sections 3 and 4.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import Text, file_error, write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice, united
from vlmtune.storage.files import read_json
from vlmtune.types import ImageRef

CORPORA = ("hake", "swig", "vg")
ASPECTS = ("Attribute", "Object", "Relation")
LAYOUT = 'a list of [image, {"POS": [caption], "NEG": [caption]}]'


class _Captions(TypedDict):
    """Captions of an image; the released script reads the first of each."""

    POS: Annotated[list[Text], Field(min_length=1)]
    NEG: Annotated[list[Text], Field(min_length=1)]


class VLCheckList(MultipleChoice):
    """Accuracy by aspect, by aspect and kind, and over all items; chance 1/2.

    - `macro_accuracy`: the mean over attributes, objects and relations, each over its items.
    - `accuracy/Attribute`, `/Object`, `/Relation`, and of their kinds, such as `/Attribute size`.

    Both conventions count a tie as wrong, as the released script does. Some false captions repeat
    the true one: "strict" leaves these items out, in "reference" they are lost.

    Unlike the released script, both average over the items of a kind. The script takes the first
    1,000 items of each file, averages the files of a corpus, and then the corpora. It also leaves
    out items whose image is missing, so its numbers depend on what one has; here that is an error,
    and `corpora` chooses.

    Args:
        path: The folder with the JSON files, `data` of the release.
        images: The folder with the folders `hake`, `swig` and `vg`.
        corpora: Whose images to read; those of HAKE cannot all be had any more.
    """

    primary_metric: ClassVar[str] = "macro_accuracy"
    full_name: ClassVar[str] = "VL-CheckList"
    asks: ClassVar[str] = "edited captions"
    citation: ClassVar[str] = "Zhao et al. 2022, VL-CheckList (accuracy by aspect)"
    source: ClassVar[str] = "vlmtune download vl_checklist"
    limit_per_group: ClassVar[bool] = True
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {"corpora": CORPORA}

    path: str
    images: str
    corpora: Sequence[str] = CORPORA
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "VLCheckList":
        rows_of = {
            "Attribute/vg/size": ("VG_100K/1.jpg", "huge train", "little train"),
            "Object/Size/hake_size/hake_obj_small": ("hcvrd/2.jpg", "hold a cup", "hold a bear"),
            "Relation/swig_action": ("skiing_3.jpg", "a man skis", "a man smashes"),
        }
        for number, (name, (image, true, false)) in enumerate(rows_of.items()):
            write_image(folder / "images" / CORPORA[number - 1] / image, 90 * number, 20, 90)
            write_json(folder / f"{name}.json", [[image, {"POS": [true], "NEG": [false]}]])
        return cls(str(folder), str(folder / "images"))

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        paths: list[Path] = []
        for aspect in ASPECTS:
            of_aspect = sorted(Path(self.path, aspect).rglob("*.json"))
            # Over fewer aspects the mean would be another number.
            if not of_aspect:
                raise file_error(Path(self.path, aspect), LAYOUT, "no file *.json", self.source)
            paths += of_aspect
        for path in paths:
            name = path.relative_to(self.path)
            # Images of VAW are Visual Genome's.
            corpus = next((one for one in CORPORA if one in name.as_posix()), "vg")
            if corpus not in self.corpora:
                continue
            _, _, kind = name.stem.rpartition("_")
            group = f"{name.parts[0]} {kind}"
            shape = list[tuple[Text, _Captions]]
            for image, texts in read_json(path, LAYOUT, self.fix, shape):
                file = ImageRef(Path(self.images, corpus, image))
                captions = (texts["POS"][0], texts["NEG"][0])
                items.append(ChoiceItem(file, captions, group))
        return items

    @override
    def unions(self, groups: Sequence[str]) -> Mapping[str, Sequence[str]]:
        return united(groups, ASPECTS, " ")
