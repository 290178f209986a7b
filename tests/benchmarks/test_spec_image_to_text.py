import random
from functools import partial

import pytest

from tests.benchmarks.json_files import touch, write
from tests.benchmarks.models import beats, by_name, check, drawn, mean, share
from vlmtune.benchmarks.spec_image_to_text import SUBSETS, SpecImageToText


def written(folder, cases_of):
    for subset, cases in cases_of.items():
        touch(folder / subset, *(image for image, _, _ in cases))
        rows = [dict(zip(("query", "keys", "label"), case, strict=True)) for case in cases]
        write(folder / subset, rows, "image2text.json")
    return str(folder)


@pytest.mark.parametrize("seed", range(3))
def test_against_counting_who_is_best(tmp_path, seed):
    rng, look = random.Random(seed), drawn(seed, values=5)
    cases_of = {}
    for k, subset in enumerate(SUBSETS):
        size = k % 3 + 2
        texts = [f"{subset} {i}" for i in range(size)]
        cases_of[subset] = [(f"{i}{subset}.png", texts, rng.randrange(size)) for i in range(k + 3)]
    result = SpecImageToText(written(tmp_path, cases_of)).run(by_name(look))
    means = []
    for subset, cases in cases_of.items():
        won = []
        for image, texts, label in cases:
            others = texts[:label] + texts[label + 1 :]
            won.append(beats(partial(look, image), texts[label], others))
        means.append(mean(won))
        check(result, {f"accuracy/{subset}": share(won, 1 / len(cases[0][1]))})
    check(result, {"macro_accuracy": (mean(means), 6)})
