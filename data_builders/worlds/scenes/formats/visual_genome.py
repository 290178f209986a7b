"""Visual Genome's graphs, regions and image data (Krishna et al. 2017).

In: rendered scenes. Out: the contents of the files.
"""

from collections.abc import Callable
from typing import Any

from data_builders.phrases import ATTRIBUTE_ORDER, PHRASES, related
from data_builders.worlds.scenes.captions import query
from data_builders.worlds.scenes.formats.aro import around
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.statements import clear_relations, stated_kinds

_IDS = 100  # ids of objects, relationships and regions count up from the image's times this


def _graph(image: SceneImage, image_id: int) -> dict[str, Any]:
    first, kinds = image_id * _IDS, ("color", "material", "size", "texture")
    objects: list[dict[str, Any]] = []
    for obj, box in zip(image.scene.objects, image.boxes, strict=True):
        row = {"object_id": first + len(objects), **dict(zip("xywh", box, strict=True))}
        attributes = [getattr(obj, kind) for kind in stated_kinds(obj, kinds)]
        objects.append(row | {"names": [obj.shape], "synsets": [], "attributes": attributes})
    relationships: list[dict[str, Any]] = []
    for i, relation, j in clear_relations(image.scene):
        row = {"relationship_id": first + len(relationships), "predicate": PHRASES[relation]}
        ends = {"subject_id": first + i, "object_id": first + j}
        relationships.append(row | ends | {"synsets": []})
    return {"image_id": image_id, "objects": objects, "relationships": relationships}


def _regions(image: SceneImage, image_id: int) -> dict[str, Any]:
    """A phrase for each object and relation."""
    objects, boxes = image.scene.objects, image.boxes
    phrases = []
    for obj, box in zip(objects, boxes, strict=True):
        phrases.append((query(obj, stated_kinds(obj, ATTRIBUTE_ORDER)), box))
    for i, relation, j in clear_relations(image.scene):
        phrase = related(query(objects[i]), relation, query(objects[j]))
        phrases.append((phrase, around(boxes[i], boxes[j])))
    regions: list[dict[str, Any]] = []
    for phrase, box in phrases:
        region = {"region_id": image_id * _IDS + len(regions), "image_id": image_id}
        region["phrase"] = phrase
        regions.append(region | dict(zip(("x", "y", "width", "height"), box, strict=True)))
    return {"id": image_id, "regions": regions}


def _data(image: SceneImage, image_id: int) -> dict[str, Any]:
    return {"image_id": image_id, "url": f"images/{image.file}", "width": image.size,
            "height": image.size, "coco_id": None, "flickr_id": None}  # fmt: skip


# What the files of Visual Genome have of each image, by their names.
PARTS: dict[str, Callable[[SceneImage, int], dict[str, Any]]] = {
    "scene_graphs": _graph,
    "region_descriptions": _regions,
    "image_data": _data,
}
