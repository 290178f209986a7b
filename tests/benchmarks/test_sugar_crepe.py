import json
from pathlib import Path

import pytest
import torch

from tests.benchmarks.json_files import touch
from tests.benchmarks.json_files import write as write_file
from tests.benchmarks.models import by_text, check, drawn, joined, mean, oracle, share
from vlmtune.benchmarks.sugar_crepe import KEYS, SUBSETS, SugarCrepe

REAL = Path(__file__).parents[2].parent / "shared/data/sugar-crepe"
RELEASED = {
    "add_att": 692,
    "add_obj": 2062,
    "replace_att": 788,
    "replace_obj": 1652,
    "replace_rel": 1406,
    "swap_att": 666,
    "swap_obj": 245,
}


def write(folder, sizes):
    touch(folder, "0.jpg")
    for subset, size in sizes.items():
        rows = {
            str(i): dict(zip(KEYS, ("0.jpg", f"{subset} {i}", f"not {subset} {i}"), strict=True))
            for i in range(size)
        }
        write_file(folder, rows, f"{subset}.json")


@pytest.mark.parametrize("convention", ["strict", "reference"])
def test_against_the_rule_of_the_released_script(tmp_path, convention):
    sizes = {subset: 20 + 10 * i for i, subset in enumerate(SUBSETS)}
    write(tmp_path, sizes)
    look = drawn(0, values=6)
    result = SugarCrepe(str(tmp_path), str(tmp_path), convention=convention).run(by_text(look))
    right = {subset: [] for subset in sizes}
    for subset, size in sizes.items():
        right[subset] = [look(f"{subset} {i}") > look(f"not {subset} {i}") for i in range(size)]
    expected = {f"accuracy/{subset}": share(wins, 0.5) for subset, wins in right.items()}
    expected["accuracy"] = share(joined(right.values()))
    forms = []
    for form in ("replace", "swap", "add"):
        own = joined(wins for subset, wins in right.items() if subset.startswith(form))
        forms.append(mean(own))
        expected[f"accuracy/{form}"] = share(own)
    check(result, expected | {"macro_accuracy": (mean(forms), 3)})
    assert result.primary == ("accuracy" if convention == "strict" else "macro_accuracy")
    assert result.convention == convention


def test_a_part_of_the_subsets_and_of_the_keys(tmp_path):
    SugarCrepe.fixture(tmp_path)
    assert list(json.loads((tmp_path / "swap_obj.json").read_text())) == ["0", "2"]
    one = SugarCrepe(str(tmp_path), str(tmp_path), subsets=["swap_obj"])
    metrics = one.run(lambda images, texts, pairs: torch.ones(len(pairs))).metrics
    assert {key for key in metrics if "/" in key} == {"accuracy/swap", "accuracy/swap_obj"}
    assert metrics["accuracy/swap_obj"].n == 2


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the released annotation files are not in {REAL}")
def test_released_files(tmp_path):
    subsets = [subset for subset in SUBSETS if (REAL / f"{subset}.json").is_file()]
    assert "swap_obj" in subsets
    rows = {subset: json.loads((REAL / f"{subset}.json").read_text()) for subset in subsets}
    files = {row["filename"] for items in rows.values() for row in items.values()}
    touch(tmp_path, *files)
    benchmark = SugarCrepe(str(REAL), str(tmp_path), subsets)
    metrics = benchmark.run(oracle(benchmark)).metrics
    sizes = {subset: metrics[f"accuracy/{subset}"].n for subset in subsets}
    assert sizes == {subset: RELEASED[subset] for subset in subsets}
    assert "108" not in rows["swap_obj"]
    assert len(benchmark.items.images) == len(files)
    assert metrics["accuracy"].value == 1.0
