import itertools
from functools import partial

import pytest

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import by_name, check, drawn, mean, share
from tests.refusals import refused
from vlmtune.benchmarks.files import write_csv
from vlmtune.benchmarks.pug_spar import COLUMNS, PugSpar
from vlmtune.benchmarks.pug_spar_retrieval import PugSparRetrieval

WORLDS = ["Desert", "SaltFlats", "Arena"]
ANIMALS = ["blank", "Camel", "Pig", "Anlylosaurus"]
TWO = itertools.combinations_with_replacement(sorted(ANIMALS[1:]), 2)
COUPLES = [f"{a} and a {b}" for a, b in TWO]
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
    cells = [(f"{i}.png", *row.values()) for i, row in enumerate(rows())]
    touch(folder, *(name for name, *_ in cells))
    write_csv(folder / "labels.csv", ("filename", *FIELDS), cells)
    return folder


def rows():
    for (p1, p2, t1, t2), c1, c2, w in itertools.product(GROUPS, ANIMALS, ANIMALS, WORLDS):
        yield dict(zip(FIELDS, (w, c1, c2, p1, p2, t1, t2), strict=True))


def make(folder, **options):
    return PugSpar(str(folder / "labels.csv"), str(folder), **options)


def bank(folder, **options):
    return PugSparRetrieval(str(folder / "labels.csv"), str(folder), **options)


# -- an emulation of the published rule, from the table of set-ups and not from the code ----------


def names(r):
    return r["character_name"], r["character2_name"]


def animal(r):
    return "".join(names(r)).replace("blank", "")


class Emulated:
    """For each set-up: file names, true captions, negatives (or None), and candidates."""

    def __init__(self, world, background):
        table = [{"file": f"{i}.png", **row} for i, row in enumerate(rows())]
        self.table = [row for row in table if world in (None, row["world_name"])]
        self.of_world = {w: f" in a {w} environment" if background else "" for w in WORLDS}
        self.made = {}

    def add(self, name, own, say, candidates, wrong=None):
        """A set-up of rows by what is said of each, but for where it is; candidates in groups."""
        texts = [
            [f"This is a photo of a {of(r)}{self.of_world[r['world_name']]}" for r in own]
            for of in (say, wrong or say)
        ]
        ends = dict.fromkeys(self.of_world[row["world_name"]] for row in self.table)
        among = []
        for group, end in itertools.product(candidates, ends):
            among += [f"This is a photo of a {text}{end}" for text in group]
        files = [r["file"] for r in own]
        self.made[name] = (files, texts[0], texts[1] if wrong else None, [*dict.fromkeys(among)])

    def add_placed(self, name, own, sides):
        def at(r, wrong=False):
            side = sides[(r["character_name"] == "blank") ^ wrong]
            return f"{animal(r)} on the {side} of the picture"

        def either(name):
            return [f"{name} on the {side} of the picture" for side in sides]

        self.add(name, own, at, map(either, ANIMALS[1:]), partial(at, wrong=True))

    def add_exchanged(self, name, own, pair):
        def say(r, order=1):
            return pair.format(*names(r)[::order])

        own = [r for r in own if len({*names(r)}) == 2]
        self.add(name, own, say, zip(map(say, own)), partial(say, order=-1))

    def shown(self, animals, texture, side=None):
        """The rows of so many animals."""
        found = [r for r in self.table if 2 - names(r).count("blank") == animals]
        found = [r for r in found if r["character_texture"] == texture]
        return [r for r in found if side in (None, r["character1_pos"])]


def emulated(world, background):
    of = Emulated(world, background)
    blank = [r for r in of.table if names(r) == ("blank", "blank")]
    scenes = [f"This is a photo in a {r['world_name']} environment" for r in blank]
    of.made["scene"] = ([r["file"] for r in blank], scenes, None, [*dict.fromkeys(scenes)])
    for name, texture in (("default", "Default"), ("blue_red", "Blue"), ("grass_stone", "Grass")):
        of.add(f"single_{name}", of.shown(1, texture), animal, zip(ANIMALS))
        both = of.shown(2, texture)
        of.add(f"double_{name}", both, lambda r: " and a ".join(sorted(names(r))), zip(COUPLES))
    for one, other in (("left", "right"), ("bottom", "top")):
        of.add_placed(f"single_{one}_{other}", of.shown(1, "Default", one), (one, other))
        pair = f"{{}} on the {one} and a {{}} on the {other} of the picture"
        of.add_exchanged(f"double_{one}_{other}", of.shown(2, "Default", one), pair)
    for one, other in (("Blue", "Red"), ("Grass", "Stone")):
        pair = f"{{}} textured with {one} and a {{}} textured with {other}"
        of.add_exchanged(f"attributes_{one}_{other}".lower(), of.shown(2, one), pair)
    return of.made


SWEEPS = [("SaltFlats", False), (None, False), (None, True)]


@pytest.mark.parametrize(("world", "background"), SWEEPS)
def test_retrieval_against_the_emulated_rule(folder, world, background):
    look = drawn(1, values=40)
    result = bank(folder, world=world, background=background).run(by_name(look))
    accuracies, chances, hits, expected = [], [], [], {}
    for name, (files, said, _, candidates) in emulated(world, background).items():
        if name == "scene" and world:
            continue
        ranks = []
        for file, caption in zip(files, said, strict=True):
            own = look(file, caption)
            ranks.append(sum(look(file, other) >= own for other in candidates))
        first, fifth = ([rank <= k for rank in ranks] for k in (1, 5))
        expected[f"accuracy/{name}"] = share(first, 1 / len(candidates))
        expected[f"recall@5/{name}"] = share(fifth, min(1, 5 / len(candidates)))
        accuracies.append(mean(first))
        chances.append(1 / len(candidates))
        hits += first
    assert len(accuracies) == (12 if world else 13)
    assert 0 < result.metrics["accuracy"].value < 1
    macro = (mean(accuracies), len(accuracies), mean(chances))
    check(result, expected | {"macro_accuracy": macro})
    assert sorted(result.outcomes) == sorted(map(float, hits))


@pytest.mark.parametrize(("world", "background"), SWEEPS)
def test_hard_negatives(folder, world, background):
    look, options = drawn(2, values=2), {"world": world, "background": background}
    strict = make(folder, **options).run(by_name(look))
    reference = make(folder, convention="reference", **options).run(by_name(look))
    assert reference.convention == "reference"
    setups = emulated(world, background)
    means, of_strict, of_reference = [], {}, {}
    for name in HARD:
        files, said, negative, _ = setups[name]
        scores = [
            (look(file, caption), look(file, other))
            for file, caption, other in zip(files, said, negative, strict=True)
        ]
        right = [true > false for true, false in scores]
        of_strict[f"accuracy/{name}"] = share(right, 0.5)
        means.append(mean(right))
        # A coin decides which of the two stands first, and argmax takes the first of two that tie.
        expected = [(true > false) + (true == false) / 2 for true, false in scores]
        of_reference[f"accuracy/{name}"] = share(expected)
    check(strict, of_strict | {"macro_accuracy": (mean(means), len(means), 0.5)})
    check(reference, of_reference)


def test_reference_retrieval_takes_the_first_of_ties_and_ten_scenes(folder):
    look = drawn(3, values=2)
    result = bank(folder, convention="reference").run(by_name(look))
    assert result.metrics["accuracy/scene"].n == 10
    assert bank(folder).run(by_name(look)).metrics["accuracy/scene"].n == 12
    for name, (files, said, _, candidates) in emulated(None, True).items():
        if name == "scene":
            continue
        right = []
        for file, caption in zip(files, said, strict=True):
            scores = [look(file, text) for text in candidates]
            right.append(candidates[scores.index(max(scores))] == caption)
        check(result, {f"accuracy/{name}": share(right)})


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


def test_a_scene_of_one_world_and_files_that_do_not_fit_are_refused(folder, tmp_path):
    with refused(r"got \['scene'\]"):
        bank(folder, setups=["scene"], world="Desert")
    with refused("none among 0 rows"):
        make(folder, world="Moon").load()
    lines = (folder / "labels.csv").read_text().splitlines()
    path = tmp_path / "labels.csv"
    path.write_text("\n".join([lines[0], *(line for line in lines[1:] if "Grass" not in line)]))
    with refused("'attributes_grass_stone', got none"):
        PugSpar(str(path), str(folder)).load()
