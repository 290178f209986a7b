"""The world with all benchmarks: what is written, from which words, and that it repeats."""

from pathlib import Path

from data_builders.worlds.scenes.captions import vocabulary
from tests.data_builders.conftest import SUITE, hashes, load, rendered
from tests.data_builders.worlds.scenes.formats.test_readers import (
    OF_THE_WORLD,
    READERS,
    SENTENCES,
    made,
)
from tests.refusals import refused
from vlmtune.benchmarks.boundary_grounding import BoundaryGrounding
from vlmtune.benchmarks.eqben import PARTS, EqBen

# A world as plain as the quickstart's: one texture, one size, two or three objects.
PLAIN = SUITE | {"benchmarks": 4, "textures": ["plain"], "sizes": ["large"], "stack": 0.0}
PLAIN |= {"min_objects": 2, "max_objects": 3}


def said(world: Path) -> set[str]:
    """The words of every caption of the suite, true or false."""
    pairs = {part: str(world / f"eqben/{part}.json") for part in PARTS}
    benchmarks = [EqBen(pairs, str(world / "images/eqben"))]
    for kind, paths, options, *_ in READERS:
        if kind in (*SENTENCES, BoundaryGrounding) and kind not in OF_THE_WORLD:
            benchmarks.append(made(world, kind, paths, options))
    texts = [text for benchmark in benchmarks for text in benchmark.items.texts]
    return {word for text in texts for word in text.replace(".", "").split()}


def test_captions_stay_in_the_vocabulary_and_every_image_has_a_scene_graph(suite, graphs):
    words = said(suite)
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
    assert not said(tmp_path / "a") & {"plain", "striped", "checkered", "small", "large"}
    for path in (tmp_path / "a/sugar_crepe").iterdir():
        assert len(load(path)) == 4
    for path in (tmp_path / "a/valse").iterdir():
        assert load(path)


def test_a_world_too_poor_for_them_says_so(tmp_path):
    with refused("expected a world that holds items of ExchangedPairs"):
        rendered(tmp_path / "w", SUITE, shapes=["cube"], unseen=[])
    assert not (tmp_path / "w").exists()
