"""GQA's scene graphs go in, images with named objects come out. Never opens an image."""

from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from data_builders.annotations import AnnotatedImage, GraphReader, inside


class GQAGraphs(GraphReader):
    """`train_sceneGraphs.json` (Hudson et al. 2019); image files are `<image id>.jpg`."""

    content = "GQA scene graphs"

    @override
    def parse(self, content: Any) -> Iterable[AnnotatedImage]:
        for number, graph in content.items():
            file = inside(self.folder, f"{number}.jpg", self.path, f"image {number!r}")
            objects = ((o["name"], o["attributes"]) for o in graph["objects"].values())
            yield self._image(number, objects, file)
