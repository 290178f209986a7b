"""Karpathy's caption JSON, as in `dataset_coco.json`.

In: rendered scenes. Out: the content of the file.
"""

import random
from collections.abc import Container, Mapping, Sequence
from typing import Any

from data_builders.worlds.scenes.captions import placement, sentences
from data_builders.worlds.scenes.image_files import SceneImage

CAPTIONS = 5


def dataset(
    splits: Mapping[str, Sequence[SceneImage]],
    seed: int,
    placements: int = 0,
    constant: Container[str] = (),
) -> dict[str, Any]:
    """Returns the content of `dataset_scenes.json`: five captions an image.

    Training images get up to `placements` further ones, which state sides of the picture. Their
    captions leave out the words of `constant`, which are true of every object, and may then repeat
    each other; a repeated one is left out.
    """
    rows: list[dict[str, Any]] = []
    for split, images in splits.items():
        for image in images:
            imgid = len(rows)
            rng = random.Random(f"{seed}:captions:{image.file}")
            texts = sentences(image.scene, rng, CAPTIONS)
            if split == "train":
                placed = (placement(image.scene, rng) for _ in range(placements))
                texts += [text for text in placed if text]
                # A model that read "large" of all objects would believe it of small ones.
                texts = [_without(constant, text) for text in texts]
                texts = list(dict.fromkeys(texts))
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


def _without(words: Container[str], text: str) -> str:
    return " ".join(word for word in text.split() if word not in words)
