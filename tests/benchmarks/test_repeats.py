import random
from pathlib import Path

from vlmtune.benchmarks.repeats import KEPT, Item, find_repeats
from vlmtune.report.result import Occurrence, Repeat
from vlmtune.types import ImageRef

A, B, C = (ImageRef(Path(f"root/folder/{name}.png")) for name in "abc")
NAMES = ("folder/a.png", "folder/b.png", "folder/c.png")


def test_nothing_repeats():
    items = [
        Item((A,), ("x",), ("y", "z")),
        Item((A,), ("y",), ("x", "z")),  # another right one
        Item((B,), ("x",), ("y", "z")),
        Item((ImageRef(A.path, (0, 0, 2, 2)),), ("x",), ("y", "z")),  # another crop
        Item((A, B), ("x", "y")),
        Item((A, B), ("y", "x")),  # the other way round
        Item((A,), ("w",), ("y", "y")),  # wrong ones alike
    ]
    assert find_repeats(items) == ()
    assert find_repeats([]) == ()


def test_items_that_occur_again_in_whatever_order():
    choices = [Item((A,), ("x",), ("y", "z")), Item((A,), ("x",), ("z", "y"))]
    squares = [Item((A, B), ("x", "y")), Item((B, A), ("y", "x")), Item((A, B), ("x", "y"))]
    (found,) = find_repeats([*choices, *squares])
    assert (found.kind, found.total, found.n) == ("item", 3, 5)
    assert found.listed == (
        Occurrence((0, 1), NAMES[:1], ("x",)),
        Occurrence((2, 3, 4), NAMES[:2], ("x", "y")),
    )


def test_captions_and_images_within_an_item():
    box = ImageRef(C.path, (1, 2, 3, 4))
    items = [
        Item((box,), ("x",), ("y", "x")),
        Item((A, B), ("same", "same")),
        Item((A, A), ("x", "y")),
        Item((A,), ("before", "before")),
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
    many = [Item((A,), (f"{i}",), (f"{i}",)) for i in range(2 * KEPT)]
    same, captions = find_repeats(many + many)
    assert (same.total, captions.total, captions.n) == (2 * KEPT, 4 * KEPT, 4 * KEPT)
    assert [len(one.listed) for one in (same, captions)] == [KEPT, KEPT]
    assert same.listed[1].items == (1, 2 * KEPT + 1)
    (one,) = (find.listed for find in find_repeats([Item((A,), ("x",))] * 99))
    assert one[0].items == tuple(range(KEPT))


def test_against_a_loop():
    rng = random.Random(0)
    for _ in range(20):
        items = []
        for _ in range(25):
            images = tuple(rng.choice((A, B, C)) for _ in range(2))
            items.append(Item(images, tuple(rng.choice("xy") for _ in range(2))))
        pairs = [
            sorted((str(i.path), t) for i, t in zip(x.images, x.true, strict=True)) for x in items
        ]
        # An item of two equal pairs is that of one.
        pairs = [p[:1] if p[0] == p[1] else p for p in pairs]
        expected = {
            "item": sum(pair in pairs[:i] for i, pair in enumerate(pairs)),
            "caption": sum(item.true[0] == item.true[1] for item in items),
            "image": sum(item.images[0] == item.images[1] for item in items),
        }
        found = {one.kind: one.total for one in find_repeats(items)}
        assert found == {kind: n for kind, n in expected.items() if n}
