"""Karpathy's caption JSON, as `dataset_coco.json` and `dataset_flickr30k.json` have it."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from data_builders.scenes.captions import sentences
from data_builders.scenes.drawing import Drawn

CAPTIONS = 5


def dataset(splits: Mapping[str, Sequence[Drawn]], seed: int) -> dict[str, Any]:
    """Returns the content of `dataset_scenes.json`: five captions an image, drawn from `seed`."""
    images: list[dict[str, Any]] = []
    for split, drawn in splits.items():
        for d in drawn:
            imgid = len(images)
            raws = sentences(d.scene, random.Random(f"{seed}:captions:{d.file}"), CAPTIONS)
            sentids = list(range(imgid * CAPTIONS, imgid * CAPTIONS + len(raws)))
            folder, _, name = d.file.rpartition("/")
            images.append(
                {
                    "filepath": folder,
                    "filename": name,
                    "imgid": imgid,
                    "split": split,
                    "sentids": sentids,
                    "sentences": [
                        {"tokens": raw.split(), "raw": raw, "imgid": imgid, "sentid": sentid}
                        for raw, sentid in zip(raws, sentids, strict=True)
                    ],
                }
            )
    return {"dataset": "scenes", "images": images}
