import pytest

from data_builders.worlds.scenes.formats.valse import PIECES
from tests.data_builders.conftest import SUITE, load
from tests.data_builders.worlds.scenes.truth import KIND, NUMBERS


@pytest.mark.parametrize("piece", PIECES)
def test_rows_are_as_valse_has_them(suite, piece):
    rows = load(suite / f"valse/{piece}.json")
    assert len(rows) == SUITE["benchmarks"]
    for row in rows.values():
        assert row["linguistic_phenomena"] == piece
        assert row["mturk"] == {"caption": 3, "foil": 0, "other": 0}
        if piece == "actant-swap":
            assert sorted(row["caption"].split()) == sorted(row["foil"].split())
        if piece == "counting-adversarial":
            assert NUMBERS.index(row["classes_foil"]) < NUMBERS.index(row["classes"])


def test_words_alone_do_not_tell_what_exists_or_what_is_done(suite):
    rows = load(suite / "valse/existence.json").values()
    assert {row["classes"] for row in rows} == {"a", "no"}
    for row in rows:
        assert {"a", "no"} == {row["classes"], row["classes_foil"]}
    for row in load(suite / "valse/action-replacement.json").values():
        said, foil = row["caption"].split(), row["foil"].split()
        assert said[:-1] == foil[:-1]
        assert KIND[said[-1]] == KIND[foil[-1]]
        assert [said[-1], foil[-1]] == [row["classes"], row["classes_foil"]]


@pytest.mark.parametrize("piece", ["coreference-standard", "coreference-hard"])
def test_the_answer_is_yes_or_no_and_needs_the_antecedent_where_it_is_hard(suite, graphs, piece):
    rows = load(suite / f"valse/{piece}.json").values()
    for row in rows:
        named, _, said = row["caption"].partition(". this object is ")
        assert {row["classes"], row["classes_foil"]} == {"yes", "no"}
        assert (row["classes"] == "no") == said.startswith("not ")
        assert row["foil"].replace("not ", "") == row["caption"].replace("not ", "")
        word, shape = said.removeprefix("not "), named.rpartition(" ")[2]
        scene = graphs["scenes"][row["image_file"]]
        others = [o[KIND[word]] == word for o in scene["objects"] if o["shape"] != shape]
        if piece == "coreference-hard":
            assert (row["classes"] == "no") in others
        elif row["classes"] == "no":
            assert not any(others)
    assert {row["classes"] for row in rows} == {"yes", "no"}
