import json
import random

import pytest
import timm
import torch
import yaml
from PIL import Image

from tests.backbones.hf_models import write_timm
from tests.refusals import refused
from tests.tiny import cola_plugin
from vlmtune.benchmarks.pug_imagenet import FACTORS, PugImageNet
from vlmtune.benchmarks.zero_shot_classification import ZeroShotClassification
from vlmtune.cli.main import main
from vlmtune.evaluation.class_scorer import ClassScorer
from vlmtune.evaluation.suite import run_suite
from vlmtune.model import load
from vlmtune.report.run_report import RunReport


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A vision transformer of five classes."""
    return write_timm(tmp_path_factory.mktemp("timm") / "model")


def draw_images(folder, classes, count):
    rng = random.Random(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for k in range(count):
            noise = bytes(rng.randrange(256) for _ in range(3 * 16 * 16))
            Image.frombytes("RGB", (16, 16), noise).save(folder / name / f"{k}.png")
    return sorted(folder.rglob("*.png"))


def chosen(folder, paths):
    """The class that timm's own model chooses for each image."""
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    config = timm.data.resolve_model_data_config(network)
    transform = timm.data.create_transform(**config, is_training=False)
    pixels = torch.stack([transform(Image.open(path)) for path in paths])
    with torch.no_grad():
        return network(pixels).argmax(dim=1).tolist()


@pytest.mark.parametrize("names", ["vwxyz", "01234"])
def test_a_class_for_each_folder(folder, tmp_path, names):
    paths = draw_images(tmp_path / "val", names, 6)
    model = load(f"timm:{folder}", texts=False, device="cpu")
    assert model.backbone.labels == tuple("01234")
    options = {"templates": ("a {}", "the {}"), "ensemble": "embeddings"}
    benchmark = ZeroShotClassification(str(tmp_path / "val"), **options)
    (result,) = run_suite([benchmark], model.scorer(tmp_path / "store")).results
    wins = [
        names[c] == path.parent.name for c, path in zip(chosen(folder, paths), paths, strict=True)
    ]
    assert 0 < sum(wins) < len(wins)
    assert result.outcomes == tuple(map(float, wins))


def test_fewer_folders_are_found_by_name_and_strangers_refused(folder, tmp_path):
    draw_images(tmp_path / "known", "13", 2)
    draw_images(tmp_path / "other", "xy", 2)
    scorer = load(f"timm:{folder}", texts=False, device="cpu").scorer()
    assert isinstance(scorer, ClassScorer)
    known, other = (ZeroShotClassification(str(tmp_path / x)) for x in ("known", "other"))
    (result,) = run_suite([known], scorer).results
    scores = scorer.class_scores(known.items.images, [1, 3])
    wins = (scores.argmax(dim=1) == torch.tensor([0, 0, 1, 1])).double()
    assert result.outcomes == tuple(wins.tolist())
    assert scorer.class_scores(known.items.images, [3, 1]).equal(scores.flip(1))
    with refused("each of the classifier's 5 classes, or folders called .* got 2, first 'x'"):
        run_suite([other], scorer)


def test_pug_imagenet_maps_1000_outputs_to_its_classes(tmp_path):
    draw_images(tmp_path / FACTORS[0], ("Cat", "Wolf"), 6)
    ids = {"Cat": [*range(500)], "Wolf": [*range(499, 900)]}
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    (tmp_path / "names.json").write_text(json.dumps([f"class {i % 999}" for i in range(1000)]))
    options = {"factors": FACTORS[:1], "mapping": str(tmp_path / "ids.json")}
    options["imagenet_names"] = str(tmp_path / "names.json")
    benchmark = PugImageNet(str(tmp_path), **options, convention="reference")
    scorer = load("timm:test_vit", "random", texts=False, device="cpu").scorer()
    (result,) = run_suite([benchmark], scorer).results
    scores = scorer.class_scores(benchmark.items.images, range(1000))
    class_of = {i: name for name in ("Cat", "Wolf") for i in ids[name]}
    right = [
        class_of.get(output) == image.path.parent.name
        for output, image in zip(scores.argmax(1).tolist(), benchmark.items.images, strict=True)
    ]
    assert result.outcomes == tuple(map(float, right))
    with refused("the convention 'reference' for pug_imagenet, got 1000 and 'strict'"):
        run_suite([PugImageNet(str(tmp_path), **options)], scorer)


def test_the_command_measures_what_it_can(folder, tmp_path, capsys):
    paths = draw_images(tmp_path / "val", "01234", 2)
    module = "vlmtune.benchmarks.zero_shot_classification.ZeroShotClassification"
    classes = {"class_path": module, "init_args": {"images": str(tmp_path / "val")}}
    # What the model cannot do is known before a missing file.
    captions = cola_plugin(tmp_path / "nowhere.json", name="captions")
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump([captions, classes]))
    (tmp_path / "captions.txt").write_text("a dog\n")
    words = ["evaluate", "--model", f"timm:{folder}", "--benchmarks", tmp_path / "suite.yaml"]
    words += ["--device", "cpu", "--out", tmp_path / "out", "--items", tmp_path / "items.csv"]
    # No text-only run is possible, and the evaluation is kept.
    assert main([*map(str, words), "--text-only", str(tmp_path / "captions.txt")]) == 0
    assert "run: expected a model that reads texts" in capsys.readouterr().err
    report = RunReport.load(tmp_path / "out/report.json")
    ((name, reason),) = report.not_run
    assert name == "captions"
    assert "which only reads images" in reason
    (result,) = report.results
    right = [str(c) == p.parent.name for c, p in zip(chosen(folder, paths), paths, strict=True)]
    assert result.outcomes == tuple(map(float, right))
    assert len((tmp_path / "items.csv").read_text().splitlines()) == 1 + len(paths)
