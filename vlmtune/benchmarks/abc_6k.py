"""ABC-6K: a COCO caption with two colours against the same with the colours exchanged.

In: the text file, COCO's own captions, and its images. Out: items of the multiple-choice rule.

File: `ABC-6K.txt`, 6,434 lines: a caption, then the same with exchanged colours, 3,217 times. It
names no image, so the captions are looked up in `captions_train2014.json` and
`captions_val2014.json`. Source: Feng et al. 2023, Structured Diffusion Guidance, section 4.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.coco_files import closed, images_of_captions
from vlmtune.benchmarks.files import write_image, write_json
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.results.metric_value import count
from vlmtune.results.result import Result
from vlmtune.storage.files import reading, regular
from vlmtune.types import ImageRef


class ABC6K(MultipleChoice):
    """How often the caption scores higher than the same with exchanged colours; chance 1/2.

    - `captions_without_image`: how many of the captions are in no file of `captions` and left out.

    A caption of several images has the first of them. Conventions:

    - "strict": the space before punctuation is closed. The file has it in exchanged captions
      ("a blue sink and door ."), mostly not in others, which tells them apart without the image.
      Where nothing else differs the item is left out (`identical_candidates`). Articles stay:
      "an red cat" is an exchanged caption, in about one item of 20.
    - "reference": both captions as the file writes them.

    Args:
        path: `ABC-6K.txt`.
        captions: Files of COCO's captions, in the order in which they are searched.
        images: The folder with `train2014` and `val2014`, or with all images.
    """

    full_name = "ABC-6K"
    asks = "attributes"
    citation = "Feng et al. 2023, Structured Diffusion Guidance, section 4 (ABC-6K)"
    source = "vlmtune download abc_6k"

    path: str
    captions: Sequence[str]
    images: str
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "ABC6K":
        colours = (("red", "blue"), ("black", "white"), ("green", "brown"))
        lines = []
        images = []
        annotations = []
        for i, (first, second) in enumerate(colours):
            name = f"COCO_val2014_{i:012d}.jpg"
            write_image(folder / "val2014" / name, 80 * i, 0, 90)
            lines += [f"A {first} cup on a {second} mat.", f"A {second} cup on a {first} mat ."]
            images.append({"id": i, "file_name": name})
            annotations.append({"image_id": i, "caption": f"{lines[-2]}\n"})
        content = {"images": images, "annotations": annotations}
        captions = write_json(folder / "captions_val2014.json", content)
        path = folder / "ABC-6K.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        return cls(str(path), [captions], str(folder))

    @override
    def read(self) -> list[ChoiceItem]:
        items = []
        for true, false in self._pairs:
            image = self._images.get(closed(true))
            if image is None:
                continue
            texts = (true, false)
            if self.strict:
                texts = (closed(true), closed(false))
            items.append(ChoiceItem(image, texts))
        return items

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        result = super().evaluate(scores)
        missing = [true for true, _ in self._pairs if closed(true) not in self._images]
        if missing:
            metric = count(len(missing), len(self._pairs))
            result.metrics["captions_without_image"] = metric
        return result

    @cached_property
    def _pairs(self) -> list[tuple[str, str]]:
        """The lines two by two."""
        with reading(self.path, "lines in pairs", self.fix):
            text = regular(self.path).read_text(encoding="utf-8")
            stripped = [line.strip() for line in text.split("\n")]
            lines = [line for line in stripped if line]
            captions = lines[::2]
            exchanged = lines[1::2]
            # `strict`: after a lost line every pair would be of two items.
            return list(zip(captions, exchanged, strict=True))

    @cached_property
    def _images(self) -> dict[str, ImageRef]:
        """The first image of each caption; COCO has 600,000, of which few are wanted."""
        wanted = {closed(true) for true, _ in self._pairs}
        return images_of_captions(self.captions, self.images, wanted, self.fix)
