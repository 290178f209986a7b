"""An item as the page shows it: the square of its four scores, or the ranks of its candidates."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from vlmtune.report.four_scores import square
from vlmtune.report.html import to_html
from vlmtune.report.item_view import item_view
from vlmtune.report.media import data_uri
from vlmtune.report.rankings import rankings
from vlmtune.results.item_row import ItemRow
from vlmtune.types import ImageRef

STRAIGHT, CROSSED = ((True, False), (False, True)), ((False, True), (True, False))
PAIR = (ImageRef(Path("a.png")), ImageRef(Path("b.png")))
# Figure 8 of the paper, left: FIBER's scores change by -0.07 and 1.4 where the image does.
ROW = ItemRow("eqben/0", "eqben", 0.0, PAIR, ("red", "grey"), STRAIGHT, ((2.0, 1.0), (2.07, 2.4)))


def shades(made):
    return [[cell["shade"] for cell in line] for line in made["rows"]]


def test_changes_are_those_of_the_two_steps_in_any_order_of_captions():
    made = square(ROW)
    assert made is not None
    assert made["changes"] == {"caption": ("1", "0.33"), "image": ("-0.07", "1.4")}
    assert shades(made) == [[71, 0], [76, 100]]  # of the range 1.0 to 2.4
    assert [[c["wrong"] for c in line] for line in made["rows"]] == [[False, False], [True, False]]
    crossed = replace(ROW, captions=("grey", "red"), true=CROSSED, scores=((1.0, 2.0), (2.4, 2.07)))
    assert square(crossed) == square(ROW)


def test_an_item_shows_the_square_of_each_run():
    after = replace(ROW, scores=((2.0, 1.0), (1.0, 2.0)))
    sides = ([ROW], [after])
    view = item_view(0, ROW, [list(side) for side in sides], data_uri)
    assert [one["name"] for one in view["four_scores"]] == ["before", "after"]
    assert view["four_scores"][1]["changes"] == {"caption": ("1", "1"), "image": ("1", "1")}
    alone = item_view(0, ROW, [[ROW]], data_uri)
    assert [one["name"] for one in alone["four_scores"]] == ["scores"]


IMAGES = tuple(ImageRef(Path(f"{i}.png")) for i in range(5))
CAPTIONS = tuple("vwxyz")
TRUE = (False, True, False, False, True)


def choice(scores, **more) -> ItemRow:
    line = tuple(score if score is None else float(score) for score in scores)
    return ItemRow("crepe/0", "crepe", 0.0, IMAGES[:1], CAPTIONS, (TRUE,), (line,), **more)


def query(scores, images=IMAGES, true=TRUE) -> ItemRow:
    lines = tuple((float(score),) for score in scores)
    return ItemRow("f/0", "f", 0.0, images, ("v",), tuple((t,) for t in true), lines, rank=2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("make", [choice, query])
def test_ranks_against_a_count(make, seed):
    rng = random.Random(seed)
    runs = [[rng.randrange(4) / 4 for _ in TRUE] for _ in range(2)]  # with ties
    (made,) = rankings([make(scores) for scores in runs])
    assert made["kind"] == ("image" if make is choice else "caption")
    for side, scores in enumerate(runs):
        for row in made["rows"]:
            i, cell = row["number"], row["cells"][side]
            ahead = [j for j in range(5) if scores[j] > scores[i]]
            tied = [j for j in range(5) if scores[j] == scores[i] and TRUE[i] and not TRUE[j]]
            assert cell["rank"] == 1 + len(ahead) + len(tied)
            assert (row["true"], cell["text"]) == (TRUE[i], f"{scores[i]:.3g}")
            low, high = min(scores), max(scores)
            assert cell["shade"] == round(100 * (scores[i] - low) / ((high - low) or 1))
    after = [row["cells"][1]["rank"] for row in made["rows"]]
    assert after == sorted(after)


def test_an_image_that_a_run_does_not_show_has_no_rank_there():
    before, after = query((5, 4, 3), IMAGES[:3], TRUE[:3]), query((9, 8, 7), IMAGES[2:], TRUE[2:])
    view = item_view(0, before, [[before], [after]], data_uri)
    (made,) = view["ranked"]["queries"]
    listed = []
    for row in made["rows"]:
        name = view["images"][row["number"]]["name"]
        listed.append((name, *(cell and cell["rank"] for cell in row["cells"])))
    expected = [("2.png", 3, 1), ("3.png", None, 2), ("4.png", None, 3)]
    assert listed == [*expected, ("0.png", 1, None), ("1.png", 2, None)]


def test_the_page_lists_ranks_in_place_of_pairs(make_run):
    rows = [choice((0.1, 0.5, 0.3, 0.2, 0.4)), choice((0.9, 0.2, 0.1, 0.3, 0.8))]
    run = make_run("adapter")
    head = {"title": "crepe", "run": "adapter", "colour": 1, "against": "zero-shot"}
    group = {**head, "verdict": "won", "good": True, "total": 1}
    group["items"] = [item_view(0, rows[1], [rows[:1], rows[1:]], data_uri)]
    page = to_html([run], [group])
    (table,) = re.findall(r'<figure class="seen ranking.*?</figure>', page, re.DOTALL)
    text = " ".join(re.sub(r"<[^>]+>", " ", table).split())
    assert text == (
        "0.png not found captions before after ✗ v 5 0.1 1 0.9 ✓ z 2 0.4 2 0.8 "
        "✗ y 4 0.2 3 0.3 ✓ w 1 0.5 4 0.2 ✗ x 3 0.3 5 0.1"
    )
    assert page.count('class="seen') == 1
