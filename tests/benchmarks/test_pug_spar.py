import csv
import itertools

import pytest
from PIL import Image

from tests.benchmarks.models import by_name, drawn
from tests.refusals import refused
from vlmtune.benchmarks.pug_spar import COLUMNS, PugSpar
from vlmtune.benchmarks.pug_spar_retrieval import PugSparRetrieval

WORLDS = ["Desert", "SaltFlats", "Arena"]
ANIMALS = ["blank", "Camel", "Pig", "Anlylosaurus"]
GROUPS = [
    ("left", "right", "Default", "Default"),
    ("bottom", "top", "Default", "Default"),
    ("left", "right", "Blue", "Red"),
    ("left", "right", "Grass", "Stone"),
]
FIELDS = (*COLUMNS[1:5], "character2_pos", *COLUMNS[5:])
HARD = ("single_left_right", "single_bottom_top", "double_left_right", "double_bottom_top")
HARD = (*HARD, "attributes_blue_red", "attributes_grass_stone")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The grid of three backgrounds and three animals: 192 images."""
    folder = tmp_path_factory.mktemp("spar")
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, "character2_pos"])
        writer.writeheader()
        for i, row in enumerate(rows()):
            writer.writerow({"filename": f"{i}.png", **row})
            Image.new("RGB", (4, 4), (i, 0, 0)).save(folder / f"{i}.png")
    return folder


def rows():
    for (p1, p2, t1, t2), c1, c2, w in itertools.product(GROUPS, ANIMALS, ANIMALS, WORLDS):
        yield dict(zip(FIELDS, (w, c1, c2, p1, p2, t1, t2), strict=True))


def make(folder, **options):
    return PugSpar(str(folder / "labels.csv"), str(folder), **options)


def bank(folder, **options):
    return PugSparRetrieval(str(folder / "labels.csv"), str(folder), **options)


# -- an emulation of the published rule, from the table of set-ups and not from the code ----------


def end(row, background):
    return f" in a {row['world_name']} environment" if background else ""


def emulated(world, background):
    """For each set-up: file names, true captions, negatives (or None), and candidates."""
    table = [{"file": f"{i}.png", **row} for i, row in enumerate(rows())]
    table = [row for row in table if world in (None, row["world_name"])]
    worlds = [world] if world else WORLDS
    ends = [f" in a {w} environment" for w in worlds] if background else [""]
    made = {}
    blank = [r for r in table if r["character_name"] == r["character2_name"] == "blank"]
    scenes = [f"This is a photo in a {r['world_name']} environment" for r in blank]
    made["scene"] = ([r["file"] for r in blank], scenes, None, list(dict.fromkeys(scenes)))
    single = [r for r in table if r["character_name"] == "blank" != r["character2_name"]]
    single += [r for r in table if r["character2_name"] == "blank" != r["character_name"]]
    two = [r for r in table if "blank" not in (r["character_name"], r["character2_name"])]

    def animal(r):
        return (r["character_name"] + r["character2_name"]).replace("blank", "")

    for name, texture in (("default", "Default"), ("blue_red", "Blue"), ("grass_stone", "Grass")):
        own = [r for r in single if r["character_texture"] == texture]
        said = [f"This is a photo of a {animal(r)}{end(r, background)}" for r in own]
        candidates = [f"This is a photo of a {a}{e}" for a in ANIMALS for e in ends]
        made[f"single_{name}"] = ([r["file"] for r in own], said, None, candidates)
        own = [r for r in two if r["character_texture"] == texture]
        said = []
        for r in own:
            a, b = sorted([r["character_name"], r["character2_name"]])
            said.append(f"This is a photo of a {a} and a {b}{end(r, background)}")
        names = itertools.combinations_with_replacement(sorted(ANIMALS[1:]), 2)
        candidates = [f"This is a photo of a {a} and a {b}{e}" for a, b in names for e in ends]
        made[f"double_{name}"] = ([r["file"] for r in own], said, None, candidates)
    for name, sides in (("left_right", ("left", "right")), ("bottom_top", ("bottom", "top"))):
        plain = "This is a photo of a {} on the {} of the picture{}"
        own = [r for r in single if r["character_texture"] == "Default"]
        own = [r for r in own if r["character1_pos"] == sides[0]]
        said, negative = (
            [
                plain.format(animal(r), sides[(r["character_name"] == "blank") ^ wrong], tail)
                for r, tail in ((r, end(r, background)) for r in own)
            ]
            for wrong in (False, True)
        )
        candidates = [plain.format(a, s, e) for a in ANIMALS[1:] for e in ends for s in sides]
        made[f"single_{name}"] = ([r["file"] for r in own], said, negative, candidates)
        made[f"double_{name}"] = swapped(
            [r for r in two if r["character_texture"] == "Default"],
            lambda r, a, b, sides=sides: (
                r["character1_pos"] == sides[0]
                and f"{a} on the {sides[0]} and a {b} on the {sides[1]} of the picture"
            ),
            background,
            ends,
        )
    for name, one, other in (("blue_red", "Blue", "Red"), ("grass_stone", "Grass", "Stone")):
        made[f"attributes_{name}"] = swapped(
            [r for r in two if r["character_texture"] == one],
            lambda r, a, b, one=one, other=other: (
                f"{a} textured with {one} and a {b} textured with {other}"
            ),
            background,
            ends,
        )
    return made


def swapped(two, say, background, ends):
    own = [r for r in two if r["character_name"] != r["character2_name"]]
    own = [r for r in own if say(r, "", "")]
    said, negative, candidates = [], [], []
    for r in own:
        a, b = r["character_name"], r["character2_name"]
        said.append(f"This is a photo of a {say(r, a, b)}{end(r, background)}")
        negative.append(f"This is a photo of a {say(r, b, a)}{end(r, background)}")
        candidates += [f"This is a photo of a {say(r, a, b)}{e}" for e in ends]
    return [r["file"] for r in own], said, negative, list(dict.fromkeys(candidates))


SWEEPS = [("Desert", False), ("SaltFlats", False), ("Arena", False), (None, False), (None, True)]


@pytest.mark.parametrize(("world", "background"), SWEEPS)
def test_retrieval_against_the_emulated_rule(folder, world, background):
    look = drawn(1, values=40)
    result = bank(folder, world=world, background=background).run(by_name(look))
    accuracies, hits = [], []
    for name, (files, said, _, candidates) in emulated(world, background).items():
        if name == "scene" and world:
            continue
        ranks = []
        for file, caption in zip(files, said, strict=True):
            own = look(file, caption)
            ranks.append(sum(look(file, other) >= own for other in candidates))
        top1, top5 = (sum(r <= k for r in ranks) / len(ranks) for k in (1, 5))
        metric = result.metrics[f"accuracy/{name}"]
        assert (metric.value, metric.n) == (pytest.approx(top1), len(files))
        assert metric.chance == pytest.approx(1 / len(candidates))
        assert metric.low <= metric.value <= metric.high
        assert result.metrics[f"recall@5/{name}"].value == pytest.approx(top5)
        assert result.metrics[f"recall@5/{name}"].chance == min(1, 5 / len(candidates))
        accuracies.append(top1)
        hits += [r == 1 for r in ranks]
    assert len(accuracies) == (12 if world else 13)
    assert 0 < result.metrics["accuracy"].value < 1
    mean = sum(accuracies) / len(accuracies)
    assert result.metrics["macro_accuracy"].value == pytest.approx(mean)
    assert sorted(result.outcomes) == sorted(map(float, hits))


@pytest.mark.parametrize(("world", "background"), SWEEPS)
def test_hard_negatives(folder, world, background):
    look, options = drawn(2, values=2), {"world": world, "background": background}
    strict = make(folder, **options).run(by_name(look))
    reference = make(folder, convention="reference", **options).run(by_name(look))
    assert reference.convention == "reference"
    setups = emulated(world, background)
    means = []
    for name in HARD:
        files, said, negative, _ = setups[name]
        scores = [
            (look(file, caption), look(file, other))
            for file, caption, other in zip(files, said, negative, strict=True)
        ]
        right = [true > false for true, false in scores]
        assert strict.metrics[f"accuracy/{name}"].value == pytest.approx(sum(right) / len(right))
        assert strict.metrics[f"accuracy/{name}"].chance == 0.5
        means.append(sum(right) / len(right))
        # A coin decides which of the two stands first, and argmax takes the first of two that tie.
        expected = [(true > false) + (true == false) / 2 for true, false in scores]
        value = reference.metrics[f"accuracy/{name}"].value
        assert value == pytest.approx(sum(expected) / len(expected))
    assert strict.metrics["macro_accuracy"].value == pytest.approx(sum(means) / len(means))
    assert strict.metrics["macro_accuracy"].chance == 0.5


def test_reference_retrieval_takes_the_first_of_ties_and_ten_scenes(folder):
    look = drawn(3, values=2)
    result = bank(folder, convention="reference").run(by_name(look))
    assert result.metrics["accuracy/scene"].n == 10
    assert bank(folder).run(by_name(look)).metrics["accuracy/scene"].n == 12
    for name, (files, said, _, candidates) in emulated(None, True).items():
        if name == "scene":
            continue
        right = 0
        for file, caption in zip(files, said, strict=True):
            scores = [look(file, text) for text in candidates]
            right += candidates[scores.index(max(scores))] == caption
        assert result.metrics[f"accuracy/{name}"].value == pytest.approx(right / len(files))


def test_set_ups_one_by_one_or_in_one_table_are_the_same(folder):
    table, benchmark = by_name(drawn(4, values=30)), bank(folder)
    whole = benchmark.run(table)
    scores = table(benchmark.items.images, benchmark.items.texts)
    assert benchmark.evaluate(scores).metrics == whole.metrics
    assert benchmark.items.truth.shape == scores.shape
    assert benchmark.evaluate(benchmark.items.truth.double()).metrics["accuracy"].value == 1.0
    for name in ("scene", "single_default", "double_left_right"):
        one = bank(folder, setups=[name])
        result = one.run(table)
        assert one.items.pairs is None
        assert one.items.truth.shape == (len(one.items.images), len(one.items.texts))
        assert one.items.truth.sum(dim=1).tolist() == [1] * len(one.items.images)
        assert result.metrics[f"accuracy/{name}"] == whole.metrics[f"accuracy/{name}"]


@pytest.mark.parametrize("of", [make, bank])
def test_the_gallery_shows_the_caption_that_was_chosen(folder, of):
    look, benchmark = drawn(7, values=10**9), of(folder)  # scores without ties
    examples = benchmark.run(by_name(look)).examples
    assert {example.correct for example in examples} == {True, False}
    true_of = {}
    pairs, true = benchmark.items.pairs, benchmark.items.true
    for i, j in (true if pairs is None else pairs[true]).tolist():
        true_of.setdefault(benchmark.items.images[i].path.name, set()).add(benchmark.items.texts[j])
    for example in examples:
        name = example.images[0].path.name
        kind = "not" if example.correct else "true"
        chosen, _, other = example.query.removesuffix(")").partition(f" ({kind}: ")
        true, false = (chosen, other) if example.correct else (other, chosen)
        assert true in true_of[name]
        assert false not in {true}
        assert look(name, chosen) > look(name, other)
        assert example.scores == (pytest.approx(look(name, chosen)),)
        assert example.true == (example.correct,)


def test_places_may_be_called_below_and_above(folder, tmp_path):
    text = (folder / "labels.csv").read_text()
    (tmp_path / "labels.csv").write_text(text.replace("bottom", "below").replace("top", "above"))
    other = PugSpar(str(tmp_path / "labels.csv"), str(folder))
    assert other.items.texts == make(folder).items.texts


def test_a_limit_draws_images_of_each_set_up_and_keeps_candidates(folder):
    few, table = bank(folder, limit=5), by_name(drawn(5))
    result = few.run(table)
    assert {m.n for k, m in result.metrics.items() if "/" in k} == {5}
    chances = {k: m.chance for k, m in bank(folder).run(table).metrics.items()}
    assert all(m.chance == chances[k] for k, m in result.metrics.items() if "/" in k)
    assert few.items.images != bank(folder, limit=5, seed=1).items.images
    same = make(folder, limit=5).run(table)
    assert same == make(folder, limit=5).run(table)


@pytest.mark.parametrize(
    ("of", "options", "came"),
    [
        (make, {"setups": ["scene"]}, "got \\['scene'\\]"),
        (make, {"setups": []}, "got \\[\\]"),
        (bank, {"setups": ["scene"], "world": "Desert"}, "got \\['scene'\\]"),
    ],
)
def test_other_options_are_refused(folder, of, options, came):
    with refused(came):
        of(folder, **options)


def test_files_that_do_not_fit_are_refused(folder, tmp_path):
    with refused("none among 0 rows"):
        make(folder, world="Moon").load()
    lines = (folder / "labels.csv").read_text().splitlines()
    path = tmp_path / "labels.csv"
    path.write_text("\n".join([lines[0], *(line for line in lines[1:] if "Grass" not in line)]))
    with refused("'attributes_grass_stone', got none"):
        PugSpar(str(path), str(folder)).load()
