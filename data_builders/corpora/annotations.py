"""Readers of annotated scenes: CLEVR, Visual Genome and what all graphs share.

In: annotation files. Out: images with their objects and relations. Never: an opened image.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar, TypeVar

from pydantic import PositiveInt
from typing_extensions import override

from data_builders.corpora.relations import Relation
from data_builders.measured import CLEVR, VISUAL_GENOME
from data_builders.missing_files import obtain
from data_builders.phrases import ATTRIBUTE_ORDER, PHRASES, Attribute, clear_direction
from data_builders.worlds.scenes.scene import subtract
from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json, reading

T = TypeVar("T")
Center = tuple[float, float] | None  # (x, y) in the picture, from 0 to 1, down from the top left


@dataclass(frozen=True)
class AnnotatedObject:
    """An object, the attributes queries state of it, and `readings`, every true attribute tuple.

    `single` and `multi` are the attributes in single-object and two-object queries, in word order.
    `center` is (x, y) in the picture, from 0 to 1, down from the top left; None where unknown.
    """

    name: str
    attributes: frozenset[str]
    single: tuple[str, ...]
    multi: tuple[str, ...]
    readings: tuple[tuple[str, ...], ...]
    center: Center = None


@dataclass(frozen=True)
class AnnotatedImage:
    """An image, by an id unique in the corpus, its file, its objects and their relations.

    `clear` are the relations that queries state, None for all of them. `bare` are the names of
    objects without annotated attributes: they may have any.
    """

    id: str
    file: Path
    objects: tuple[AnnotatedObject, ...]
    relations: tuple[Relation, ...] = ()
    clear: tuple[Relation, ...] | None = None
    bare: tuple[str, ...] = ()


class SceneReader(Configured, ABC):
    """Reads an annotation format, described by `content`, and a folder of images.

    With `exhaustive`, every object and attribute is annotated: anything else is false. `corpus` is
    where the images come from, of those that `data_builders.measured` tells apart.
    """

    exhaustive: ClassVar[bool]
    corpus: ClassVar[str | None] = None
    content: ClassVar[str]
    path: Path
    folder: Path

    def sources(self) -> Mapping[str, Path]:
        """Returns the annotation files, by name."""
        return {self.path.name: self.path}

    def images(self) -> Iterator[AnnotatedImage]:
        """Yields the annotated images, in the order of the file."""
        yield from parse_json(self.path, self.content, lambda content: list(self.parse(content)))

    @abstractmethod
    def parse(self, content: Any) -> Iterable[AnnotatedImage]:
        """Yields the images of the content of the file."""

    @abstractmethod
    def spelled(self, attributes: Sequence[str]) -> tuple[str, ...]:
        """Returns the attributes of a query in the one order in which this corpus states them."""

    def sensible(self, attributes: Sequence[str]) -> bool:
        """Tells whether one object can have these attributes: no object has two colours."""
        return len(set(attributes)) == len(attributes)


def parse_json(path: Path, expected: str, parse: Callable[[Any], T]) -> T:
    """Returns `parse` of a JSON file; raises `UserError` if the file has another layout."""
    content = read_json(path, expected, obtain(path))
    with reading(path, expected, "pass the file as distributed"):
        return parse(content)


def inside(folder: Path, name: str | PurePath, source: Path, entry: str) -> Path:
    """Returns the path of an image that an annotation file names, which must lie in `folder`.

    Shards copy the bytes of all named files; a downloaded list must not name other files.

    Example:
        >>> inside(Path("images"), "train/1.jpg", Path("rows.json"), "row 3").as_posix()
        'images/train/1.jpg'
    """
    path = PurePath(name)
    if path.anchor or ".." in path.parts:
        raise UserError(
            f"expected image files inside {folder}, {entry} of {source} is {str(name)!r}: "
            "use the file as distributed, or correct that name"
        )
    return folder / path


class ClevrScenes(SceneReader):
    """CLEVR's scenes JSON.

    Args:
        path: `CLEVR_<split>_scenes.json`, or `scenes_<split>.json` of the embedded world.
        images: Folder with the files that `image_filename` names.
        single: Attributes that a single-object query states, of size, texture, color, material;
            their words always come in that order.
        multi: Attributes that a two-object query states of each object.
        clear: Whether queries state only relations that stand out: along the direction of the
            relation the centres are at least 0.6 units apart, and 1.3 times as far as along the
            other direction. CLEVR states relations from 0.2 units on.
        size: Width and height of the images in pixels, of scenes that do not state them.
    """

    exhaustive = True
    content = "CLEVR scenes"
    corpus = CLEVR

    def __init__(self, path: Path, images: Path,
                 single: Sequence[Attribute] = ("color", "material"),
                 multi: Sequence[Attribute] = ("color",), clear: bool = False,
                 size: tuple[PositiveInt, PositiveInt] = (480, 320)) -> None:  # fmt: skip
        self.path, self.folder = Path(path), Path(images)
        self.clear, self.size = clear, size
        self._kinds: dict[str, str] = {}  # of each word
        self.single = tuple(kind for kind in ATTRIBUTE_ORDER if kind in single)
        self.multi = tuple(kind for kind in ATTRIBUTE_ORDER if kind in multi)

    @override
    def parse(self, content: Any) -> Iterable[AnnotatedImage]:
        for number, scene in enumerate(content["scenes"]):
            name = str(scene["image_filename"])
            file = inside(self.folder, name, self.path, f"scenes[{number}]")
            # CLEVR's files do not state it, those of the embedded world do.
            size = scene.get("image_size", self.size)
            objects = tuple(self._object(obj, size) for obj in scene["objects"])
            clear = _clear_relations(scene) if self.clear else None
            yield AnnotatedImage(file.stem, file, objects, _relations(scene), clear)

    def _object(self, obj: dict[str, Any], size: Sequence[float]) -> AnnotatedObject:
        kind_of = {obj[kind]: kind for kind in ATTRIBUTE_ORDER if kind in obj}
        self._kinds |= kind_of
        attributes = frozenset(kind_of)
        single = tuple(obj[kind] for kind in self.single)
        multi = tuple(obj[kind] for kind in self.multi)
        center = None
        if "pixel_coords" in obj:
            x, y, *_ = obj["pixel_coords"]
            center = (x / size[0], y / size[1])
        return AnnotatedObject(obj["shape"], attributes, single, multi, (single,), center)

    @override
    def spelled(self, attributes: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(attributes, key=lambda word: ATTRIBUTE_ORDER.index(self._kinds[word])))

    @override
    def sensible(self, attributes: Sequence[str]) -> bool:
        return len({self._kinds[word] for word in attributes}) == len(attributes)


def _relations(scene: dict[str, Any]) -> tuple[Relation, ...]:
    """A scene's relations; `relationships[r][i]` lists the objects that are `r` of object i."""
    stated: list[Relation] = []
    for name, lists in (scene.get("relationships") or {}).items():
        for other, subjects in enumerate(lists):
            stated += [(subject, PHRASES[name], other) for subject in subjects]
    return tuple(stated)


def _clear_relations(scene: dict[str, Any]) -> tuple[Relation, ...]:
    """The relations of a scene that stand out, of those that it states."""
    stated = frozenset(_relations(scene))
    clear: list[Relation] = []
    for (i, a), (j, b) in itertools.permutations(enumerate(scene["objects"]), 2):
        # An object on another stands in no direction of it.
        if a.get("on") == j or b.get("on") == i:
            continue
        offset = subtract(a["3d_coords"], b["3d_coords"])
        name = clear_direction(offset, scene["directions"])
        if name is not None and (i, PHRASES[name], j) in stated:
            clear.append((i, PHRASES[name], j))
    return tuple(clear)


class GraphReader(SceneReader):
    """Graphs of objects with a name and unordered attributes; none is stated without attributes.

    Queries state the alphabetically first attributes, lower-cased: one spelling per composition.

    Args:
        path: The annotation file.
        images: Folder with the images.
        single: Maximum number of attributes that a single-object query states; None for all.
        multi: Maximum number of attributes that a two-object query states of each object.
    """

    exhaustive = False

    def __init__(self, path: Path, images: Path, single: PositiveInt | None = 2,
                 multi: PositiveInt = 1) -> None:  # fmt: skip
        self.path, self.folder = Path(path), Path(images)
        self.single, self.multi = single, multi

    def _image(
        self, number: str, objects: Mapping[Any, tuple[str, Iterable[str], Center]], file: Path,
        relations: Iterable[tuple[Any, str, Any]] = (),
    ) -> AnnotatedImage:  # fmt: skip
        """The image, from its objects by key and from (key, phrase, key) of their relations."""
        kept: list[AnnotatedObject] = []
        bare: list[str] = []
        index: dict[Any, int] = {}
        for key, described in objects.items():
            obj = self._object(*described)
            if obj is None:
                bare.append(_normal(described[0]))
            else:
                index[key] = len(kept)
                kept.append(obj)
        known: list[Relation] = []
        for i, phrase, j in relations:
            # Relations of objects without attributes go with their objects.
            if i in index and j in index and i != j and phrase.strip():
                known.append((index[i], _normal(phrase), index[j]))
        return AnnotatedImage(number, file, tuple(kept), tuple(known), bare=tuple(bare))

    def _object(
        self, name: str, attributes: Iterable[str], center: Center
    ) -> AnnotatedObject | None:
        words = {_normal(word) for word in attributes} - {""}
        name = _normal(name)
        if not words or not name:
            return None
        order = tuple(sorted(words))
        longest = len(order) if self.single is None else self.single
        readings = (itertools.combinations(order, n) for n in range(1, longest + 1))
        return AnnotatedObject(
            name,
            frozenset(words),
            order[: self.single],
            order[: self.multi],
            tuple(itertools.chain.from_iterable(readings)),
            center,
        )

    @override
    def spelled(self, attributes: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(attributes))


def box_center(box: Sequence[Any], size: Sequence[Any]) -> Center:
    """Returns the centre of a box (x, y, width, height) in an image of size (width, height).

    None if the annotations lack a number: files of one's own may have no boxes.

    Example:
        >>> box_center((10, 0, 20, 50), (40, 100))
        (0.5, 0.25)
    """
    x, y, width, height = box
    if None in box or not all(size):
        return None
    return (x + width / 2) / size[0], (y + height / 2) / size[1]


def _normal(text: str) -> str:
    return " ".join(text.lower().split())


class VisualGenomeGraphs(GraphReader):
    """Visual Genome's `scene_graphs.json`; other arguments as for `GraphReader`.

    Args:
        images: Folder that holds `VG_100K` and `VG_100K_2`, or the files themselves.
        image_data: `image_data.json`, whose `url` names a file's folder; by default the file is
            `<image_id>.jpg`.
    """

    content = "Visual Genome scene graphs"
    corpus = VISUAL_GENOME

    def __init__(self, path: Path, images: Path, image_data: Path | None = None,
                 single: PositiveInt | None = 2, multi: PositiveInt = 1) -> None:  # fmt: skip
        super().__init__(path, images, single, multi)
        self.image_data = None if image_data is None else Path(image_data)

    @override
    def sources(self) -> Mapping[str, Path]:
        files = [self.path] if self.image_data is None else [self.path, self.image_data]
        return {file.name: file for file in files}

    @override
    def parse(self, content: Any) -> Iterable[AnnotatedImage]:
        files: dict[str, Path] = {}
        if self.image_data is not None:
            files = parse_json(self.image_data, "Visual Genome image data", _files)
        for graph in content:
            number = str(graph["image_id"])
            source = self.image_data if self.image_data and number in files else self.path
            name = files.get(number, f"{number}.jpg")
            nested = inside(self.folder, name, source, f"image {number!r}")
            file = nested if nested.is_file() else self.folder / nested.name
            objects: dict[int, tuple[str, Iterable[str], Center]] = {}
            for k, obj in enumerate(graph["objects"]):
                if obj["names"]:
                    key = obj.get("object_id", -1 - k)  # files of one's own may lack the ids
                    objects[key] = (obj["names"][0], obj.get("attributes") or (), None)
            rows = graph.get("relationships") or ()
            relations = [(row["subject_id"], row["predicate"], row["object_id"]) for row in rows]
            yield self._image(number, objects, file, relations)


def _files(content: Any) -> dict[str, Path]:
    """The folder and the name of each image's file, by id."""
    files = {}
    for image in content:
        # Releases call the id "image_id" or "id".
        number = image["image_id"] if "image_id" in image else image["id"]
        files[str(number)] = Path(*image["url"].split("/")[-2:])
    return files
