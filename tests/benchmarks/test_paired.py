import random
from dataclasses import field
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from PIL import Image

from tests.benchmarks.models import by_name, drawn, oracle
from tests.refusals import refused
from vlmtune.benchmarks.rules.paired import Paired, PairedItem
from vlmtune.types import ImageRef


class Toy(Paired):
    """Given items."""

    citation: ClassVar[str] = "nobody"
    source: ClassVar[str] = "example.org/toy"

    given: list
    name: str = field(default="toy", kw_only=True)

    @classmethod
    def fixture(cls, folder: Path) -> "Toy":
        return cls([])

    def read(self):
        return self.given


@pytest.fixture
def images(tmp_path):
    refs = []
    for i in range(8):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(tmp_path / f"{i}.png")
        refs.append(ImageRef(tmp_path / f"{i}.png"))
    return refs


def items_of(images, *quads, **rest):
    return [PairedItem((images[a], images[b]), (c, d), **rest) for a, b, c, d in quads]


def scored(toy, *items):
    """Runs a benchmark on the given 2 x 2 scores, written (c0i0, c1i0, c0i1, c1i1)."""
    toy.load()
    values = torch.zeros(len(toy.items.pairs), dtype=torch.float64)
    values[toy.items.positions] = torch.tensor(items, dtype=torch.float64).view(-1, 2, 2)
    return toy.run(lambda images, texts, pairs: values)


def numbers(result, suffix=""):
    kinds = ("text_accuracy", "image_accuracy", "group_accuracy")
    return tuple(result.metrics[kind + suffix].value for kind in kinds)


def test_worked_example_of_winogrounds_script(images):
    # (c0i0, c1i0, c0i1, c1i1) and text, image, group of each, run with the published script.
    items = [(0.9, 0.3, 0.2, 0.8), (0.9, 0.3, 0.95, 0.99)]
    items += [(0.5, 0.6, 0.1, 0.7), (0.4, 0.4, 0.1, 0.5)]
    quads = [(2 * i, 2 * i + 1, f"a{i}", f"b{i}") for i in range(4)]
    result = scored(Toy(items_of(images, *quads)), *items)
    assert numbers(result) == (0.5, 0.75, 0.25)
    assert result.outcomes == (1.0, 0.0, 0.0, 0.0)
    assert result.convention == "strict"
    chances = [result.metrics[f"{kind}_accuracy"].chance for kind in ("text", "image", "group")]
    assert chances == [1 / 4, 1 / 4, 1 / 6]
    low, high = result.metrics["group_accuracy"].low, result.metrics["group_accuracy"].high
    assert (low, high) == pytest.approx((0.0456, 0.6994), abs=1e-4)  # Wilson, 1 of 4


def test_against_a_loop_whatever_is_shared(images):
    rng = random.Random(0)
    for seed in range(8):
        squares = []
        for i in range(12):
            a, b = rng.sample(images, 2)
            c, d = rng.sample("uvwxyz", 2)
            squares.append(PairedItem((a, b), (c, d), rng.choice("gh"), ("t",) if i % 3 else ()))
        look = drawn(seed)
        result = Toy(squares).run(by_name(look))
        wins = []
        for square in squares:
            s = [[look(ref.path.name, text) for text in square.texts] for ref in square.images]
            text = s[0][0] > s[0][1] and s[1][1] > s[1][0]
            image = s[0][0] > s[1][0] and s[1][1] > s[0][1]
            wins.append((text, image, text and image))
        everyone = {"": squares} | {f"/{g}": [s for s in squares if s.group == g] for g in "gh"}
        everyone["/t"] = [s for s in squares if s.tags]
        for suffix, members in everyone.items():
            if members:
                own = [wins[squares.index(square)] for square in members]
                means = tuple(sum(kind) / len(own) for kind in zip(*own, strict=True))
                assert numbers(result, suffix) == pytest.approx(means)
                assert result.metrics[f"group_accuracy{suffix}"].n == len(own)
        assert result.outcomes == tuple(float(group) for *_, group in wins)


def test_items_that_share_images_form_clusters_and_widen_the_interval(images):
    shared = [(0, 1, f"a{i}", f"b{i}") for i in range(4)]
    shared += [(2, 3, f"c{i}", f"d{i}") for i in range(4)]
    together = Toy(items_of(images, *shared))
    right, wrong = (1.0, 0.0, 0.0, 1.0), (0.0, 1.0, 1.0, 0.0)
    result = scored(together, *[right] * 4, *[wrong] * 4)
    assert result.clusters == (0, 0, 0, 0, 1, 1, 1, 1)
    apart = [(2 * i, 2 * i + 1, f"a{i}", f"b{i}") for i in range(4)]
    independent = scored(Toy(items_of(images, *apart)), right, right, wrong, wrong)
    assert independent.clusters == (0, 1, 2, 3)
    wide, narrow = (one.metrics["group_accuracy"] for one in (result, independent))
    assert wide.value == narrow.value == 0.5
    assert wide.low < narrow.low
    # The same two captions, whichever comes first.
    said = scored(Toy(items_of(images, (0, 1, "a", "b"), (2, 3, "b", "a"))), right, right)
    assert said.caption_sets == (0, 0)
    assert said.metrics["group_accuracy"].clusters == 1
    crops = [ImageRef(images[0].path, (i, 0, 1, 1)) for i in range(4)]
    of_one_file = Toy(items_of(crops, (0, 1, "a", "b"), (2, 3, "c", "d")))
    assert scored(of_one_file, right, right).clusters == (0, 0)


def test_a_name_counts_an_item_once(images):
    toy = Toy(items_of(images, (0, 1, "a", "b"), group="g", tags=("g", "t", "t")))
    metrics = scored(toy, (1.0, 0.0, 0.0, 1.0)).metrics
    assert [metrics[f"group_accuracy/{name}"].n for name in "gt"] == [1, 1]


def test_series_and_mean_scores(images):
    toy = Toy(items_of(images, (0, 1, "a", "b"), (2, 3, "c", "d")))
    result = scored(toy, (2.0, 1.0, 0.0, 4.0), (0.0, 3.0, 2.0, 0.0))
    assert result.series["equivariance_text"] == (3.0, 1.0)
    assert result.series["equivariance_image"] == (1.0, 1.0)
    assert result.series["mean_scores"] == (1.0, 2.0, 1.0, 2.0)


def test_examples_show_both_images_best_first(images):
    toy = Toy(items_of(images, (0, 1, "a", "b"), (0, 2, "a", "c")))
    result = toy.run(by_name(lambda name, text: float(name == "0.png")))
    right, *wrong = result.examples
    assert right.query == "a"
    assert right.correct
    assert [ref.path.name for ref in right.images] == ["0.png", "1.png"]
    assert right.true == (True, False)
    assert [one.query for one in wrong] == ["b", "c"]
    assert wrong[0].scores == (1.0, 0.0)
    assert wrong[0].true == (False, True)
    many = [(0, 1, f"a{i}", f"b{i}") for i in range(50)]
    tied = Toy(items_of(images, *many)).run(by_name(lambda *_: 0.0)).examples
    assert [one.correct for one in tied] == [False] * 4


def test_an_item_with_an_image_or_a_caption_twice_is_never_won(images):
    toy = Toy(items_of(images, (0, 0, "a", "b"), (1, 2, "c", "c"), (3, 4, "d", "e")))
    result = toy.run(oracle(toy))
    assert result.outcomes == (0.0, 0.0, 1.0)
    assert [(one.kind, one.total) for one in toy.repeats()] == [("caption", 1), ("image", 1)]
    with refused("got none: get them from example.org/toy"):
        Toy([]).load()
