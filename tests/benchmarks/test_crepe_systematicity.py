import random
from collections import defaultdict

import pytest

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import beats, by_text, check, drawn, joined, mean, share
from tests.refusals import refused
from vlmtune.benchmarks.crepe_systematicity import CrepeSystematicity
from vlmtune.benchmarks.files import write_csv

HEADER = ["image_id", "region_id", "caption", "x", "y", "width", "height"]
LISTS = ["valid_hard_negs_atom", "valid_hard_negs_comp", "valid_hard_negs_combined"]


def write(folder, corpus):
    touch(folder, "VG_100K/1.jpg")
    rng, found = random.Random(0), defaultdict(list)
    for compounds in ("seen", "unseen"):
        path = folder / f"syst_vg_hard_negs_{compounds}_compounds_in_{corpus}.csv"
        rows = []
        for i in range(60):
            caption = f"{compounds} {i}"
            atom = [f"{caption} atom {c}" for c in range(rng.randint(0, 4))]
            comp = [f"{caption} comp {c}" for c in range(rng.randint(0, 3))]
            found[compounds].append((caption, {"atom": atom, "comp": comp}))
            rows.append([1, i, caption, "1", "0", "4", "5", atom, comp, atom + comp])
        write_csv(path, [*HEADER, *LISTS], rows)
    return found


@pytest.mark.parametrize("convention", ["strict", "reference"])
@pytest.mark.parametrize("negatives", ["atom", "comp", "combined"])
def test_against_a_loop(tmp_path, convention, negatives):
    found, look = write(tmp_path, "cc12m"), drawn(3, values=5)
    options = {"corpus": "cc12m", "negatives": negatives, "convention": convention}
    result = CrepeSystematicity(str(tmp_path), str(tmp_path), **options).run(by_text(look))
    wins, chances, alone = {"seen": [], "unseen": []}, [], 0
    for compounds, items in found.items():
        for caption, lists in items:
            others = lists["atom"] + lists["comp"] if negatives == "combined" else lists[negatives]
            if not others and convention == "strict":
                continue
            alone += not others
            wins[compounds].append(beats(look, caption, others, tie=convention != "strict"))
            chances.append(1 / (1 + len(others)))
    expected = {f"accuracy/{compounds}": share(hits) for compounds, hits in wins.items()}
    expected["accuracy"] = share(joined(wins.values()), mean(chances))
    check(result, expected | {"macro_accuracy": (mean(map(mean, wins.values())), 2)})
    assert result.primary == "accuracy"
    # The published script ranks a caption without negatives among itself alone: a hit.
    counted = result.metrics.get("without_negatives")
    assert (counted.value if counted else 0) == alone
    assert all(example.query.count("(") == 1 for example in result.examples)


def test_captions_without_negatives_are_not_in_the_gallery_nor_a_benchmark(tmp_path):
    CrepeSystematicity.fixture(tmp_path)
    path, settings = str(tmp_path), {"negatives": "comp", "convention": "reference"}
    result = CrepeSystematicity(path, path, **settings).run(by_text(drawn(0)))
    check(result, {"without_negatives": (1, 3)})
    assert not any("tree" in example.query for example in result.examples)
    table = tmp_path / "syst_vg_hard_negs_seen_compounds_in_laion.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join(line for line in lines if "a red brick path" not in line))
    with refused("a false candidate"):
        CrepeSystematicity(path, path, compounds=["seen"], **settings).load()
    unseen = CrepeSystematicity(path, path, compounds=["unseen"])
    assert unseen.items.groups == ("unseen",)
