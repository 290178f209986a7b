"""Visual Genome's `scene_graphs.json` and `image_data.json` (Krishna et al. 2017)."""

from collections.abc import Sequence
from typing import Any

from data_builders.scenes.captions import PHRASES, clear_relation
from data_builders.scenes.drawing import Drawn

_IDS = 100  # object and relationship ids of an image are its id times this and upwards


def _graph(drawn: Drawn, image_id: int) -> dict[str, Any]:
    things = drawn.scene.objects
    objects = []
    for k, (thing, box) in enumerate(zip(things, drawn.boxes, strict=True)):
        said = [thing.color, thing.material, thing.size, thing.texture]
        objects.append(
            {
                "object_id": image_id * _IDS + k,
                **dict(zip("xywh", box, strict=True)),
                "names": [thing.shape],
                "synsets": [],
                "attributes": [word for word in said if word != "plain"],
            }
        )
    edges = [
        (i, relation, j)
        for i in range(len(things))
        for j in range(len(things))
        if i != j and (relation := clear_relation(drawn.scene, i, j))
    ]
    relationships = [
        {
            "relationship_id": image_id * _IDS + k,
            "predicate": PHRASES[relation],
            "subject_id": image_id * _IDS + i,
            "object_id": image_id * _IDS + j,
            "synsets": [],
        }
        for k, (i, relation, j) in enumerate(edges)
    ]
    return {"image_id": image_id, "objects": objects, "relationships": relationships}


def scene_graphs(drawn: Sequence[Drawn], first_id: int) -> list[dict[str, Any]]:
    """Returns the content of `scene_graphs.json`; image ids count up from `first_id`."""
    return [_graph(d, first_id + k) for k, d in enumerate(drawn)]


def image_data(drawn: Sequence[Drawn], first_id: int) -> list[dict[str, Any]]:
    """Returns the content of `image_data.json`; `url` ends with the folder and the file name."""
    return [
        {
            "image_id": first_id + k,
            "url": f"images/{d.file}",
            "width": d.size,
            "height": d.size,
            "coco_id": None,
            "flickr_id": None,
        }
        for k, d in enumerate(drawn)
    ]
