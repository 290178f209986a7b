import pytest
import torch

from tests.benchmarks.json_files import touch
from tests.benchmarks.json_files import write as write_json
from tests.benchmarks.models import check, fixed, share
from tests.refusals import refused
from vlmtune.benchmarks.retrieval import Retrieval, read_split

CUTS = (1, 5, 10)


def write(folder, captions, **more):
    """A benchmark of images with the given captions, all in the split "test"."""
    images = []
    for i, raws in enumerate(captions):
        touch(folder, f"{i}.png")
        sentences = [{"raw": raw} for raw in raws]
        images.append({"filename": f"{i}.png", "split": "test", "sentences": sentences})
    path = write_json(folder, {"images": images}, "dataset.json")
    return Retrieval(str(path), str(folder), **more)


def values_for(benchmark, seed=0, values=1000):
    shape = benchmark.items.truth.shape
    return torch.randint(values, shape, generator=torch.Generator().manual_seed(seed)).float()


def test_reads_one_split_with_folders_and_blanks_collapsed(tmp_path):
    fixture = Retrieval.fixture(tmp_path)
    assert [image.path.parent.name for image in fixture.items.images] == ["val2014"] * 4
    assert len(fixture.items.texts) == 2 + 6 + 3 + 3 - 1
    truth = fixture.items.truth
    assert truth.sum(dim=1).tolist() == [2, 6, 3, 3]
    assert truth[:, 0].tolist() == [True, False, True, False]  # "a dog runs" is said of two
    content = changed({"filepath": "val2014", "sentences": [{"raw": " a  dog\n"}, {"raw": "b"}]})
    # What another split holds is not looked at.
    content["images"].append({"filename": "", "split": "train", "sentences": []})
    path = write_json(tmp_path, content)
    assert read_split(path, "test") == [("val2014/0.jpg", ("a dog", "b")), ("1.jpg", ("a",))]


def test_the_worked_example(tmp_path):
    captions = [[f"{i}{j}" for j in range(n)] for i, n in enumerate((3, 2, 2))]
    values = torch.tensor(
        [
            [0.9, 0.2, 0.4, 0.5, 0.1, 0.3, 0.0],
            [0.6, 0.7, 0.1, 0.65, 0.2, 0.05, 0.3],
            [0.3, 0.1, 0.8, 0.2, 0.55, 0.5, 0.45],
        ]
    )
    for convention in ("strict", "reference"):
        benchmark = write(tmp_path, captions, convention=convention)
        expected = {  # recall at 1, 5 and the median rank, with n and chance
            "image_to_text": ((1 / 3, 3, (3 + 2 + 2) / 7 / 3), (1.0,), (2.0,)),
            "text_to_image": ((4 / 7, 7, 1 / 3), (1.0,), (1.0,)),
        }
        result = benchmark.run(fixed(values))
        for side, numbers in expected.items():
            names = (f"{side}_{kind}" for kind in ("recall@1", "recall@5", "median_rank"))
            check(result, dict(zip(names, numbers, strict=True)))
        check(result, {"mean_recall": ((1 / 3 + 4 / 7 + 4) / 6,)})


def naive(values, captions, columns, ties):
    """Recalls by sorting lists: {(side, k): [hit of each query]}; captions are (image, column)."""
    candidates = sorted(set(columns)) if ties == "wrong" else list(range(len(columns)))
    image_of = {c: {i for i, d in captions if d == c} for c in set(columns)}
    hits = {(side, k): [] for side in ("image_to_text", "text_to_image") for k in CUTS}
    for image, row in enumerate(values.tolist()):
        if ties == "wrong":
            own = {c for i, c in captions if i == image}
            order = sorted(candidates, key=lambda c: (-row[c], c in own))
        else:
            own = {p for p, (i, _) in enumerate(captions) if i == image}
            order = sorted(candidates, key=lambda p: (-row[columns[p]], p))
        for k in CUTS:
            hits["image_to_text", k].append(bool(own & set(order[:k])))
    for image, column in captions:
        own = image_of[column] if ties == "wrong" else {image}
        score = values[:, column].tolist()
        places = [(-x, i in own if ties == "wrong" else i, i) for i, x in enumerate(score)]
        order = [i for _, _, i in sorted(places)]
        for k in CUTS:
            hits["text_to_image", k].append(bool(own & set(order[:k])))
    return hits


@pytest.mark.parametrize("convention", ["strict", "reference"])
@pytest.mark.parametrize("seed", range(6))
def test_against_sorting(tmp_path, convention, seed):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 8, (14,), generator=generator).tolist()
    # Words of a small stock: some captions are written for two images, or twice for one.
    draw = torch.randint(40, (14, 8), generator=generator).tolist()
    raws = [[f"w{w}" for w in row[:n]] for row, n in zip(draw, counts, strict=True)]
    benchmark = write(tmp_path, raws, convention=convention)
    kept = [row if convention == "strict" else row[:5] for row in raws]
    texts = list(benchmark.items.texts)
    captions = [(i, texts.index(raw)) for i, row in enumerate(kept) for raw in row]
    values = values_for(benchmark, seed, values=9)
    ties = "wrong" if convention == "strict" else "first"
    hits = naive(values, captions, [c for _, c in captions], ties)
    result = benchmark.run(fixed(values))
    check(result, {f"{side}_recall@{k}": share(own) for (side, k), own in hits.items()})
    assert result.convention == convention
    assert result.outcomes == tuple(map(float, hits["text_to_image", 1]))
    assert result.clusters == tuple(i for i, _ in captions)


def test_a_shared_caption_is_a_wrong_one_in_the_reference_convention_alone(tmp_path):
    captions = [["a", "b"], ["a"], ["c", "c"]]
    kinds = {}
    for convention in ("strict", "reference"):
        repeats = write(tmp_path, captions, convention=convention).repeats()
        kinds[convention] = [(one.kind, one.total) for one in repeats]
    # One image has "c" twice, which makes it an item twice and no wrong caption.
    assert kinds == {"strict": [("item", 1)], "reference": [("item", 1), ("caption", 2)]}


def test_folds_are_ranked_by_themselves(tmp_path):
    captions = [[f"{i}{j}" for j in range(1 + i % 3)] for i in range(12)]
    benchmark = write(tmp_path, captions, folds=3)
    values = values_for(benchmark)
    result = benchmark.run(fixed(values))
    owners = torch.tensor([i for i, row in enumerate(captions) for _ in row])
    runs = []
    for first in (0, 4, 8):
        part = write(tmp_path / str(first), captions[first : first + 4])
        own = (owners >= first) & (owners < first + 4)
        runs.append(part.run(fixed(values[first : first + 4][:, own])).metrics)
    for key in ("image_to_text_recall@1", "text_to_image_recall@1"):
        value, chance = (sum(getattr(run[key], x) for run in runs) / 3 for x in ("value", "chance"))
        check(result, {f"{key}/3 folds": (value, 3, chance)})
        assert result.metrics[f"{key}/3 folds"].clusters == 12  # images, each of one fold


def test_examples(tmp_path):
    benchmark = write(tmp_path, [[f"{i}{j}" for j in range(2)] for i in range(7)])
    values = benchmark.items.truth.float()
    values[0, 8] = 2.0  # "40" finds image 0 first
    examples = benchmark.run(fixed(values)).examples
    assert [e.correct for e in examples] == [True] * 4 + [False]
    assert [e.query for e in examples] == ["00", "10", "20", "30", "40"]
    assert examples[-1].true[:2] == (False, True)
    assert len(examples[0].images) == 5


def test_files_that_do_not_fit_are_refused(tmp_path):
    with refused(r"at least 4 images .* got 2 and 2"):
        write(tmp_path, [["a"], ["b"]], folds=2).load()
    with refused(r"a split out of \['val'\]"):
        read_split(write_json(tmp_path, {"images": [{"split": "val"}]}), "test")
    with refused("same image twice"):
        read_split(write_json(tmp_path, changed({"filename": "1.jpg"})), "test")


def changed(how):
    row = {"filename": "0.jpg", "split": "test", "sentences": [{"raw": "a"}]}
    return {"images": [row | how, {**row, "filename": "1.jpg"}]}
