"""ARO, COCO-Order and Flickr30k-Order: a caption against four shuffles of its words.

In: captions, their shuffles and the images. Out: items of the multiple-choice rule. Never: a
shuffle of its own.

Files: `coco_karpathy_test.json` or `flickr30k_test.json`, a JSON list of `{"image": path,
"caption": [captions]}`, and the shuffles of its captions (see `vlmtune.benchmarks.aro_shuffles`).
Images are whole. Source: Yuksekgonul et al. 2023, section 2.
"""

from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.aro_shuffles import normalised, read_captions, read_shuffles, write_shuffles
from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.files import write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.language.words import words
from vlmtune.types import ImageRef


class AroOrder(MultipleChoice):
    """Precision@1 over captions: the caption itself is chosen among its four shuffles.

    Captions are lower-cased and lose most punctuation, as the authors' are.

    - `accuracy`: fraction of captions chosen (micro); chance is 1/5.
    - `mean_rank`, `median_rank`.

    "strict": a tie is wrong. A shuffle that gives the caption back is left out of its item. The
    caption is written as its shuffles are, with spaces before commas and contractions, because the
    spacing would give it away. "reference": the caption as it is and all four shuffles; a tie is
    right, because the authors take the argmax with the caption first. Their shuffles depend on the
    global random state and two taggers, so the published numbers compare in kind only.

    Args:
        images: The folder that `image` starts from.
        shuffles: The file with the shuffles, as `vlmtune shuffles` writes it.
    """

    full_name = "ARO word order"
    asks = "word order"
    citation = "Yuksekgonul et al. 2023, ARO, section 2 (COCO- and Flickr30k-Order)"
    source = "vlmtune download aro_order"
    reference_ties = "right"

    path: str
    images: str
    shuffles: str
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "AroOrder":
        captions_of = {
            "val2014/0.jpg": ["A man is riding a brown horse.", "A dog, on the beach, runs fast."],
            "val2014/1.jpg": ["Two cats don't sleep under the wooden table."],
        }
        rows = []
        for i, (file, captions) in enumerate(captions_of.items()):
            write_image(folder / file, 200 * i, 90, 20)
            rows.append({"image": file, "caption": captions})
        path = folder / "coco_karpathy_test.json"
        shuffles = folder / "shuffles.json"
        write_json(path, rows)
        write_shuffles(path, shuffles)
        return cls(str(path), str(folder), str(shuffles))

    @override
    def read(self) -> list[ChoiceItem]:
        cases = []
        for image, captions in read_captions(self.path, self.source):
            cases += [(image, caption) for caption in captions]
        shuffles = read_shuffles(self.shuffles, self.path, len(cases))
        items = []
        for (image, caption), shuffled in zip(cases, shuffles, strict=True):
            if self.strict:
                # Shuffles are joined words, so the true caption is, too.
                caption = " ".join(words(caption))
            candidates = [normalised(text) for text in (caption, *shuffled)]
            ref = ImageRef(Path(self.images, image))
            items.append(ChoiceItem(ref, tuple(candidates)))
        return items
