"""GQA's graphs and CLEVR's scenes of a few images."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_builders.corpora.annotations import ClevrScenes
from data_builders.corpora.gqa import GQAGraphs
from tests.data_builders.conftest import dump
from tests.data_builders.pictures import JPEG

Relations = Sequence[tuple[str, str, str]]  # key of the subject, phrase, key of the object


def gqa(
    folder: Path,
    images: Mapping[str, Mapping[str, str]],
    relations: Mapping[str, Relations] | None = None,
    **arguments: Any,
) -> GQAGraphs:
    """A reader of images with objects by key, "attribute ... name" with "_" for a blank."""
    graphs = {}
    for image, objects in images.items():
        graph = {}
        for key, text in objects.items():
            *attributes, name = text.split()
            attributes = [word.replace("_", " ") for word in attributes]
            graph[key] = {"name": name.replace("_", " "), "attributes": attributes}
            stated = (relations or {}).get(image, ())
            graph[key]["relations"] = [{"name": r, "object": j} for i, r, j in stated if i == key]
        graphs[image] = {"objects": graph}
        (folder / f"{image}.jpg").write_bytes(JPEG)
    return GQAGraphs(dump(folder / "graphs.json", graphs), folder, **arguments)


def numbered(*objects: str) -> dict[str, str]:
    """Objects by number."""
    return {str(k): text for k, text in enumerate(objects)}


def clevr_reader(world: Path, split: str = "train", **arguments: Any) -> ClevrScenes:
    """A reader of the scenes of a rendered world."""
    return ClevrScenes(world / f"clevr/scenes_{split}.json", world / f"images/{split}", **arguments)


def clevr_scenes(folder: Path, scenes: list[dict[str, Any]], *arguments: Any) -> ClevrScenes:
    """A reader of some scenes, numbered, whose images are there."""
    for number, scene in enumerate(scenes):
        scene["image_filename"] = f"{number}.png"
        (folder / f"{number}.png").write_bytes(JPEG)
    return ClevrScenes(dump(folder / "scenes.json", {"scenes": scenes}), folder, *arguments)


# CLEVR's colours, and those of each shape under condition A of CoGenT.
COLORS = ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow")
COGENT_A = {"cube": ("gray", "blue", "brown", "yellow"),
            "cylinder": ("red", "green", "purple", "cyan"), "sphere": COLORS}  # fmt: skip
KINDS = ("size", "color", "material", "shape")


def every_kind() -> list[dict[str, str]]:
    """The 96 kinds of objects that CLEVR has."""
    values = (("large", "small"), COLORS, ("rubber", "metal"), COGENT_A)
    return [dict(zip(KINDS, kind, strict=True)) for kind in itertools.product(*values)]


PHRASES = {"left": "to the left of", "right": "to the right of", "front": "in front of",
           "behind": "behind"}  # fmt: skip
RELATED = re.compile(rf"(.+?) ({'|'.join(PHRASES.values())}) (.+)")
