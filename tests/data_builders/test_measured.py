import csv
import json
from pathlib import Path

import pytest

from data_builders.corpora.ar4t import AR4TBuilder
from data_builders.measured import COCO, FLICKR30K, VISUAL_GENOME, Measured, measured_sources
from tests.data_builders.conftest import dump, released, rows_of
from tests.refusals import refused

COCO_NAMES = ["COCO_val2014_000000391895.jpg", "val2014/COCO_val2014_000000391895.jpg",
              "COCO_train2014_000000391895.jpg", "train2017/000000391895.jpg",
              "000000391895.jpg", "391895.jpg", "391895"]  # fmt: skip


def table(path: Path, rows: list[dict], delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("measured", COCO_NAMES[:-1])
@pytest.mark.parametrize("name", COCO_NAMES)
def test_one_coco_image_under_all_its_names(tmp_path, measured, name):
    file = dump(tmp_path / "b.json", {"0": {"filename": measured, "caption": "a cup"}})
    benchmark = Measured([file], COCO)
    assert benchmark.has(name)
    assert not benchmark.has(name.replace("391895", "391896"))


def test_a_number_of_another_corpus_is_another_image(tmp_path, capsys):
    cola = [["https://a.org/vg_gqa_images/1526.jpg", "a", "https://a.org/vg_gqa_images/9.jpg", "b"]]
    coco = {"0": {"filename": "000000000009.jpg"}}
    files = [dump(tmp_path / "cola.json", cola), dump(tmp_path / "coco.json", coco)]
    measured = {
        corpus: Measured(files, corpus) for corpus in (COCO, VISUAL_GENOME, FLICKR30K, None)
    }
    has = {corpus: [n for n in ("1526", "9") if of.has(n)] for corpus, of in measured.items()}
    assert has == {
        COCO: ["9"],
        VISUAL_GENOME: ["1526", "9"],
        FLICKR30K: [],
        # An image whose corpus nobody knows is rather left out, unless its name says COCO.
        None: ["1526", "9"],
    }
    assert not measured[None].has("000000001526.jpg")
    warnings = capsys.readouterr().err.splitlines()
    shared = [(file, other, corpus) for file, other, corpus in (
        ("cola.json", VISUAL_GENOME, COCO), ("coco.json", COCO, VISUAL_GENOME),
        ("cola.json", VISUAL_GENOME, FLICKR30K),
    )]  # fmt: skip
    assert warnings == [
        f"warning: {file} uses {other} ids, so images that {corpus} shares are not recognised: add "
        "Visual Genome's image_data.json to `measured`"
        for file, other, corpus in shared
    ]


def test_valse_names_visual_genomes_images_and_flickrs_by_their_ids(tmp_path, capsys):
    """Visual Genome's 1526 is COCO's 77 and Flickr's 4711; VALSE writes "v7w_1526.jpg"."""
    valse = dump(tmp_path / "valse.json", {"a": {"image_file": "v7w_1526.jpg"}})
    flickr = dump(tmp_path / "flickr.json", ["1007129816.jpg", "4712.jpg"])
    rows = [{"image_id": 1526, "coco_id": 77, "flickr_id": 4711},
            {"id": 1527, "coco_id": None, "flickr_id": 4712}]  # fmt: skip
    data = dump(tmp_path / "image_data.json", [{**row, "url": "a/1.jpg"} for row in rows])
    names = ("1526", "1527", "77", "4711", "4712")
    has = {
        corpus: [n for n in names if Measured([valse, flickr, data], corpus).has(n)]
        for corpus in (VISUAL_GENOME, COCO, FLICKR30K)
    }
    assert has == {VISUAL_GENOME: ["1526", "1527"], COCO: ["77"], FLICKR30K: ["4711", "4712"]}
    assert capsys.readouterr().err == ""
    Measured([valse], FLICKR30K)
    assert "valse.json uses Visual Genome ids, so images that Flickr30K" in capsys.readouterr().err


def test_layouts_of_the_benchmarks(tmp_path):
    """One file of each kind; every image is found, and nothing else."""
    cola_single = {"labels": ["red cup"], "data": [["images/3.JPG", [], [1], [1]]]}
    valse = {"exist_1": {"image_file": "COCO_val2014_000000000004.jpg", "caption": "a. b"}}
    retrieval = {"images": [
        {"filename": f"COCO_val2014_{k:012d}.jpg", "split": split, "sentences": [{"raw": "a"}]}
        for k, split in ((5, "test"), (6, "train"), (7, "restval"), (8, "val"))]}  # fmt: skip
    deep = {"a": [{"b": {"image0": "clip/frame_a.png", "image1": "clip/frame_b.png"}}]}
    (tmp_path / "crepe").mkdir()
    table(tmp_path / "crepe/a.csv", [{"image_id": 13, "caption": "x.jpeg y", "hard_negs": "['a']"}])
    table(tmp_path / "crepe/b.csv", [{"image_id": 14, "valid_hard_negs_atom": "[]"}])
    row = {"filepath": "val/000000000015.jpg", "neg_image": "['c/000000000016.jpg', 'd.png']"}
    order = table(tmp_path / "order.tsv", [row], "\t")
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"image": "e.webp"}\n\n{"image_id": 17}\n')
    paths = [dump(tmp_path / "single.json", cola_single), dump(tmp_path / "v.json", valse),
             dump(tmp_path / "r.json", retrieval), dump(tmp_path / "d.json", deep),
             tmp_path / "crepe", order, lines]  # fmt: skip
    everything = Measured(paths)
    stems = {str(k) for k in range(30) if everything.has(str(k))}
    assert stems == {"3", "4", "5", "8", "13", "14", "15", "16", "17"}
    assert all(everything.has(name) for name in ("frame_a", "frame_b.png", "d.png", "e", "x"))
    assert not everything.has("frame_c")
    of_coco = Measured(paths, COCO)
    assert not of_coco.has("13")  # CREPE's are Visual Genome's
    assert of_coco.has("3")  # Cola's file says nothing, so that this one is rather left out
    assert list(measured_sources([lines, tmp_path / "crepe"])) == [
        "lines.jsonl", "crepe/a.csv", "crepe/b.csv",
    ]  # fmt: skip
    assert not Measured([]).has("1")


def test_numbers_too_large_for_coco_are_visual_genomes(tmp_path, capsys):
    names = [f"{number}.jpg" for number in (2390970, 2388902, 1526, 391895)]
    single = dump(tmp_path / "COLA_single.json", {"labels": ["a b"], "data": [[n] for n in names]})
    assert not Measured([single], COCO).has("391895")
    assert "COLA_single.json uses Visual Genome ids" in capsys.readouterr().err
    assert Measured([single], VISUAL_GENOME).has("391895")
    flickr = dump(tmp_path / "f.json", ["1007129816.jpg", "36979.jpg"])
    assert Measured([flickr], FLICKR30K).has("36979")
    assert not Measured([flickr], COCO).has("36979")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "(?i)no such file"), ("{", "JSONDecodeError"), ('{"1.jpg": ["a cup", 4]}', "got none")],
)
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_another_file_is_refused(tmp_path, content, message, suffix):
    path = tmp_path / f"b.{suffix}"
    if content is not None:
        path.write_text(content)
    with refused(message) as caught:
        Measured([path])
    assert str(path) in str(caught.value)


def test_an_empty_folder_is_refused(tmp_path):
    with refused("expected files of a benchmark"):
        Measured([tmp_path])


# -- builders ---------------------------------------------------------------------------------


def test_ar4t_without_the_scenes_of_a_test(world, tmp_path):
    """File names recur in other folders, so that the path counts."""
    rows = rows_of(world / "ar4t/PUG_AR_train.csv")
    first, second = rows[0]["filepath"], rows[1]["filepath"]
    benchmark = table(tmp_path / "test.csv", [
        {"filepath": f"/{first}"}, {"filepath": f"elsewhere/{Path(second).name}"},
    ])  # fmt: skip
    builder = AR4TBuilder(world / "ar4t/PUG_AR_train.csv", world / "images", measured=[benchmark])
    images = {image for group, _ in builder.records() for image in group.image_ids}
    assert images == {row["filepath"] for row in rows[1:]}
    assert builder.counts["skipped: measured"] == 1
    whole = AR4TBuilder(world / "ar4t/PUG_AR_train.csv", world / "images")
    assert "measured" not in whole.spec()["init_args"]


# -- released files ---------------------------------------------------------------------------


def test_released_files_of_cola_and_sugar_crepe():
    sugar = [released(f"sugar-crepe/{name}.json") for name in ("replace_att", "add_att")]
    files = [released("cola/COLA_multiobjects_matching_benchmark.json"), *sugar]
    ids = {Path(url).stem for row in json.loads(files[0].read_text()) for url in row[::2]}
    assert len(ids) == 218
    assert all(Measured(files[:1], VISUAL_GENOME).has(id_) for id_ in ids)
    coco = {row["filename"] for f in files[1:] for row in json.loads(f.read_text()).values()}
    measured = Measured(files, COCO)
    assert all(measured.has(f"train2014/COCO_train2014_{name}") for name in coco)
    assert not any(measured.has(id_) for id_ in ids - {str(int(Path(n).stem)) for n in coco})
