import random
from pathlib import Path

import pytest

from tests.benchmarks.json_files import touch, write
from tests.benchmarks.models import by_name, check, drawn
from tests.refusals import refused
from vlmtune.benchmarks.cola_multi import ColaMulti
from vlmtune.benchmarks.files import write_csv, write_image
from vlmtune.benchmarks.table_multiple_choice import TableMultipleChoice
from vlmtune.benchmarks.table_pairs import TablePairs
from vlmtune.benchmarks.votes import agreeing

WORKERS = 10


def cola_file(folder: Path, votes: list) -> str:
    rows = []
    for i, cast in enumerate(votes):
        names = [f"{i}{side}.png" for side in "ab"]
        touch(folder, *names)
        rows.append([names[0], f"x{i}", names[1], f"y{i}", *([] if cast is None else [cast])])
    return str(write(folder, rows, "cola.json"))


@pytest.mark.parametrize("written", ["list", "number"])
@pytest.mark.parametrize("least", [1, 6, 8])
def test_cola_counts_the_items_of_the_majority(tmp_path, written, least):
    rng = random.Random(least)
    cast = [[rng.random() < 0.6 for _ in range(WORKERS)] for _ in range(40)]
    path = cola_file(tmp_path, cast if written == "list" else [sum(one) for one in cast])
    look = drawn(3)
    result = ColaMulti(path, str(tmp_path), min_votes=least).run(by_name(look))
    kept, wins = 0, 0
    for i, one in enumerate(cast):
        if len([vote for vote in one if vote]) >= least:
            kept += 1
            a, b = f"{i}a.png", f"{i}b.png"
            wins += look(a, f"x{i}") > look(b, f"x{i}") and look(b, f"y{i}") > look(a, f"y{i}")
    assert kept > 0
    assert (result.metrics["accuracy"].n, sum(result.outcomes)) == (kept, wins)
    check(result, {"left_out_by_votes": (40 - kept, 40)})
    assert result.metrics["left_out_by_votes"].unit == "count"


def test_votes_change_nothing_unless_asked_for_and_a_limit_draws_from_what_is_left(tmp_path):
    look = drawn(0)
    with_votes = ColaMulti(cola_file(tmp_path, [3, [1, 0], "9"]), str(tmp_path))
    voted = with_votes.run(by_name(look))
    plain = ColaMulti(cola_file(tmp_path, [None] * 3), str(tmp_path)).run(by_name(look))
    assert voted == plain
    assert "left_out_by_votes" not in plain.metrics
    made = ColaMulti(cola_file(tmp_path, [9, 2, 8, 1, 7]), str(tmp_path), min_votes=6, limit=3)
    assert sorted(item.texts[0] for item in made.items.listed) == ["x0", "x2", "x4"]


def test_a_table_with_votes(tmp_path):
    for name in ("a.png", "b.png"):
        write_image(tmp_path / name, 5, *name.encode()[:1], 3)
    columns = ("image", "negative_image", "caption", "negative", "votes", "people")
    votes = ["[1, 1, 0]", "3", "[True, False, False]", "2.0"]
    rows = [("a.png", "b.png", f"x{i}", f"y{i}", cell, 3 - i) for i, cell in enumerate(votes)]
    table = write_csv(tmp_path / "t.csv", columns, rows)
    kept = [item.texts[0] for item in TablePairs(table, min_votes=2).read()]
    assert kept == ["x0", "x1", "x3"]
    made = TableMultipleChoice(table, columns={"votes": "people"}, min_votes=2)
    assert [item.candidates[0] for item in made.read()] == ["x0", "x1"]
    check(made.run(by_name(drawn(1))), {"left_out_by_votes": (2, 4)})


def test_a_file_without_votes_is_refused(tmp_path):
    path = cola_file(tmp_path, [9, None])
    with refused(r"expected votes in row 1 of .*cola.json .*got None: add them, or leave"):
        ColaMulti(path, str(tmp_path), min_votes=6).read()
    (tmp_path / "t.csv").write_text("image,caption,negative\na.png,x,y\n")
    with refused(r"expected votes in line 2 of .*t.csv"):
        TableMultipleChoice(str(tmp_path / "t.csv"), min_votes=1).read()


@pytest.mark.parametrize(
    "cell", [-1, 2.5, "many", "", None, float("nan"), float("inf"), [2], ["a"], {"a": 1}]
)
def test_what_is_no_vote_is_refused(tmp_path, cell):
    with refused("expected votes in row 7"):
        agreeing(cell, "row 7")
    if cell is not None and cell == cell:
        with refused("with votes at the end"):
            ColaMulti(cola_file(tmp_path, [cell]), str(tmp_path)).read()
