"""The builder of the rendered world.

In: options. Out: rendered scenes in the formats of corpora. Never: a shard.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import NonNegativeInt, PositiveInt
from typing_extensions import override

from data_builders.phrases import Attribute
from data_builders.shard_builder import Builder, Fraction
from data_builders.text_files import write_json
from data_builders.worlds.scenes.ar4t_paper import SINGLES, AR4TForm, ar4t_splits
from data_builders.worlds.scenes.ar4t_scenes import AR4TPairs, AR4TSingles
from data_builders.worlds.scenes.benchmark_files import Suite
from data_builders.worlds.scenes.compositions import RECTANGLES, Unseen, swaps, unseen_compositions
from data_builders.worlds.scenes.formats import (
    ar4t,
    clevr,
    cola,
    eqben,
    foils,
    graded,
    grammar,
    karpathy,
    visual_genome,
)
from data_builders.worlds.scenes.grids import Singles
from data_builders.worlds.scenes.held_out import HeldOut
from data_builders.worlds.scenes.image_files import Images, Split, numbered, render_files, sub_seed
from data_builders.worlds.scenes.pairs import ENGINE, ColaPairs
from data_builders.worlds.scenes.sampling import DEFAULT, Composition, WorldSpec
from data_builders.worlds.scenes.sampling import cogent as cogent_forbidden
from data_builders.worlds.scenes.scene import (
    Color,
    Floor,
    Material,
    Rays,
    Shape,
    Side,
    Size,
    Texture,
)
from data_builders.worlds.scenes.series import Canvas, SceneSeries, Series
from data_builders.worlds.scenes.statements import constant_words
from vlmtune.errors import UserError
from vlmtune.storage.files import write_text

_SPLITS = ("train", "val", "test")
_COGENT = ("valA", "valB")
_AR4T_FILES = {"train": "PUG_AR_train", "test": "PUG_ARmerged_test"}


class ScenesBuilder(Builder):
    """Renders the embedded world in the formats of CLEVR, Visual Genome, COCO, Cola and PUG.

    Training and validation scenes never show an unseen (color, shape) composition; test scenes
    show all of them. docs/corpora.md lists the files in the output folder.

    Args:
        train: Training scenes.
        val: Validation scenes, only of seen compositions.
        test: Test scenes, of all compositions.
        cogent: Scenes in each of the two CoGenT conditions.
        multi: Items in each of Cola's two multi-object files.
        ar4t_train: PUG:AR4T items (two scenes each) of seen compositions; scenes of one object are
            added in PUG's proportions.
        ar4t_test: PUG:AR4T items of all compositions.
        ar4t_form: "paper" states AR4T's scenes as appendix B.5 of the paper does: attributes of
            two kinds in a pair, several words for a relation, places after at, in or inside; scenes
            of one object are then in both splits. "world" has one word for each.
        image_size: Side of the images in pixels.
        samples: Rays per pixel and axis.
        seed: Seed of the world; the same arguments give the same bytes.
        min_objects: Fewest objects in a scene (two in Cola's multi-object items).
        max_objects: Most objects in a scene.
        shapes: Shapes of the objects.
        colors: Their colours.
        materials: Their materials; training captions do not name one that all objects have.
        textures: Their textures, likewise.
        sizes: Their sizes, likewise.
        floors: What scenes stand on.
        stack: Probability that a small object is placed on top of a free one.
        min_visible: Smallest fraction of the image that each object must cover.
        unseen: Compositions to hold out of training, as rectangles (colors, shapes), or "A" or "B"
            for what CoGenT forbids in that condition (which leaves no swaps for `multi`).
        unread_colors: Colours that training neither shows nor names, two or more of them for
            `cola/multi_unread.json`.
        held_out: Scenes for the tables in `held_out`: sentences in forms that training lacks,
            scenes of more objects, and single objects in sizes and textures that it may lack.
        single_attributes: Attributes in Cola's single-object queries.
        processes: Rendering processes, by default as many as useful; the result is the same.
        device: Where to render, "cpu" or "cuda"; one process is enough for a GPU.
        benchmarks: Items in each further benchmark file; 40 is about 2,300 images, 0 is none.
        placements: At most this many captions per training image about sides of the picture.
        foils: At most this many sentences with a foil per image of `foils/train.csv` (training
            images and AR4T scenes of one object) and `foils/val.csv`: counts, absence, negation, an
            added object, exchanged materials, colours after their nouns. One more exchanges the
            sides of two objects.
        long_foils: At most this many further foils per image, of one to four sentences, some with
            relations or negation; one or two sentences of the foil are false.
        grammar: At most this many sentences with a false counterpart per image of
            `grammar/train.csv`, in many orders, with and without negation.
        synonyms: Whether "object" and "thing", and "picture" and "scene", take turns in these
            sentences.
        graded: At most this many rows per image of `graded/train.csv`, each with five captions: an
            exact one, one that states less, one with a wrong attribute, one with a wrong object and
            one of another scene.
        spar_repeats: Times to render PUG: SPAR's grid, of 540 images if `benchmarks` is 40 or more;
            8 gives 400 images or more for each set-up.
        eqben_train: Items (two scenes each) of each of EqBen's engine parts (location, counting,
            attribute), of seen compositions, in the table `eqben/train.csv`.
        classes: Training images per shape, each of one object of a seen composition, in the folders
            `images/classes/<shape>`; the classification benchmark has other images.
        clevr: Whether scenes of train, val, test and CoGenT follow CLEVR's generator: 3 to
            10 objects that may share colour and shape, apart along both ground axes.
            `min_objects`, `max_objects` and `min_visible` then concern other images alone.
    """

    idle: ClassVar[Mapping[str, Any]] = {
        "processes": ..., "benchmarks": 0, "placements": 0, "foils": 0, "eqben_train": 0,
        "classes": 0, "long_foils": 0, "spar_repeats": 1, "unread_colors": (), "held_out": 0,
        "ar4t_form": "world", "clevr": False, "grammar": 0, "synonyms": False,
        "graded": 0,
    }  # fmt: skip

    def __init__(
        self, train: NonNegativeInt = 12000, val: NonNegativeInt = 500,
        test: NonNegativeInt = 1000, cogent: NonNegativeInt = 200, multi: NonNegativeInt = 400,
        ar4t_train: NonNegativeInt = 500, ar4t_test: NonNegativeInt = 200, image_size: Side = 64,
        samples: Rays = 2, seed: int = 0, min_objects: int = 1, max_objects: int = 4,
        shapes: Sequence[Shape] = DEFAULT.shapes, colors: Sequence[Color] = DEFAULT.colors,
        materials: Sequence[Material] = DEFAULT.materials,
        textures: Sequence[Texture] = DEFAULT.textures, sizes: Sequence[Size] = DEFAULT.sizes,
        floors: Sequence[Floor] = DEFAULT.floors,
        stack: Fraction = 0.0, min_visible: Fraction = 0.006,
        unseen: Unseen = RECTANGLES,
        single_attributes: Sequence[Attribute] = ("color", "material"),
        processes: PositiveInt | None = None, device: str = "cpu",
        benchmarks: NonNegativeInt = 0, placements: NonNegativeInt = 0,
        spar_repeats: PositiveInt = 1, foils: NonNegativeInt = 0, eqben_train: NonNegativeInt = 0,
        classes: NonNegativeInt = 0, long_foils: NonNegativeInt = 0,
        unread_colors: Sequence[str] = (), held_out: NonNegativeInt = 0,
        ar4t_form: AR4TForm = "world", clevr: bool = False, grammar: NonNegativeInt = 0,
        synonyms: bool = False, graded: NonNegativeInt = 0,
    ) -> None:  # fmt: skip
        if not train + val + test:
            raise UserError("expected scenes in train, val or test, got none: raise one of them")
        if "color" not in single_attributes:
            raise UserError(
                f"expected 'color' in single_attributes, got {list(single_attributes)}: add it"
            )
        self.scenes = {"train": train, "val": val, "test": test, "valA": cogent, "valB": cogent}
        self.multi, self.ar4t = multi, {"train": ar4t_train, "test": ar4t_test}
        self.ar4t_form: AR4TForm = ar4t_form
        self.clevr = clevr
        self.canvas = Canvas(image_size, samples, device)
        self.seed = seed
        self.single_attributes, self.processes = tuple(single_attributes), processes
        self.world = WorldSpec(
            min_objects, max_objects, tuple(shapes), tuple(colors), tuple(materials),
            tuple(textures), tuple(sizes), tuple(floors),
            stack_probability=stack, min_visible=min_visible,
        )  # fmt: skip
        read = tuple(color for color in colors if color not in unread_colors)
        self.unseen = unseen_compositions(unseen, read, shapes)
        self.training = replace(self.world, colors=read, forbidden=self.unseen)
        self.unread = frozenset(itertools.product(set(colors) - set(read), shapes))

        self.benchmarks, self.placements = benchmarks, placements
        self.spar_repeats, self.foils, self.eqben_train = spar_repeats, foils, eqben_train
        self.classes, self.long_foils, self.held_out = classes, long_foils, held_out
        self.grammar, self.synonyms, self.graded = grammar, synonyms, graded

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> None:
        suites: list[Suite | HeldOut] = []
        if self.benchmarks:
            untrained = self.unseen | self.unread
            options = untrained, self.seed, self.spar_repeats
            suites.append(Suite(self.benchmarks, self.world.at_least(2), *options))
        if self.held_out:
            trained = self.training.at_least(2)
            suites.append(HeldOut(self.held_out, trained, self.world, self.seed))
        splits = self._splits()
        for suite in suites:
            splits |= suite.splits
        images = render_files(splits, self.canvas, folder / "images", self.processes, tick)
        self._write_scenes(folder, images)
        self._write_pairs(folder, images, splits)
        if self.eqben_train:
            names = [f"eqben_{part}" for part in ENGINE]
            table = eqben.training_table((images[name], splits[name].series) for name in names)
            write_text(folder / "eqben/train.csv", table)
        for suite in suites:
            suite.write(folder, images)
        untrained = sorted(map(list, self.unseen | self.unread))
        sides = {"unseen": untrained, "seen": sorted(map(list, self.training.compositions()))}
        write_json(folder / "compositions.json", sides)
        self.counts.update({f"images: {split}": len(rows) for split, rows in images.items()})

    def _splits(self) -> dict[str, Split]:
        """All series to render except the suites, and their files, by the split's name."""
        splits: dict[str, Split] = {}
        for name, series, count in (*self._scenes(), *self._pairs()):
            splits[name] = Split(series, numbered(name, count))
        if self.classes:
            singles = Singles(self.training, self._seed("classes"), self.classes, "classes")
            splits["classes"] = Split(singles, singles.files())
        return splits

    def _scenes(self) -> Iterator[tuple[str, Series, int]]:
        """The name, the series and the number of images of each split of scenes."""
        specs = {"train": self.training, "val": self.training, "test": self.world}
        for split in _COGENT:
            specs[split] = replace(self.world, forbidden=cogent_forbidden(split[-1]))
        for split, count in self.scenes.items():
            if count:
                spec = specs[split].as_clevr() if self.clevr else specs[split]
                yield split, SceneSeries(spec, self._seed(split)), count

    def _pairs(self) -> Iterator[tuple[str, Series, int]]:
        """The same of each split of pairs."""
        if self.multi:
            for side, compositions in self._cola_sides().items():
                compared = self.training if side == "seen" else self.world
                seed, swapped = self._seed(f"cola_{side}"), swaps(compositions, side)
                pairs = ColaPairs(compared.at_least(2), seed, swapped)
                yield f"cola_{side}", pairs, 2 * self.multi
        for split, count in self.ar4t.items():
            if count:
                spec = self.training if split == "train" else self.world
                yield from ar4t_splits(self.ar4t_form, split, count, spec, self._seed)
        if self.eqben_train:
            spec = self.training.at_least(2)
            for part, series in ENGINE.items():
                name = f"eqben_{part}"
                yield name, series(spec, self._seed(name)), 2 * self.eqben_train

    def _seed(self, name: str) -> int:
        return sub_seed(self.seed, name)

    def _cola_sides(self) -> Mapping[str, frozenset[Composition]]:
        """The compositions that the items of each of Cola's files exchange, by its name."""
        sides = {"seen": frozenset(self.training.compositions()), "unseen": self.unseen}
        if len({color for color, _ in self.unread}) > 1:
            sides["unread"] = self.unread
        return sides

    def _write_scenes(self, folder: Path, images: Images) -> None:
        for split in (*_SPLITS, *_COGENT):
            if split in images:
                content = clevr.scenes(split, images[split])
                write_json(folder / f"clevr/scenes_{split}.json", content)
        captioned = {split: images[split] for split in _SPLITS if split in images}
        first_id = 1
        for split, rows in captioned.items():
            for part, described in visual_genome.PARTS.items():
                content = [described(image, number) for number, image in enumerate(rows, first_id)]
                write_json(folder / f"visual_genome/{split}/{part}.json", content)
            first_id += len(rows)
        constant = constant_words(self.training)
        content = karpathy.dataset(captioned, self.seed, self.placements, constant)
        write_json(folder / "karpathy/dataset_scenes.json", content)
        if self.foils or self.long_foils:
            self._write_foils(folder, images)
        train, spec, seed = images.get("train", ()), self.training, self.seed
        if train and self.grammar:
            sentences = grammar.table(train, spec, seed, self.grammar, self.synonyms)
            write_text(folder / "grammar/train.csv", sentences)
        if train and self.graded:
            write_text(folder / "graded/train.csv", graded.table(train, spec, seed, self.graded))

    def _write_foils(self, folder: Path, images: Images) -> None:
        """Writes the table to train on, and that of validation scenes to choose settings by."""
        shown = {
            "train": [*images.get("train", ()), *images.get("ar4t_single", ())],
            "val": images.get("val", ()),
        }
        for split, rows in shown.items():
            if rows:
                content = foils.table(rows, self.training, self.seed, self.foils, self.long_foils)
                write_text(folder / f"foils/{split}.csv", content)

    def _write_pairs(self, folder: Path, images: Images, splits: Mapping[str, Split]) -> None:
        if "test" in images:
            content = cola.single(images["test"], self.single_attributes)
            write_json(folder / "cola/single.json", content)
            untrained = self.unseen | self.unread
            sides = cola.single_split(images["test"], self.single_attributes, untrained)
            write_json(folder / "cola/single_split.json", sides)
        for split, rows in images.items():
            series, name = splits[split].series, split.partition("_")[2]
            if isinstance(series, ColaPairs):
                write_json(folder / f"cola/multi_{name}.json", cola.multi(rows))
            elif isinstance(series, AR4TPairs):
                alone = SINGLES[name]
                singles = splits[alone].series if alone in splits else None
                assert isinstance(singles, AR4TSingles | None)
                table = ar4t.table(rows, series, images.get(alone, ()), singles)
                write_text(folder / f"ar4t/{_AR4T_FILES[name]}.csv", table)
