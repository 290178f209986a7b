"""What all benchmarks of one image and several captions share, on a benchmark held in memory."""

import random
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import by_text, check, drawn, mean, scorer, share, weighted
from tests.refusals import refused
from vlmtune.benchmarks.base import SHOWN, Convention
from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem, MultipleChoice
from vlmtune.errors import UserError
from vlmtune.types import ImageRef


class Held(MultipleChoice):
    """Items given to it."""

    version = "1"
    citation = "a test"
    source = "nowhere"
    reference_ties = "right"
    reference_metric = "macro_accuracy"
    recalls = (2,)
    given: list[ChoiceItem]
    least: int = 0
    convention: Convention = "strict"

    @classmethod
    def fixture(cls, folder):
        return cls([])

    def read(self):
        return self.given

    def reference_groups(self, sizes):
        return {group for group, size in sizes.items() if size >= self.least}


def made(folder: Path, items: list[ChoiceItem], **settings) -> Held:
    touch(folder, *{item.image.path.name for item in items})
    return Held(items, name="held", **settings)


def random_items(folder: Path, count: int, seed: int) -> list[ChoiceItem]:
    """Few images and texts, so that pairs, ties and repeats abound."""
    rng = random.Random(seed)
    items = []
    for _ in range(count):
        image = ImageRef(folder / f"{rng.randint(0, 9)}.png", (0, 0, rng.randint(1, 2), 3))
        texts = rng.sample([f"text {i}" for i in range(12)], rng.randint(2, 5))
        if rng.random() < 0.2:
            texts.insert(rng.randint(1, len(texts)), texts[0])
        items.append(ChoiceItem(image, tuple(texts), rng.choice("abc")))
    # In "strict" nothing is left of these.
    items += [ChoiceItem(image, (f"text {i}", f"text {i}"), "a") for i in range(3)]
    return items


@pytest.mark.parametrize("convention", ["strict", "reference"])
@pytest.mark.parametrize("seed", range(5))
def test_against_a_loop(tmp_path, convention, seed):
    items = random_items(tmp_path, 80, seed)
    look = drawn(seed, values=5)
    benchmark = made(tmp_path, items, convention=convention, least=20)
    result = benchmark.run(scorer(look))
    wins, ranks, chances, counted_items, groups = [], [], [], [], defaultdict(list)
    sizes = []
    for item in items:
        true, *others = item.candidates
        if convention == "strict":
            others = [text for text in others if text != true]
        if not others:
            continue
        counted_items.append(item)
        image = replace(item.image, upright=convention == "strict")
        own, rivals = look(image, true), [look(image, text) for text in others]
        if convention == "strict":
            ranks.append(1 + sum(rival >= own for rival in rivals))
        else:
            ranks.append(1 + sum(rival > own for rival in rivals))
        wins.append(ranks[-1] == 1)
        chances.append(1 / len({true, *others}))
        sizes.append(1 + len(others))
        groups[item.group].append(wins[-1])
    metrics = result.metrics
    assert len(wins) == (80 if convention == "strict" else 83)
    identical = sum(item.candidates[0] in item.candidates[1:] for item in items)
    middle = mean((size + 1) / 2 for size in sizes)
    expected = {"accuracy": share(wins, mean(chances)), "mean_rank": share(ranks, middle)}
    expected |= {"median_rank": (statistics.median(ranks) // 1,)}
    within = mean(min(1, 2 / size) for size in sizes)
    expected |= {"recall@2": share([rank <= 2 for rank in ranks], within)}
    check(result, expected | {"identical_candidates": (identical,)})
    listed = {group for group, own in groups.items() if len(own) >= 20}
    counted = groups if convention == "strict" else listed
    check(result, {"macro_accuracy": (mean(mean(groups[g]) for g in counted),)})
    assert {key for key in metrics if "/" in key} == {f"accuracy/{group}" for group in listed}
    check(result, {f"accuracy/{group}": share(groups[group]) for group in listed})
    assert result.convention == convention
    assert result.outcomes == tuple(map(float, wins))
    if convention == "strict":
        assert result.primary == "accuracy"
        files = [item.image.path for item in counted_items]
        same = torch.tensor([[a == b for a in files] for b in files])
        clusters = torch.tensor(result.clusters)
        assert (clusters[:, None] == clusters).equal(same)
    else:
        assert result.primary == "macro_accuracy"
        in_listed = [item.group in listed for item in counted_items]
        assert [group >= 0 for group in result.groups] == in_listed
        assert metrics["macro_accuracy"].value == weighted(result)
    (captions,) = (one for one in benchmark.repeats() if one.kind == "caption")
    assert captions.total == metrics["identical_candidates"].value


def test_two_candidates_without_groups_have_an_accuracy_alone(tmp_path):
    items = [ChoiceItem(ImageRef(tmp_path / "0.png"), ("yes", "no"))]
    result = made(tmp_path, items).run(by_text(lambda _: 0.0))
    assert result.metrics.keys() == {"accuracy"}


def test_examples_show_what_was_chosen(tmp_path):
    items = [ChoiceItem(ImageRef(tmp_path / f"{i}.png"), (f"{i}", "no")) for i in range(20)]
    score = by_text(lambda text: 0.5 if text == "no" else int(text) % 2)
    result = made(tmp_path, items).run(score)
    assert [example.correct for example in result.examples] == [True] * SHOWN + [False] * SHOWN
    right, wrong = result.examples[0], result.examples[SHOWN]
    assert (right.query, right.scores, right.true) == ("1 (not: no)", (1.0,), (True,))
    assert (wrong.query, wrong.scores, wrong.true) == ("no (true: 0)", (0.5,), (False,))
    assert wrong.images == (items[0].image,)


def test_errors_are_one_line(tmp_path):
    image = ImageRef(tmp_path / "0.png")
    for items, message in (
        ([], "expected items"),
        ([ChoiceItem(image, ("yes",))], "at least one other"),
        ([ChoiceItem(image, ("yes", " "))], "none blank"),
    ):
        with refused(message):
            made(tmp_path, items).load()
    with refused("a group that counts"):
        made(tmp_path, [ChoiceItem(image, ("a", "b"), "g")], convention="reference", least=5).load()
    with pytest.raises((UserError, TypeCheckError), match="'loose'"):
        Held([], convention="loose")
