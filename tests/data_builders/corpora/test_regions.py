from pathlib import Path

from data_builders.corpora.gqa import GQAGraphs
from data_builders.corpora.regions import RegionsBuilder
from tests.data_builders.conftest import dump
from tests.data_builders.corpora.graphs import gqa
from vlmtune.data.schema import check

PHRASES = {  # image id -> phrases as people write them
    7: ["A man in a Red cap", "a man  in a red cap\n", "a dog", " "],
    8: ["the sky is blue"],
    9: ["a dog"],
    10: ["of an image without graph"],
}


def corpus(folder: Path) -> tuple[Path, GQAGraphs]:
    """Region descriptions as distributed, and GQA's graphs of four images, one not described."""
    content = [
        {
            "id": image,
            "regions": [
                {"region_id": 100 * image + k, "image_id": image, "phrase": phrase}
                | {"x": 1, "y": 2, "width": 3, "height": 4}
                for k, phrase in enumerate(phrases)
            ],
        }
        for image, phrases in PHRASES.items()
    ]
    path = dump(folder / "region_descriptions.json", content)
    return path, gqa(folder, {key: {} for key in "9876"})


def groups(builder: RegionsBuilder) -> dict:
    return {group.image_ids[0]: group for group, _ in builder.records()}


def test_the_phrases_of_the_annotated_images_are_true_sampled_or_not(tmp_path):
    path, reader = corpus(tmp_path)
    builder = RegionsBuilder(path, reader)
    built = groups(builder)
    assert {image: set(group.texts) for image, group in built.items()} == {
        "9": {"a dog"},
        "8": {"the sky is blue"},
        "7": {"a man in a red cap", "a dog"},
    }
    for group in built.values():
        check(group)
        assert group.truth.all()
        assert not group.exhaustive
        assert group.text_ids == group.texts
    assert builder.counts == {"captions": 4, "skipped: no caption": 1}
    assert "region_descriptions.json" in builder.sources()
    assert next(files for _, files in builder.records()) == [tmp_path / "9.jpg"]
    sampled = set()
    for seed in range(8):
        group = groups(RegionsBuilder(path, reader, phrases=1, seed=seed))["7"]
        sampled.add(group.texts)
        assert group.true_ids == (frozenset({"a man in a red cap", "a dog"}),)
    assert sampled == {("a man in a red cap",), ("a dog",)}


def test_excluded_images_are_left_out(tmp_path):
    path, reader = corpus(tmp_path)
    exclude = dump(tmp_path / "exclude.json", {"unseen": [[["blue"], "sky"]], "images": ["7"]})
    builder = RegionsBuilder(path, reader, exclude=exclude)
    assert list(groups(builder)) == ["9", "8"]  # "the sky is blue" stays
    assert builder.counts["skipped: excluded"] == 1
    assert "exclude.json" in builder.sources()
    assert "exclude" not in RegionsBuilder(path, reader).spec()["init_args"]
