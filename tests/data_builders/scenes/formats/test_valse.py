import pytest

from data_builders.scenes.formats.valse import PIECES
from tests.data_builders.conftest import SUITE, load
from tests.data_builders.scenes.truth import NUMBERS, holds
from vlmtune.benchmarks.valse import Valse


@pytest.mark.parametrize("piece", PIECES)
def test_only_the_caption_is_true(suite, graphs, piece):
    rows = load(suite / f"valse/{piece}.json")
    assert 0 < len(rows) <= SUITE["benchmarks"]
    for row in rows.values():
        scene = graphs["scenes"][row["image_file"]]
        assert holds(scene, row["caption"]), row
        assert not holds(scene, row["foil"]), row
        assert row["linguistic_phenomena"] == piece
        assert row["mturk"] == {"caption": 3, "foil": 0, "other": 0}
        if piece == "actant-swap":
            assert sorted(row["caption"].split()) == sorted(row["foil"].split())
        if piece == "counting-adversarial":
            assert NUMBERS.index(row["classes_foil"]) < NUMBERS.index(row["classes"])


def test_words_alone_do_not_tell_what_exists(suite):
    rows = load(suite / "valse/existence.json").values()
    assert {row["classes"] for row in rows} == {"a", "no"}
    for row in rows:
        assert {"a", "no"} == {row["classes"], row["classes_foil"]}


def test_the_reader_reads_it(suite):
    benchmark = Valse(str(suite / "valse"), str(suite / "images/suite"), pieces=list(PIECES))
    metrics = benchmark.run(lambda *_: benchmark.truth().float()).metrics
    assert metrics["acc_r"].value == metrics["acc_r/average"].value == 1.0
