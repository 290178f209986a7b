"""The world with all benchmarks: what is written, from which words, and that it repeats."""

import ast
import json
from pathlib import Path

from data_builders.worlds.scenes.captions import vocabulary
from tests.data_builders.conftest import SUITE, eqben_items, hashes, load, rendered, rows_of
from tests.refusals import refused

# A world as plain as the quickstart's: one texture, one size, two or three objects.
PLAIN = SUITE | {"benchmarks": 4, "textures": ["plain"], "sizes": ["large"], "stack": 0.0}
PLAIN |= {"min_objects": 2, "max_objects": 3}

SIDES = ("before", "after")
ARO = ("visual_genome_relation", "visual_genome_attribution", "coco_karpathy_test")


def leaves(value):
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    elif isinstance(value, str):
        yield value


def texts(world: Path):
    """Every caption the files state, true or false."""
    rows = [json.loads(x) for x in (world / "winoground/examples.jsonl").read_text().splitlines()]
    for name in ARO:
        rows += load(world / f"aro/{name}.json")
    for path in (world / "eqben").iterdir():
        rows += eqben_items(load(path))
    for path in (*(world / "sugar_crepe").iterdir(), *(world / "valse").iterdir()):
        rows += load(path).values()
    for path in (world / "crepe").rglob("*.csv"):
        table = rows_of(path)
        rows += table
        lists = [v for row in table for k, v in row.items() if "hard_negs" in k]
        yield from leaves([ast.literal_eval(value) for value in lists])
    yield from leaves([v for row in rows for k, v in row.items() if "caption" in k or k == "foil"])
    yield from leaves(load(world / "aro/coco_karpathy_test_shuffles.json")["shuffles"])
    for row in load(world / "half_truths/units.json"):
        yield row["original_caption"]
        phrases = [foil for own in row["negative_entities"].values() for foil in own]
        phrases += row["relations"][0]["negatives"]
        yield from (v for foil in phrases for k, v in foil.items() if k != "change_type")
    for row in load(world / "whats_up/controlled_clevr_dataset.json"):
        yield from row["caption_options"]
    for row in rows_of(world / "negbench/scenes_val_mcq.csv"):
        yield from (row[f"caption_{k}"] for k in range(4))
    videos = [row for own in load(world / "geb/test.json").values() for row in own]
    yield from (f"{row['subject']} {row[f'status_{k}']}" for row in videos for k in SIDES)


def test_captions_stay_in_the_vocabulary_and_every_image_has_a_scene_graph(suite, graphs):
    words = {word for text in texts(suite) for word in text.replace(".", "").split()}
    assert not words - set(vocabulary())
    assert len(words) > 40
    for series, scenes in graphs.items():
        count = load(suite / "manifest.json")["counts"][f"images: suite_{series}"]
        assert len(scenes) == count > 0
    names = {path.name for path in (suite / "images/suite").iterdir()}
    assert names == {*graphs["scenes"], *graphs["twins"]}


def test_nothing_else_changes(suite, tmp_path):
    alone, whole = hashes(rendered(tmp_path / "w", SUITE, benchmarks=0)), hashes(suite)
    assert {name for name in alone if whole[name] != alone[name]} == {"manifest.json"}
    assert "benchmarks" not in load(tmp_path / "w/manifest.json")["arguments"]
    assert load(suite / "manifest.json")["arguments"]["benchmarks"] == SUITE["benchmarks"]


def test_a_plain_world_has_them_all_and_repeats(tmp_path):
    for name in ("a", "b"):
        rendered(tmp_path / name, PLAIN, processes=1)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")
    said = {word for text in texts(tmp_path / "a") for word in text.split()}
    assert not said & {"plain", "striped", "checkered", "small", "large"}
    for path in (tmp_path / "a/sugar_crepe").iterdir():
        assert len(load(path)) == 4
    for path in (tmp_path / "a/valse").iterdir():
        assert load(path)


def test_a_world_too_poor_for_them_says_so(tmp_path):
    with refused("expected a world that holds items of ExchangedPairs"):
        rendered(tmp_path / "w", SUITE, shapes=["cube"], unseen=[])
    assert not (tmp_path / "w").exists()
