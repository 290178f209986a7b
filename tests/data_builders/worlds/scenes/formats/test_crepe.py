import ast
import re
from dataclasses import replace

import pytest
from PIL import Image

from data_builders.worlds.scenes.formats import crepe
from data_builders.worlds.scenes.formats.crepe import COMPLEXITIES, PRODUCTIVITY, TYPES
from data_builders.worlds.scenes.sampling import on_floor
from data_builders.worlds.scenes.scene import ORIGIN, Scene, SceneObject
from data_builders.worlds.scenes.statements import Noun
from tests.data_builders.conftest import SUITE, rows_of, unseen_of
from tests.data_builders.worlds.scenes.truth import KIND, NOUN, means


def shown(graphs, row):
    return graphs["scenes"][f"suite_scenes_{int(row['image_id']) - 1:06d}.png"]


@pytest.mark.parametrize("kind", TYPES)
def test_nouns_mean_one_object_atoms_are_counted_and_files_are_by_complexity(suite, graphs, kind):
    root = suite / "crepe/prod_hard_negatives"
    whole = rows_of(root / f"prod_vg_hard_negs_{kind}_all.csv")
    parts = []
    for n in COMPLEXITIES:
        path = root / kind / f"prod_vg_hard_negs_{kind}_complexity_{n}.csv"
        assert path.read_text().splitlines()[0] == ",".join(PRODUCTIVITY)
        part = rows_of(path)
        assert {row["n"] for row in part} <= {str(n)}
        parts += part
    assert parts == whole
    assert len(whole) == SUITE["benchmarks"]
    for row in whole:
        assert len(set(ast.literal_eval(row["hard_negs"]))) == 5
        for noun in re.findall(NOUN, row["caption"]):
            assert len(means(shown(graphs, row), noun)) == 1, row
        atoms = [int(row[f"n_{name}"]) for name in ("objects", "relations", "attributes")]
        assert int(row["n"]) == sum(atoms)
        sentences = row["caption"].rstrip(".").split(". ")
        said = {tuple(w for w in s.split() if w in KIND) for s in sentences}
        assert len(sentences) >= atoms[1]
        assert bool(atoms[2]) == bool(said - {()})
        assert 1 <= int(row["n_connected_components"]) <= atoms[0]


@pytest.mark.parametrize("compounds", ["seen", "unseen"])
def test_systematicity(suite, compounds):
    path = suite / f"crepe/syst_hard_negatives/syst_vg_hard_negs_{compounds}_compounds_in_laion.csv"
    unseen = unseen_of(suite)
    rows = rows_of(path)
    assert len(rows) == SUITE["benchmarks"]
    for row in rows:
        _, color, shape = row["caption"].split()
        assert ((color, shape) in unseen) == (compounds == "unseen")
        names = ("atom", "comp", "combined")
        lists = [ast.literal_eval(row[f"valid_hard_negs_{name}"]) for name in names]
        assert lists[2] == lists[0] + lists[1]
        assert lists[0]
        assert lists[1]
        for text in lists[1]:
            assert {color, shape} <= set(text.split())


def test_images_are_those_of_the_suite(suite):
    for number in (1, 2 * SUITE["benchmarks"]):
        name = f"images/suite/suite_scenes_{number - 1:06d}.png"
        path = suite / f"crepe/VG_100K/{number}.jpg"
        with Image.open(path) as copy, Image.open(suite / name) as image:
            assert copy.format == "JPEG"
            assert copy.size == image.size
            pairs = zip(copy.tobytes(), image.tobytes(), strict=True)
            differences = [abs(a - b) for a, b in pairs]
        assert sum(differences) / len(differences) < 6


CAPTION = crepe.Caption(
    (Noun("cube", (("color", "red"),)), Noun("cone", (("color", "blue"),)), Noun("torus")),
    ((0, "left", 1),),
)


def test_swaps_negations_and_replacements_of_one_atom():
    assert [str(caption) for caption in crepe.swapped(CAPTION)] == [
        "red cone to the left of blue cube. there is a torus.",
        "blue cube to the left of red cone. there is a torus.",
        "blue cone to the left of red cube. there is a torus.",
        "red torus to the left of blue cone. there is a cube.",
        "red cube to the left of blue torus. there is a cone.",
    ]
    texts = [str(caption) for caption in crepe.negated(CAPTION)]
    assert texts[:5] == [
        "red cube to the left of blue cone. there is no torus.",
        "red cube not to the left of blue cone. there is a torus.",
        "there is no red cube to the left of a blue cone. there is a torus.",
        "not red cube to the left of blue cone. there is a torus.",
        "red cube to the left of not blue cone. there is a torus.",
    ]
    assert "there is no not red cube to the left of a blue cone. there is a torus." in texts
    assert str(CAPTION) not in texts
    other = {"color": ("red", "green")}
    texts = [str(caption) for caption in crepe.replaced(CAPTION, other, ("cube", "cone"))]
    assert "green cube to the left of blue cone. there is a torus." in texts
    assert "red cube under blue cone. there is a torus." in texts
    assert "red cube to the left of blue cone. there is a cone." in texts
    words = [len({*t.split()} ^ {*str(CAPTION).split()}) for t in texts if " cone." in t]
    assert max(words) <= 6


def test_not_is_undecided_of_nouns_that_mean_several_objects():
    cube = SceneObject("cube", "red", "metal", "plain", "large", ORIGIN, 0.75)
    ball = replace(cube, shape="sphere")
    scene = Scene((on_floor(cube, -2.0, 0.0), on_floor(cube, 2.0, 0.0), on_floor(ball, 0.0, 0.0)))
    caption = crepe.Caption((Noun("cube"), Noun("sphere")), ((0, "left", 1),))
    assert caption.holds(scene) is True
    assert replace(caption, negated={0: "not"}).holds(scene) is None
    assert replace(caption, negated={0: "no"}).holds(scene) is False
