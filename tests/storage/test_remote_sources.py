"""Commands that take the URL of shards where others take a folder."""

import json
from pathlib import Path

import pytest

from vlmtune.cli.main import main
from vlmtune.cli.text_only import captions
from vlmtune.mining.cache import SimilarityCache
from vlmtune.probing import sources


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("vlmtune.storage.remote.folder.CACHE", str(tmp_path / "cache"))


def test_captions_and_images_of_a_url_are_those_of_its_folder(server, shards, monkeypatch):
    server.folder = shards
    found = list(captions(server.url))
    assert found == list(captions(shards))
    assert found
    monkeypatch.setattr(sources, "FEWEST", 1)
    far, near = (sources.labelled_images(path) for path in (server.url, shards))
    assert [(x.digest, x.split) for x in far] == [(x.digest, x.split) for x in near]
    assert far[0].open().tobytes() == near[0].open().tobytes()


def test_neighbours_are_mined_from_a_url(server, shards, model_folder, tmp_path, capsys):
    server.folder, found = shards, []
    for place in (server.url, str(shards)):
        words = ["--model", str(model_folder), "--shards", place, "--device", "cpu"]
        out = tmp_path / f"out{len(found)}"
        assert main(["neighbours", *words, "--neighbours", "3", "--out", str(out)]) == 0
        cache = SimilarityCache(Path(capsys.readouterr().out.strip()))
        found.append(json.dumps({image: cache.similar(image) for image in cache.image_ids}))
    assert found[0] == found[1]
