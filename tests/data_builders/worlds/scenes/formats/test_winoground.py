import json
from collections import Counter

from tests.data_builders.conftest import SUITE
from tests.data_builders.worlds.scenes.truth import holds


def test_each_caption_is_true_of_its_image_alone(suite, graphs):
    rows = [json.loads(x) for x in (suite / "winoground/examples.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(SUITE["benchmarks"]))
    tags = set()
    for row in rows:
        tags.add((row["tag"].partition("-")[0], row["collapsed_tag"]))
        captions = [row[f"caption_{k}"] for k in (0, 1)]
        assert captions[0] != captions[1]
        assert Counter(captions[0].split()) == Counter(captions[1].split())
        for i in (0, 1):
            scene = graphs["twins"][f"{row[f'image_{i}']}.png"]
            assert [holds(scene, text) for text in captions] == [i == 0, i == 1], row
    assert tags == {("Noun", "Object"), ("Adjective", "Relation")}
