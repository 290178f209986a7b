"""A file of scene requests becomes images and scene graphs that the builders read."""

import json

import pytest

from data_builders.corpora.annotations import ClevrScenes
from data_builders.worlds.requests import RequestsBuilder
from data_builders.worlds.scenes.requests import render
from tests.data_builders.conftest import hashes, load

CUBE = {"shape": "cube", "color": "red", "material": "metal", "size": "large"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("requests")
    swept = {"objects": [CUBE, {"relation": "right of 0"}], "sweep": {"floor": ["sand", "wood"]}}
    content = [swept, {"objects": [{}, {}], "count": 3}]
    (folder / "mine.json").write_text(json.dumps(content))
    RequestsBuilder(folder / "mine.json", 32).build(folder / "out", progress=False)
    return folder


def test_the_builder_writes_what_render_yields_and_the_clevr_reader_reads_it(built):
    graphs = load(built / "out/scenes.json")["scenes"]
    rendered = list(render(built / "mine.json", size=32))
    assert [g["complete"] for g in graphs] == [graph["complete"] for _, graph in rendered]
    lines = (built / "out/complete.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [g["complete"] for g in graphs]
    assert len(list((built / "out/images").iterdir())) == 5
    again = built / "again"
    RequestsBuilder(built / "mine.json", 32).build(again, progress=False)
    assert hashes(again) == hashes(built / "out")
    reader = ClevrScenes(built / "out/scenes.json", built / "out/images", size=(32, 32))
    images = list(reader.images())
    assert len(images) == 5
    assert all(image.file.is_file() for image in images)
    assert images[0].objects[0].attributes >= {"red", "metal", "large"}
    assert (1, "to the right of", 0) in images[0].relations
