"""`fit` warns of training sets that may have images of its benchmarks."""

import json
from pathlib import Path

import pytest
from pytorch_lightning import LightningModule, Trainer

from data_builders import measured
from data_builders.corpora.annotations import ClevrScenes
from data_builders.corpora.coco import CocoBuilder
from data_builders.corpora.cola import ColaBuilder
from data_builders.corpora.cola_pairs import BENCHMARK, ColaPairsBuilder
from data_builders.corpora.flickr30k import Flickr30kBuilder
from data_builders.corpora.karpathy import KarpathyBuilder
from data_builders.corpora.table import TableBuilder
from data_builders.worlds.scenes.world import ScenesBuilder
from tests.data_builders.pictures import encoded
from tests.runs import QUIET
from vlmtune.benchmarks.base import Benchmark
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.benchmarks.crepe_productivity import CrepeProductivity
from vlmtune.benchmarks.eqben import EqBen
from vlmtune.benchmarks.retrieval import Retrieval
from vlmtune.benchmarks.sugar_crepe import SugarCrepe
from vlmtune.benchmarks.table_multiple_choice import TableMultipleChoice
from vlmtune.benchmarks.zero_shot_classification import ZeroShotClassification
from vlmtune.cli.contamination import unchecked
from vlmtune.cli.fit import Announcement
from vlmtune.data import ShardDataModule, ShardSet
from vlmtune.training.benchmark_callback import BenchmarkCallback

pytestmark = QUIET
NUMBERS = (391895, 9, 13)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Karpathy's JSON of three images, and benchmarks that show some of them."""
    rows = []
    for number in NUMBERS:
        name = f"COCO_val2014_{number:012d}.jpg"
        (tmp_path / name).write_bytes(encoded(shade=number % 200))
        rows.append({"filename": name, "split": "train", "sentences": [{"raw": "a cup"}]})
    rows.append({**rows[0], "filename": "COCO_val2014_000000000007.jpg", "split": "test"})
    write(tmp_path / "dataset.json", {"images": rows})
    write(tmp_path / "sugar/add_att.json", {"0": {"filename": "000000000009.jpg"}})
    write(tmp_path / "cola.json", [["vg_gqa_images/1526.jpg", "a", "vg_gqa_images/4.jpg", "b"]])
    write(tmp_path / "flickr.json", {"images": [{"filename": "1007129816.jpg", "split": "test"}]})
    write(tmp_path / "eqben.json", [{"image0": "a.mp4/000009.png", "image1": "a.mp4/000013.png"}])
    (tmp_path / "crepe").mkdir()
    (tmp_path / "crepe/a.csv").write_text("image_id,hard_negs\n13,[]\n")
    return tmp_path


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def benchmarks(folder: Path) -> list[Benchmark]:
    images = str(folder)
    return [
        SugarCrepe(str(folder / "sugar"), images),
        ColaMulti(str(folder / "cola.json"), images),
        CrepeProductivity(str(folder / "crepe"), images),
        Retrieval(str(folder / "flickr.json"), images),
        Retrieval(str(folder / "dataset.json"), images, name="same_file"),
        EqBen({"eqbenag": str(folder / "eqben.json")}, images),
        ColaMulti(str(folder / "absent.json"), images, name="absent"),
        ZeroShotClassification(images),
    ]


def coco(folder: Path, *measured: str, kind: type[KarpathyBuilder] = CocoBuilder) -> list[ShardSet]:
    paths = [folder / name for name in measured]
    out = folder / f"shards-{len(measured)}-{kind.__name__}"
    kind(folder / "dataset.json", folder, measured=paths).build(out, progress=False)
    return [ShardSet(str(out))]


def test_a_line_names_the_benchmarks_that_a_corpus_was_not_checked_against(folder):
    (line,) = unchecked(sets := coco(folder), benchmarks(folder))
    files = ",".join(str(folder / name) for name in ("sugar", "cola.json", "crepe"))
    assert line == (
        f"warning: {sets[0].path} may have images of sugar_crepe, cola_multi, crepe_productivity: "
        f"build it with --measured '[{files}]' to leave them out"
    )


class Own(CocoBuilder):
    """A builder of another package."""


def test_no_option_is_advised_to_a_builder_of_another_package(folder):
    sets = coco(folder, kind=Own)
    benchmark = ColaMulti(str(folder / "cola.json"), "")
    (line,) = unchecked(sets, [benchmark])
    assert line.endswith(f"of cola_multi: leave the images of {folder / 'cola.json'} out of it")


def test_a_file_is_read_once_for_all_sets(folder, monkeypatch):
    read = []
    image_names = measured.image_names

    def noted(path):
        read.append(path.name)
        return image_names(path)

    monkeypatch.setattr(measured, "image_names", noted)
    assert len(unchecked(coco(folder) * 3, benchmarks(folder))) == 3
    # Karpathy's file of COCO takes five seconds.
    assert sorted(read) == ["a.csv", "add_att.json", "cola.json", "eqben.json", "flickr.json"]


def test_what_was_left_out_is_not_named(folder):
    (line,) = unchecked(coco(folder, "sugar", "crepe"), benchmarks(folder))
    assert "images of cola_multi: build" in line
    sets = coco(folder, "sugar", "crepe", "cola.json")
    assert unchecked(sets, benchmarks(folder)) == []
    # The same files in another folder are known by their content.
    moved = folder / "moved"
    moved.mkdir()
    for name in ("sugar", "crepe", "cola.json"):
        (folder / name).rename(moved / name)
    there = [SugarCrepe(str(moved / "sugar"), ""), ColaMulti(str(moved / "cola.json"), "")]
    assert unchecked(sets, there) == []
    (moved / "sugar/add_att.json").write_text('{"0": {"filename": "000000000013.jpg"}}')
    assert len(unchecked(sets, there)) == 1


def test_corpora_overlap_what_they_share_images_with(folder):
    (line,) = unchecked(coco(folder, kind=Flickr30kBuilder), benchmarks(folder))
    assert "images of cola_multi, crepe_productivity, retrieval: build" in line
    (line,) = unchecked(coco(folder, kind=KarpathyBuilder), benchmarks(folder))
    assert "sugar_crepe, cola_multi, crepe_productivity, retrieval, eqben, zero_shot" in line
    first, second = folder / "eqben.json", folder / "more.json"
    second.write_text(first.read_text().replace("9", "8"))
    both = EqBen({"eqbenag": str(first), "eqbengebc": str(second)}, str(folder))
    (line,) = unchecked(coco(folder, kind=KarpathyBuilder), [both])
    assert f"images of eqben: build it with --measured '[{first},{second}]'" in line


def test_the_split_that_is_measured_was_trained_on(folder):
    out = folder / "shards"
    builder = CocoBuilder(folder / "dataset.json", folder, splits=["train", "test"])
    (folder / "COCO_val2014_000000000007.jpg").write_bytes(encoded())
    builder.build(out, progress=False)
    (line,) = unchecked([ShardSet(str(out))], [Retrieval(str(folder / "dataset.json"), "")])
    assert "may have images of retrieval" in line


def test_arguments_of_a_build_that_are_null_name_nothing(folder):
    (folder / "mine.csv").write_text("image,caption\nCOCO_val2014_000000000009.jpg,a cup\n")
    out = folder / "shards"
    TableBuilder(folder / "mine.csv").build(out, progress=False)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["arguments"]["splits"] is None
    manifest["arguments"]["measured"] = None
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert len(unchecked([ShardSet(str(out))], [SugarCrepe(str(folder / "sugar"), "")])) == 1


@pytest.mark.parametrize(
    ("split", "built", "measured", "warned"),
    [
        (True, {}, {}, False),
        (True, {}, {"splits": ["train", "test"]}, True),
        (True, {"splits": ["train", "test"]}, {}, True),
        (True, {"columns": {"split": None}}, {}, True),
        (False, {}, {}, True),
        (False, {"held_out": 0.4}, {"held_out": 0.4}, False),
        (False, {"held_out": 0.4}, {"held_out": 0.2}, False),
        (False, {"held_out": 0.2}, {"held_out": 0.4}, True),
        (False, {"held_out": 0.4}, {}, True),
        (False, {"held_out": 0.4, "splits": ["val"]}, {"held_out": 0.4}, True),
    ],
)
def test_a_table_that_is_trained_on_and_measured(folder, split, built, measured, warned):
    rows = ["image,caption,negative,split" if split else "image,caption,negative"]
    for number, name in zip(NUMBERS, ("train", "train", "test"), strict=True):
        row = f"COCO_val2014_{number:012d}.jpg,a cup,a mug"
        rows.append(f"{row},{name}" if split else row)
    path = folder / "mine.csv"
    path.write_text("\n".join(rows))
    TableBuilder(path, **built).build(folder / "shards", progress=False)
    (folder / "copy").mkdir()
    copy = folder / "copy/mine.csv"
    copy.write_bytes(path.read_bytes())
    benchmark = TableMultipleChoice(str(copy), images=str(folder), **measured)
    lines = unchecked([ShardSet(str(folder / "shards"))], [benchmark])
    wanted = f"warning: {folder}/shards trains on images of table_multiple_choice: measure another"
    assert [line.startswith(wanted) for line in lines] == ([True] if warned else [])


def test_the_first_split_for_tests_is_measured(folder):
    """With training on "val", too, a table that has "test" is measured on it."""
    path = folder / "mine.csv"
    sets = {}
    for last in ("test", "train"):
        rows = ["image,caption,negative,split"]
        for number, split in zip(NUMBERS, ("train", "val", last), strict=True):
            rows.append(f"COCO_val2014_{number:012d}.jpg,a cup,a mug,{split}")
        path.write_text("\n".join(rows))
        out = folder / f"shards-{last}"
        TableBuilder(path, splits=["train", "val"]).build(out, progress=False)
        sets[last] = len(unchecked([ShardSet(str(out))], [TableMultipleChoice(str(path))]))
    assert sets == {"test": 0, "train": 1}


def test_rendered_scenes_are_divided_by_their_build(folder):
    world = folder / "world"
    sizes = dict.fromkeys(("cogent", "val", "ar4t_train", "ar4t_test"), 0)
    ScenesBuilder(train=8, test=2, multi=2, image_size=32, **sizes).build(world, progress=False)
    reader = ClevrScenes(world / "clevr/scenes_train.json", world / "images/train")
    ColaBuilder(reader).build(folder / "queries", progress=False)
    rendered = ShardSet(str(folder / "queries"))
    of_world = ColaMulti(str(world / "cola/multi_unseen.json"), str(world / "images/cola"))
    assert unchecked([rendered], [of_world, *benchmarks(folder)]) == []
    assert unchecked(coco(folder, "sugar", "crepe", "cola.json"), [of_world]) == []


def test_a_benchmark_that_the_build_of_the_shards_wrote(folder):
    world, out = folder / "world", folder / "pairs"
    sizes = dict.fromkeys(("cogent", "val", "multi", "ar4t_train", "ar4t_test", "test"), 0)
    ScenesBuilder(train=60, image_size=32, **sizes).build(world, progress=False)
    scenes = folder / "scenes.json"  # no world beside it
    scenes.write_text((world / "clevr/scenes_train.json").read_text())
    (world / "manifest.json").unlink()
    reader = ClevrScenes(scenes, world / "images/train")
    ColaPairsBuilder(reader, form="and", benchmark=0.5).build(out, progress=False)
    assert unchecked([ShardSet(str(out))], [ColaMulti(str(out / BENCHMARK), "")]) == []


def test_fit_prints_the_line_once(folder, capsys, monkeypatch):
    evaluation = BenchmarkCallback(benchmarks(folder))
    trainer = Trainer(logger=False, accelerator="cpu", devices=1, callbacks=[evaluation])
    data = ShardDataModule(coco(folder), 2)
    monkeypatch.setattr(trainer, "datamodule", data)
    capsys.readouterr()
    Announcement().on_fit_start(trainer, LightningModule())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ")
    assert "may have images of sugar_crepe" in line
    monkeypatch.setattr(Trainer, "is_global_zero", False)
    Announcement().on_fit_start(trainer, LightningModule())
    assert capsys.readouterr().err == ""
