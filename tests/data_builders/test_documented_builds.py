"""The commands in the configs' headers leave out of training what the run's benchmarks measure.

Each corpus is built as documented, of files made by hand, in which a benchmark names some images.
"""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from data_builders.measured import Measured
from tests.data_builders.pictures import encoded
from vlmtune.cli.contamination import unchecked
from vlmtune.cli.main import main
from vlmtune.cli.plugins import make_benchmarks
from vlmtune.data.shards import ShardSet, read_headers

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "configs/experiments"
# A data file, its corpus, the benchmarks of its runs, and which images they measure of it.
RUNS = [
    ("corpora/data/coco.yaml", "COCO", "corpora/benchmarks.yaml", range(1, 6)),
    ("corpora/data/flickr30k.yaml", "Flickr30K", "corpora/benchmarks.yaml", range(1, 6)),
    ("corpora/data/cola.yaml", "Visual Genome", "corpora/benchmarks.yaml", range(1, 6)),
    ("eqsim/data/coco.yaml", "COCO", "eqsim/benchmarks.yaml", (6, 7)),
    ("eqsim/data/flickr30k.yaml", "Flickr30K", "eqsim/benchmarks.yaml", (6, 7)),
    ("cola/data/gqa.yaml", "Visual Genome", "cola/benchmarks/gqa.yaml", (1, 2)),
    ("cola/data/multi.yaml", "Visual Genome", "cola/benchmarks/multi.yaml", (1, 2, 3)),
    ("cola/data/multi_drawn.yaml", "Visual Genome", "cola/benchmarks/multi.yaml", (1, 2, 3)),
    ("cola/data/paco.yaml", "COCO", "cola/benchmarks/paco.yaml", (2,)),
]
PHOTOGRAPHS = (
    *("cola_multi", "cola_single", "cola_single_gqa", "cola_single_attributes", "cola_single_paco"),
    *("valse", "crepe_productivity", "crepe_swap", "aro_relation", "aro_attribution"),
)
# Image k is 101 k in Visual Genome, 1000 k in COCO and 3,000,000 + k in Flickr30K.
VISUAL_GENOME = {k: 2_000_000 + 101 * k for k in range(1, 10)}
COCO = {k: 1000 * k for k in range(1, 10)}
FLICKR = {k: 3_000_000_000 + k for k in range(1, 10)}
# Which image each benchmark measures; 8 and 9 are in none.
COLA, SINGLE, CREPE, RELATION, ATTRIBUTION, VALSE_VG, VALSE_COCO = range(1, 8)


def coco_name(k: int, split: str = "train2014") -> str:
    return f"COCO_{split}_{COCO[k]:012d}.jpg"


def write(path: str, content: object) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, str | bytes):
        content = json.dumps(content)
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def captioned(path: str, folder: str, names: list[str], dataset: str) -> None:
    rows = [{"filename": n, "filepath": folder, "split": "train", "sentences": [{"raw": "a cup"}]}
            for n in names]  # fmt: skip
    if dataset == "coco":
        rows[-1]["split"] = "restval"
    write(path, {"images": rows, "dataset": dataset})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder data/ with corpora, and with benchmarks that measure images 1 to 7."""
    folder = tmp_path_factory.mktemp("documented")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # -- corpora
        captioned("data/coco/dataset_coco.json", "train2014", list(map(coco_name, COCO)), "coco")
        captioned("data/flickr30k/dataset_flickr30k.json", "",
                  [f"{number}.jpg" for number in FLICKR.values()], "flickr30k")  # fmt: skip
        graphs, annotations = {}, []
        for k in COCO:
            for path in (
                f"coco/train2014/{coco_name(k)}",
                f"coco/train2017/{COCO[k]:012d}.jpg",
                f"flickr30k/flickr30k-images/{FLICKR[k]}.jpg",
                f"gqa/images/{VISUAL_GENOME[k]}.jpg",
            ):
                write(f"data/{path}", encoded())
            objects = {
                "1": {"name": "cup", "attributes": ["red"],
                      "relations": [{"name": "on", "object": "2"}]},
                "2": {"name": "table", "attributes": ["blue"]},
            }  # fmt: skip
            graphs[str(VISUAL_GENOME[k])] = {"objects": objects}
            annotations.append({"image_id": COCO[k], "category_id": 1, "attribute_ids": [1]})
        write("data/gqa/train_sceneGraphs.json", graphs)
        write("data/gqa/val_sceneGraphs.json", {"2400000": graphs[str(VISUAL_GENOME[9])]})
        write("data/paco/paco_lvis_v1_train.json", {
            "categories": [{"id": 1, "name": "cup", "supercategory": "OBJECT"}],
            "attributes": [{"id": 1, "name": "red"}],
            "images": [{"id": n, "file_name": f"train2017/{n:012d}.jpg"} for n in COCO.values()],
            "annotations": annotations,
        })  # fmt: skip
        write("data/visual_genome/image_data.json", [
            {"image_id": VISUAL_GENOME[k], "coco_id": COCO[k], "flickr_id": FLICKR[k],
             "url": f"VG_100K/{VISUAL_GENOME[k]}.jpg"} for k in COCO])  # fmt: skip
        # -- benchmarks
        url = f"https://a.org/vg_gqa_images/{VISUAL_GENOME[COLA]}.jpg"
        write("data/cola/COLA_multiobjects_matching_benchmark.json", [[url, "a", url, "b"]])
        for corpus, image in (("GQA", f"{VISUAL_GENOME[SINGLE]}.jpg"),
                              ("PACO", f"val2017/{COCO[SINGLE]:012d}.jpg")):  # fmt: skip
            # No training image shows 150 of them, so these are unseen.
            labels = [[["red"], "cup"], *([[f"color {k}"], "cup"] for k in range(150))]
            flags = [1] * len(labels)
            write(f"data/cola/COLA_singleobjects_benchmark_{corpus}.json",
                  {"labels": labels, "data": [[image, None, flags, flags]]})  # fmt: skip
        write(
            "data/crepe/prod_hard_negatives/a.csv",
            f"image_id,hard_negs\n{VISUAL_GENOME[CREPE]},[]\n",
        )
        for name, k in (("relation", RELATION), ("attribution", ATTRIBUTION)):
            row = {"image_path": f"{VISUAL_GENOME[k]}.jpg"}
            write(f"data/aro/visual_genome_{name}.json", [row])
        write("data/pug/PUG_SPAR/labels.csv", "filename,world_name\nDesert_Dog.png,Desert\n")
        write("data/winoground/examples.jsonl", json.dumps({"image_0": "ex_0_img_0"}) + "\n")
        write("data/eqben/eqben_subset_10percent_final.json", [{"image0": "eqbenag/a/000089.png"}])
        write("data/geb_plus/val.json", {"a": [{"boundary": 1}]})
        write(
            "data/valse/data/existence.json",
            {"a": {"image_file": f"v7w_{VISUAL_GENOME[VALSE_VG]}.jpg"}},
        )
        write(
            "data/valse/data/foil-it.json", {"a": {"image_file": coco_name(VALSE_COCO, "val2014")}}
        )
    return folder


def commands(path: Path) -> list[list[str]]:
    lines = path.read_text().splitlines()
    return [shlex.split(line[2:])[1:] for line in lines if line.startswith("# vlmtune build ")]


@pytest.mark.parametrize(("data", "corpus", "benchmarks", "left_out"), RUNS)
def test_training_and_test_images_are_disjoint(
    data, corpus, benchmarks, left_out, files, monkeypatch, capsys
):
    monkeypatch.chdir(files)
    if "data/cola-gqa-split/exclude.json" in (EXPERIMENTS / data).read_text():
        earlier = commands(EXPERIMENTS / "cola/data/gqa.yaml")
        for words in earlier[:-1]:
            assert main(words) == 0, capsys.readouterr().err
    for words in commands(EXPERIMENTS / data):
        assert main(words) == 0, capsys.readouterr().err
    errors = capsys.readouterr().err
    assert "warning" not in errors
    content = yaml.safe_load((EXPERIMENTS / data).read_text())
    sets = [ShardSet(part["path"]) for part in content["data"]["train"]]
    ids = {image for _, group, _ in read_headers(sets) for image in group.image_ids}
    assert ids
    tests = make_benchmarks([str(EXPERIMENTS / benchmarks)])
    assert unchecked(sets, tests) == []
    paths = [Path(vars(b)["path"]) for b in tests if b.name in PHOTOGRAPHS]
    measured = Measured([*paths, Path("data/visual_genome/image_data.json")], corpus)
    assert not [image for image in ids if measured.has(image)]
    # and no more is left out than the run measures
    assert len(ids) == 9 - len(left_out)
