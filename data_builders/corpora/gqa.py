"""A reader of GQA's scene graphs (Hudson et al. 2019).

In: `train_sceneGraphs.json`. Out: images with named objects. Never: an opened image.
"""

from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from data_builders.corpora.annotations import AnnotatedImage, GraphReader, box_center, inside
from data_builders.measured import VISUAL_GENOME


class GQAGraphs(GraphReader):
    """`train_sceneGraphs.json` (Hudson et al. 2019); image files are `<image id>.jpg`."""

    content = "GQA scene graphs"
    corpus = VISUAL_GENOME

    @override
    def parse(self, content: Any) -> Iterable[AnnotatedImage]:
        for number, graph in content.items():
            file = inside(self.folder, f"{number}.jpg", self.path, f"image {number!r}")
            size = (graph.get("width"), graph.get("height"))
            objects = {}
            relations = []
            for key, obj in graph["objects"].items():
                center = box_center([obj.get(name) for name in "xywh"], size)
                objects[key] = (obj["name"], obj["attributes"], center)
                for relation in _listed(obj.get("relations")):
                    relations.append((key, relation["name"], relation["object"]))
            yield self._image(number, objects, file, relations)


def _listed(relations: Any) -> list[Any]:
    """The relations of an object as a list; GQA's site shows a list and, in its example, one."""
    return [relations] if isinstance(relations, dict) else list(relations or ())
