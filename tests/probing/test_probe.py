"""Probes learn what embeddings hold, and their numbers are counted right."""

import pytest
import torch

from vlmtune.errors import UserError
from vlmtune.probing import TaskEmbeddings, measures, transformation
from vlmtune.probing.colours import identity, invert
from vlmtune.probing.experiment import measure, probe_specs
from vlmtune.probing.probe import (
    SEMANTIC,
    TRANSFORMATION,
    Probe,
    ProbeSpec,
    Training,
    predict,
    train_probe,
)
from vlmtune.probing.tasks import Member, Task, TransformationClass

SHORT = Training(steps=60, batch_size=64, runs=2)


def same(name, held_out=False):
    row = transformation(invert)
    return Member(name, None if held_out else row, row, held_out)


TASK = Task(
    "categories",
    (
        TransformationClass("identity", (Member("identity", *[transformation(identity)] * 2),)),
        TransformationClass("noise", (same("grain"), same("dots", held_out=True))),
    ),
)


def test_accuracies_and_a_confusion_matrix_count_predictions():
    right = torch.zeros(2, 3, 2, dtype=torch.bool)
    right[0, :, 0] = True  # the first run has the first transformation right, the second nothing
    counted = torch.tensor([[True, False], [True, True], [False, False]])
    one = measures.accuracy(right, counted, 0.5)
    assert one.value == pytest.approx((2 / 3 + 0) / 2)
    assert (one.n, one.chance) == (3, 0.5)
    assert measures.by_run(right, counted) == pytest.approx([2 / 3, 0])
    assert measures.outcomes(right, counted) == [[1.0, 0.5], [0.0, 0.0]]
    none = measures.accuracy(
        torch.zeros(3, 40, 2, dtype=torch.bool), counted[:1].expand(40, -1), 0.5
    )
    assert (none.value, none.low) == (0, 0)
    assert none.high == pytest.approx(1.96**2 / (40 + 1.96**2), abs=1e-4)  # Wilson, 40 images
    with pytest.raises(AssertionError, match="no prediction counts"):
        measures.accuracy(right, torch.zeros(3, 2, dtype=torch.bool), 0.5)
    predicted = torch.tensor([[[0, 1, 1], [0, 0, 2]], [[0, 1, 2], [2, 1, 2]]])
    assert measures.confusion(predicted).tolist() == [
        [0.75, 0.0, 0.25],
        [0.25, 0.75, 0.0],
        [0.0, 0.25, 0.75],
    ]


def test_an_interval_counts_images_and_runs():
    generator = torch.Generator().manual_seed(0)
    whole = torch.ones(400, 1, dtype=torch.bool)
    drawn = (torch.rand(1, 400, 1, generator=generator) < 0.7).expand(5, -1, -1)
    images = measures.accuracy(drawn, whole, 0.5)
    p = images.value
    half = 1.96 * (p * (1 - p) / 400) ** 0.5  # runs agree: that of 400 images, not of 2,000
    assert (images.low, images.high) == pytest.approx((p - half, p + half), abs=0.006)
    apart = drawn.clone()
    apart[0] = False  # a run that failed
    assert measures.accuracy(apart, whole, 0.5).low < images.low - 0.2
    twice = drawn.expand(-1, -1, 4)  # transformations of one image are no further images
    four = measures.accuracy(twice, whole.expand(-1, 4), 0.5)
    assert (four.low, four.high) == pytest.approx((images.low, images.high), abs=3e-4)
    assert four.n == 1600
    # Half of the images count once, the others four times: a ratio of sums (Cochran 1977, 2.11).
    counted = whole.expand(-1, 4).clone()
    counted[::2, 1:] = False
    sizes = counted.sum(dim=1)
    ragged = measures.accuracy(twice, counted, 0.5)
    errors = (drawn[0, :, 0].float() - ragged.value) * sizes
    half = 1.96 * float(errors.square().sum().sqrt() / sizes.sum())
    low, high = ragged.value - half, ragged.value + half
    assert (ragged.low, ragged.high) == pytest.approx((low, high), abs=0.006)


def clouds(n=200, d=6, seed=0):
    """Embeddings whose signs of coordinates 0 and 1 are two targets; far from standardised."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, d, generator=generator)
    targets = {TRANSFORMATION: (features[:, 0] > 0).long(), SEMANTIC: (features[:, 1] > 0).long()}
    return 100 + 0.01 * features, targets


@pytest.mark.parametrize("width", [0, 16])
@pytest.mark.parametrize("heads", [(TRANSFORMATION,), (SEMANTIC,), (SEMANTIC, TRANSFORMATION)])
def test_a_probe_learns_what_its_heads_are_for(width, heads):
    train, targets = clouds()
    test, truth = clouds(seed=1)
    spec = ProbeSpec(width, heads)
    classes = {TRANSFORMATION: 2, SEMANTIC: 2}
    training = Training(steps=200, batch_size=64, learning_rate=0.02)
    predicted = predict(train_probe(spec, train, targets, classes, training), test)
    assert predicted.keys() == set(heads)
    for name in heads:
        assert (predicted[name] == truth[name]).float().mean() > 0.9


def test_a_hidden_layer_finds_what_a_line_cannot():
    features = torch.randn(800, 2, generator=torch.Generator().manual_seed(0))
    truth = (features.prod(dim=1) > 0).long()
    targets = {TRANSFORMATION: truth[:600]}
    training, accuracies = Training(steps=300, batch_size=128, learning_rate=0.02), {}
    for width in (0, 64):
        spec = ProbeSpec(width, (TRANSFORMATION,), dropout=0.0)
        probe = train_probe(spec, features[:600], targets, {TRANSFORMATION: 2}, training)
        right = predict(probe, features[600:])[TRANSFORMATION] == truth[600:]
        accuracies[width] = float(right.float().mean())
    assert accuracies[0] < 0.65
    assert accuracies[64] > 0.85


def test_runs_differ_and_repeat():
    train, targets = clouds()
    spec, classes = ProbeSpec(8, (TRANSFORMATION,)), {TRANSFORMATION: 2}
    state = torch.get_rng_state()
    one, same_run, other = (
        train_probe(spec, train, targets, classes, SHORT, run).trunk[0].weight for run in (0, 0, 1)
    )
    assert torch.equal(one, same_run)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_learning_rate_falls_to_zero_and_dropout_is_off_afterwards(monkeypatch):
    rates = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(
        torch.optim.Adam,
        "step",
        lambda self, *a: rates.append(self.param_groups[0]["lr"]) or step(self, *a),
    )
    train, targets = clouds()
    training = Training(steps=4, batch_size=64)
    probe = train_probe(ProbeSpec(8, (SEMANTIC,)), train, targets, {SEMANTIC: 2}, training)
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    assert not probe.training
    assert probe.trunk[2].p == 0.2
    assert torch.equal(probe(train)[SEMANTIC], probe(train)[SEMANTIC])


def test_a_constant_dimension_is_no_fault_and_nan_is_one():
    features = torch.ones(8, 3)
    probe = Probe(ProbeSpec(0, (SEMANTIC,)), features, {SEMANTIC: 2})
    assert bool(torch.isfinite(probe(features)[SEMANTIC]).all())
    train, targets = clouds()
    train[3, 0] = float("nan")
    with pytest.raises(UserError, match="expected a finite loss"):
        train_probe(ProbeSpec(0, (SEMANTIC,)), train, targets, {SEMANTIC: 2}, SHORT)


def test_the_probes_are_those_of_the_tables():
    names = [spec.name for spec in probe_specs([0, 128, 1024, 2048, 16384], labelled=True)]
    assert sorted(names) == sorted(
        [f"mlp-{w}/{h}" for w in (1024, 2048) for h in ("transformation", "semantic", "2-head")]
        + ["linear/transformation", "mlp-128/transformation", "mlp-16384/transformation"]
    )
    specs = {spec.name: spec for spec in probe_specs([0, 128, 2048], labelled=False)}
    assert len(specs) == 3
    assert [spec.dropout for spec in specs.values()] == [0.0, 0.0, 0.2]


def embeddings(n, seed, held_out):
    """The first coordinate is the class, but opposite where held out; the second the label."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    features = 0.1 * torch.randn(n, 2, 3, generator=generator)
    hidden = torch.zeros(n, 2, dtype=torch.bool)
    hidden[: held_out * n // 4, 1] = True
    features[:, 0, 0] -= 1
    features[:, 1, 0] += 1
    features[..., 0] = torch.where(hidden, -1.0, features[..., 0])
    features[:, :, 1] += 2 * labels[:, None] - 1
    return TaskEmbeddings(features, hidden.long(), hidden, labels)


def test_every_number_of_a_probe():
    sets = {"train": embeddings(80, 0, 0), "test": embeddings(40, 1, 1)}
    training = Training(steps=200, batch_size=64, runs=2, learning_rate=0.02)
    spec = ProbeSpec(0, (SEMANTIC, TRANSFORMATION), dropout=0.0)
    one = measure(TASK, spec, sets, 2, training)
    values = {name: (metric.value, metric.n) for name, metric in one.metrics.items()}
    assert values == {
        "transformation_accuracy": (0.875, 80),
        "class/identity": (1.0, 40),
        "class/noise": (0.75, 40),
        "held_out/noise": (0.0, 10),
        "transformation/grain": (1.0, 30),
        "transformation/dots": (0.0, 10),
        "clean_semantic_accuracy": (1.0, 40),
        "obfuscated_semantic_accuracy": (1.0, 40),
    }
    assert all(metric.chance == 0.5 for metric in one.metrics.values())
    assert one.confusion is not None
    assert one.confusion.tolist() == [[1.0, 0.0], [0.25, 0.75]]
    assert one.outcomes == [[0.5] * 10 + [1.0] * 30] * 2
    assert one.runs["transformation_accuracy"] == [0.875, 0.875]
    semantic = measure(TASK, ProbeSpec(0, (SEMANTIC,)), sets, 2, training)
    assert semantic.primary == "clean_semantic_accuracy"
    assert semantic.confusion is None
    assert semantic.metrics.keys() == {"clean_semantic_accuracy", "obfuscated_semantic_accuracy"}
