"""Writes the embedded world: rendered scenes in the raw formats of the real corpora."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_builders.common import Builder, Written
from data_builders.scenes.captions import ATTRIBUTE_ORDER
from data_builders.scenes.compositions import RECTANGLES, Pair, Swap, swaps, unseen_pairs
from data_builders.scenes.drawing import (
    Canvas,
    Chunk,
    Drawn,
    Plan,
    SceneSeries,
    check_device,
    chunks,
    draw,
    sub_seed,
)
from data_builders.scenes.formats import ar4t, clevr, cola, karpathy, visual_genome
from data_builders.scenes.grammar import (
    COLORS,
    FLOORS,
    MATERIALS,
    SHAPES,
    SIZES,
    TEXTURES,
    WorldSpec,
)
from data_builders.scenes.grammar import cogent as cogent_forbidden
from data_builders.scenes.suite import Suite
from data_builders.scenes.twins import AR4TTwins, ColaTwins
from vlmtune.config import Spec
from vlmtune.errors import UserError

_SPLITS = ("train", "val", "test")
_COGENT = ("valA", "valB")
_RAYS_WORTH_A_PROCESS = 1 << 25  # some seconds of work on one core


class ScenesBuilder(Builder):
    """Renders the embedded world and writes it as CLEVR, Visual Genome, COCO, Cola and PUG would.

    Training and validation scenes never hold an unseen (color, shape) composition; test scenes
    hold all. Under the output folder:

    - `images/{train,val,test,valA,valB,cola,ar4t}/*.png`;
    - `clevr/scenes_{train,val,test,valA,valB}.json`, the last two in CoGenT's conditions A and B;
    - `visual_genome/{train,val,test}/{scene_graphs,region_descriptions,image_data}.json`;
    - `karpathy/dataset_scenes.json`, five captions an image;
    - `cola/multi_{seen,unseen}.json` (images by file name, in `images/cola`), `cola/single.json`
      over the test images (by path in `images`), and `cola/single_split.json`;
    - `ar4t/PUG_AR_train.csv`, `ar4t/PUG_ARmerged_test.csv` (by path in `images`);
    - `compositions.json`: `{"unseen": [[color, shape], ...], "seen": [...]}`;
    - with `benchmarks`, the files of `data_builders.scenes.suite`: ARO, CREPE, SugarCrepe, VALSE,
      Winoground, EqBen, PUG's SPAR, ImageNet and Animals, videos with boundaries, folders of
      classes.

    Args:
        train: Training scenes.
        val: Validation scenes, of seen compositions only.
        test: Test scenes, of all compositions.
        cogent: Scenes of each of the two CoGenT conditions.
        multi: Items of each of Cola's two multi-object files.
        ar4t_train: PUG:AR4T items (two scenes each) of seen compositions.
        ar4t_test: PUG:AR4T items of all compositions.
        image_size: Side of the images in pixels.
        samples: Rays per pixel and axis.
        seed: Names the world; equal arguments give equal bytes.
        min_objects: Fewest objects in a scene (two in Cola's multi-object items).
        max_objects: Most objects in a scene.
        shapes: Shapes that occur.
        colors: Colours that occur.
        materials: Materials that occur.
        textures: Textures that occur.
        sizes: Sizes that occur.
        floors: Floors that occur.
        stack: Chance that a small object with a free support stands on it.
        min_visible: Least share of the image that shows each object.
        unseen: Rectangles (colors, shapes) of compositions that training never shows.
        single_attributes: Attributes that Cola's single-object queries state, "color" among them.
        relational: Share of the multi-object items whose captions state a relation, "a red cube to
            the left of a blue sphere", and not "a red cube and a blue sphere".
        processes: Rendering processes, by default as many cores as the work keeps busy; the result
            is the same.
        device: Where to render, "cpu" or "cuda"; on a GPU one process is enough.
        benchmarks: Items of each further benchmark file, 40 being some 2,000 images; 0 for none.
    """

    def __init__(
        self,
        train: int = 12000,
        val: int = 500,
        test: int = 1000,
        cogent: int = 200,
        multi: int = 400,
        ar4t_train: int = 500,
        ar4t_test: int = 200,
        image_size: int = 64,
        samples: int = 2,
        seed: int = 0,
        min_objects: int = 1,
        max_objects: int = 4,
        shapes: Sequence[str] = SHAPES,
        colors: Sequence[str] = tuple(COLORS),
        materials: Sequence[str] = MATERIALS,
        textures: Sequence[str] = TEXTURES,
        sizes: Sequence[str] = tuple(SIZES),
        floors: Sequence[str] = tuple(FLOORS),
        stack: float = 0.0,
        min_visible: float = 0.006,
        unseen: Sequence[tuple[Sequence[str], Sequence[str]]] = RECTANGLES,
        single_attributes: Sequence[str] = ("color", "material"),
        relational: float = 0.0,
        processes: int | None = None,
        device: str = "cpu",
        benchmarks: int = 0,
    ) -> None:
        _check_counts(train=train, val=val, test=test, cogent=cogent, multi=multi,
                      ar4t_train=ar4t_train, ar4t_test=ar4t_test,
                      benchmarks=benchmarks)  # fmt: skip
        if "color" not in single_attributes or not set(single_attributes) <= set(ATTRIBUTE_ORDER):
            raise UserError(
                f"expected single_attributes out of {list(ATTRIBUTE_ORDER)} with 'color' among "
                f"them, got {list(single_attributes)}: correct them"
            )
        if processes is not None and processes < 1:
            raise UserError(f"expected processes >= 1, got {processes}: raise it or leave it out")
        self.splits = {"train": train, "val": val, "test": test}
        self.cogent, self.multi = cogent, multi
        self.ar4t = {"train": ar4t_train, "test": ar4t_test}
        self.canvas = Canvas(image_size, samples, device)
        self.seed, self.relational = seed, relational
        self.single_attributes = tuple(single_attributes)
        self.processes = processes
        self.unseen = unseen_pairs(unseen, colors, shapes)
        self._world: dict[str, Any] = {
            "min_objects": min_objects,
            "max_objects": max_objects,
            "shapes": tuple(shapes),
            "colors": tuple(colors),
            "materials": tuple(materials),
            "textures": tuple(textures),
            "sizes": tuple(sizes),
            "floors": tuple(floors),
            "stack_probability": stack,
            "min_visible": min_visible,
        }
        self.benchmarks = benchmarks
        self.spec_of()  # a world that cannot be drawn must fail here, not after minutes

    def spec(self) -> Spec:
        """See `Configured`; what changes nothing is left out, so that the same world is kept."""
        spec = super().spec()
        idle = {"processes"} if self.benchmarks else {"processes", "benchmarks"}
        return {**spec, "init_args": {k: v for k, v in spec["init_args"].items() if k not in idle}}

    def spec_of(self, forbidden: frozenset[Pair] = frozenset(), **changes: Any) -> WorldSpec:
        """Returns the world's spec with some compositions forbidden and other values changed.

        Raises:
            UserError: Such a world cannot be drawn.
        """
        try:
            return WorldSpec(**{**self._world, "forbidden": forbidden, **changes})
        except ValueError as error:
            raise UserError(str(error)) from error

    def write(self, folder: Path, tick: Callable[[], None]) -> Written:
        """See `Builder`."""
        plans = {split: plan for split, plan in self._plans().items() if plan.images}

        def done(images: int) -> None:
            for _ in range(images):
                tick()

        check_device(self.canvas.device)
        work = self._work(plans, folder / "images")
        drawn = draw(work, self.processes or self._worthwhile(plans), done)
        self._write_scenes(folder, drawn)
        self._write_twins(folder, drawn, plans)
        if suite := self._suite():
            suite.write(folder, drawn)
        _dump(
            folder / "compositions.json",
            {
                "unseen": sorted(map(list, self.unseen)),
                "seen": sorted(map(list, self.spec_of(self.unseen).pairs())),
            },
        )
        return Written(counts={f"images: {split}": len(images) for split, images in drawn.items()})

    def _worthwhile(self, plans: dict[str, Plan]) -> int:
        """One process per core, but none with less to do than it takes to start it."""
        if self.canvas.device != "cpu":
            return 1
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        images = sum(plan.images for plan in plans.values())
        rays = images * (self.canvas.size * self.canvas.samples) ** 2
        return max(1, min(cores, rays // _RAYS_WORTH_A_PROCESS))

    def _work(self, plans: dict[str, Plan], images: Path) -> list[Chunk]:
        # Chunks of bounded pixels keep every process busy to the end and its memory small.
        most = min(96, (1 << 22) // (self.canvas.size * self.canvas.samples) ** 2)
        work: list[Chunk] = []
        for split, plan in plans.items():
            size = max(1, most // plan.each) * plan.each
            work += chunks(plan.series, split, plan.images, self.canvas, images, size, plan.files)
        return work

    def _plans(self) -> dict[str, Plan]:
        specs = {split: self.spec_of(self.unseen) for split in ("train", "val")}
        specs["test"] = self.spec_of()
        plans = {
            split: Plan(SceneSeries(specs[split], sub_seed(self.seed, split)), self.splits[split])
            for split in _SPLITS
        }
        for split in _COGENT if self.cogent else ():
            series = SceneSeries(
                self.spec_of(cogent_forbidden(split[-1])), sub_seed(self.seed, split)
            )
            plans[split] = Plan(series, self.cogent)
        for name in ("seen", "unseen") if self.multi else ():
            plans[f"cola_{name}"] = Plan(self._cola(name), 2 * self.multi)
        for split, count in self.ar4t.items():
            forbidden = self.unseen if split == "train" else frozenset[Pair]()
            spec = self.spec_of(forbidden, min_objects=2, max_objects=2)
            series = AR4TTwins(spec, sub_seed(self.seed, f"ar4t_{split}"))
            plans[f"ar4t_{split}"] = Plan(series, 2 * count)
        suite = self._suite()
        return plans | (suite.plans() if suite else {})

    def _suite(self) -> Suite | None:
        if not self.benchmarks:
            return None
        spec = self.spec_of(
            min_objects=max(2, self._world["min_objects"]),
            max_objects=max(2, self._world["max_objects"]),
        )
        return Suite(self.benchmarks, spec, self.unseen, self.seed)

    def _cola(self, name: str) -> ColaTwins:
        seen = frozenset(self.spec_of(self.unseen).pairs())
        chosen: list[Swap] = swaps(seen if name == "seen" else self.unseen)
        if not chosen:
            raise UserError(
                f"expected two colours and two shapes whose four compositions are all {name}, got "
                f"none: change `unseen`, add colors or shapes, or set `multi` to 0"
            )
        spec = self.spec_of(
            self.unseen if name == "seen" else frozenset(),
            min_objects=max(2, self._world["min_objects"]),
            max_objects=max(2, self._world["max_objects"]),
        )
        seed = sub_seed(self.seed, f"cola_{name}")
        return ColaTwins(spec, seed, tuple(chosen), self.relational)

    def _write_scenes(self, folder: Path, drawn: dict[str, list[Drawn]]) -> None:
        for split in (*_SPLITS, *_COGENT):
            if split in drawn:
                content = clevr.scenes(split, drawn[split])
                _dump(folder / f"clevr/scenes_{split}.json", content)
        first_id = 1
        for split in _SPLITS:
            if split not in drawn:
                continue
            for part in (
                visual_genome.scene_graphs,
                visual_genome.region_descriptions,
                visual_genome.image_data,
            ):
                content = part(drawn[split], first_id)
                _dump(folder / f"visual_genome/{split}/{part.__name__}.json", content)
            first_id += len(drawn[split])
        captioned = {split: drawn[split] for split in _SPLITS if split in drawn}
        _dump(folder / "karpathy/dataset_scenes.json", karpathy.dataset(captioned, self.seed))

    def _write_twins(
        self, folder: Path, drawn: dict[str, list[Drawn]], plans: dict[str, Plan]
    ) -> None:
        attributes = self.single_attributes
        if "test" in drawn:
            test = drawn["test"]
            _dump(folder / "cola/single.json", cola.single(test, attributes))
            split = cola.single_split(test, attributes, self.unseen)
            _dump(folder / "cola/single_split.json", split)
        for split, plan in plans.items():
            if isinstance(plan.series, ColaTwins):
                items = cola.multi(drawn[split], plan.series)
                _dump(folder / f"cola/multi_{split.removeprefix('cola_')}.json", items)
            elif split.startswith("ar4t_") and isinstance(plan.series, AR4TTwins):
                name = "PUG_AR_train" if split == "ar4t_train" else "PUG_ARmerged_test"
                (folder / "ar4t").mkdir(exist_ok=True)
                (folder / f"ar4t/{name}.csv").write_text(ar4t.table(drawn[split], plan.series))


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 0:
            raise UserError(f"expected {name} >= 0, got {count}: give a number of scenes or items")
    if not counts["train"] + counts["val"] + counts["test"]:
        raise UserError("expected scenes in train, val or test, got none: raise one of them")


def _dump(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        json.dump(content, file, separators=(",", ":"))
