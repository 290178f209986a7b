import re
from collections import Counter

import pytest

from data_builders.worlds.scenes.formats import clevr
from data_builders.worlds.scenes.image_files import chunks, render_chunks
from data_builders.worlds.scenes.world import ScenesBuilder
from tests.data_builders.conftest import SMALL, load, rows_of
from tests.data_builders.worlds.scenes.truth import holds

OTHERS = "metal|rubber|small|large|striped|checkered"  # attributes but for colours
KINDS = {
    "count": r"there (is|are) (zero|one|two|three|four|five) \w+",
    "presence": r"there is (no|an?) (?!.*\bnot\b).+",
    "negation": r"there is an? (not )?\w+ \w+",
    "addition": r"an? \w+ \w+ and an? \w+ \w+( and an? .+)?",
    "exchanged": rf"an? ({OTHERS}) \w+ and an? ({OTHERS}) \w+",
    "textured": r"this is a photo of .+ textured with .+",
}


OPTIONS = SMALL | {"train": 60, "ar4t_train": 40, "foils": 5}


@pytest.fixture(scope="module")
def foiled(tmp_path_factory):
    out = tmp_path_factory.mktemp("foils") / "world"
    ScenesBuilder(**OPTIONS).build(out, progress=False)
    return out


@pytest.fixture(scope="module")
def singles(tmp_path_factory):
    """AR4T's scenes of one object, as CLEVR states scenes."""
    builder = ScenesBuilder(**OPTIONS)
    split = {"ar4t_single": builder._splits()["ar4t_single"]}
    work = chunks(split, builder.canvas, tmp_path_factory.mktemp("singles"))
    return clevr.scenes("single", render_chunks(work, 1, lambda: None)["ar4t_single"])["scenes"]


def kind(row):
    return {
        name for name, form in KINDS.items() if all(map(re.compile(form).fullmatch, texts(row)))
    }


def texts(row):
    return row["caption"], row["negative"]


def test_the_caption_is_true_and_the_negative_false(foiled, singles):
    train = load(foiled / "clevr/scenes_train.json")["scenes"]
    scenes = {scene["image_filename"]: scene for scene in (*train, *singles)}
    rows = rows_of(foiled / "foils/train.csv")
    assert list(rows[0]) == ["image", "caption", "negative"]
    seen = Counter()
    for row in rows:
        assert (foiled / "images" / row["image"]).is_file()
        scene = scenes[row["image"].rpartition("/")[2]]
        assert holds(scene, row["caption"]), row
        assert not holds(scene, row["negative"]), row
        seen.update(kind(row))
    assert set(seen) == set(KINDS)
    assert len(rows) > 3 * 60
    assert max(Counter(row["image"] for row in rows).values()) == 5


def test_numbers_from_zero_to_two_are_true_of_some_scenes(foiled):
    texts = [row["caption"] for row in rows_of(foiled / "foils/train.csv")]
    for start in ("there is one object", "there are two objects", "there are zero "):
        assert any(text.startswith(start) for text in texts), start


def test_no_sentence_states_an_unseen_composition(foiled):
    unseen = {f"{color} {shape}" for color, shape in load(foiled / "compositions.json")["unseen"]}
    for row in rows_of(foiled / "foils/train.csv"):
        for text in texts(row):
            named = re.sub(r"(\w+) textured with (\w+)", r"\2 \1", text.replace("not ", ""))
            assert not any(re.search(rf"\b{words}\b", named) for words in unseen), text


def test_no_word_of_presence_alone_tells_what_is_true(foiled):
    first = [
        row["caption"].split()[2]
        for row in rows_of(foiled / "foils/train.csv")
        if "presence" in kind(row) and "negation" not in kind(row)
    ]
    assert 0.2 < first.count("no") / len(first) < 0.8


def test_a_world_writes_none_by_default(world):
    assert not (world / "foils").exists()


@pytest.fixture(scope="module")
def long(tmp_path_factory, foiled):
    """The rows that `long_foils` adds."""
    out = tmp_path_factory.mktemp("long") / "world"
    ScenesBuilder(**OPTIONS | {"long_foils": 3}).build(out, progress=False)
    with_long, without = (rows_of(x / "foils/train.csv") for x in (out, foiled))
    assert [row for row in with_long if row in without] == without
    return [row for row in with_long if row not in without]


def test_long_foils_are_true_and_false_and_state_no_unseen_composition(long, foiled, singles):
    train = load(foiled / "clevr/scenes_train.json")["scenes"]
    scenes = {scene["image_filename"]: scene for scene in (*train, *singles)}
    unseen = {f"{color} {shape}" for color, shape in load(foiled / "compositions.json")["unseen"]}
    for row in long:
        scene = scenes[row["image"].rpartition("/")[2]]
        assert holds(scene, row["caption"]), row
        assert not holds(scene, row["negative"]), row
        for text in texts(row):
            named = text.replace("not ", "")
            assert not any(re.search(rf"\b{words}\b", named) for words in unseen), text
    sentences = Counter(row["caption"].count(". ") + 1 for row in long)
    assert set(sentences) == {1, 2, 3, 4}
    assert max(len(row["caption"].split()) for row in long) > 20
    negated = [any(f" {word} " in f" {row['caption']} " for word in ("no", "not")) for row in long]
    assert 0.3 < sum(negated) / len(long) < 0.95
