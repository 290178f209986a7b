"""CLEVR's scenes JSON (Johnson et al. 2017; clevr-dataset-gen, `render_images.py`)."""

from collections.abc import Sequence
from typing import Any

from data_builders.scenes.drawing import Drawn
from data_builders.scenes.grammar import directions, relations

RELATIONS = ("left", "right", "front", "behind")


def _object(drawn: Drawn, index: int) -> dict[str, Any]:
    thing = drawn.scene.objects[index]
    return {
        "shape": thing.shape,
        "size": thing.size,
        "material": thing.material,
        "color": thing.color,
        "3d_coords": [round(x, 6) for x in thing.center],
        "rotation": round(thing.rotation, 4),
        "pixel_coords": [round(x, 4) for x in drawn.pixel_coords[index]],
        # What follows is not CLEVR's.
        "texture": thing.texture,
        "on": thing.on,
        "box": list(drawn.boxes[index]),
    }


def _scene(split: str, drawn: Drawn) -> dict[str, Any]:
    scene, edges = drawn.scene, relations(drawn.scene)
    return {
        "split": split,
        "image_index": drawn.index,
        "image_filename": drawn.file.rpartition("/")[2],
        "objects": [_object(drawn, k) for k in range(len(scene.objects))],
        "directions": {
            name: [round(x, 9) for x in axis] for name, axis in directions(scene.jitter).items()
        },
        "relationships": {name: edges[name] for name in RELATIONS},
        "floor": scene.floor,
        "background": scene.background,
    }


def scenes(split: str, drawn: Sequence[Drawn]) -> dict[str, Any]:
    """Returns the content of `scenes_<split>.json`.

    `relationships[r][i]` lists the objects that are `r` of object i: their centres differ along
    `directions[r]` by more than 0.2. Beside CLEVR's keys an object has "texture", "on" (the index
    of what it stands on, or null) and "box" (x, y, width, height in pixels).
    """
    info = {"split": split, "date": "", "version": "1.0", "license": "CC0 1.0 (rendered)"}
    return {"info": info, "scenes": [_scene(split, d) for d in drawn]}
