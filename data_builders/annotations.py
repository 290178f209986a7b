"""Scene annotations in the formats they are distributed in, read as images with named objects."""

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from data_builders.images import inside
from data_builders.scenes.captions import ATTRIBUTE_ORDER
from vlmtune.config import Configured
from vlmtune.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class AnnotatedObject:
    """An object and what queries say of it.

    Attributes:
        name: What it is, "cube".
        attributes: All annotated attributes.
        single: Those that a single-object query states, in the order of the words.
        multi: Those that a two-object query states.
        readings: Every attribute tuple that a single-object query of the corpus may state and that
            is true of the object, `single` among them.
    """

    name: str
    attributes: frozenset[str]
    single: tuple[str, ...]
    multi: tuple[str, ...]
    readings: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class AnnotatedImage:
    """An image, by an id unique in the corpus, its file and its objects."""

    id: str
    file: Path
    objects: tuple[AnnotatedObject, ...]


class SceneReader(Configured, ABC):
    """Reads one annotation format.

    Attributes:
        exhaustive: True where all objects and attributes of an image are annotated, so that what
            is not annotated is false.
    """

    exhaustive: bool

    @abstractmethod
    def sources(self) -> Mapping[str, Path]:
        """The annotation files, by name."""

    @abstractmethod
    def images(self) -> Iterator[AnnotatedImage]:
        """Yields the annotated images, in the order of the file.

        Raises:
            UserError: A file is missing or is not what it should be, or names an image outside the
                images folder.
        """

    @abstractmethod
    def spelled(self, attributes: Sequence[str]) -> tuple[str, ...]:
        """Returns the attributes of a query in the one order in which this corpus states them."""


def read_json(path: Path, what: str) -> Any:
    """Returns the content of a JSON file.

    Raises:
        UserError: It is missing or not JSON; `what` says what was expected.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"expected {what} at {path}, got {error.strerror}: download it or correct the path"
        ) from error
    except ValueError as error:
        raise UserError(
            f"expected {what} at {path}, got no JSON ({error}): download it again"
        ) from error


def parsed(path: Path, what: str, parse: Callable[[], T]) -> T:
    """Returns `parse()`, turning the errors of an unexpected layout into one that names the file.

    Raises:
        UserError: The content has another layout than `what`.
    """
    try:
        return parse()
    except UserError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"expected {what} at {path}, got another layout ({type(error).__name__}: {error}): "
            "pass the file as distributed"
        ) from error


class ClevrScenes(SceneReader):
    """CLEVR's scenes JSON.

    Args:
        path: `CLEVR_<split>_scenes.json`, or `scenes_<split>.json` of the embedded world.
        images: Folder with the files that `image_filename` names.
        single: Attributes that a single-object query states, of size, texture, color, material;
            their words always come in that order.
        multi: Attributes that a two-object query states of each object.
    """

    exhaustive = True

    def __init__(
        self,
        path: Path,
        images: Path,
        single: Sequence[str] = ("color", "material"),
        multi: Sequence[str] = ("color",),
    ) -> None:
        for kinds in (single, multi):
            if not kinds or not set(kinds) <= set(ATTRIBUTE_ORDER):
                raise UserError(
                    f"expected attributes out of {list(ATTRIBUTE_ORDER)}, got {list(kinds)}: "
                    "name at least one of them"
                )
        self.path, self.folder = Path(path), Path(images)
        self.single, self.multi = (
            tuple(kind for kind in ATTRIBUTE_ORDER if kind in kinds) for kinds in (single, multi)
        )

    def sources(self) -> Mapping[str, Path]:
        """See `SceneReader`."""
        return {self.path.name: self.path}

    def images(self) -> Iterator[AnnotatedImage]:
        """See `SceneReader`."""
        what = "CLEVR scenes"
        content = read_json(self.path, what)
        yield from parsed(
            self.path, what, lambda: list(map(self._image, itertools.count(), content["scenes"]))
        )

    def _image(self, number: int, scene: dict[str, Any]) -> AnnotatedImage:
        name = str(scene["image_filename"])
        file = inside(self.folder, name, self.path, f"scenes[{number}]")
        things = tuple(self._object(thing) for thing in scene["objects"])
        return AnnotatedImage(file.stem, file, things)

    def _object(self, thing: dict[str, Any]) -> AnnotatedObject:
        attributes = frozenset(thing[kind] for kind in ATTRIBUTE_ORDER if kind in thing)
        single, multi = (
            tuple(thing[kind] for kind in kinds) for kinds in (self.single, self.multi)
        )
        return AnnotatedObject(thing["shape"], attributes, single, multi, (single,))

    def spelled(self, attributes: Sequence[str]) -> tuple[str, ...]:
        """See `SceneReader`: each place has its kind, so the order is right as it is."""
        return tuple(attributes)


class VisualGenomeGraphs(SceneReader):
    """Visual Genome's `scene_graphs.json`; objects without attributes are left out.

    Names and attributes are lower-cased. An object has no natural order of its attributes, so
    queries state the alphabetically first ones: one spelling per composition.

    Args:
        path: `scene_graphs.json`.
        images: Folder that holds `VG_100K` and `VG_100K_2`, or the files themselves.
        image_data: `image_data.json`, whose `url` says which folder a file is in; without it the
            file is `<image_id>.jpg` in `images`.
        single: Most attributes that a single-object query states.
        multi: Most attributes that a two-object query states of each object.
    """

    exhaustive = False

    def __init__(
        self,
        path: Path,
        images: Path,
        image_data: Path | None = None,
        single: int = 2,
        multi: int = 1,
    ) -> None:
        if min(single, multi) < 1:
            raise UserError(
                f"expected single >= 1 and multi >= 1, got {single} and {multi}: raise them"
            )
        self.path, self.folder = Path(path), Path(images)
        self.image_data = None if image_data is None else Path(image_data)
        self.single, self.multi = single, multi

    def sources(self) -> Mapping[str, Path]:
        """See `SceneReader`."""
        data = {} if self.image_data is None else {self.image_data.name: self.image_data}
        return {self.path.name: self.path, **data}

    def images(self) -> Iterator[AnnotatedImage]:
        """See `SceneReader`."""
        files = self._files()
        what = "Visual Genome scene graphs"
        content = read_json(self.path, what)
        yield from parsed(self.path, what, lambda: [self._image(g, files) for g in content])

    def _files(self) -> dict[str, Path]:
        if self.image_data is None:
            return {}
        path, what = self.image_data, "Visual Genome image data"
        content = read_json(path, what)

        def located(image: dict[str, Any]) -> tuple[str, Path]:
            # Releases call the id "image_id" or "id".
            number = str(image["image_id"] if "image_id" in image else image["id"])
            return number, Path(*image["url"].split("/")[-2:])

        return parsed(path, what, lambda: dict(map(located, content)))

    def _image(self, graph: dict[str, Any], files: Mapping[str, Path]) -> AnnotatedImage:
        number = str(graph["image_id"])
        data = self.image_data if number in files else None
        name = files.get(number, f"{number}.jpg")
        nested = inside(self.folder, name, data or self.path, f"image {number!r}")
        file = nested if nested.is_file() else self.folder / nested.name
        things = (self._object(thing) for thing in graph["objects"])
        return AnnotatedImage(number, file, tuple(t for t in things if t is not None))

    def _object(self, thing: dict[str, Any]) -> AnnotatedObject | None:
        words = {_normal(word) for word in thing.get("attributes") or ()} - {""}
        name = _normal(thing["names"][0]) if thing["names"] else ""
        if not words or not name:
            return None
        order = tuple(sorted(words))
        readings = (itertools.combinations(order, n) for n in range(1, self.single + 1))
        return AnnotatedObject(
            name,
            frozenset(words),
            order[: self.single],
            order[: self.multi],
            tuple(itertools.chain.from_iterable(readings)),
        )

    def spelled(self, attributes: Sequence[str]) -> tuple[str, ...]:
        """See `SceneReader`."""
        return tuple(sorted(attributes))


def _normal(text: str) -> str:
    return " ".join(text.lower().split())
