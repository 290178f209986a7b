from pathlib import Path

from vlmtune.benchmarks.items import LISTED, ComparedItem, find_repeats, sample
from vlmtune.results.result import Occurrence, Repeat
from vlmtune.types import ImageRef

A, B, C = (ImageRef(Path(f"root/folder/{name}.png")) for name in "abc")
NAMES = ("folder/a.png", "folder/b.png", "folder/c.png")


def test_nothing_repeats():
    items = [
        ComparedItem((A,), ("x",), ("y", "z")),
        ComparedItem((A,), ("y",), ("x", "z")),  # another right one
        ComparedItem((B,), ("x",), ("y", "z")),
        ComparedItem((ImageRef(A.path, (0, 0, 2, 2)),), ("x",), ("y", "z")),  # another crop
        ComparedItem((A, B), ("x", "y")),
        ComparedItem((A, B), ("y", "x")),  # the other way round
        ComparedItem((A,), ("w",), ("y", "y")),  # wrong ones alike
    ]
    assert find_repeats(items) == ()
    assert find_repeats([]) == ()


def test_items_that_occur_again_in_whatever_order():
    choices = [ComparedItem((A,), ("x",), ("y", "z")), ComparedItem((A,), ("x",), ("z", "y"))]
    one = ComparedItem((A, B), ("x", "y"))
    paired = [one, ComparedItem((B, A), ("y", "x")), one]
    (found,) = find_repeats([*choices, *paired])
    assert (found.kind, found.total, found.n) == ("item", 3, 5)
    places = (((0, 1), NAMES[:1], ("x",)), ((2, 3, 4), NAMES[:2], ("x", "y")))
    assert found.listed == tuple(Occurrence(*place) for place in places)


def test_captions_and_images_within_an_item():
    box = ImageRef(C.path, (1, 2, 3, 4))
    items = [
        ComparedItem((box,), ("x",), ("y", "x")),
        ComparedItem((A, B), ("same", "same")),
        ComparedItem((A, A), ("x", "y")),
        ComparedItem((A,), ("before", "before")),
    ]
    captions, images = find_repeats(items)
    assert captions == Repeat(
        "caption",
        3,
        4,
        (
            Occurrence((0,), ("folder/c.png [1, 2, 3, 4]",), ("x",)),
            Occurrence((1,), NAMES[:2], ("same",)),
            Occurrence((3,), NAMES[:1], ("before",)),
        ),
    )
    assert images == Repeat("image", 1, 4, (Occurrence((2,), NAMES[:1], ("x", "y")),))


def test_all_are_counted_and_the_first_are_listed():
    many = [ComparedItem((A,), (f"{i}",), (f"{i}",)) for i in range(2 * LISTED)]
    same, captions = find_repeats(many + many)
    assert (same.total, captions.total, captions.n) == (2 * LISTED, 4 * LISTED, 4 * LISTED)
    assert [len(one.listed) for one in (same, captions)] == [LISTED, LISTED]
    assert same.listed[1].items == (1, 2 * LISTED + 1)
    (one,) = (find.listed for find in find_repeats([ComparedItem((A,), ("x",))] * 99))
    assert one[0].items == tuple(range(LISTED))


GROUPS = ["a"] * 10 + ["b"] * 3 + ["a"] * 2


def test_all_the_first_or_drawn_ones_of_each_group():
    assert sample(GROUPS, None, 3) == list(range(15))
    assert sample(GROUPS, 4, None) == [0, 1, 2, 3, 10, 11, 12]
    assert sample([], 4, None) == []
    # Drawn ones are spread, reproducible and in order.
    drawn = [sample(GROUPS, 4, seed) for seed in range(20)]
    assert drawn[0] == sample(GROUPS, 4, 0)
    assert len({tuple(one) for one in drawn}) > 10
    assert {i for one in drawn for i in one} == set(range(15))
    for one in drawn:
        assert one == sorted(set(one))
        assert sum(GROUPS[i] == "a" for i in one) == 4
    # Those of a group do not depend on other groups.
    assert [i - 9 for i in sample(["b"] * 9 + ["a"] * 9, 4, 0) if i >= 9] == sample(["a"] * 9, 4, 0)
