import json

import pytest
import torch
from torch.nn.functional import normalize

from tests.benchmarks.json_files import touch
from tests.benchmarks.models import check, fixed, mean, share
from tests.refusals import refused
from vlmtune.benchmarks.zero_shot_classification import ZeroShotClassification


def write(folder, sizes, **more):
    """A class "c0", "c1", ... of each given size."""
    for i, size in enumerate(sizes):
        (folder / f"data/c{i}").mkdir(parents=True, exist_ok=True)
        touch(folder / f"data/c{i}", *(f"{k}.png" for k in range(size)))
    return ZeroShotClassification(str(folder / "data"), **more)


class Dual:
    """A model of random embeddings."""

    def __init__(self, benchmark, seed=0, width=8):
        generator = torch.Generator().manual_seed(seed)
        self.image = torch.randn(len(benchmark.items.images), width, generator=generator)
        self.text = torch.randn(len(benchmark.items.texts), width, generator=generator)

    def __call__(self, images, texts, pairs=None):
        return normalize(self.image, dim=1) @ normalize(self.text, dim=1).T

    def embed_images(self, images):
        return self.image

    def embed_texts(self, texts):
        return self.text


@pytest.mark.parametrize("convention", ["strict", "reference"])
@pytest.mark.parametrize("seed", range(5))
def test_accuracies_against_a_loop(tmp_path, convention, seed):
    sizes = (3, 1, 4, 2, 5, 2, 1)
    templates = ("a {}.", "the {}.", "one {}!")
    benchmark = write(tmp_path, sizes, templates=templates, convention=convention)
    shape = (sum(sizes), 3 * len(sizes))
    values = torch.randint(3, shape, generator=torch.Generator().manual_seed(seed)).float()
    texts = list(benchmark.items.texts)
    first, fifth, of_class = [], [], {}
    for i, image in enumerate(benchmark.items.images):
        true = int(image.path.parent.name.removeprefix("c"))
        score = [
            sum(float(values[i, texts.index(t.format(f"c{c}"))]) for t in templates)
            for c in range(len(sizes))
        ]
        if convention == "strict":
            rank = 1 + sum(s >= score[true] for c, s in enumerate(score) if c != true)
        else:
            rank = 1 + sorted(range(len(sizes)), key=lambda c: -score[c]).index(true)
        first.append(rank <= 1)
        fifth.append(rank <= 5)
        of_class.setdefault(true, []).append(rank <= 1)
    result = benchmark.run(fixed(values))
    by_class = [mean(own) for own in of_class.values()]
    expected = {"accuracy": share(first, 1 / 7), "accuracy@5": share(fifth, 5 / 7)}
    check(result, expected | {"macro_accuracy": share(by_class)})
    assert result.series["class_accuracy"] == pytest.approx(by_class)
    assert result.outcomes == tuple(map(float, first))
    assert result.convention == convention


def test_five_classes_have_no_top_five(tmp_path):
    metrics = write(tmp_path, (1,) * 5).run(fixed(torch.eye(5))).metrics
    assert set(metrics) == {"accuracy", "macro_accuracy"}


def test_mean_embeddings_are_clips_classifier(tmp_path):
    templates = ("a {}.", "the {}.", "one {}!")
    benchmark = write(tmp_path, (4, 4, 4), templates=templates, ensemble="embeddings")
    texts = list(benchmark.items.texts)
    differ = 0
    for seed in range(10):
        dual = Dual(benchmark, seed)
        rows = []
        for c in range(3):
            own = [texts.index(t.format(f"c{c}")) for t in templates]
            rows.append(normalize(normalize(dual.text[own], dim=1).mean(dim=0), dim=0))
        chosen = (normalize(dual.image, dim=1) @ torch.stack(rows).T).argmax(dim=1)
        outcomes = tuple(map(float, chosen == torch.arange(3).repeat_interleave(4)))
        assert benchmark.run(dual).outcomes == outcomes
        differ += write(tmp_path, (4, 4, 4), templates=templates).run(dual).outcomes != outcomes
    assert differ  # the mean of scores is another classifier


def test_embeddings_of_a_model_that_has_none_or_bad_ones(tmp_path):
    benchmark = write(tmp_path, (1, 1), ensemble="embeddings")
    with refused("use a dual adapter, or leave the benchmark"):
        benchmark.run(fixed(torch.eye(2)))
    good = Dual(benchmark).text
    broken = good * torch.tensor([[torch.nan], [1.0]])
    for text, shape in ((broken, "2, 8"), (good[:, :4], "2, 4"), (good[:1], "1, 8")):
        dual = Dual(benchmark)
        dual.text = text
        with refused(rf"2 finite embeddings of width 8 .* of shape \({shape}\)"):
            benchmark.run(dual)


def test_many_images_are_scored_in_parts(tmp_path, monkeypatch):
    benchmark = write(tmp_path, (3, 3, 3))
    dual = Dual(benchmark)
    whole = benchmark.run(dual)
    asked = []

    def score(images, texts, pairs=None):
        rows = [benchmark.items.images.index(image) for image in images]
        asked.append(len(rows))
        return dual(images, texts)[rows]

    monkeypatch.setattr("vlmtune.benchmarks.rules.classification.HELD", 13)
    assert benchmark.run(score) == whole
    assert asked == [4, 4, 1]


def test_names_come_from_folders_a_list_or_an_object(tmp_path):
    for folder in ("fire_truck", "cat", ".hidden"):
        touch(tmp_path / "data" / folder, "deep/0.JPEG", "deep/._0.JPEG", "notes.txt")
    assert len(ZeroShotClassification(str(tmp_path / "data")).items.images) == 2
    path = tmp_path / "names.json"

    def texts(names=None):
        if names is not None:
            path.write_text(json.dumps(names))
        classes = names and str(path)
        return ZeroShotClassification(str(tmp_path / "data"), classes=classes).items.texts

    assert texts() == ("a photo of a cat.", "a photo of a fire truck.")
    assert texts(["tabby", "lorry"]) == ("a photo of a tabby.", "a photo of a lorry.")
    assert texts({"fire_truck": "lorry", "cat": "tabby"})[1] == "a photo of a lorry."
    for wrong, message in (
        (["tabby"], r"2 names.*got \['tabby'\]"),
        ({"fire_truck": "a", "cat": "b", "x": "y", "z": "y"}, "one of both for 2, first 'x'"),
        ({"cat": "tabby"}, "one of both for 1, first 'fire_truck'"),
        (["tabby", " "], "got ' ' at 1"),
        (["crane", "crane"], "'crane' for 'fire_truck' and 'cat'"),
    ):
        with refused(message):
            texts(wrong)


@pytest.mark.parametrize(
    ("sizes", "message"), [((), "no such file"), ((2,), "1 folders"), ((1, 0), "'c1'")]
)
def test_missing_folders_and_images(tmp_path, sizes, message):
    with refused(message):
        write(tmp_path, sizes).load()


def test_examples_name_both_classes(tmp_path):
    benchmark = write(tmp_path, (2, 2, 2))
    values = torch.tensor([[2.0, 1, 0], [2, 1, 0], [0, 2, 1], [2, 2, 1], [2, 1, 0], [0, 1, 2]])
    examples = benchmark.run(fixed(values)).examples
    assert [(e.query, e.correct) for e in examples] == [
        ("c0 (not: c1)", True),
        ("c1 (not: c2)", True),
        ("c2 (not: c1)", True),
        ("c0 (true: c1)", False),
        ("c0 (true: c2)", False),
    ]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("zero_shot", "Zero-shot classification"),  # as configs shorten it
        ("zero_shot.reference", "Zero-shot classification.reference"),
        ("zero_shot_classification_cifar", "Zero-shot classification cifar"),
        ("cifar_10", "cifar 10"),
    ],
)
def test_the_title_says_what_is_measured(name, title):
    assert ZeroShotClassification("data", name=name).title == title
