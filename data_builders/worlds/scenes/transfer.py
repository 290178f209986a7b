"""A benchmark of the rendered world: how far understanding carries beyond training.

In: what training lacks. Out: a table of images, captions and false captions, with its images.

The group of a row is "dimension/part". Each dimension changes one thing: "as trained" changes
nothing; "recombined words" has words of training in pairs that it lacks; "unread words" has words
that no training text has; "wordings" has other forms of sentences; "counts" goes to eight; "scenes"
has training's sentences on other scenes; "retained" asks what the frozen model can.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import PositiveInt
from typing_extensions import override

from data_builders.phrases import both, related, with_article
from data_builders.shard_builder import Builder
from data_builders.text_files import csv_table, write_json
from data_builders.worlds.scenes.captions import clear_relation, counting
from data_builders.worlds.scenes.compositions import Unseen, swaps, unseen_compositions
from data_builders.worlds.scenes.formats import clevr
from data_builders.worlds.scenes.formats.context import Form, SceneContext, contexts
from data_builders.worlds.scenes.further_forms import FURTHER
from data_builders.worlds.scenes.held_out import COLUMNS, FORMS, TRAINED, abilities_of, described
from data_builders.worlds.scenes.image_files import (
    SceneImage,
    Split,
    numbered,
    pairs_of,
    render_files,
    sub_seed,
)
from data_builders.worlds.scenes.sampling import DEFAULT, WorldSpec
from data_builders.worlds.scenes.scene import MAX_OBJECTS, Color, Material, Rays, Shape, Side
from data_builders.worlds.scenes.series import Canvas, SceneSeries, Series
from data_builders.worlds.scenes.statements import Noun
from data_builders.worlds.scenes.transfer_forms import WORDINGS, of_shape
from data_builders.worlds.scenes.transfer_scenes import (
    CountedScenes,
    EqualScenes,
    HiddenScenes,
    LitScenes,
    RelatedPairs,
    TurnedScenes,
)
from vlmtune.storage.files import write_text

_DESCRIPTIONS = 10  # descriptions of single objects to choose from
_PATTERNS = tuple(texture for texture in DEFAULT.textures if texture != "plain")
_OF_SHAPE = 6  # with two objects of another shape eight
_TO = 3  # largest number of objects in a training scene
Images = Sequence[SceneImage]


class TransferRow(NamedTuple):
    """A row of the table: an image, what is true of it, what is false, and the group."""

    image: SceneImage
    caption: str
    negatives: Sequence[str]
    group: str


@dataclass(frozen=True)
class TransferPart:
    """Scenes to render, and what writes the rows about them."""

    series: Series
    rows: Callable[[Images], Iterator[TransferRow]]
    count: int


class TransferBuilder(Builder):
    """Writes `transfer.csv` and its images, for the benchmark `transfer`.

    The test scenes and sentences are those of a world that `vlmtune build scenes` renders for
    training; the defaults are the world of `vlmtune quickstart`, with two or three large plain
    objects. `clevr/scenes_<part>.json` has the scene graphs.

    Args:
        items: Rows of each part, at most; a form that few scenes fit has fewer.
        unseen: Compositions that training lacks, as rectangles (colors, shapes).
        unread_colors: Two or more colours that no training text or image has.
        unread_shapes: Shapes that no training text has; the others are training's.
        unread_materials: Materials that no training text has, at least one of the two.
        further: Writes fourteen more forms of sentences, in place of all dimensions. No choice of
            this project was made by them.
        image_size: Side of the images in pixels.
        samples: Rays per pixel and axis.
        seed: Seed of the scenes and sentences; the same arguments give the same bytes.
        processes: Rendering processes, by default as many as useful; the result is the same.
        device: Where to render, "cpu" or "cuda".
    """

    idle: ClassVar[Mapping[str, Any]] = {"processes": ...}

    def __init__(
        self, items: PositiveInt = 100,
        unseen: Unseen = ((("red", "blue"), ("cube", "cylinder", "sphere")),),
        unread_colors: Sequence[Color] = ("purple", "brown"), unread_shapes: Sequence[Shape] = (),
        unread_materials: Sequence[Material] = (), further: bool = False, image_size: Side = 64,
        samples: Rays = 2, seed: int = 0, processes: PositiveInt | None = None, device: str = "cpu",
    ) -> None:  # fmt: skip
        self.items, self.seed, self.processes = items, seed, processes
        self.further = further
        self.canvas = Canvas(image_size, samples, device)
        self.unread_shapes, self.unread_materials = tuple(unread_shapes), tuple(unread_materials)
        colors = tuple(color for color in DEFAULT.colors if color not in unread_colors)
        shapes = tuple(shape for shape in DEFAULT.shapes if shape not in unread_shapes)
        read = [material for material in DEFAULT.materials if material not in unread_materials]
        # Scenes of two or three large plain objects, as training's.
        usual = tuple(read) or DEFAULT.materials
        self.world = WorldSpec(2, _TO, materials=usual, textures=("plain",), sizes=("large",))
        self.unseen = unseen_compositions(unseen, colors, shapes)
        self.unread = frozenset(itertools.product(unread_colors, shapes))
        self.trained = replace(self.world, colors=colors, shapes=shapes, forbidden=self.unseen)

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        parts = self._parts()
        splits = {}
        for name, part in parts.items():
            splits[name] = Split(part.series, numbered(name, part.count))
        images = render_files(splits, self.canvas, folder / "images", self.processes, tick)
        rows = []
        for name, part in parts.items():
            write_json(folder / f"clevr/scenes_{name}.json", clevr.scenes(name, images[name]))
            for row in part.rows(images[name]):
                # One false caption stands as it is, several as a list.
                false = row.negatives[0] if len(row.negatives) == 1 else json.dumps(row.negatives)
                rows.append((row.image.file, row.caption, false, row.group))
                self.counts[row.group.partition("/")[0]] += 1
        write_text(folder / "transfer.csv", csv_table(COLUMNS, rows))
        self.counts["images"] = sum(map(len, images.values()))

    def _parts(self) -> dict[str, TransferPart]:
        """All parts by the name of their folder of images."""
        if self.further:
            return {"further": self._forms("further", FURTHER)}
        return {
            **self._sentences(),
            **self._words(),
            **self._numbers(),
            **self._scenes(),
            "single": self._single(),
        }

    def _seed(self, name: str) -> int:
        return sub_seed(self.seed, f"transfer_{name}")

    def _stated(
        self, series: Series, dimension: str, forms: Mapping[str, Form], spec: WorldSpec,
        scenes: int = 2,
    ) -> TransferPart:  # fmt: skip
        """So many scenes for each row of a form: not each form fits each scene."""

        def rows(images: Images) -> Iterator[TransferRow]:
            for name, write in forms.items():
                written = 0
                # A form that is added changes no sentence of another one.
                for image, context in contexts(images, spec, self.seed, name):
                    sentences = write(context)
                    if sentences is not None and written < self.items:
                        written += 1
                        true, false = sentences
                        yield TransferRow(image, true, [false], f"{dimension}/{name}")

        return TransferPart(series, rows, scenes * self.items)

    def _sentences(self) -> dict[str, TransferPart]:
        usual = SceneSeries(self.trained, self._seed("trained"))
        known = {**TRAINED, "absence": FORMS["absent"]}
        return {
            "trained": self._stated(usual, "as trained", known, self.trained),
            "wordings": self._forms("wordings", WORDINGS),
        }

    def _forms(self, name: str, forms: Mapping[str, Form]) -> TransferPart:
        """Sentences in forms that training lacks, on scenes of three objects."""
        three = replace(self.trained, min_objects=_TO)
        series = SceneSeries(three, self._seed(name))
        # Few scenes have two objects of one colour, or one between two others.
        return self._stated(series, "wordings", forms, three, scenes=4)

    def _words(self) -> dict[str, TransferPart]:
        """Words in other pairs, and words that training lacks."""
        parts = {}
        for name, compositions in (("recombined", self.unseen), ("unread", self.unread)):
            # Pairs of scenes that exchange the colours of two objects; half state a relation.
            if compositions:
                chosen = swaps(compositions, name)
                pairs = RelatedPairs(self.world, self._seed(name), chosen)
                rows = partial(_recombined, series=pairs, dimension=f"{name} words")
                parts[name] = TransferPart(pairs, rows, 4 * self.items)
        usual, exchanged = self.trained, partial(SceneContext.exchanged, write=both)
        unread: dict[str, tuple[WorldSpec, Form]] = {
            "sizes": (replace(usual, sizes=DEFAULT.sizes), partial(exchanged, kind="size")),
            "textures": (replace(usual, textures=_PATTERNS), partial(exchanged, kind="texture")),
        }
        if self.unread_materials:
            spec = replace(usual, materials=DEFAULT.materials)
            unread["materials"] = spec, partial(exchanged, kind="material")
        for shape in self.unread_shapes:
            spec = replace(usual, shapes=(*usual.shapes, shape))
            unread[shape] = spec, partial(of_shape, shape=shape)
        for name, (spec, form) in unread.items():
            series = SceneSeries(spec, self._seed(name))
            parts[name] = self._stated(series, "unread words", {name: form}, spec)
        return parts

    def _numbers(self) -> dict[str, TransferPart]:
        full = replace(self.world, sizes=DEFAULT.sizes, min_objects=1, max_objects=MAX_OBJECTS)
        parts = {}
        for name, most, of_one in (("objects", MAX_OBJECTS, False), ("shapes", _OF_SHAPE, True)):
            series = CountedScenes(full, self._seed(name), most, of_one)
            parts[f"count_{name}"] = TransferPart(
                series, partial(_counted, series=series), 2 * self.items
            )
        return parts

    def _scenes(self) -> dict[str, TransferPart]:
        """The sentences of training on other scenes."""
        usual = self.trained
        many = replace(usual, min_objects=4, max_objects=MAX_OBJECTS, sizes=DEFAULT.sizes)
        two = replace(usual, max_objects=2)
        textured = replace(usual, textures=_PATTERNS)
        small = replace(usual, sizes=("small",))
        hidden = replace(usual, min_exposed=0.4)
        series = {
            "crowded": ("four to eight objects", SceneSeries(many, self._seed("crowded"))),
            "small": ("small objects", SceneSeries(small, self._seed("small"))),
            "hidden": ("partly hidden", HiddenScenes(hidden, self._seed("hidden"))),
            "shape": ("equal shapes", EqualScenes(two, self._seed("shape"), "shape")),
            "color": ("equal colours", EqualScenes(two, self._seed("color"), "color")),
            "camera": ("other cameras", TurnedScenes(usual, self._seed("camera"))),
            "light": ("light from behind", LitScenes(usual, self._seed("light"))),
            "textured": ("textures", SceneSeries(textured, self._seed("textured"))),
        }
        parts = {}
        for name, (part, scenes) in series.items():
            forms = {f"{part}: {form}": write for form, write in TRAINED.items()}
            parts[name] = self._stated(scenes, "scenes", forms, usual)
        return parts

    def _single(self) -> TransferPart:
        alone = replace(self.world, min_objects=1, max_objects=1)
        alone = replace(alone, sizes=DEFAULT.sizes, textures=DEFAULT.textures)
        series = SceneSeries(alone, self._seed("single"))
        return TransferPart(series, partial(_single, spec=alone, seed=self.seed), self.items)


def _recombined(images: Images, series: RelatedPairs, dimension: str) -> Iterator[TransferRow]:
    """Each image of a pair with the captions of both; hard shapes are reported apart."""
    for index, pair in pairs_of(images):
        captions = []
        for image in pair:
            first, second = map(Noun.of, image.scene.objects[:2])
            text = both(first, second)
            if series.is_related(index):
                relation = clear_relation(image.scene, 0, 1)
                assert relation is not None
                text = related(first, relation, second)
            captions.append(text)
        shapes = set(series.swap(index).shapes)
        alike = "cube and cylinder" if shapes == {"cube", "cylinder"} else "other shapes"
        asks = "relations" if series.is_related(index) else "colours"
        group = f"{dimension}/{asks}: {alike}"
        for image, true, false in zip(pair, captions, captions[::-1], strict=True):
            yield TransferRow(image, true, [false], group)


def _counted(images: Images, series: CountedScenes) -> Iterator[TransferRow]:
    for image in images:
        true, false = series.numbers(image.index)
        shape = series.shapes(image.index)[0] if series.of_shape else None
        part = "to three" if max(true, false) <= _TO else "to eight"
        if shape is not None:
            part = "of one shape"
        texts = [counting(number, shape) for number in (true, false)]
        yield TransferRow(image, texts[0], texts[1:], f"counts/{part}")


def _single(images: Images, spec: WorldSpec, seed: int) -> Iterator[TransferRow]:
    """The words of one object: each attribute, and all of them among other objects."""
    texts = [with_article(described(image)) for image in images]
    known = sorted(set(texts))
    for image, text in zip(images, texts, strict=True):
        for true, false, group in abilities_of(image, spec):
            yield TransferRow(image, true, false, f"retained/{group}")
        rng = random.Random(f"{seed}:single:{image.file}")
        # A shorter description, without the texture, is true as well.
        words = set(text.split())
        others = [other for other in known if not set(other.split()) <= words]
        false = rng.sample(others, min(_DESCRIPTIONS - 1, len(others)))
        yield TransferRow(image, text, false, "retained/one of ten objects")
