"""CLEVR's scenes JSON (Johnson et al. 2017, `render_images.py`).

In: rendered scenes. Out: the content of the file.
"""

from collections.abc import Sequence
from typing import Any

from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.sampling import relations
from data_builders.worlds.scenes.scene import GROUND_RELATIONS


def _object(image: SceneImage, index: int) -> dict[str, Any]:
    obj = image.scene.objects[index]
    return {
        **{key: getattr(obj, key) for key in ("shape", "size", "material", "color")},
        "3d_coords": _rounded(obj.center, 6),
        "rotation": round(obj.rotation, 4),
        "pixel_coords": _rounded(image.pixel_coords[index], 4),
        # CLEVR lacks the following keys.
        "texture": obj.texture,
        "on": obj.on,
        "box": list(image.boxes[index]),
    }


def _rounded(numbers: Sequence[float], digits: int) -> list[float]:
    return [round(number, digits) for number in numbers]


def scene_graph(split: str, image: SceneImage) -> dict[str, Any]:
    """Returns an entry of `scenes_<split>.json`: the scene of one image."""
    scene, table = image.scene, relations(image.scene)
    return {
        "split": split,
        "image_index": image.index,
        "image_filename": image.name,
        "objects": [_object(image, k) for k in range(len(scene.objects))],
        "directions": {name: _rounded(axis, 9) for name, axis in scene.view.axes.items()},
        "relationships": {name: table[name] for name in GROUND_RELATIONS},
        "image_size": [image.size, image.size],
        "floor": scene.floor,
        "background": scene.background,
    }


def scenes(split: str, images: Sequence[SceneImage]) -> dict[str, Any]:
    """Returns the content of `scenes_<split>.json`.

    CLEVR's objects lack "texture", "on" and "box", and its scenes "image_size" and what follows it.
    `relationships[r][i]` lists the objects that are `r` of object i, by more than 0.2.
    """
    info = {"split": split, "date": "", "version": "1.0", "license": "CC0 1.0 (rendered)"}
    return {"info": info, "scenes": [scene_graph(split, image) for image in images]}
