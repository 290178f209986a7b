"""The rendered world in the formats of other benchmarks.

In: a spec and a seed. Out: series to render, and annotation files.

Scenes show all compositions and are never used for training. Files are in `aro`, `crepe`,
`half_truths`, `negbench`, `sugar_crepe`, `valse`, `whats_up`, `winoground`, `eqben` and `geb`,
images in `crepe/VG_100K` and
`images/{suite,whats_up,eqben,geb,pug_spar,pug_animals,pug_imagenet/<factor>/*,classification/*}`,
scene graphs in `clevr/scenes_suite_<series>.json`.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from PIL import Image

from data_builders.text_files import csv_table, write_json
from data_builders.worlds.scenes.formats import (
    aro,
    aro_order,
    clevr,
    crepe,
    eqben,
    half_truths,
    negbench,
    pug,
    sugar_crepe,
    valse,
    whats_up,
    winoground,
)
from data_builders.worlds.scenes.formats.context import SuiteScenes
from data_builders.worlds.scenes.grids import AnimalGrid, Grid, PoseGrid, Singles, SparGrid
from data_builders.worlds.scenes.image_files import Images, Split, numbered, sub_seed
from data_builders.worlds.scenes.pairs import (
    ENGINE,
    ActedPairs,
    EditedPairs,
    ExchangedPairs,
    PlacedSets,
    StepPairs,
)
from data_builders.worlds.scenes.sampling import Composition, WorldSpec
from data_builders.worlds.scenes.series import VariedScenes
from data_builders.worlds.scenes.videos import Videos, frames
from vlmtune.storage.files import write_text

_SPARE = 2  # scenes for each row, as not every scene shows every phenomenon
_EQBEN = {f"kubric_{name}": series for name, series in ENGINE.items()}
_EQBEN |= {"ag": ActedPairs, "youcook2": StepPairs, "sd": EditedPairs}
_FRAMES = {"ag": "png", "youcook2": "npy"}  # parts from videos, two frames each


@dataclass(frozen=True)
class Suite:
    """The benchmarks of a world: at most `items` rows of a file, or of each type of item.

    `spec` allows two objects or more and all compositions; training never shows those in `unseen`.
    PUG: SPAR's grid comes `spar_repeats` times.
    """

    items: int
    spec: WorldSpec
    unseen: frozenset[Composition]
    seed: int
    spar_repeats: int = 1

    @cached_property
    def splits(self) -> dict[str, Split]:
        """The series to render and their files, by the name of the split."""
        count, spec = self.items, self.spec
        two = replace(spec, min_objects=2, max_objects=2)
        splits = {
            "scenes": Split(
                VariedScenes(spec, self._seed("scenes"), self.unseen),
                numbered("suite_scenes", _SPARE * count),
            ),
            "twins": Split(
                ExchangedPairs(two, self._seed("twins")), numbered("suite_twins", 2 * count)
            ),
            "placed": Split(
                PlacedSets(replace(two, stack_probability=0.0), self._seed("placed")),
                whats_up.files(-(-count // PlacedSets.scenes)),
            ),
            "videos": Split(Videos(spec, self._seed("videos")), frames(max(2, count), "geb")),
        }
        for part, series in _EQBEN.items():
            name, folder = part.removeprefix("kubric_"), f"{eqben.FOLDER}/eqben{part}"
            if part in _FRAMES:
                files = frames(count, folder, 2, _FRAMES[part])
            else:
                files = tuple(f"{folder}/{k:06d}.png" for k in range(2 * count))
            splits[name] = Split(series(spec, self._seed(name)), files)
        splits |= {name: Split(grid, grid.files()) for name, grid in self._grids.items()}
        return {f"suite_{name}": split for name, split in splits.items()}

    @cached_property
    def _grids(self) -> dict[str, Grid]:
        values = max(2, self.items // 8)
        poses, singles = max(2, min(8, self.items // 5)), -(-self.items // len(self.spec.shapes))
        return {
            "spar": SparGrid(self.spec, self._seed("spar"), values, self.spar_repeats),
            "animals": AnimalGrid(self.spec, self._seed("animals"), values),
            "poses": PoseGrid(self.spec, self._seed("poses"), poses),
            "singles": Singles(self.spec, self._seed("singles"), singles),
        }

    def _seed(self, name: str) -> int:
        return sub_seed(self.seed, f"suite_{name}")

    def write(self, folder: Path, images: Images) -> None:
        """Writes the annotation files into the folder of the world, and CREPE's images."""
        for split in self.splits:
            content = clevr.scenes(split.removeprefix("suite_"), images[split])
            write_json(folder / f"clevr/scenes_{split}.json", content)
        scenes = SuiteScenes(images["suite_scenes"], self.spec, self.items, self.seed)
        _write_captions(folder, scenes)
        content = whats_up.controlled(images["suite_placed"])
        write_json(folder / f"whats_up/{whats_up.PART}_dataset.json", content)
        self._write_crepe(folder, scenes)
        _write_eqben(folder, images, self.splits)
        pairs = self.splits["suite_twins"].series
        assert isinstance(pairs, ExchangedPairs)
        text = winoground.examples(images["suite_twins"], pairs)
        write_text(folder / "winoground/examples.jsonl", text)
        for name, grid in self._grids.items():
            rows = images[f"suite_{name}"]
            if isinstance(grid, SparGrid):
                write_text(folder / "images/pug_spar/labels.csv", pug.spar(rows, grid.cells))
            elif isinstance(grid, AnimalGrid):
                table = pug.animals(rows, grid.cells)
                write_text(folder / "images/pug_animals/labels_pug_animal.csv", table)

    def _write_crepe(self, folder: Path, scenes: SuiteScenes) -> None:
        root = folder / "crepe"
        for kind in crepe.TYPES:
            name, by_atoms = f"prod_vg_hard_negs_{kind}", crepe.productivity(scenes, kind)
            files = {f"{kind}/{name}_complexity_{n}": rows for n, rows in by_atoms.items()}
            files[f"{name}_all"] = [row for rows in by_atoms.values() for row in rows]
            for file, rows in files.items():
                table = csv_table(crepe.PRODUCTIVITY, rows)
                write_text(root / f"prod_hard_negatives/{file}.csv", table)
        seen = frozenset(self.spec.compositions()) - self.unseen
        for name, compounds in (("seen", seen), ("unseen", self.unseen)):
            rows = crepe.systematicity(scenes, compounds, self.spec.colors)
            file = f"syst_vg_hard_negs_{name}_compounds_in_{crepe.CORPUS}.csv"
            table = csv_table(crepe.SYSTEMATICITY, rows)
            write_text(root / f"syst_hard_negatives/{file}", table)
        (root / "VG_100K").mkdir()
        for scene in scenes.images:
            with Image.open(folder / "images" / scene.file) as image:
                file = root / f"VG_100K/{crepe.image_id(scene)}.jpg"
                image.save(file, quality=95, subsampling=0)


def _write_captions(folder: Path, scenes: SuiteScenes) -> None:
    write_json(folder / "aro/visual_genome_relation.json", aro.relation(scenes))
    write_json(folder / "aro/visual_genome_attribution.json", aro.attribution(scenes))
    captions, shuffles = aro_order.files(scenes)
    write_text(folder / "aro/coco_karpathy_test.json", captions)
    write_text(folder / "aro/coco_karpathy_test_shuffles.json", shuffles)
    write_json(folder / "half_truths/units.json", half_truths.units(scenes))
    write_text(folder / "negbench/scenes_val_mcq.csv", negbench.multiple_choice(scenes))
    for file, content in sugar_crepe.subsets(scenes).items():
        write_json(folder / f"sugar_crepe/{file}.json", content)
    for file, content in valse.pieces(scenes).items():
        write_json(folder / f"valse/{file}.json", content)


def _write_eqben(folder: Path, images: Images, splits: Mapping[str, Split]) -> None:
    kubric: list[eqben.Item] = []
    for part in _EQBEN:
        split = f"suite_{part.removeprefix('kubric_')}"
        if part == "ag":
            content = eqben.action_genome(images[split])
        elif part == "youcook2":
            content = eqben.youcook2(images[split], splits[split].series)
        else:
            content = eqben.items(images[split], splits[split].series)
            kubric += content if part.startswith("kubric") else []
        write_json(folder / f"eqben/eqben{part}.json", content)
    write_json(folder / "eqben/eqben_kubric.json", kubric)
    videos = splits["suite_videos"].series
    assert isinstance(videos, Videos)
    write_json(folder / "geb/test.json", eqben.boundaries(images["suite_videos"], videos))
    gebc = eqben.gebc(images["suite_videos"], videos)
    write_json(folder / f"eqben/{eqben.GEBC}.json", gebc)
    for _, pair in videos.boundaries(images["suite_videos"]):
        for frame in pair:
            target = folder / "images" / eqben.FOLDER / eqben.gebc_image(frame)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / "images" / frame.file, target)
