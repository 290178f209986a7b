"""Visual Genome's scene graphs, region descriptions and image data (Krishna et al. 2017)."""

import itertools
from collections.abc import Sequence
from typing import Any

from data_builders.scenes.captions import ATTRIBUTE_ORDER, PHRASES, clear_relation, query, related
from data_builders.scenes.drawing import Drawn

Box = tuple[int, int, int, int]  # x, y, width, height
_IDS = 100  # ids of objects, relationships and regions are the image's times this and upwards


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


def _regions(drawn: Drawn, image_id: int) -> dict[str, Any]:
    things = drawn.scene.objects
    kinds = [[k for k in ATTRIBUTE_ORDER if getattr(t, k) != "plain"] for t in things]
    said = [(query(t, k), box) for t, k, box in zip(things, kinds, drawn.boxes, strict=True)]
    for i, j in itertools.permutations(range(len(things)), 2):
        if relation := clear_relation(drawn.scene, i, j):
            phrase = related(query(things[i]), relation, query(things[j]))
            said.append((phrase, _around(drawn.boxes[i], drawn.boxes[j])))
    regions = [
        {
            "region_id": image_id * _IDS + k,
            "image_id": image_id,
            "phrase": phrase,
            **dict(zip(("x", "y", "width", "height"), box, strict=True)),
        }
        for k, (phrase, box) in enumerate(said)
    ]
    return {"id": image_id, "regions": regions}


def _around(first: Box, second: Box) -> Box:
    """The smallest box that holds both."""
    x, y = min(first[0], second[0]), min(first[1], second[1])
    right, bottom = (max(first[k] + first[k + 2], second[k] + second[k + 2]) for k in (0, 1))
    return x, y, right - x, bottom - y


def region_descriptions(drawn: Sequence[Drawn], first_id: int) -> list[dict[str, Any]]:
    """Returns the content of `region_descriptions.json`: a phrase for each object and relation."""
    return [_regions(d, first_id + k) for k, d in enumerate(drawn)]


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
