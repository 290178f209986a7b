"""GQA's scene graphs, read as images with named objects."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from data_builders.annotations import AnnotatedImage, VisualGenomeGraphs, parsed, read_json

_WHAT = "GQA scene graphs"


class GQAGraphs(VisualGenomeGraphs):
    """GQA's `train_sceneGraphs.json`, Visual Genome's graphs after cleaning (Hudson et al. 2019).

    `{image id: {"objects": {object id: {"name", "attributes", ...}}}}`. Names and attributes are
    read as `VisualGenomeGraphs` reads them.

    Args:
        path: `train_sceneGraphs.json`.
        images: Folder with the files `<image id>.jpg`.
        single: Most attributes that a single-object query states.
        multi: Most attributes that a two-object query states of each object.
    """

    def __init__(self, path: Path, images: Path, single: int = 2, multi: int = 1) -> None:
        super().__init__(path, images, None, single, multi)

    def sources(self) -> Mapping[str, Path]:
        """See `SceneReader`."""
        return {self.path.name: self.path}

    def images(self) -> Iterator[AnnotatedImage]:
        """See `SceneReader`."""
        content = read_json(self.path, _WHAT)
        yield from parsed(
            self.path, _WHAT, lambda: [self._graph(key, graph) for key, graph in content.items()]
        )

    def _graph(self, key: str, graph: dict) -> AnnotatedImage:
        things = [
            {"names": [thing["name"]], "attributes": thing["attributes"]}
            for thing in graph["objects"].values()
        ]
        return self._image({"image_id": key, "objects": things}, {})
