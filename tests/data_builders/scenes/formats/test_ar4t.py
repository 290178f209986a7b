import pytest

from tests.data_builders.conftest import rows_of

INVERSE = {
    "to the left of": "to the right of",
    "to the right of": "to the left of",
    "in front of": "behind",
    "behind": "in front of",
}


@pytest.mark.parametrize(("name", "count"), [("PUG_AR_train", 16), ("PUG_ARmerged_test", 4)])
def test_rows(world, name, count):
    rows = rows_of(world / f"ar4t/{name}.csv")
    assert len(rows) == count
    assert len(rows[0]) == 25
    by_name = {row["filename"]: row for row in rows}
    kinds = set()
    for row in rows:
        assert (world / "images" / row["filepath"]).is_file()
        negative = by_name[row["filename_neg"]]
        assert negative["filename_neg"] == row["filename"]
        kinds.add(row["Relation"])
        a, b = row["Actor1Category"], row["Actor2Category"]
        if row["Relation"] == "and":
            assert row["caption"].startswith(
                f"{row['Actor1Attribute']} {a} and {row['Actor2Attribute']} {b} on "
            )
            assert negative["Actor1Attribute"] == row["Actor2Attribute"]
            assert sorted(row["caption"].split()) == sorted(negative["caption"].split())
        else:
            inverse = INVERSE[row["Relation"]]
            assert row["caption"].startswith(f"{a} {row['Relation']} {b} on ")
            assert row["alt_caption"].startswith(f"{b} {inverse} {a} on ")
            assert negative["caption"].startswith(f"{a} {inverse} {b} on ")
    assert "and" in kinds
    assert len(kinds) > 1
