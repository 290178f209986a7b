"""ARO, COCO-Order and Flickr30k-Order: a caption against four shuffles of its words.

Files: `coco_karpathy_test.json` or `flickr30k_test.json`, a JSON list of `{"image": path,
"caption": [captions]}`, and the shuffles of its captions (see `vlmtune.benchmarks.aro_orders`).
Images are whole. Source: Yuksekgonul et al. 2023, section 2.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from PIL import Image

from vlmtune.benchmarks.aro_orders import (
    normalised,
    read_captions,
    read_shuffles,
    write_shuffles,
)
from vlmtune.benchmarks.base import Benchmark, Convention
from vlmtune.benchmarks.choices import Choice, Choices
from vlmtune.language.words import words
from vlmtune.metrics.multiple_choice import Ties
from vlmtune.types import ImageRef


class AroOrder(Choices):
    """Precision@1 over captions: the caption itself is chosen among its four shuffles.

    Captions are lower-cased and lose most punctuation, as the authors' are.

    - `accuracy`: share of captions chosen (micro); chance is 1/5.
    - `mean_rank`, `median_rank`.

    "strict": a tie is wrong; a shuffle that gives the caption back is left out of its item; and the
    caption is written as its shuffles are, with spaces before commas and contractions, because the
    spacing would tell it apart. "reference": the caption as it is, all four shuffles, and a tie is
    right, because the authors take the argmax with the caption first. Their shuffles come from the
    global random state and depend on the versions of two taggers, so published numbers, of which
    re-runs differ by points, compare in kind only.

    Args:
        path: The caption file.
        images: The folder that `image` starts from.
        shuffles: The file with the shuffles, as `vlmtune shuffles` writes it.
        name: Name in reports, unique within a run.
        convention: "strict" or "reference".
        limit: Evaluate at most so many captions.
        seed: Draw them at random with this seed; None takes the first ones.

    Raises:
        UserError: `limit` is below 1, or the convention is unknown.
    """

    version: ClassVar[str] = "1"
    citation: ClassVar[str] = "Yuksekgonul et al. 2023, ARO, section 2 (COCO- and Flickr30k-Order)"
    source: ClassVar[str] = (
        "storage.googleapis.com/sfr-vision-language-research/datasets; cocodataset.org, Flickr30k"
    )
    reference_ties: ClassVar[Ties] = "right"

    def __init__(
        self,
        path: str,
        images: str,
        shuffles: str,
        name: str = "aro_order",
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = 0,
    ) -> None:
        super().__init__(name, convention, limit, seed)
        self.path = Path(path)
        self.folder = Path(images)
        self.shuffles = Path(shuffles)

    @classmethod
    def fixture(cls, folder: Path) -> Benchmark:
        """Two images, one with two captions; shuffled without a tagger of any use."""
        made = {
            "val2014/0.jpg": ["A man is riding a brown horse.", "A dog, on the beach, runs fast."],
            "val2014/1.jpg": ["Two cats don't sleep under the wooden table."],
        }
        (folder / "val2014").mkdir()
        for i, file in enumerate(made):
            Image.new("RGB", (8, 8), (200 * i, 90, 20)).save(folder / file)
        path, shuffles = folder / "coco_karpathy_test.json", folder / "shuffles.json"
        rows = [{"image": file, "caption": captions} for file, captions in made.items()]
        path.write_text(json.dumps(rows), encoding="utf-8")
        write_shuffles(path, shuffles, _LongWords())
        return cls(str(path), str(folder), str(shuffles))

    def _read(self) -> list[Choice]:
        rows = read_captions(self.path, self.source)
        cases = [(image, caption) for image, captions in rows for caption in captions]
        shuffles = read_shuffles(self.shuffles, self.path, len(cases))
        return [
            Choice(
                ImageRef(self.folder / image),
                (self._shown(caption), *(normalised(text) for text in shuffled)),
            )
            for (image, caption), shuffled in zip(cases, shuffles, strict=True)
        ]

    def _shown(self, caption: str) -> str:
        strict = self.convention == "strict"
        return normalised(" ".join(words(caption)) if strict else caption)


class _LongWords:
    """Takes long words for nouns: enough of a tagger for a fixture."""

    def tag(self, words: Sequence[str]) -> list[str]:
        return ["NOUN" if len(word) > 3 else "DET" for word in words]
