"""Scenes go in, Karpathy's caption JSON, as in `dataset_coco.json`, comes out."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from data_builders.scenes.captions import sentences
from data_builders.scenes.image_files import SceneImage

CAPTIONS = 5


def dataset(splits: Mapping[str, Sequence[SceneImage]], seed: int) -> dict[str, Any]:
    """Returns the content of `dataset_scenes.json`: five captions an image."""
    rows: list[dict[str, Any]] = []
    for split, images in splits.items():
        for image in images:
            imgid = len(rows)
            rng = random.Random(f"{seed}:captions:{image.file}")
            raws = list(enumerate(sentences(image.scene, rng, CAPTIONS), imgid * CAPTIONS))
            row = {
                "filepath": image.file.rpartition("/")[0],
                "filename": image.name,
                "imgid": imgid,
                "split": split,
                "sentids": [sentid for sentid, _ in raws],
                "sentences": [
                    {"tokens": raw.split(), "raw": raw, "imgid": imgid, "sentid": sentid}
                    for sentid, raw in raws
                ],
            }
            rows.append(row)
    return {"dataset": "scenes", "images": rows}
