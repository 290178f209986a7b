import re
from collections import Counter

import pytest

from data_builders.worlds.scenes.formats import clevr
from data_builders.worlds.scenes.image_files import render_files
from data_builders.worlds.scenes.world import ScenesBuilder
from tests.data_builders.conftest import SMALL, rendered, rows_of, scenes_of, unseen_of
from tests.data_builders.worlds.scenes.truth import holds

OTHERS = "metal|rubber|small|large|striped|checkered"  # attributes but for colours
KINDS = {
    "count": r"there (is|are) (zero|one|two|three|four|five) \w+",
    "presence": r"there is (no|an?) (?!.*\bnot\b).+",
    "negation": r"there is an? (not )?\w+ \w+",
    "addition": r"an? \w+ \w+ and an? \w+ \w+( and an? .+)?",
    "exchanged": rf"an? ({OTHERS}) \w+ and an? ({OTHERS}) \w+",
    "sides": r".*an? .+ on the \w+ and an? .+ on the \w+ of the picture",
    "textured": r"this is a photo of .+ textured with .+",
}


OPTIONS = SMALL | {"train": 60, "ar4t_train": 40, "foils": 5}


@pytest.fixture(scope="module")
def foiled(tmp_path_factory):
    return rendered(tmp_path_factory.mktemp("foils") / "world", OPTIONS)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory, foiled):
    """CLEVR's scenes of the training images, and of AR4T's images of one object, by file name."""
    builder = ScenesBuilder(**OPTIONS)
    split = {"ar4t_single": builder._splits()["ar4t_single"]}
    folder = tmp_path_factory.mktemp("singles")
    images = render_files(split, builder.canvas, folder, 1, lambda: None)
    singles = clevr.scenes("single", images["ar4t_single"])
    alone = {scene["image_filename"]: scene for scene in singles["scenes"]}
    return scenes_of(foiled, "scenes_train.json") | alone


def kind(row):
    return {name for name, form in KINDS.items() if all(re.fullmatch(form, t) for t in texts(row))}


def texts(row):
    return row["caption"], row["negative"]


def check_truth(rows, scenes, unseen):
    """The caption is true, the negative false, and neither states an unseen composition."""
    forbidden = re.compile("|".join(rf"\b{color} {shape}\b" for color, shape in unseen))
    for row in rows:
        scene = scenes[row["image"].rpartition("/")[2]]
        assert holds(scene, row["caption"]), row
        assert not holds(scene, row["negative"]), row
        for text in texts(row):
            named = re.sub(r"(\w+) textured with (\w+)", r"\2 \1", text.replace("not ", ""))
            assert not forbidden.search(named), text


def test_the_caption_is_true_and_the_negative_false(foiled, scenes):
    rows = rows_of(foiled / "foils/train.csv")
    assert list(rows[0]) == ["image", "caption", "negative"]
    check_truth(rows, scenes, unseen_of(foiled))
    assert all((foiled / "images" / row["image"]).is_file() for row in rows)
    assert set().union(*map(kind, rows)) == set(KINDS)
    assert len(rows) > 3 * 60
    assert max(Counter(row["image"] for row in rows if "sides" not in kind(row)).values()) == 5
    assert max(Counter(row["image"] for row in rows if "sides" in kind(row)).values()) == 1


def test_neither_numbers_nor_words_of_presence_alone_tell_what_is_true(foiled):
    texts = [row["caption"] for row in rows_of(foiled / "foils/train.csv")]
    for start in ("there is one object", "there are two objects", "there are zero "):
        assert any(text.startswith(start) for text in texts), start
    first = [
        row["caption"].split()[2]
        for row in rows_of(foiled / "foils/train.csv")
        if "presence" in kind(row) and "negation" not in kind(row)
    ]
    assert 0.2 < first.count("no") / len(first) < 0.8


@pytest.fixture(scope="module")
def long(tmp_path_factory, foiled):
    """The rows that `long_foils` adds."""
    out = rendered(tmp_path_factory.mktemp("long") / "world", OPTIONS, long_foils=3)
    with_long, without = (rows_of(x / "foils/train.csv") for x in (out, foiled))
    assert [row for row in with_long if row in without] == without
    return [row for row in with_long if row not in without]


def test_long_foils_are_true_and_false_and_state_no_unseen_composition(long, foiled, scenes):
    check_truth(long, scenes, unseen_of(foiled))
    sentences = Counter(row["caption"].count(". ") + 1 for row in long)
    assert set(sentences) == {1, 2, 3, 4}
    assert max(len(row["caption"].split()) for row in long) > 20
    negated = [any(f" {word} " in f" {row['caption']} " for word in ("no", "not")) for row in long]
    assert 0.3 < sum(negated) / len(long) < 0.95
