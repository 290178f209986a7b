"""Cola's benchmark files (Ray et al. 2023): multi-object matching and single-object retrieval."""

from collections.abc import Sequence
from typing import Any

from data_builders.scenes.captions import (
    ATTRIBUTE_ORDER,
    both,
    clear_relation,
    query,
    related,
)
from data_builders.scenes.compositions import Pair
from data_builders.scenes.drawing import Drawn
from data_builders.scenes.grammar import Scene, SceneObject
from data_builders.scenes.twins import ColaTwins


def _caption(scene: Scene, relation: str | None) -> str:
    first, second = (query(thing) for thing in scene.objects[:2])
    return both(first, second) if relation is None else related(first, relation, second)


def multi(drawn: Sequence[Drawn], series: ColaTwins) -> list[list[str]]:
    """Returns `[image_1, caption_1, image_2, caption_2]` for each item of a drawn series.

    Images are named by file name alone, as Cola resolves them.
    """
    items = []
    for k in range(0, len(drawn), 2):
        relation = None
        if series.is_relational(k // 2):
            relation = clear_relation(drawn[k].scene, 0, 1)
        item: list[str] = []
        for d in drawn[k : k + 2]:
            item += [d.file.rpartition("/")[2], _caption(d.scene, relation)]
        items.append(item)
    return items


def single(drawn: Sequence[Drawn], attributes: Sequence[str]) -> dict[str, Any]:
    """Returns `{"labels": queries, "data": entries}` over all images of a split.

    A label is a query that at least one image satisfies. An entry is
    `[image, [[attributes, object], ...], label, hard_list]`: label[c] is 1 where an object has all
    words of query c, hard_list[c] is 1 where the image has any word of it, on whichever object
    (Cola, section 3).
    """
    # One spelling per composition: words in the order of `query`, the shape last.
    things = [[query(o, attributes) for o in d.scene.objects] for d in drawn]
    labels = sorted({words for row in things for words in row})
    split = [set(label.split()) for label in labels]
    data = []
    for d, row in zip(drawn, things, strict=True):
        words = {word for text in row for word in text.split()}
        annotation = [[text.split()[:-1], text.split()[-1]] for text in row]
        label = [int(label in row) for label in labels]
        data.append([d.file, annotation, label, [int(not words.isdisjoint(q)) for q in split]])
    return {"labels": labels, "data": data}


def single_split(
    drawn: Sequence[Drawn], attributes: Sequence[str], unseen: frozenset[Pair]
) -> dict[str, list[str]]:
    """Returns which labels of `single` state a composition that training never showed."""
    kinds = [kind for kind in ATTRIBUTE_ORDER if kind in attributes]
    found: dict[str, set[str]] = {"seen": set(), "unseen": set()}

    def add(thing: SceneObject) -> None:
        new = (thing.color, thing.shape) in unseen
        found["unseen" if new else "seen"].add(query(thing, kinds))

    for d in drawn:
        for thing in d.scene.objects:
            add(thing)
    return {name: sorted(labels) for name, labels in found.items()}
