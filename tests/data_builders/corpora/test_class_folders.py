"""Class folders to shards: which images, which captions, and what they are false of."""

import json
from collections import Counter
from pathlib import Path

import pytest

from data_builders.corpora.class_folders import ClassFoldersBuilder
from tests.data_builders.conftest import dump, truths
from tests.refusals import refused
from vlmtune.benchmarks.files import write_image
from vlmtune.data.collate import collate
from vlmtune.data.schema import read_manifest
from vlmtune.types import Group

SIZES = {"cat": 20, "fire_truck": 40, "frog": 5, "ship": 1}


@pytest.fixture
def folder(tmp_path) -> Path:
    number = 0
    for label, count in SIZES.items():
        for i in range(count):
            number += 1
            write_image(tmp_path / "train" / label / f"{i:03d}.png", number, 90, 255 - number)
    (tmp_path / "train/cat/.copies").mkdir()  # as notebooks leave
    write_image(tmp_path / "train/cat/.copies/000.png", 1, 1, 1)
    return tmp_path / "train"


def groups(**options) -> list[Group]:
    return [group for group, _ in ClassFoldersBuilder(**options).records()]


def label(group: Group) -> str:
    return group.image_ids[0].split("/")[0]


def test_a_fraction_of_each_class_is_written(folder):
    made = groups(path=folder, fraction=0.25)
    assert Counter(map(label, made)) == {"cat": 5, "fire_truck": 10, "frog": 1, "ship": 1}
    again = groups(path=folder, fraction=0.25)
    assert [group.key for group in made] == [group.key for group in again]
    half = {group.key for group in groups(path=folder, fraction=0.5)}
    assert {group.key for group in made} < half
    other = groups(path=folder, fraction=0.25, seed=1)
    assert {group.key for group in made} != {group.key for group in other}


def test_captions_are_true_of_all_images_of_their_class_and_of_no_others(folder):
    templates = ["a photo of a {}.", "art of the {}."]
    made = groups(path=folder, templates=templates, negatives=2)
    for group in made:
        name = label(group).replace("_", " ")
        texts = truths(group)
        true = {text for text, yes in texts.items() if yes}
        false = set(texts) - true
        assert true == {f"a photo of a {name}.", f"art of the {name}."} == group.true_ids[0]
        assert len(false) == 2
        assert not any(name in text for text in false)
    assert groups(path=folder, negatives=99)[0].texts[:-1] != ()
    assert len(groups(path=folder, negatives=99)[0].texts) == len(SIZES)
    made = groups(path=folder, negatives=0)
    columns = list(dict.fromkeys(map(label, made)))  # in the order in which classes come
    expected = [[label(image) == column for column in columns] for image in made]
    assert collate(made).targets.truth.tolist() == expected


def test_names_come_from_a_file(folder, tmp_path):
    names = {"cat": "kitten", "fire_truck": "lorry", "frog": "toad", "ship": "boat"}
    path = dump(tmp_path / "names.json", names)
    made = groups(path=folder, classes=path, templates=["{}"], negatives=0)
    assert {label(group): group.texts for group in made} == {k: (v,) for k, v in names.items()}
    path.write_text(json.dumps({**names, "cat": "boat"}))
    with refused("a different name for each folder.*'boat' for 'ship'"):
        groups(path=folder, classes=path)
    path.write_text(json.dumps({"cat": "cat"}))
    with refused("'' for 'fire_truck'"):
        groups(path=folder, classes=path)


def test_measured_and_repeated_images_are_left_out(folder, tmp_path):
    content = (folder / "cat/003.png").read_bytes()
    test = tmp_path / "test" / "cat"
    test.mkdir(parents=True)
    (test / "7.png").write_bytes(content)
    (folder / "frog/copy.png").write_bytes((folder / "cat/004.png").read_bytes())
    (image,) = [group for group in groups(path=folder) if group.image_ids == ("cat/004.png",)]
    assert image.true_ids == (frozenset(("a photo of a cat.", "a photo of a frog.")),)
    assert not any("frog" in text for text in image.texts)
    builder = ClassFoldersBuilder(folder, measured=[tmp_path / "test"])
    builder.build(tmp_path / "out", progress=False)
    manifest = read_manifest(tmp_path / "out")
    assert manifest.records == sum(SIZES.values()) - 1
    assert manifest.counts["skipped: measured"] == 1
    assert manifest.counts["skipped: repeated image"] == 1
    tars = [(tmp_path / "out" / shard.file).read_bytes() for shard in manifest.shards]
    repeated = (folder / "cat/004.png").read_bytes()
    found = [sum(tar.count(image) for tar in tars) for image in (content, repeated)]
    assert found == [0, 1]


@pytest.mark.parametrize("templates", [["a cat"], [], ["a {}", "a {}"]])
def test_wrong_templates(folder, templates):
    with refused("each with {} once"):
        ClassFoldersBuilder(folder, templates)


def test_a_folder_without_classes(tmp_path):
    with refused("at least two folders of images.*no such file"):
        groups(path=tmp_path / "nowhere")
    (tmp_path / "a").mkdir()
    with refused("got 1 folders"):
        groups(path=tmp_path)
    (tmp_path / "b").mkdir()
    with refused("no image in 'a'"):
        groups(path=tmp_path)


def test_names_that_differ_in_their_letters_or_suffix_alone(tmp_path):
    names = ("猫/0.png", "犬/0.png", "犬/0.jpg")
    for number, name in enumerate(names):
        write_image(tmp_path / name, 90 * number, 90, 20)
    assert len({group.key for group in groups(path=tmp_path, negatives=0)}) == len(names)
