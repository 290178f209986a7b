"""`vlmtune neighbours` from shards to training batches."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize
from transformers import BridgeTowerForImageAndTextRetrieval

from tests.backbones import hf_models
from tests.tiny import plugin
from vlmtune.cli.main import main
from vlmtune.data.record_index import read_group
from vlmtune.data.shards import ShardSet
from vlmtune.evaluation.scorer import Scorer
from vlmtune.mining import mine as mining
from vlmtune.mining.cache import CacheKey, SimilarityCache
from vlmtune.mining.corpus import corpus, decode_image
from vlmtune.mining.neighbours import MinedNeighbours
from vlmtune.model import load


def mine(model_folder, shards, out, *more):
    arguments = ["--model", model_folder, "--shards", shards, "--out", out, "--device", "cpu"]
    return main(["neighbours", *map(str, [*arguments, *more])])


@pytest.fixture
def scorer(model_folder):
    return load(model_folder, device="cpu").scorer()


def test_the_cache_holds_the_models_own_scores(model_folder, shards, tmp_path, capsys, scorer):
    assert mine(model_folder, shards, tmp_path, "--neighbours", 3) == 0
    cache = SimilarityCache(Path(capsys.readouterr().out.strip()))
    known = corpus([ShardSet(str(shards))])
    images = list(known.images)
    assert [*cache.image_ids] == images
    pictures = [decode_image(place) for place in known.images.values()]
    scores = scorer(pictures, cache.captions)
    vectors = normalize(scorer.embed_images(pictures), dim=1)
    cosines = (vectors @ vectors.T).fill_diagonal_(-2)
    for i, image in enumerate(images):
        near = [images.index(name) for name in cache.similar(image)]
        torch.testing.assert_close(cosines[i, near], cosines[i].topk(3).values)
        found = cache.false_captions(image)
        theirs = {text for j in near for text in known.captions[images[j]]}
        assert set(found) == theirs - set(known.captions[image])
        values = torch.tensor([scores[i, cache.captions.index(text)] for text in found])
        torch.testing.assert_close(values.sort(descending=True).values, values)


def test_an_interrupted_command_goes_on(model_folder, shards, tmp_path, capsys, monkeypatch):
    blocks = []

    score = Scorer.__call__

    def counting(self, *arguments):
        blocks.append(1)
        if len(blocks) == 3:
            raise KeyboardInterrupt
        return score(self, *arguments)

    monkeypatch.setattr(Scorer, "__call__", counting)
    monkeypatch.setattr(mining, "CacheKey", partial(CacheKey, tile=2))

    assert mine(model_folder, shards, tmp_path, "--neighbours", 2) == 130
    encoded = list(tmp_path.glob("image-pooled-*/meta.json"))
    assert len(encoded) == 1
    assert mine(model_folder, shards, tmp_path, "--neighbours", 2) == 0
    images = len(corpus([ShardSet(str(shards))]).images)
    assert len(blocks) == -(-images // 2) + 1  # the third block alone was begun twice
    assert mine(model_folder, shards, tmp_path, "--neighbours", 2) == 0
    assert len(blocks) == -(-images // 2) + 1
    assert capsys.readouterr().out.splitlines()[0].startswith(str(tmp_path))


def test_coarse_caches_feed_training_and_wrong_arguments_are_one_line(
    model_folder, shards, tmp_path, capsys
):
    assert mine(model_folder, shards, tmp_path, "--images-only") == 0
    printed = capsys.readouterr()
    folder = printed.out.strip()
    assert f"--data.mined.cache {folder}" in printed.err  # what to do next
    assert json.loads((Path(folder) / "meta.json").read_text())["key"]["scorer"] == ""
    mined = MinedNeighbours(folder)
    mined.prepare([ShardSet(str(shards))])
    group = read_group(mined._index[0])
    assert len(mined.extend([group], 0, 0)[0]) == 2
    assert mine(model_folder, tmp_path / "nowhere", tmp_path) == 2
    assert mine(model_folder, shards, tmp_path, "--neighbours", 0) == 2
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("vlmtune: error")]
    assert len(lines) == 2


@pytest.mark.parametrize("kind", ["blip", "bridgetower", "vilt"])
def test_matching_heads_score_captions(kind, model_folder, shards, tmp_path, capsys):
    write = getattr(hf_models, f"write_{kind}")
    modules = {"blip": "Blip", "bridgetower": "BridgeTower", "vilt": "Vilt"}
    # Without embeddings the mean of a BridgeTower's tokens is compared.
    without = {"kind": BridgeTowerForImageAndTextRetrieval, "contrastive_hidden_size": None}
    options = without if kind == "bridgetower" else {}
    weights = str(write(tmp_path / "weights", **options))
    backbone = plugin(f"backbones.hf.{kind}.{modules[kind]}", model=weights)
    adapter = plugin("adapters.matching.Matching", blocks=0)
    file = tmp_path / "model.yaml"
    file.write_text(json.dumps({"backbone": backbone, "adapter": adapter}))
    # ViLT has no vision encoder: another model's images are compared.
    other = ["--features", model_folder] if kind == "vilt" else []
    if other:
        assert mine(file, shards, tmp_path) == 2
        assert "--features" in capsys.readouterr().err.splitlines()[-1]
    assert mine(file, shards, tmp_path, "--neighbours", 3, *other) == 0
    cache = SimilarityCache(Path(capsys.readouterr().out.splitlines()[-1]))
    model, known = load(str(file)), corpus([ShardSet(str(shards))])
    for image in list(known.images)[:3]:
        false = cache.false_captions(image)
        assert not set(false) & set(known.captions[image])
        picture = decode_image(known.images[image])
        scores = model.score(picture, false)[0]
        torch.testing.assert_close(scores.sort(descending=True).values, scores)
