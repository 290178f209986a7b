import json
import random

import pytest
from PIL import Image

from tests.benchmarks.models import by_text, drawn, mean, oracle
from vlmtune.benchmarks.aro_order import AroOrder
from vlmtune.benchmarks.aro_shuffles import normalised, read_shuffles, write_shuffles
from vlmtune.language.words import words

WORDS = ["man", "horse", "dog", "table", "red", "old", "on", "the", "with", "near", "sees", ","]


class Random:
    def tag(self, words):
        return [random.Random(word).choice(["NOUN", "ADJ", "VERB"]) for word in words]


def write(folder, count, length=9):
    rng = random.Random(0)
    rows = []
    for i in range(count):
        captions = [" ".join(rng.choices(WORDS, k=length)) + f" {i}{j}." for j in range(3)]
        rows.append({"image": f"val2014/{i}.png", "caption": captions})
    (folder / "val2014").mkdir()
    for i in range(count):
        Image.new("RGB", (4, 4)).save(folder / "val2014" / f"{i}.png")
    path, shuffles = folder / "captions.json", folder / "shuffles.json"
    path.write_text(json.dumps(rows))
    write_shuffles(path, shuffles, Random())
    captions = [text for row in rows for text in row["caption"]]
    return captions, read_shuffles(shuffles, path, len(captions))


def make(folder, **settings):
    paths = (folder / "captions.json", folder, folder / "shuffles.json")
    return AroOrder(*map(str, paths), **settings)


def test_as_published(tmp_path):
    (captions, shuffles), look = write(tmp_path, 60), drawn(0, values=11)
    result = make(tmp_path, convention="reference").run(by_text(look))
    hits = []
    chances = []
    for caption, shuffled in zip(captions, shuffles, strict=True):
        texts = [normalised(text) for text in (caption, *shuffled)]
        values = [look(text) for text in texts]
        hits.append(values.index(max(values)) == 0)
        chances.append(1 / len(set(texts)))  # some shuffles are equal
    assert result.metrics["accuracy"].value == pytest.approx(sum(hits) / 180)
    assert result.metrics["accuracy"].chance == pytest.approx(mean(chances))
    assert result.primary == "accuracy"
    assert result.outcomes == tuple(map(float, hits))
    assert sorted(set(result.clusters)) == list(range(60))


def test_strict_gives_no_hint_by_spacing_and_leaves_out_what_is_not_shuffled(tmp_path):
    (captions, shuffles), look = write(tmp_path, 60, length=3), drawn(1, values=11)
    benchmark = make(tmp_path)
    result = benchmark.run(by_text(look))
    hits, sizes, identical = [], [], 0
    for caption, shuffled in zip(captions, shuffles, strict=True):
        true = normalised(" ".join(words(caption)))
        others = [normalised(text) for text in shuffled]
        assert all(sorted(true.split()) == sorted(text.split()) for text in others)
        identical += true in others
        others = [text for text in others if text != true]
        if others:
            hits.append(look(true) > max(look(text) for text in others))
            sizes.append(len({true, *others}))
    assert identical > 5
    assert result.metrics["identical_candidates"].value == identical
    assert result.outcomes == tuple(map(float, hits))
    assert result.metrics["accuracy"].chance == pytest.approx(sum(1 / s for s in sizes) / len(hits))
    assert benchmark.run(oracle(benchmark)).metrics["accuracy"].value == 1.0
