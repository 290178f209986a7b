"""Cola's multi-object and single-object files (Ray et al. 2023).

In: rendered scenes. Out: the contents of the files.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from data_builders.phrases import both
from data_builders.worlds.scenes.captions import query
from data_builders.worlds.scenes.image_files import SceneImage, pairs_of
from data_builders.worlds.scenes.pairs import first_two
from data_builders.worlds.scenes.sampling import Composition


def multi(images: Sequence[SceneImage]) -> list[list[str]]:
    """Returns `[image_1, caption_1, image_2, caption_2]` for each item; images without a folder."""
    items = []
    for _, pair in pairs_of(images):
        item: list[str] = []
        for image in pair:
            item += [image.name, both(*first_two(image.scene))]
        items.append(item)
    return items


def single(images: Sequence[SceneImage], attributes: Sequence[str]) -> dict[str, Any]:
    """Returns `{"labels": queries, "data": [[image, objects, label, hard_list], ...]}`.

    label[c] is 1 where an object has all words of query c; hard_list[c] is 1 where the image has
    any word of it, on any object (Cola, section 3).
    """
    # One spelling per composition: words in the order of `query`, the shape last.
    queries: list[list[str]] = []
    for image in images:
        queries.append([query(obj, attributes) for obj in image.scene.objects])
    labels = sorted(set(itertools.chain(*queries)))
    data = []
    for image, texts in zip(images, queries, strict=True):
        present = set(" ".join(texts).split())
        annotation: list[list[Any]] = []
        for text in texts:
            *words, shape = text.split()
            annotation.append([words, shape])
        label = [int(text in texts) for text in labels]
        hard = [int(not present.isdisjoint(text.split())) for text in labels]
        data.append([image.file, annotation, label, hard])
    return {"labels": labels, "data": data}


def single_split(
    images: Sequence[SceneImage], attributes: Sequence[str], unseen: frozenset[Composition]
) -> dict[str, list[str]]:
    """Returns which labels of `single` state a composition that training never showed."""
    labels: dict[str, set[str]] = {"seen": set(), "unseen": set()}
    for image in images:
        for obj in image.scene.objects:
            composition = (obj.color, obj.shape)
            side = "unseen" if composition in unseen else "seen"
            labels[side].add(query(obj, attributes))
    return {side: sorted(texts) for side, texts in labels.items()}
