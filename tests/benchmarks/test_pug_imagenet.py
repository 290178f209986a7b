import json
from functools import partial
from pathlib import Path

import pytest

from tests.benchmarks.json_files import touch, write
from tests.benchmarks.models import beats, check, drawn, joined, mean, scorer, share
from tests.refusals import refused
from vlmtune.benchmarks.pug_files import spoken
from vlmtune.benchmarks.pug_imagenet import FACTORS, PugImageNet

REAL = Path(__file__).parents[2].parent / "shared/data/pug/class_to_imagenet_idx.json"


def by_path(look):
    return scorer(lambda image, text: look(image.path, text))


def files(folder, factor):
    return [(p, p.parent.name) for p in sorted((folder / factor).rglob("*.png"))]


def test_accuracy_by_factor_against_a_loop(tmp_path):
    benchmark, look = PugImageNet.fixture(tmp_path), drawn(0, values=3)
    result = benchmark.run(by_path(look))
    names = {"BirdHouse": "bird house", "Jack_O_Lantern": "jack o lantern", "Wolf": "wolf"}
    prompts = {label: f"This is a photo of a {name}" for label, name in names.items()}
    assert benchmark.items.texts == tuple(prompts.values())
    wins = {factor: [] for factor in FACTORS}
    for factor, own in wins.items():
        for path, label in files(tmp_path, factor):
            others = [text for name, text in prompts.items() if name != label]
            own.append(beats(partial(look, path), prompts[label], others))
        assert len(own) == 6
    every = joined(wins.values())
    assert result.outcomes == tuple(map(float, every))
    check(result, {f"accuracy/{factor}": share(own, 1 / 3) for factor, own in wins.items()})
    check(result, {"accuracy": share(every), "macro_accuracy": (mean(map(mean, wins.values())),)})
    assert result.clusters == (0, 0, 1, 1, 2, 2) * 10
    won = [c for w, c in zip(every, result.clusters, strict=True) if w]
    by_class = [won.count(k) / 20 for k in range(3)]
    assert result.series["class_accuracy"] == pytest.approx(by_class)


def reference(tmp_path, ids, names=None, **options):
    PugImageNet.fixture(tmp_path)
    mapping = str(write(tmp_path, ids, "ids.json"))
    names = names or [f"class {i}" for i in range(1000)]
    options |= {"mapping": mapping, "imagenet_names": str(write(tmp_path, names, "names.json"))}
    return PugImageNet(str(tmp_path), convention="reference", **options)


def test_reference_maps_a_prediction_of_1000_classes(tmp_path):
    # The last class of a shared id has it: "Wolf" here, so that "BirdHouse" can never be right.
    own = {"Wolf": [*range(400)], "BirdHouse": [7], "Jack_O_Lantern": [*range(500, 900)]}
    benchmark = reference(tmp_path, own)
    filled = {i: name for name in ("BirdHouse", "Jack_O_Lantern", "Wolf") for i in own[name]}
    right = 0
    for look in (drawn(1, 2), drawn(2, 400), drawn(3, 400)):
        result = benchmark.run(by_path(look))
        for factor in FACTORS:
            wins = 0
            for path, label in files(tmp_path, factor):
                scores = [look(path, f"This is a photo of a class {i}") for i in range(1000)]
                wins += filled.get(scores.index(max(scores))) == label
            assert result.metrics[f"accuracy/{factor}"].value == pytest.approx(wins / 6)
            right += wins
        assert result.metrics["accuracy"].chance == pytest.approx((0.4 + 0.4) / 3)
    assert 0 < right < 180
    oracle = benchmark.evaluate(benchmark.items.truth.double())
    assert oracle.convention == "reference"
    assert oracle.series["class_accuracy"] == (0.0, 1.0, 1.0)
    assert oracle.metrics["accuracy"].value == pytest.approx(2 / 3)


def test_imagenet_has_two_classes_of_one_name(tmp_path):
    names = [f"class {i}" for i in range(1000)]
    names[517] = names[134] = "crane"
    ids = {"Wolf": [517], "BirdHouse": [134], "Jack_O_Lantern": [1]}
    benchmark = reference(tmp_path, ids, names)
    assert len(benchmark.items.texts) == 999
    wins = benchmark.evaluate(benchmark.items.truth.double()).series["class_accuracy"]
    assert wins == (1.0, 1.0, 0.0)  # argmax takes the first of the two


@pytest.mark.skipif(not REAL.is_file(), reason="the published mapping is not here")
def test_the_published_classes_have_names_of_their_own():
    names = {spoken(label) for label in json.loads(REAL.read_text())}
    assert len(names) == 151
    assert {"african crocodile", "power-drill"} <= names


def test_a_prompt_and_a_part_of_the_factors_and_of_the_images(tmp_path):
    PugImageNet.fixture(tmp_path)
    texts = PugImageNet(str(tmp_path), prompt="art of the {}.").items.texts
    assert texts == tuple(f"art of the {x}." for x in ("bird house", "jack o lantern", "wolf"))
    some = PugImageNet(str(tmp_path), factors=["Scene_Light", "Worlds"], limit=4)
    result = some.run(by_path(drawn(0)))
    assert [k for k in result.metrics if "/" in k] == ["accuracy/Worlds", "accuracy/Scene_Light"]
    assert {m.n for k, m in result.metrics.items() if "/" in k} == {4}
    other = {"factors": ["Worlds", "Scene_Light"], "limit": 4}
    assert some.items.images == PugImageNet(str(tmp_path), **other).items.images
    assert some.items.images != PugImageNet(str(tmp_path), **other, seed=1).items.images


def test_files_that_do_not_fit_are_refused(tmp_path):
    with refused(r"folders of images.* in .*Worlds, got .*no such file"):
        PugImageNet(str(tmp_path)).load()
    with refused("one is missing"):
        PugImageNet(str(tmp_path), convention="reference")
    ids = {"Wolf": [1], "BirdHouse": [2], "Cat": [3]}
    benchmark = reference(tmp_path, ids)
    with refused("3 of which 2 are folders"):
        benchmark.load()
    (tmp_path / "names.json").write_text("[]")
    with refused("list of 1000 names"):
        benchmark.load()
    touch(tmp_path, "Camera_Roll/Cat/0.png")
    with refused("1 not in all, first 'Cat'"):
        PugImageNet(str(tmp_path)).load()
