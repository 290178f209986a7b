import random
from collections import defaultdict

import pytest

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import by_text, check, drawn, joined, mean, oracle, share
from vlmtune.benchmarks.crepe_productivity import COMPLEXITIES, TYPES, CrepeProductivity
from vlmtune.benchmarks.files import write_csv

HEADER = ["image_id", "caption", "n", "n_objects", "hard_negs", "x", "y", "width", "height"]


def write(folder, whole=False):
    """Random rows in the layout of the release; returns them by type and complexity."""
    touch(folder, "VG_100K/1.jpg")
    rng, found = random.Random(0), defaultdict(list)
    for kind in TYPES:
        for n in (*COMPLEXITIES, 13, 14) if whole else COMPLEXITIES:
            for i in range(rng.randint(2, 6)):
                texts = [f"{kind} {n} {i} {c}" for c in range(6)]
                found[kind, n].append(texts)
        rows = [
            (n, [1, own[0], n, n, repr(own[1:] if n % 2 else set(own[1:])), 0.0, 1.0, 5.0, 6.0])
            for (k, n), items in found.items()
            if k == kind
            for own in items
        ]
        if whole:
            path = folder / f"prod_vg_hard_negs_{kind}_all.csv"
            write_csv(path, HEADER, [row for _, row in rows])
        for n in () if whole else COMPLEXITIES:
            path = folder / kind / f"prod_vg_hard_negs_{kind}_complexity_{n}.csv"
            write_csv(path, HEADER, [row for own, row in rows if own == n])
    return found


def place(values, convention):
    """Rank of candidate 0: as a descending sort that keeps the order has it, or last of equals."""
    key = (lambda i: (-values[i], i)) if convention == "reference" else (lambda i: (-values[i], -i))
    return sorted(range(len(values)), key=key).index(0) + 1


@pytest.mark.parametrize("convention", ["strict", "reference"])
@pytest.mark.parametrize("whole", [False, True])
def test_against_the_rule_of_the_released_script(tmp_path, convention, whole):
    found, look = write(tmp_path, whole), drawn(1, values=5)
    arguments = {"complexities": None} if whole else {}
    made = CrepeProductivity(str(tmp_path), str(tmp_path), convention=convention, **arguments)
    result = made.run(by_text(look))
    expected, by_type, everything = {}, defaultdict(list), []
    for (kind, n), items in found.items():
        ranks = [place([look(text) for text in texts], convention) for texts in items]
        hits = [rank == 1 for rank in ranks]
        expected[f"accuracy/{kind}/{n}"] = share(hits)
        by_type[kind] += hits
        everything += ranks
    expected |= {f"accuracy/{kind}": share(hits) for kind, hits in by_type.items()}
    expected |= {"accuracy": share(joined(by_type.values()), 1 / 6), "mean_rank": share(everything)}
    expected |= {f"recall@{k}": share([rank <= k for rank in everything]) for k in (3, 5)}
    check(result, expected | {"macro_accuracy": (mean(map(mean, by_type.values())), 3)})
    assert result.primary == ("accuracy" if convention == "strict" else "macro_accuracy")


def test_repeated_captions_and_capitals(tmp_path):
    write(tmp_path)
    path = tmp_path / "swap" / "prod_vg_hard_negs_swap_complexity_4.csv"
    rows = [
        [1, "snow on rock.", 4, 4, "['rock on snow.', 'snow on rock.']", 0, 0, 5, 5],
        [1, "a Lamp by bed", 4, 4, "['A lamp by bed', 'Lamp not by bed']", 0, 0, 5, 5],
    ]
    write_csv(path, HEADER, rows)

    def made(**settings):
        return CrepeProductivity(str(tmp_path), str(tmp_path), ["swap"], [4], **settings)

    strict = made()
    texts = ("snow on rock.", "rock on snow.", "a lamp by bed", "lamp not by bed")
    assert strict.items.texts == texts
    alone = {"accuracy": (1.0, 2, 0.5), "identical_candidates": (2,)}
    check(strict.run(oracle(strict)), alone)
    reference = made(convention="reference")
    assert "Lamp not by bed" in reference.items.texts
    # A model that lower-cases ties in both; the first candidate wins.
    result = reference.run(by_text(lambda text: "not" not in text))
    check(result, {"accuracy": (1.0,), "identical_candidates": (1,)})
    # A negative that repeats the caption is not the one that is drawn.
    row = [1, "snow on rock.", 4, 4, "['Snow on rock.', 'rock on snow.']", 0, 0, 5, 5]
    write_csv(path, HEADER, [row])
    settings = {"types": ["swap"], "complexities": [4], "negatives": 1, "seed": None}
    made = CrepeProductivity(str(tmp_path), str(tmp_path), **settings)
    assert made.items.texts == ("snow on rock.", "rock on snow.")


@pytest.mark.parametrize("convention", ["strict", "reference"])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_with_one_negative_chance_is_a_half(tmp_path, convention, seed):
    found = write(tmp_path)

    def made(**settings):
        return CrepeProductivity(str(tmp_path), str(tmp_path), convention=convention, **settings)

    one = made(negatives=1, seed=seed)
    assert one.items.sizes.tolist() == [2] * sum(map(len, found.values()))
    assert one.run(oracle(one)).metrics["accuracy"].chance == 0.5
    chosen = [item.candidates for item in one.read()]
    every = [item.candidates for item in made().read()]
    for (caption, negative), candidates in zip(chosen, every, strict=True):
        assert caption == candidates[0]
        assert negative in candidates[1:]
    # Without a seed the first of the five; with a seed the same again, not always the first.
    assert chosen == [item.candidates for item in made(negatives=1, seed=seed).read()]
    assert (chosen == [candidates[:2] for candidates in every]) == (seed is None)
