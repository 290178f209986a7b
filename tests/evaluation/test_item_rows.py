"""Items one by one: the images, captions and scores that a benchmark compared, with its outcome."""

import hashlib
from pathlib import Path

import pytest
import torch

from tests.contracts.test_benchmarks import SCORED, _class
from vlmtune.benchmarks.rules.multiple_choice import MultipleChoice
from vlmtune.benchmarks.rules.paired import Paired
from vlmtune.evaluation.suite import run_suite


def value(image, text) -> float:
    """A score that depends on the image and the text alone."""
    key = f"{image.path.name} {image.box} {text}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:4]) / 2**32


def score(images, texts, pairs=None):
    if pairs is None:
        rows = [[value(image, text) for text in texts] for image in images]
        return torch.tensor(rows, dtype=torch.float64)
    return torch.tensor(
        [value(images[i], texts[j]) for i, j in pairs.tolist()], dtype=torch.float64
    )


@pytest.mark.parametrize("config", SCORED, ids=lambda path: path.stem)
def test_rows_hold_what_was_compared(config: Path, tmp_path):
    benchmark, rows = _class(config).fixture(tmp_path), []
    (result,) = run_suite([benchmark], score, items=rows).results
    assert [row.outcome for row in rows] == list(result.outcomes)
    assert [row.id for row in rows] == [f"{benchmark.name}/{i}" for i in range(len(rows))]
    for row in rows:
        assert len(row.scores) == len(row.true) == len(row.images)
        for image, scores, true in zip(row.images, row.scores, row.true, strict=True):
            for caption, got, fits in zip(row.captions, scores, true, strict=True):
                if got is None:
                    assert not (fits and isinstance(benchmark, MultipleChoice | Paired))
                else:
                    assert got == value(image, caption)
    if isinstance(benchmark, MultipleChoice | Paired):
        assert all(row.captions for row in rows)
    if isinstance(benchmark, MultipleChoice) and not result.groups:
        for row in rows:  # right where the worst true caption beats the best false one
            pairs = list(zip(row.scores[0], row.true[0], strict=True))
            true, false = ([s for s, t in pairs if t is kind] for kind in (True, False))
            assert row.outcome == float(min(true) > max(false))
    if isinstance(benchmark, Paired):
        assert all(row.true == ((True, False), (False, True)) for row in rows)
