"""ARO's Visual Genome Relation and Attribution (Yuksekgonul et al. 2023, section 2)."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from data_builders.scenes.captions import PHRASES
from data_builders.scenes.drawing import Drawn
from data_builders.scenes.statements import edges, exchangeable, noun, related

Row = dict[str, Any]


def relation(drawn: Sequence[Drawn], seed: int) -> Iterator[Row]:
    """Yields items of `visual_genome_relation.json`, one of each scene that allows one.

    "the red cube is behind the blue sphere"; the false caption exchanges the two. The box is the
    whole image.
    """
    for d in drawn:
        rng = random.Random(f"{seed}:aro relation:{d.file}")
        stated = edges(d.scene, range(len(d.scene.objects)))
        for i, name, j in rng.sample(stated, len(stated)):
            first, second = (noun(d.scene.objects[k]) for k in (i, j))
            if related(d.scene, second, name, first) is not False:
                continue
            verb = f"is {PHRASES[name]}"
            texts = (f"the {a} {verb} the {b}" for a, b in ((first, second), (second, first)))
            yield {**_item(d, texts, (0, 0, d.size, d.size)), "relation_name": PHRASES[name]}
            break


def attribution(
    drawn: Sequence[Drawn], kinds: Mapping[str, Sequence[str]], seed: int
) -> Iterator[Row]:
    """Yields items of `visual_genome_attribution.json`, one of each scene that allows one.

    "the red cube and the blue sphere"; the false caption exchanges the attributes. The box holds
    both objects.

    Args:
        drawn: The scenes.
        kinds: Which attributes, as `statements.varied` has them.
        seed: Of the choice.
    """
    for d in drawn:
        rng = random.Random(f"{seed}:aro attribution:{d.file}")
        choices = [
            (i, j, kind) for i, j in permutations(range(len(d.scene.objects)), 2) for kind in kinds
        ]
        for i, j, kind in rng.sample(choices, len(choices)):
            if pair := exchangeable(d.scene, i, j, kind):
                (first, second), (third, fourth) = pair
                texts = f"the {first} and the {second}", f"the {third} and the {fourth}"
                said = [first.get(kind), second.get(kind)]
                yield {**_item(d, texts, _around(d, i, j)), "attributes": said}
                break


def _item(d: Drawn, texts: Any, box: Sequence[int]) -> Row:
    true, false = texts
    return {
        "image_id": d.index,
        "image_path": d.file.rpartition("/")[2],
        **dict(zip(("bbox_x", "bbox_y", "bbox_w", "bbox_h"), box, strict=True)),
        "true_caption": true,
        "false_caption": false,
    }


def _around(d: Drawn, i: int, j: int) -> tuple[int, int, int, int]:
    """The smallest box that holds both objects' boxes."""
    boxes = [d.boxes[k] for k in (i, j)]
    x, y = (min(box[k] for box in boxes) for k in (0, 1))
    right, low = (max(box[k] + box[k + 2] for box in boxes) for k in (0, 1))
    return x, y, right - x, low - y
