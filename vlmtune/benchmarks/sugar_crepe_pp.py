"""SugarCrepe++: two true captions of different wording against one false caption.

In: five JSON files and COCO's images. Out: items of the multiple-choice rule.

Files: `replace_att.json`, `replace_obj.json`, `replace_rel.json`, `swap_att.json`, `swap_obj.json`,
JSON lists of `{"id", "filename", "caption", "caption2", "negative_caption"}`, 4,757 items on whole
images of COCO val2017. Source: Dumpala et al. 2024, SugarCrepe++, section 4.
"""

from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.types import ImageRef

SUBSETS = ("replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
KEYS = ("filename", "caption", "caption2", "negative_caption")


class SugarCrepePP(MultipleChoice):
    """ITT and TOT, over all items and by subset; a tie is wrong.

    - `accuracy` (ITT): both true captions score above the false one; chance 1/3.
    - `text_to_text_accuracy` (TOT, of a dual model): the two true captions are closest to each
      other, with c the cosine of their embeddings.

    Conventions, of true captions p1 and p2 and a false one n:

    - "strict": TOT compares from the first caption alone, c(p1, p2) > c(p1, n); chance 1/2. Two
      rows of swap_obj, whose false caption repeats a true one, are left out: 4,755 items.
    - "reference", as the published scripts do: TOT needs both c(p1, p2) > c(p1, n) and
      c(p1, p2) > c(p2, n); chance 1/3. All 4,757 rows count, these two as wrong. Numbers of the
      paper compare with these.
    """

    full_name = "SugarCrepe++"
    asks = "edited captions"
    citation = "Dumpala et al. 2024, SugarCrepe++, section 4 (ITT and TOT)"
    source = "vlmtune download sugar_crepe_pp"

    path: str
    images: str
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "SugarCrepePP":
        write_image(folder / "0.jpg", 255, 0, 0)
        for subset in SUBSETS:
            texts = (f"a dog {subset}", f"{subset} of a dog", f"a {subset} dog")
            row = dict(zip(KEYS, ("0.jpg", *texts), strict=True))
            write_json(folder / f"{subset}.json", [{"id": 0, **row}])
        return cls(str(folder), str(folder))

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        for subset in SUBSETS:
            path = Path(self.path, f"{subset}.json")
            for row in self.rows(path, *KEYS):
                image = ImageRef(Path(self.images, row["filename"]))
                texts = (row["caption"], row["caption2"], row["negative_caption"])
                items.append(ChoiceItem(image, texts, subset, true=2))
        return items
