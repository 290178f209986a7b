"""Scenes JSON like CLEVR's, sampled without a renderer, and a naive executor that reads it.

The executor shares no code with the package: it works on lists of dicts, and takes relations from
coordinates.
"""

import random
from typing import Any

WORDS = {
    "size": ["small", "large"],
    "color": ["gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow"],
    "material": ["rubber", "metal"],
    "shape": ["cube", "sphere", "cylinder"],
}
MARGIN = 0.2
DIRECTIONS = {
    "right": [0.6, 0.8, 0.0],
    "left": [-0.6, -0.8, 0.0],
    "behind": [-0.8, 0.6, 0.0],
    "front": [0.8, -0.6, 0.0],
}


class IllPosed(Exception):
    """A reference to not exactly one object."""


def scene(rng: random.Random, index: int, low: int = 3, high: int = 10) -> dict[str, Any]:
    objects = [
        {kind: rng.choice(values) for kind, values in WORDS.items()}
        | {"3d_coords": [rng.uniform(-3, 3), rng.uniform(-3, 3), 0.5]}
        for _ in range(rng.randint(low, high))
    ]
    for obj in objects:
        obj["pixel_coords"] = pixels(obj["3d_coords"])
    return with_relations(objects, index)


def pixels(point: list[float]) -> list[float]:
    """Where a camera far above sees a point, in 480 x 320 pixels, and a depth."""
    right, front = (
        sum(a * b for a, b in zip(point, DIRECTIONS[name], strict=True))
        for name in ("right", "front")
    )
    return [240 + 40 * right, 160 + 30 * front, 10.0]


def with_relations(objects: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    related = {
        name: [[j for j in range(len(objects)) if stands(objects, name, j, i)]
               for i in range(len(objects))]
        for name in DIRECTIONS
    }  # fmt: skip
    return {
        "split": "val",
        "image_index": index,
        "image_filename": f"scene_{index:06d}.png",
        "objects": objects,
        "directions": DIRECTIONS,
        "relationships": related,
    }


def stands(objects: list[dict[str, Any]], name: str, j: int, i: int) -> bool:
    """Whether object j is `name` of object i."""
    a, b, axis = objects[i]["3d_coords"], objects[j]["3d_coords"], DIRECTIONS[name]
    return j != i and sum((b[k] - a[k]) * axis[k] for k in range(3)) > MARGIN


def content(count: int, seed: int = 0, low: int = 3, high: int = 10) -> dict[str, Any]:
    rng = random.Random(seed)
    return {"info": {"split": "val"}, "scenes": [scene(rng, i, low, high) for i in range(count)]}


def only(objects: list[int]) -> int:
    if len(objects) != 1:
        raise IllPosed
    return objects[0]


def alike(objects: list[dict[str, Any]], kind: str, i: int) -> list[int]:
    return [j for j, obj in enumerate(objects) if obj[kind] == objects[i][kind] and j != i]


OPERATIONS = {  # verb -> of all objects, the rest of the function's name, the side input, inputs
    "scene": lambda objects, kind, side: list(range(len(objects))),
    "unique": lambda objects, kind, side, a: only(a),
    "relate": lambda objects, kind, side, a: [
        j for j in range(len(objects)) if stands(objects, side, j, a)
    ],
    "count": lambda objects, kind, side, a: len(a),
    "exist": lambda objects, kind, side, a: a != [],
    "intersect": lambda objects, kind, side, a, b: [j for j in a if j in b],
    "union": lambda objects, kind, side, a, b: a + [j for j in b if j not in a],
    "less": lambda objects, kind, side, a, b: a < b,
    "greater": lambda objects, kind, side, a, b: a > b,
    "equal": lambda objects, kind, side, a, b: a == b,
    "filter": lambda objects, kind, side, a: [j for j in a if objects[j][kind] == side],
    "query": lambda objects, kind, side, a: objects[a][kind],
    "same": lambda objects, kind, side, a: alike(objects, kind, a),
}


def in_half(scene: dict[str, Any], side: str) -> list[int]:
    """The objects in that half of the image."""
    width, height = scene.get("image_size", (480, 320))
    found = []
    for j, obj in enumerate(scene["objects"]):
        x, y, *_ = obj["pixel_coords"]
        across = {"left": x < width / 2, "right": x > width / 2}
        if (across | {"front": y > height / 2, "behind": y < height / 2})[side]:
            found.append(j)
    return found


def naive(program: list[dict[str, Any]], scene: dict[str, Any], absolute: bool = False) -> Any:
    """The answer of a program of a questions JSON; `absolute` takes relations for halves."""

    def value(number: int) -> Any:
        step, objects = program[number], scene["objects"]
        verb, _, kind = step["function"].partition("_")
        side = step["value_inputs"][0] if step["value_inputs"] else None
        inputs = [value(i) for i in step["inputs"]]
        if absolute and verb == "relate":
            return in_half(scene, side)
        return OPERATIONS[verb](objects, kind, side, *inputs)

    return value(len(program) - 1)


def word(answer: Any) -> str:
    return {True: "yes", False: "no"}[answer] if isinstance(answer, bool) else str(answer)
