"""configs/experiments/corpora: every corpus, backbone and method; and pug, which trains on AR4T."""

import itertools
import math
import re
from pathlib import Path
from pydoc import locate

import pytest
import torch.distributed as dist
import yaml

from data_builders.corpora.annotations import ClevrScenes
from data_builders.corpora.ar4t import AR4TBuilder
from data_builders.corpora.coco import CocoBuilder
from data_builders.corpora.cola import ColaBuilder
from data_builders.corpora.flickr30k import Flickr30kBuilder
from tests.backbones.hf_models import write_flava
from tests.cli.test_sweep import expanded
from tests.data_builders.conftest import NOTHING, rendered
from tests.refusals import refused
from tests.runs import QUIET
from tests.runs import fit as take_steps
from tests.test_configs import Parsed, bare, module_of
from tests.tiny import plugin
from tests.training.test_methods import told
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.hf.flava import Flava
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.cli.main import main
from vlmtune.cli.plugins import make_benchmarks
from vlmtune.report.run_report import RunReport
from vlmtune.training.module import AdaptationModule

ROOT = Path(__file__).parents[1]
CORPORA = ROOT / "configs/experiments/corpora"
LISTS = ("data", "backbones", "methods")
DATA, BACKBONES, METHODS = (sorted(p.stem for p in (CORPORA / x).glob("*.yaml")) for x in LISTS)
REFUSED = {("clip", "matching")}  # CLIP has no multimodal layers
SWEEPS = sorted((ROOT / "configs/sweeps/corpora").glob("*.yaml"))
PUG = ROOT / "configs/experiments/pug"
# Backbones and methods that a trial of a sweep trains; the last backbone of a list is FLAVA.
SEARCHED = {("flava" if "Flava" in path.read_text() else "clip", path.stem) for path in SWEEPS}
MEASURE_ALL = {("clip", "linear_probe"), ("flava", "matching")}
# `vlmtune fit` runs these; the others and the trials take a step.
STEPPED = {*itertools.product(BACKBONES, METHODS)} - REFUSED - SEARCHED - MEASURE_ALL
MEASURED = {"cola_multi", "cola_single", "crepe_productivity", "crepe_systematicity", "aro"}
MEASURED |= {"aro_order", "pug_spar", "retrieval", "zero_shot_classification"}
SETS = ("data/ar4t-shards", "data/flickr30k-shards", "data/coco-shards", "data/cola-corpora")

__all__ = ["bare"]  # a fixture
pytestmark = QUIET


def arguments(data: str, backbone: str, method: str) -> list[str]:
    """The configs of an experiment, as arguments of `vlmtune fit`."""
    names = ("base", f"data/{data}", f"backbones/{backbone}", f"methods/{method}")
    return [word for name in names for word in ("--config", str(CORPORA / f"{name}.yaml"))]


def test_the_lists_are_those_that_the_header_states():
    assert set(DATA) == {"ar4t", "flickr30k", "coco", "cola", "mixture"}
    assert set(BACKBONES) == {"clip", "flava"}
    for data in {*DATA} - {"mixture"}:
        assert (
            len(yaml.safe_load((CORPORA / f"data/{data}.yaml").read_text())["data"]["train"]) == 1
        )
    for method in METHODS:  # they do not change what is measured
        assert list(yaml.safe_load((CORPORA / f"methods/{method}.yaml").read_text())) == ["model"]
    header = (CORPORA / "base.yaml").read_text().partition("seed_everything")[0]
    for name in (*DATA, *BACKBONES, *METHODS):
        assert name in header.replace(",", " ").replace(":", " ").split(), name


@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_run_measures_all_benchmarks(backbone):
    config = Parsed("fit", arguments("mixture", backbone, "eqsim")).config["fit"]
    trainer, model = config.trainer, config.model
    assert (trainer.strategy, trainer.devices) == ("ddp", "auto")
    assert model.backbone.class_path.endswith("Flava" if backbone == "flava" else "OpenClip")
    assert {data.init_args.path for data in config.data.train} == set(SETS)
    (callback,) = [c for c in trainer.callbacks if c.class_path.endswith(".BenchmarkCallback")]
    modules = [b.class_path.rpartition(".")[0] for b in callback.init_args.benchmarks]
    assert {f"vlmtune.benchmarks.{name}" for name in MEASURED} == set(modules)


# -- on a tiny world and tiny models ----------------------------------------------------------


@pytest.fixture(scope="module")
def place(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the four corpora lie where the configs look for them."""
    folder = tmp_path_factory.mktemp("corpora")
    (folder / "configs").symlink_to(bare / "configs")  # a tiny list of benchmarks replaces theirs
    options = {"train": 8, "ar4t_train": 4, "image_size": 32}
    world = rendered(folder / "world", NOTHING | options)
    images, captions = world / "images", world / "karpathy/dataset_scenes.json"
    scenes = ClevrScenes(world / "clevr/scenes_train.json", images / "train", ["color"], ["color"])
    builders = (
        AR4TBuilder(world / "ar4t/PUG_AR_train.csv", images),
        Flickr30kBuilder(captions, images, ["train"]),
        CocoBuilder(captions, images, ["train"]),
        ColaBuilder(scenes),
    )
    for name, builder in zip(SETS, builders, strict=True):
        builder.build(folder / name, progress=False)
    specs = []
    for made in make_benchmarks([str(CORPORA / "benchmarks.yaml")]):
        spec = type(made).fixture(folder / made.name).spec()
        if spec["class_path"].endswith(".Aro") and made.name == "aro_attribution":
            continue  # its fixture is of relations
        if made.name == "cola_dev":
            spec["init_args"]["name"] = made.name
        specs.append(spec)
    for name, measured in (("all", specs), ("dev", specs[:1])):
        given = {"benchmarks": measured, "every_n_epochs": 1}
        callback = plugin("training.benchmark_callback.BenchmarkCallback", **given)
        trainer = {"accelerator": "cpu", "devices": 1, "precision": "32-true", "logger": False}
        trainer |= {"max_epochs": None, "max_steps": 2, "enable_progress_bar": False}
        trainer["callbacks"] = [callback]
        changes = {"trainer": trainer, "data": {"batch_size": 4, "num_workers": 0}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(changes))
    return folder


@pytest.fixture(scope="module")
def flava_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flava(tmp_path_factory.mktemp("flava") / "model")


@pytest.fixture(autouse=True)
def group(place, monkeypatch):
    """Runs a test beside the corpora, and leaves no process group behind for the next."""
    monkeypatch.chdir(place)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def fit(
    place: Path, run: Path, model: Path, words: list[str], backbone: str, measured: str = "dev"
) -> RunReport:
    """Trains two steps as the configs say, on tiny files, and returns the report.

    It measures the benchmark that sweeps judge by, or all that the configs list.
    """
    words = [word.replace(str(ROOT), str(place)) for word in words]
    words += ["--config", str(place / f"{measured}.yaml")]
    words += [f"--model.backbone.init_args.model={model}", f"--trainer.default_root_dir={run}"]
    words += ["--model.backbone.init_args.pretrained=null"] if backbone == "clip" else []
    assert main(["fit", *words]) == 0
    report = RunReport.load(run / "report.json")
    assert report.provenance.config["steps"] == 2
    names = {result.benchmark.removesuffix("_relation") for result in report.results}
    assert names >= (MEASURED if measured == "all" else {"cola_dev"})
    return report


@pytest.mark.parametrize(("backbone", "method"), sorted(MEASURE_ALL))
def test_a_run_on_the_mixture_measures_all_benchmarks(
    backbone, method, place, clip_folder, flava_folder, tmp_path
):
    """By embeddings and by pairs."""
    model = clip_folder if backbone == "clip" else flava_folder
    words = arguments("mixture", backbone, method)
    report = fit(place, tmp_path, model, words, backbone, "all")
    trained = report.provenance.config["fit"]["model"]
    wanted = told(f"corpora/methods/{method}.yaml")
    assert trained["adapter"]["class_path"] == wanted["adapter"]["class_path"]
    assert len(trained["objectives"]) == len(wanted["objectives"])


@pytest.fixture
def model_on(clip_folder, flava_folder):
    """Returns a function that makes a tiny model of a backbone."""

    def make(backbone: str) -> Backbone:
        return OpenClip(str(clip_folder)) if backbone == "clip" else Flava(str(flava_folder))

    return make


def trained_by(method: str, model: Backbone) -> AdaptationModule:
    return module_of({"pairs": None} | told(f"corpora/methods/{method}.yaml"), model)


@pytest.mark.parametrize(("backbone", "method"), sorted(STEPPED))
def test_every_method_takes_a_step(backbone, method, model_on, place, tmp_path):
    made = trained_by(method, model_on(backbone))
    _, watch = take_steps(made, place / SETS[-1], tmp_path, steps=1)
    assert math.isfinite(watch.losses[0])


@pytest.mark.parametrize(("backbone", "method"), sorted(REFUSED))
def test_what_cannot_be_is_refused_in_one_line(backbone, method, model_on):
    with refused("expected a backbone with a matching head"):
        trained_by(method, model_on(backbone))


@pytest.mark.parametrize(("backbone", "method"), sorted(SEARCHED))
def test_a_trial_of_a_sweep_trains(backbone, method, model_on, place, tmp_path):
    """The words that W&B's agent would run, with the last of all values, and one of the corpora."""
    (path,) = (path for path in SWEEPS if path.stem == method)
    sweep = yaml.safe_load(path.read_text())
    drawn = {}
    for name, given in sweep["parameters"].items():
        drawn[name] = given["values"][-1] if "values" in given else given["max"]
    corpora = sweep["parameters"]["config"]["values"]  # another one for the next sweep
    drawn["config"] = corpora[SWEEPS.index(path) % len(corpora)]
    words = [word.replace("configs/", f"{place}/configs/") for word in expanded(sweep, drawn)[2:]]
    config = Parsed("fit", words).config["fit"].as_dict()
    made = module_of(config["model"], model_on(backbone))
    wanted = told(f"corpora/methods/{method}.yaml")
    assert made.adapter.spec()["class_path"] == wanted["adapter"]["class_path"]
    assert len(made.objectives) == len(wanted["objectives"])
    optimizer = config["model"]["optimizer"]
    assert locate(optimizer["class_path"])(made.parameters(), **optimizer["init_args"])
    shards = place / config["data"]["train"][0]["init_args"]["path"]
    _, watch = take_steps(made, shards, tmp_path, steps=1)
    assert math.isfinite(watch.losses[0])


# -- table 3 of PUG ---------------------------------------------------------------------------


def test_table_3_measures_what_the_paper_does_and_states_its_numbers():
    benchmarks = make_benchmarks([str(PUG / "benchmarks.yaml")])
    names = ["aro_relation", "aro_attribution", "coco_order", "flickr30k_order", "pug_spar"]
    assert [benchmark.name for benchmark in benchmarks] == names
    assert not any(benchmark.strict for benchmark in benchmarks)
    setups = ["single_left_right", "double_left_right"]
    assert benchmarks[-1].spec()["init_args"]["setups"] == setups
    text = (PUG / "table3.yaml").read_text()
    rows = {}
    for name, numbers in re.findall(r"^#   ((?:CLIP|\+) .*?)  +([\d. ]+)$", text, re.MULTILINE):
        rows[name] = [float(number) for number in numbers.split()]
    assert len(rows) == 4
    for numbers in rows.values():  # the fifth is the mean of the first four
        assert numbers[4] == pytest.approx(sum(numbers[:4]) / 4, abs=0.011)
    assert rows["CLIP ViT-B/32"][5:] == [49.84, 54.42]
    assert rows["+ AR4T, 200K images"][5:] == [50.78, 54.23]


def test_table_3_trains_on_a_caption_of_each_scene(place, clip_folder, tmp_path):
    words = ["--config", str(PUG / "table3.yaml")]
    config = Parsed("fit", words).config["fit"]
    assert (config.trainer.max_epochs, config.data.captions) == (10, 1)
    fit(place, tmp_path, clip_folder, words, "clip")
