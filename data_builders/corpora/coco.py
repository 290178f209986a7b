"""COCO Captions (Chen et al. 2015): Karpathy's splits, or COCO's own caption files.

In: `dataset_coco.json`, or `captions_train2017.json` and its like. Out: one record an image. Never
resamples captions.
"""

from typing import Any

from typing_extensions import override

from data_builders.corpora.karpathy import KarpathyBuilder, Row, distinct_captions
from data_builders.left_out import Line
from data_builders.measured import COCO
from vlmtune.errors import UserError, counted


class CocoBuilder(KarpathyBuilder):
    """COCO: 82,783 + 30,504 images for training, 5,000 for validation, 5,000 for test.

    `path` is `dataset_coco.json`; `images` holds `train2014` and `val2014`. Or `path` is a caption
    file of COCO's own, `{"images": [{"id", "file_name"}], "annotations": [{"image_id",
    "caption"}]}`. All of its images are written, whatever the `splits`; they lie in `images`, or in
    its subfolder `train2017` for `captions_train2017.json`.
    """

    corpus = COCO
    layout = "captions of COCO, its own JSON or Karpathy's"

    @override
    def parse(self, content: Any) -> list[Row]:
        if "annotations" not in content:
            return super().parse(content)
        captions: dict[Any, list[str]] = {image["id"]: [] for image in content["images"]}
        for number, annotation in enumerate(content["annotations"]):
            image, caption = annotation.get("image_id"), annotation.get("caption")
            if image in captions and isinstance(caption, str):
                captions[image].append(caption)
                continue
            reason = "no caption" if image in captions else "annotation of an unknown image"
            where = f"annotations[{number}] of {self.path}"
            self.left_out.add(Line(where, reason, str(image), number, unusable=False))
        if not any(captions.values()):
            raise UserError(
                f"expected {self.layout} at {self.path}, got no caption of its "
                f"{counted(len(captions), 'image')}: pass the file as distributed"
            )
        folder = self.path.stem.rpartition("_")[2]
        prefix = f"{folder}/" if (self.images / folder).is_dir() else ""
        return [
            (None, prefix + str(image["file_name"]), distinct_captions(captions[image["id"]]))
            for image in content["images"]
        ]
