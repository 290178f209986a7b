"""Visual Genome's graphs, regions and image data (Krishna et al. 2017).

In: rendered scenes. Out: the contents of the files.
"""

from collections.abc import Sequence
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


def scene_graphs(images: Sequence[SceneImage], first_id: int) -> list[dict[str, Any]]:
    """Returns the content of `scene_graphs.json`; image ids count up from `first_id`."""
    return [_graph(image, first_id + k) for k, image in enumerate(images)]


def _regions(image: SceneImage, image_id: int) -> dict[str, Any]:
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


def region_descriptions(images: Sequence[SceneImage], first_id: int) -> list[dict[str, Any]]:
    """Returns the content of `region_descriptions.json`: a phrase for each object and relation."""
    return [_regions(image, first_id + k) for k, image in enumerate(images)]


def image_data(images: Sequence[SceneImage], first_id: int) -> list[dict[str, Any]]:
    """Returns the content of `image_data.json`; `url` ends with the folder and the file name."""
    return [
        {"image_id": first_id + k, "url": f"images/{image.file}", "width": image.size,
         "height": image.size, "coco_id": None, "flickr_id": None}
        for k, image in enumerate(images)
    ]  # fmt: skip
