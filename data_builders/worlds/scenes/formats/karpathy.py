"""Karpathy's caption JSON, as in `dataset_coco.json`.

In: rendered scenes. Out: the content of the file.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from data_builders.worlds.scenes.captions import placement, sentences
from data_builders.worlds.scenes.image_files import SceneImage

CAPTIONS = 5


def dataset(
    splits: Mapping[str, Sequence[SceneImage]], seed: int, placements: int = 0
) -> dict[str, Any]:
    """Returns the content of `dataset_scenes.json`: five captions an image.

    Training images get up to `placements` further ones, which state sides of the picture.
    """
    rows: list[dict[str, Any]] = []
    for split, images in splits.items():
        for image in images:
            imgid = len(rows)
            rng = random.Random(f"{seed}:captions:{image.file}")
            texts = sentences(image.scene, rng, CAPTIONS)
            if split == "train":
                placed = (placement(image.scene, rng) for _ in range(placements))
                texts += [text for text in dict.fromkeys(placed) if text]
            raws = list(enumerate(texts, imgid * (CAPTIONS + placements)))
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
