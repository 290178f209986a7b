"""ARO's VG-Relation and VG-Attribution (Yuksekgonul et al. 2023, section 2).

In: rendered scenes. Out: rows of both files.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from data_builders.phrases import PHRASES
from data_builders.worlds.scenes.formats.context import SceneContext, SuiteScenes
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.scene import GROUND_RELATIONS
from data_builders.worlds.scenes.statements import relation_holds

Row = dict[str, Any]
Box = tuple[int, int, int, int]  # x, y, width, height
Captions = tuple[str, str]


def relation(scenes: SuiteScenes) -> list[Row]:
    """Rows: "the red cube is behind the blue sphere"; the false caption exchanges the objects.

    A row states the relation of its scene that fewest rows state. No relation has more than a
    quarter of the rows, unless the file would then have too few.
    """
    rows: list[tuple[SceneImage, tuple[Captions, str]]] = []
    for most in (-(-scenes.count // len(GROUND_RELATIONS)), scenes.count):
        if len(rows) < scenes.count:
            rows = scenes.rows("aro relation", _related(most))
    return [
        {**_row(image, captions, (0, 0, image.size, image.size)), "relation_name": phrase}
        for image, (captions, phrase) in rows
    ]


def _related(most: int) -> Callable[[SceneContext], tuple[Captions, str] | None]:
    """Writes the captions of a row and their relation, each relation so often at most."""
    stated: Counter[str] = Counter()

    def write(context: SceneContext) -> tuple[Captions, str] | None:
        for first, name, second in sorted(context.relations(), key=lambda edge: stated[edge[1]]):
            false = relation_holds(context.scene, second, name, first) is False
            if false and stated[name] < most:
                stated[name] += 1
                verb = f"is {PHRASES[name]}"
                captions = f"the {first} {verb} the {second}", f"the {second} {verb} the {first}"
                return captions, PHRASES[name]
        return None

    return write


def attribution(scenes: SuiteScenes) -> list[Row]:
    """Rows: "the red cube and the blue sphere"; the false caption exchanges the attributes."""

    def write(context: SceneContext) -> tuple[Captions, list[str | None], int, int] | None:
        for ((a, b), (c, d)), i, j, kind in context.exchanges(*context.kinds):
            captions = f"the {a} and the {b}", f"the {c} and the {d}"
            return captions, [a.get(kind), b.get(kind)], i, j
        return None

    rows = []
    for image, (captions, values, i, j) in scenes.rows("aro attribution", write):
        box = around(image.boxes[i], image.boxes[j])
        rows.append(_row(image, captions, box) | {"attributes": values})
    return rows


def _row(image: SceneImage, captions: Captions, box: Sequence[int]) -> Row:
    return {"image_id": image.index, "image_path": image.name,
            **dict(zip(("bbox_x", "bbox_y", "bbox_w", "bbox_h"), box, strict=True)),
            "true_caption": captions[0], "false_caption": captions[1]}  # fmt: skip


def around(first: Box, second: Box) -> Box:
    """Returns the smallest box that holds both."""
    x, y = min(first[0], second[0]), min(first[1], second[1])
    right, bottom = (max(first[k] + first[k + 2], second[k] + second[k + 2]) for k in (0, 1))
    return x, y, right - x, bottom - y
