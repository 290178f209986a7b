from dataclasses import replace
from pathlib import Path

import pytest

from vlmtune.report.four_scores import square
from vlmtune.report.item_view import item_view
from vlmtune.report.media import data_uri
from vlmtune.results.item_row import ItemRow
from vlmtune.types import ImageRef

STRAIGHT, CROSSED = ((True, False), (False, True)), ((False, True), (True, False))
IMAGES = (ImageRef(Path("a.png")), ImageRef(Path("b.png")))
# Figure 8 of the paper, left: FIBER's scores change by -0.07 and 1.4 where the image does.
ROW = ItemRow("eqben/0", "eqben", 0.0, IMAGES, ("red", "grey"), STRAIGHT, ((2.0, 1.0), (2.07, 2.4)))


def shades(made):
    return [[cell["shade"] for cell in line] for line in made["rows"]]


def test_changes_are_those_of_the_two_steps():
    made = square(ROW)
    assert made is not None
    assert made["changes"] == {"caption": ("1", "0.33"), "image": ("-0.07", "1.4")}
    assert shades(made) == [[71, 0], [76, 100]]  # of the range 1.0 to 2.4
    assert [[c["wrong"] for c in line] for line in made["rows"]] == [[False, False], [True, False]]


def test_captions_in_another_order_give_the_same_square():
    crossed = replace(ROW, captions=("grey", "red"), true=CROSSED, scores=((1.0, 2.0), (2.4, 2.07)))
    assert square(crossed) == square(ROW)


@pytest.mark.parametrize(
    "row",
    [
        None,
        replace(ROW, images=IMAGES[:1], true=STRAIGHT[:1], scores=ROW.scores[:1]),
        replace(ROW, scores=((2.0, None), (2.07, 2.4))),
        replace(ROW, true=((True, True), (False, True))),
    ],
)
def test_other_items_have_none(row):
    assert square(row) is None


def test_an_item_shows_the_square_of_each_run():
    after = replace(ROW, scores=((2.0, 1.0), (1.0, 2.0)))
    sides = ([ROW], [after])
    view = item_view(0, ROW, [list(side) for side in sides], data_uri)
    assert [one["name"] for one in view["four_scores"]] == ["before", "after"]
    assert view["four_scores"][1]["changes"] == {"caption": ("1", "1"), "image": ("1", "1")}
    alone = item_view(0, ROW, [[ROW]], data_uri)
    assert [one["name"] for one in alone["four_scores"]] == ["scores"]
