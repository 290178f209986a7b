"""GQA's scene graphs of a few images, and the truth of queries by brute force."""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

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
            graph[key] = {"name": name.replace("_", " "), "attributes": attributes}
            stated = (relations or {}).get(image, ())
            graph[key]["relations"] = [{"name": r, "object": j} for i, r, j in stated if i == key]
        graphs[image] = {"objects": graph}
        (folder / f"{image}.jpg").write_bytes(JPEG)
    return GQAGraphs(dump(folder / "graphs.json", graphs), folder, **arguments)


def numbered(*objects: str) -> dict[str, str]:
    """Objects by number."""
    return {str(k): text for k, text in enumerate(objects)}


PAIR = re.compile(r"an? (.+) and an? (.+)")


def by_brute_force(text: str, objects: Sequence[Collection[str]]) -> bool:
    """Whether the words of a query hold of some objects, each its words, by trying all of them."""
    match = PAIR.fullmatch(text)
    queries = [set(part.split()) for part in (match.groups() if match else (text,))]
    return any(
        all(query <= set(obj) for query, obj in zip(queries, chosen, strict=True))
        for chosen in itertools.permutations(objects, len(queries))
    )
