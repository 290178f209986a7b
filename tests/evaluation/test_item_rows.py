"""Items one by one: the images, captions and scores that a benchmark compared, with its outcome."""

import hashlib
from pathlib import Path

import pytest

from tests.benchmarks.models import scorer
from tests.contracts.test_benchmarks import SCORED, _class
from vlmtune.benchmarks import ColaSingle, MultipleChoice, Paired, Retrieval
from vlmtune.benchmarks.files import write_image, write_json
from vlmtune.evaluation.suite import run_suite


def value(image, text) -> float:
    """A score that depends on the image and the text alone."""
    key = f"{image.path.name} {image.box} {text}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:4]) / 2**32


@pytest.mark.parametrize("config", SCORED, ids=lambda path: path.stem)
def test_rows_hold_what_was_compared(config: Path, tmp_path):
    benchmark, rows = _class(config).fixture(tmp_path), []
    (result,) = run_suite([benchmark], scorer(value), items=rows).results
    rows = [row for row in rows if row.benchmark == benchmark.name]
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
        for row in rows:  # right where the worst true pair beats the best false one
            lines = zip(row.scores, row.true, strict=True)
            pairs = [pair for line in lines for pair in zip(*line, strict=True)]
            true, false = ([s for s, t in pairs if t is kind] for kind in (True, False))
            assert row.outcome == float(min(true) > max(false))
    if isinstance(benchmark, Paired):
        assert all(row.true == ((True, False), (False, True)) for row in rows)


CATS = ["a cat", "a cat sleeps"]
SCORES = {  # of images 0, 1 and 2 for each caption, by its place among the distinct ones
    "a dog": (0.9, 0.2, 0.8),
    "a cat": (0.7, 0.6, 0.5),
    "a cat sleeps": (0.1, 0.4, 0.4),
    "a car": (0.3, 0.0, 0.6),
}


@pytest.fixture
def retrieval(tmp_path):
    """Three images: a dog, a cat with two captions, and a car with a caption of the cat too."""
    images = []
    for i, texts in enumerate([["a dog"], CATS, ["a car", "a cat"]]):
        write_image(tmp_path / f"{i}.png", 50 * i, 9, 9)
        sentences = [{"raw": text} for text in texts]
        images.append({"filename": f"{i}.png", "split": "test", "sentences": sentences})
    path = write_json(tmp_path / "captions.json", {"images": images})
    return Retrieval(path, str(tmp_path))


def plain(rows):
    """What each row says: names of images, captions, truth and scores."""
    return [
        (
            row.id,
            row.outcome,
            row.rank,
            [
                (int(image.path.stem), text, row.true[k][j], row.scores[k][j])
                for k, image in enumerate(row.images)
                for j, text in enumerate(row.captions)
            ],
        )
        for row in rows
    ]


def test_queries_of_a_retrieval(retrieval):
    by_hand, rows = scorer(lambda image, text: SCORES[text][int(image.path.stem)]), []
    run_suite([retrieval], by_hand, items=rows)
    assert plain(rows) == [
        ("retrieval/0", 1.0, 1, [(0, "a dog", True, 0.9), (2, "a dog", False, 0.8)]),
        # "a cat" is true of images 1 and 2, and image 0 comes before them.
        ("retrieval/1", 0.0, 2,
         [(0, "a cat", False, 0.7), (1, "a cat", True, 0.6), (2, "a cat", True, 0.5)]),
        # Image 2 scores what image 1 does: a tie is lost.
        ("retrieval/2", 0.0, 2,
         [(2, "a cat sleeps", False, 0.4), (1, "a cat sleeps", True, 0.4)]),
        ("retrieval/3", 1.0, 1, [(2, "a car", True, 0.6), (0, "a car", False, 0.3)]),
        ("retrieval/4", 0.0, 2,
         [(0, "a cat", False, 0.7), (1, "a cat", True, 0.6), (2, "a cat", True, 0.5)]),
        ("retrieval/image_to_text/0", 1.0, 1, [(0, "a dog", True, 0.9), (0, "a cat", False, 0.7)]),
        ("retrieval/image_to_text/1", 1.0, 1,
         [(1, "a cat", True, 0.6), (1, "a cat sleeps", True, 0.4), (1, "a dog", False, 0.2)]),
        ("retrieval/image_to_text/2", 0.0, 2,
         [(2, "a dog", False, 0.8), (2, "a car", True, 0.6), (2, "a cat", True, 0.5)]),
    ]  # fmt: skip
    # As published, each "a cat" is true of its own image alone.
    published = Retrieval(retrieval.path, retrieval.images, convention="reference")
    run_suite([published], by_hand, items=(rows := []))
    assert [plain(rows)[number][2:] for number in (1, 4)] == [
        (2, [(0, "a cat", False, 0.7), (1, "a cat", True, 0.6)]),
        (3, [(0, "a cat", False, 0.7), (2, "a cat", True, 0.5)]),
    ]


def test_queries_of_cola(tmp_path):
    """Of 8 images the hard set has 7; the 5 best, a later true one and no other are kept."""
    labels = [[["red"], "cube"]]
    data = []
    for i in range(8):
        write_image(tmp_path / f"{i}.png", 9, 9, 9)
        data.append([f"{i}.png", None, [int(i in (2, 6))], [int(i != 7)]])
    path = write_json(tmp_path / "cola.json", {"labels": labels, "data": data})
    benchmark, rows = ColaSingle(path, str(tmp_path)), []
    run_suite([benchmark], scorer(lambda image, _: 1 - int(image.path.stem) / 8), items=rows)
    (row,) = plain(rows)
    # Precision is 1/3 at the first true image and 2/7 at the second.
    assert row[:3] == ("cola_single/0", pytest.approx((1 / 3 + 2 / 7) / 2), 3)
    shown = [0, 1, 2, 3, 4, 6]
    assert row[3] == [(i, "red cube", i in (2, 6), 1 - i / 8) for i in shown]
