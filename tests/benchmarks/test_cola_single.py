import itertools

import pytest
import torch

from tests.benchmarks.json_files import raw_of, write
from tests.benchmarks.models import check, fixed, mean, share
from tests.metrics.test_average_precision import naive_ap
from tests.refusals import refused
from vlmtune.benchmarks.cola_single import ColaSingle


def values_for(benchmark, seed=0):
    shape = benchmark.items.truth.shape
    return torch.randint(5, shape, generator=torch.Generator().manual_seed(seed)).double()


def test_both_layouts_and_both_label_forms_agree(tmp_path, fixture):
    raw, values = raw_of(fixture), values_for(fixture)
    expected = fixture.run(fixed(values)).metrics
    data = [
        [image, [f"{a[0]} {noun}" for a, noun in objects], *flags]
        for image, objects, *flags in raw["data"]
    ]
    flat = {"labels": ["red cube", "blue cube", "red cone"], "data": data}
    for layout, other in (
        ("pairs", [raw["labels"], raw["data"]]),
        ("strings", [flat["labels"], flat["data"]]),
        ("strings", flat),
    ):
        path = write(tmp_path, other)
        again = ColaSingle(str(path), str(tmp_path), seen=str(fixture.seen)).run(fixed(values))
        told = {k: m for k, m in expected.items() if layout == "pairs" or "=" not in k}
        assert again.metrics == told
    assert fixture.items.texts == ("red cube", "blue cube", "red cone")


@pytest.mark.parametrize("absent", ["null", "left out"])
def test_without_annotations_what_needs_them_is_left_out(tmp_path, fixture, absent):
    raw = raw_of(fixture)
    nothing = [None] if absent == "null" else []
    raw["data"] = [[e[0], *nothing, *e[2:]] for e in raw["data"]]
    benchmark = ColaSingle(str(write(tmp_path, raw)), str(tmp_path))
    metrics = benchmark.run(fixed(values_for(fixture))).metrics
    assert "map" in metrics
    assert not {"query_all_map", "mean_rank_true", "map_seen"} & metrics.keys()


@pytest.mark.parametrize("seed", range(5))
def test_the_published_mean_against_a_loop(tmp_path, fixture, seed):
    raw = raw_of(fixture)
    raw["labels"] += [[["none"], "inside"], [["empty"], "pool"], [["no"], "positive"]]
    for i, entry in enumerate(raw["data"]):
        entry[2] += [int(i == 0), int(i == 0), 0]
        entry[3] += [int(i != 0), 0, 1]
    path = str(write(tmp_path, raw))
    benchmark = ColaSingle(path, str(tmp_path), convention="reference")
    values, precisions = values_for(benchmark, seed), []
    for c in range(len(raw["labels"])):
        entries = list(enumerate(raw["data"]))
        pool = [(float(values[i, c]), e[2][c]) for i, e in entries if e[3][c]]
        if not pool or not any(e[2][c] for _, e in entries):
            continue  # the script skips a class by all its images, not by those of the hard set
        found = any(positive for _, positive in pool)
        precisions.append(naive_ap(*zip(*pool, strict=True)) if found else 0.0)
    assert len(precisions) == 4
    result = benchmark.run(fixed(values))
    assert result.outcomes == pytest.approx(tuple(precisions))
    assert result.convention == "reference"
    check(result, {"map": share(precisions)})


@pytest.mark.parametrize("seed", range(5))
def test_every_metric_against_loops(fixture, seed):
    values, raw = values_for(fixture, seed), raw_of(fixture)
    result = fixture.run(fixed(values))
    metrics = result.metrics
    words = [{w for a, noun in e[1] for w in (*a, noun)} for e in raw["data"]]
    queries = [{*a, noun} for a, noun in raw["labels"]]
    hard, standard, every, ranks, chance = [], [], [], [], []
    for c, query in enumerate(queries):
        rows = [
            (float(values[i, c]), e[2][c], bool(words[i] & query), query <= words[i])
            for i, e in enumerate(raw["data"])
        ]
        for pool, into in (
            ([r for r in rows if r[2]], hard),
            (rows, standard),
            ([r for r in rows if r[3]], every),
        ):
            into.append(naive_ap([r[0] for r in pool], [r[1] for r in pool]))
        pool = [r for r in rows if r[2]]
        orders = itertools.permutations(range(len(pool)))
        reached = [naive_ap(list(order), [r[1] for r in pool]) for order in orders]
        chance.append(sum(reached) / len(reached))
        pool = [r for r in rows if r[3]]
        rank = [sum(o[0] >= r[0] for o in pool) for r in pool]
        true = [k for k, r in zip(rank, pool, strict=True) if r[1]]
        false = [k for k, r in zip(rank, pool, strict=True) if not r[1]]
        if true and false:
            ranks.append((sum(true) / len(true), sum(false) / len(false)))

    assert result.outcomes == pytest.approx(tuple(hard))
    assert ranks
    expected = {"map": share(hard, mean(chance)), "map_seen": share([hard[0], hard[2]])}
    expected |= {"map_unseen": share(hard[1:2]), "standard_map": share(standard)}
    expected |= {"query_all_map": share(every), "mean_rank_true": share([r[0] for r in ranks])}
    check(result, expected | {"mean_rank_distractor": share([r[1] for r in ranks])})
    assert not metrics["mean_rank_true"].higher_is_better
    assert metrics["mean_rank_true"].unit == "rank"
    assert metrics["map"].low <= metrics["map"].value <= metrics["map"].high


def test_classes_left_out_are_counted(tmp_path, fixture):
    raw = raw_of(fixture)
    raw["labels"] += [[["no"], "positive"], [["empty"], "pool"], [["none"], "inside"]]
    for i, entry in enumerate(raw["data"]):
        entry[2] += [0, int(i == 0), int(i == 0)]
        entry[3] += [1, 0, int(i != 0)]
    benchmark = ColaSingle(str(write(tmp_path, raw)), str(tmp_path))
    result = benchmark.run(fixed(benchmark.items.truth.double()))
    left_out = ("without_positives", "with_empty_hard_set", "without_positives_in_hard_set")
    check(result, {"map": (1.0, 3), **{f"classes_{name}": (1,) for name in left_out}})


def test_by_number_of_attributes(tmp_path, fixture):
    raw, values = raw_of(fixture), values_for(fixture, 2)
    raw["labels"] = [[["red"], "cube"], [["blue", "", "big"], "cube"], [[], "cone"]]
    raw["data"] = [[e[0], *e[2:]] for e in raw["data"]]
    result = ColaSingle(str(write(tmp_path, raw)), str(tmp_path)).run(fixed(values))
    by_number = {k: m for k, m in result.metrics.items() if k.startswith("map/")}
    assert list(by_number) == [f"map/attributes={n}" for n in range(3)]
    for place, number in enumerate((1, 2, 0)):
        metric = by_number[f"map/attributes={number}"]
        assert metric.value == result.outcomes[place]
        assert metric.n == 1
    # Those of a string are the words before an annotated object.
    raw = raw_of(fixture)
    raw["labels"] = ["red dining table", "blue round table", "unknown"]
    raw["data"][0][1] = [[["red"], "dining table"], [["blue"], "table"]]
    raw["data"][1][1] = None
    benchmark = ColaSingle(str(write(tmp_path, raw)), str(tmp_path))
    metrics = benchmark.run(fixed(values_for(fixture))).metrics
    assert metrics["map/attributes=1"].n == metrics["map/attributes=2"].n == 1
    assert "map/attributes=0" not in metrics
    assert metrics["map"].n == 3


def test_blank_attributes_state_nothing(tmp_path, fixture):
    raw, values = raw_of(fixture), values_for(fixture)
    raw["labels"] = [[[*attributes, ""], noun] for attributes, noun in raw["labels"]]
    padded = ColaSingle(str(write(tmp_path, raw)), str(tmp_path), seen=fixture.seen)
    assert padded.run(fixed(values)).metrics == fixture.run(fixed(values)).metrics


def test_paco_names_are_read_as_words_unless_they_would_read_alike(tmp_path, fixture):
    raw = raw_of(fixture)
    raw["labels"] = ["light_blue car_(automobile)", "other(color) mug", "other(material) mug"]
    path = write(tmp_path, raw)
    strict = ColaSingle(str(path), str(tmp_path))
    assert strict.items.texts == ("light blue car", *raw["labels"][1:])
    reference = ColaSingle(str(path), str(tmp_path), convention="reference")
    assert reference.items.texts == tuple(raw["labels"])
    seen = write(tmp_path, {"seen": raw["labels"][:1], "unseen": raw["labels"][1:]}, "side.json")
    named = ColaSingle(str(path), str(tmp_path), seen=str(seen)).run(fixed(values_for(fixture)))
    assert named.metrics["map_unseen"].n == 2


def test_without_standard_fewer_images_and_pairs_and_the_same_numbers(tmp_path, fixture):
    lean = ColaSingle(fixture.path, str(tmp_path), standard=False)
    assert lean.items.images == fixture.items.images[:-1]  # which nothing ranks
    assert set(lean.items.pairs[:, 0].tolist()) == set(range(5))
    values = values_for(fixture, 1)
    assert fixture.items.pairs is None
    assert len(lean.items.pairs) < fixture.items.truth.numel()
    assert lean.items.truth.equal(fixture.items.truth[tuple(lean.items.pairs.T)])
    # The last image has no word of any query.
    true = set(map(tuple, fixture.items.truth.nonzero().tolist()))
    assert true <= set(map(tuple, lean.items.pairs.tolist()))
    metrics = lean.run(fixed(values[:5])).metrics
    full = fixture.run(fixed(values)).metrics
    assert full.keys() - metrics.keys() == {"standard_map", "map_seen", "map_unseen"}
    assert all(full[name] == metric for name, metric in metrics.items())


def test_examples_are_best_first_from_the_hard_set(fixture):
    values = torch.zeros(6, 3)
    values[:, 0] = torch.tensor([0.9, 0.1, 0.8, 0.2, 0.3, 0.4])
    values[:, 1] = torch.tensor([0.9, 0.1, 0.2, 0.3, 0.4, 0.5])
    result = fixture.run(fixed(values))
    by_query = {e.query: e for e in result.examples}
    assert by_query["red cube"].correct
    assert by_query["red cube"].true[:3] == (True, True, False)
    assert len(by_query["red cube"].images) == 5
    assert not by_query["blue cube"].correct
    assert not by_query["red cone"].correct  # all tied
    scores = by_query["blue cube"].scores
    assert list(scores) == sorted(scores, reverse=True)


def test_no_class_that_counts_raises(tmp_path, fixture):
    raw = raw_of(fixture)
    for entry in raw["data"]:
        entry[2] = [0, 0, 0]
    benchmark = ColaSingle(str(write(tmp_path, raw)), str(tmp_path))
    with refused("got none"):
        benchmark.run(fixed(torch.rand(6, 3)))


def test_constant_scorer_gets_the_prevalence(fixture):
    labels, hard = (torch.tensor([e[i] for e in raw_of(fixture)["data"]]) for i in (2, 3))
    prevalence = float(((labels * hard).sum(0) / hard.sum(0)).mean())
    result = fixture.run(fixed(torch.ones(6, 3)))
    check(result, {"map": (prevalence, 3), "f1": (0.0, 3, prevalence)})
