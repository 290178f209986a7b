"""NegBench, retrieval: images found by captions that also say what is not in them.

In: the csv and a folder of images. Out: items of the ranking rule.

Files: `COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv`, and `COCO_val_retrieval.csv`
with the captions before negations were added, both with `filepath` or `image_path`, of which only
the file name counts, and `captions`, a Python list literal. Source: Alhamoud et al. 2025.
"""

from pathlib import Path

from typing_extensions import override

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.crepe_files import read_texts
from vlmtune.benchmarks.files import read_csv, write_csv, write_image
from vlmtune.benchmarks.negbench import SOURCE, image_of
from vlmtune.benchmarks.rules.ranking import CaptionedImage, Ranking
from vlmtune.storage.files import reading
from vlmtune.types import ImageRef


class NegBenchRetrieval(Ranking):
    """Recall at 1, 5 and 10 both ways; see `vlmtune.benchmarks.rules.ranking`.

    The paper reports `text_to_image_recall@5` of both files: what a model loses from
    `COCO_val_retrieval.csv` to the file with negations is what negations cost it.

    Args:
        images: The folder with the image files, such as COCO val2017.
    """

    full_name = "NegBench retrieval"
    asks = "negation"
    citation = "Alhamoud et al. 2025, NegBench (retrieval, recall@5)"
    source = f"{SOURCE}_retrieval"

    path: str
    images: str
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "NegBenchRetrieval":
        captions_of = (
            ["a dog runs. There is no cat.", "a dog on grass, with no ball"],
            ["There is no dog. a cat's bed", "a cat, but no bed"],
            ["a red car without a driver"],
        )
        rows = []
        for number, captions in enumerate(captions_of):
            name = f"{number:012d}.jpg"
            write_image(folder / name, 90 * number, 20, 90)
            rows.append((f"data/coco/images/val2017/{name}", number, captions))
        columns = ("filepath", "image_id", "captions")
        return cls(write_csv(folder / "COCO_val_retrieval.csv", columns, rows), str(folder))

    @override
    def read(self) -> list[CaptionedImage]:
        captions: dict[ImageRef, list[str]] = {}
        rows = read_csv(self.path, ("captions",), self.source)
        with reading(self.path, "an image and a list of captions", self.fix):
            for row in rows:
                image = image_of(row, self.images)
                texts = read_texts(row["captions"])
                # An image of several rows is one query, and has the captions of all.
                captions.setdefault(image, []).extend(texts)
        return [CaptionedImage(image, tuple(texts)) for image, texts in captions.items()]
