"""The embedded world in the layouts of compositional benchmarks, files and images as released.

Everything is held out from training: scenes of the suite show all compositions. Under the folder of
the world:

- `aro/{visual_genome_relation,visual_genome_attribution,coco_karpathy_test}.json` and
  `aro/coco_karpathy_test_shuffles.json`; images in `images/suite`, of the last in `images`;
- `crepe/prod_hard_negatives`, `crepe/syst_hard_negatives`, and the images `crepe/VG_100K/<id>.jpg`;
- `sugar_crepe/*.json`, `valse/*.json`, `winoground/examples.jsonl`; images in `images/suite`;
- `eqben/<part>.json` for each of EqBen's seven parts, and `eqben/eqben_kubric.json`, Kubric's three
  in one list; images in `images/eqben`, GEBC's being frames of the videos;
- `geb/test.json`; videos, two frames a second, in `images/geb`;
- `images/pug_spar/labels.csv`, `images/pug_animals/labels_pug_animal.csv`, the folders
  `images/pug_imagenet/<factor>/<class>`, and `images/classification/<class>`;
- `clevr/scenes_suite_<series>.json`, the scene graph of every one of these images.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

from data_builders.scenes.compositions import Pair
from data_builders.scenes.drawing import Drawn, Plan, sub_seed
from data_builders.scenes.edits import ActedTwins, EditedTwins, StepTwins
from data_builders.scenes.formats import (
    aro,
    aro_order,
    clevr,
    crepe,
    eqben,
    eqben_videos,
    geb,
    pug,
    sugar_crepe,
    valse,
    winoground,
)
from data_builders.scenes.grammar import WorldSpec
from data_builders.scenes.grids import AnimalGrid, Grid, PoseGrid, Singles, SparGrid
from data_builders.scenes.minimal import ChangedTwins, CountedTwins, MovedTwins
from data_builders.scenes.series import ItemSeries
from data_builders.scenes.statements import varied
from data_builders.scenes.twins import AR4TTwins
from data_builders.scenes.varied_scenes import VariedScenes
from data_builders.scenes.videos import Videos

_SPARE = 2  # scenes an item: not every scene has every phenomenon
_KUBRIC = {"loc": MovedTwins, "cnt": CountedTwins, "attr": ChangedTwins}
# Split, and EqBen's part. Files of a video's two frames lie in its folder; YouCook2's are arrays.
_PARTS = {f"suite_{part}": f"eqbenkubric_{part}" for part in _KUBRIC} | {
    "suite_sd": "eqbensd",
    "suite_ag": "eqbenag",
    "suite_youcook2": "eqbenyoucook2",
}
_FRAMES = {"suite_ag": "png", "suite_youcook2": "npy"}


@dataclass(frozen=True)
class Suite:
    """Draws and writes the benchmarks of a world.

    Attributes:
        items: Items of each file, or of each type of item, at most; of grids, the values of a
            factor grow with it.
        spec: What may stand in the scenes, two objects or more, all compositions.
        unseen: The (color, shape) compositions that training never shows.
        seed: Names the world.
    """

    items: int
    spec: WorldSpec
    unseen: frozenset[Pair]
    seed: int

    def plans(self) -> dict[str, Plan]:
        """Returns the series by split."""
        plans: dict[str, Plan] = {}
        for name, series in self._items.items():
            each, count = type(series).scenes, self.items
            if isinstance(series, VariedScenes):
                count = _SPARE * self.items
            elif isinstance(series, Videos):
                count = max(2, self.items // 4)
            plans[name] = Plan(series, each * count, self._files(name, count), each)
        for name, grid in self._grids.items():
            files = grid.files()
            plans[name] = Plan(grid, len(files), files)
        return plans

    def write(self, folder: Path, drawn: Mapping[str, Sequence[Drawn]]) -> None:
        """Writes the annotation files into the folder of the world, and CREPE's images."""
        for split in self.plans():
            name = split.removeprefix("suite_")
            _dump(folder / f"clevr/scenes_{split}.json", clevr.scenes(name, drawn[split]))
        self._write_choices(folder, drawn["suite_scenes"])
        self._write_crepe(folder, drawn["suite_scenes"])
        self._write_pairs(folder, drawn)
        for split, grid in self._grids.items():
            if isinstance(grid, SparGrid):
                table = pug.spar(drawn[split], grid.cells)
                _text(folder / "images/pug_spar/labels.csv", table)
            elif isinstance(grid, AnimalGrid):
                table = pug.animals(drawn[split], grid.cells)
                _text(folder / "images/pug_animals/labels_pug_animal.csv", table)

    @cached_property
    def _items(self) -> dict[str, ItemSeries]:
        two = replace(self.spec, min_objects=2, max_objects=2)
        made: dict[str, ItemSeries] = {
            "suite_scenes": VariedScenes(self.spec, self._seed("scenes"), self.unseen),
            "suite_twins": AR4TTwins(two, self._seed("twins")),
            "suite_videos": Videos(self.spec, self._seed("videos")),
        }
        further = {**_KUBRIC, "ag": ActedTwins, "youcook2": StepTwins, "sd": EditedTwins}
        return made | {
            f"suite_{part}": cls(self.spec, self._seed(part)) for part, cls in further.items()
        }

    @cached_property
    def _grids(self) -> dict[str, Grid]:
        values, shapes = max(2, self.items // 8), len(self.spec.shapes)
        counts = {
            SparGrid: values,
            AnimalGrid: values,
            PoseGrid: max(2, min(8, self.items // 5)),
            Singles: -(-self.items // shapes),
        }
        names = {SparGrid: "spar", AnimalGrid: "animals", PoseGrid: "poses", Singles: "singles"}
        return {
            f"suite_{names[cls]}": cls(self.spec, self._seed(names[cls]), count)
            for cls, count in counts.items()
        }

    def _seed(self, name: str) -> int:
        return sub_seed(self.seed, f"suite_{name}")

    def _files(self, split: str, count: int) -> tuple[str, ...]:
        """EqBen's images lie in a folder for each part, frames in one for each video."""
        if split == "suite_videos":
            return geb.frames(count)
        if split not in _PARTS:
            return ()
        folder = f"{eqben.FOLDER}/{_PARTS[split]}"
        if split in _FRAMES:
            return geb.frames(count, folder, 2, _FRAMES[split])
        return tuple(f"{folder}/{k:06d}.png" for k in range(2 * count))

    def _write_choices(self, folder: Path, drawn: Sequence[Drawn]) -> None:
        kinds, shapes, seed = varied(self.spec), self.spec.shapes, self.seed
        rows = {
            "relation": list(aro.relation(drawn, seed)),
            "attribution": list(aro.attribution(drawn, kinds, seed)),
        }
        for task, items in rows.items():
            _dump(folder / f"aro/visual_genome_{task}.json", items[: self.items])
        orders = list(aro_order.captions(drawn, kinds, seed))[: self.items]
        captions, shuffles = aro_order.files(orders, seed)
        _text(folder / "aro/coco_karpathy_test.json", captions)
        _text(folder / "aro/coco_karpathy_test_shuffles.json", shuffles)
        files: dict[str, Mapping[str, Any]] = {
            "sugar_crepe": sugar_crepe.subsets(drawn, kinds, shapes, self.items, seed),
            "valse": valse.pieces(drawn, kinds, shapes, self.items, seed),
        }
        for name, contents in files.items():
            for file, content in contents.items():
                _dump(folder / f"{name}/{file}.json", content)

    def _write_crepe(self, folder: Path, drawn: Sequence[Drawn]) -> None:
        spec, root = self.spec, folder / "crepe"
        rows = crepe.productivity(drawn, varied(spec), spec.shapes, self.items, self.seed)
        files = {f"{kind}/prod_vg_hard_negs_{kind}_complexity_{n}": own
                 for (kind, n), own in rows.items()}  # fmt: skip
        for kind in crepe.TYPES:
            own = [row for n in crepe.COMPLEXITIES for row in rows[kind, n]]
            files[f"prod_vg_hard_negs_{kind}_all"] = own
        for file, own in files.items():
            table = crepe.table(crepe.PRODUCTIVITY, own)
            _text(root / f"prod_hard_negatives/{file}.csv", table)
        seen = frozenset(spec.pairs()) - self.unseen
        for name, compounds in (("seen", seen), ("unseen", self.unseen)):
            found = crepe.systematicity(
                drawn, compounds, spec.colors, spec.shapes, self.items, self.seed
            )
            file = f"syst_vg_hard_negs_{name}_compounds_in_{crepe.CORPUS}.csv"
            _text(root / f"syst_hard_negatives/{file}", crepe.table(crepe.SYSTEMATICITY, found))
        (root / "VG_100K").mkdir()
        for d in drawn:
            with Image.open(folder / "images" / d.file) as image:
                file = root / f"VG_100K/{crepe.image_id(d)}.jpg"
                image.save(file, quality=95, subsampling=0)

    def _write_pairs(self, folder: Path, drawn: Mapping[str, Sequence[Drawn]]) -> None:
        kubric: list[eqben.Item] = []
        parts: dict[str, Any] = {}
        for split, series in self._items.items():
            own = drawn[split]
            if isinstance(series, AR4TTwins):
                _text(folder / "winoground/examples.jsonl", winoground.examples(own, series))
            elif isinstance(series, Videos):
                _dump(folder / "geb/test.json", geb.boundaries(own, series))
                parts[eqben_videos.GEBC] = eqben_videos.gebc(own, series)
                _copy_frames(folder / "images", own, series)
            elif isinstance(series, ActedTwins):
                parts[_PARTS[split]] = eqben_videos.action_genome(own)
            elif isinstance(series, StepTwins):
                parts[_PARTS[split]] = eqben_videos.youcook2(own)
            elif isinstance(series, MovedTwins | CountedTwins | ChangedTwins):
                parts[_PARTS[split]] = eqben.items(own, series)
                kubric += parts[_PARTS[split]]
            elif isinstance(series, EditedTwins):
                parts[_PARTS[split]] = eqben.items(own, series)
        for part, content in parts.items():
            _dump(folder / f"eqben/{part}.json", content)
        _dump(folder / "eqben/eqben_kubric.json", kubric)


def _copy_frames(images: Path, drawn: Sequence[Drawn], series: Videos) -> None:
    """Copies the frames around the boundaries to where EqBen looks for GEBC's."""
    for pair in eqben_videos.boundaries(drawn, series):
        for frame in pair:
            to = images / eqben.FOLDER / eqben_videos.gebc_image(frame)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(images / frame.file, to)


def _dump(path: Path, content: Any) -> None:
    _text(path, json.dumps(content, separators=(",", ":")))


def _text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
