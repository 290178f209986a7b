import statistics

import pytest
import torch

from tests.benchmarks.json_files import touch
from tests.benchmarks.json_files import write as write_json
from tests.benchmarks.models import check, fixed, mean, share
from tests.metrics.test_retrieval import naive
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


def sides(values, captions, convention):
    """By side the scores of its queries, and their true pairs; `captions` are (image, column)."""
    spread = values[:, [column for _, column in captions]]
    of_text = {(place, image) for place, (image, _) in enumerate(captions)}
    if convention == "reference":  # each caption is true of its own image alone
        of_image = {(image, place) for place, image in of_text}
        return {"image_to_text": (spread, of_image), "text_to_image": (spread.T, of_text)}
    of_text |= {(p, i) for p, (_, c) in enumerate(captions) for i, d in captions if d == c}
    return {"image_to_text": (values, set(captions)), "text_to_image": (spread.T, of_text)}


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
    result = benchmark.run(fixed(values))
    recalls = {}
    for side, (scores, true) in sides(values, captions, convention).items():
        own = naive(scores, torch.tensor(sorted(true)), ties)
        for k in CUTS:
            recalls[f"{side}_recall@{k}"] = share([rank <= k for rank in own])
        median = statistics.median(own)
        median = median if convention == "strict" else median // 1
        check(result, {f"{side}_median_rank": (median, len(own))})
        chance = len(true) / scores.numel()
        assert result.metrics[f"{side}_recall@1"].chance == pytest.approx(chance)
    check(result, recalls | {"mean_recall": (mean(value for value, _ in recalls.values()), 6)})
    assert result.convention == convention
    assert result.outcomes == tuple(float(rank == 1) for rank in own)  # of the captions
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
