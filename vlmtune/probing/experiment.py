"""All probes of one embedding: what Tables 1 to 6 and the confusion matrices are made of.

In: embeddings of transformed images. Out: a `Measured` for each probe of each task.
Never: a file. Source: Rashtchian et al. 2023, Tables 1 to 6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.probing import measures
from vlmtune.probing.embeddings import TaskEmbeddings
from vlmtune.probing.probe import SEMANTIC, TRANSFORMATION, ProbeSpec, Training, run_probes
from vlmtune.probing.tasks import IDENTITY, Task
from vlmtune.results.metric_value import MetricValue
from vlmtune.storage.progress import work_of

BOTH_HEADS = (1024, 2048)
"""Widths with one head for each target and with two heads (Tables 3 and 4)."""
DROPOUT = 0.2  # of the probes with both heads, and those that they are compared with
ACCURACY = "transformation_accuracy"
CLEAN = "clean_semantic_accuracy"
OBFUSCATED = "obfuscated_semantic_accuracy"
Predicted = Int[Tensor, "r n c"]
"""The class that each of r runs predicts for image n under transformation c."""
Judged = tuple[measures.Right, measures.Counted]


@dataclass(frozen=True)
class Measured:
    """The numbers of one probe on one task.

    Attributes:
        task: The task.
        spec: The probe.
        metrics: By name; "held_out/CATEGORY" of what training never showed, "class/CLASS" and
            "transformation/NAME" of one class or member, if the probe tells transformations apart.
        runs: The value of each run, for metrics of all images.
        confusion: Fraction of each class predicted as each class, or None.
        outcomes: Of each run and test image, the accuracy that the primary metric is the mean of.
        judged: Of each metric whether predictions are right (r, n, c), and which ones count (n, c).
    """

    task: Task
    spec: ProbeSpec
    metrics: dict[str, MetricValue]
    runs: dict[str, list[float]]
    confusion: Float[Tensor, "c c"] | None = None
    outcomes: list[list[float]] = field(default_factory=list)
    judged: dict[str, Judged] = field(default_factory=dict)

    @property
    def primary(self) -> str:
        """The metric that stands for the probe."""
        return ACCURACY if TRANSFORMATION in self.spec.heads else CLEAN


def probe_specs(widths: Sequence[int], labelled: bool) -> list[ProbeSpec]:
    """Returns the probes of the paper's tables with these widths.

    Widths 1,024 and 2,048 have a probe of transformations, one of semantic classes and one of both,
    with dropout (Tables 1, 3 and 4); the rest tell transformations apart, without dropout, as
    they are compared with a linear probe (Table 2).

    Example:
        >>> [spec.name for spec in probe_specs([0, 2048], labelled=True)]
        ['linear/transformation', 'mlp-2048/transformation', 'mlp-2048/semantic', 'mlp-2048/2-head']
    """
    specs = []
    for width in dict.fromkeys(widths):
        dropout = DROPOUT if width in BOTH_HEADS else 0.0
        specs.append(ProbeSpec(width, (TRANSFORMATION,), dropout))
        if labelled and width in BOTH_HEADS:
            specs.append(ProbeSpec(width, (SEMANTIC,), dropout))
            specs.append(ProbeSpec(width, (SEMANTIC, TRANSFORMATION), dropout))
    return specs


def measure(
    task: Task,
    spec: ProbeSpec,
    embeddings: Mapping[str, TaskEmbeddings],
    classes: int,
    training: Training,
    device: torch.device | None = None,
) -> Measured:
    """Trains all runs of a probe on the images of "train" and measures them on those of "test".

    All transformations of the task ran; there are `classes` semantic classes, or 0. It trains on
    `device`, by default the CPU.
    """
    test = embeddings["test"]
    predictions = _predictions(task, spec, embeddings, classes, training, device)
    judged: dict[str, Judged] = {}
    confusion = None
    outcomes: list[list[float]] = []
    if TRANSFORMATION in predictions:
        predicted = predictions[TRANSFORMATION]
        judged |= _judged_transformations(task, test, predicted)
        outcomes = measures.outcomes(*judged[ACCURACY])
        confusion = measures.confusion(predicted)
    if SEMANTIC in predictions:
        judged |= _judged_labels(task, test, predictions[SEMANTIC])
        outcomes = outcomes or measures.outcomes(*judged[CLEAN])
    metrics = {}
    runs = {}
    for name, (right, counted) in judged.items():
        # What guessing reaches depends on the number of classes that the head has.
        guessed = classes if name in (CLEAN, OBFUSCATED) else len(task.classes)
        metrics[name] = measures.accuracy(right, counted, 1 / guessed)
        if name in (ACCURACY, CLEAN, OBFUSCATED):
            runs[name] = measures.by_run(right, counted)
    return Measured(task, spec, metrics, runs, confusion, outcomes, judged)


def _predictions(
    task: Task,
    spec: ProbeSpec,
    embeddings: Mapping[str, TaskEmbeddings],
    classes: int,
    training: Training,
    device: torch.device | None,
) -> dict[str, Predicted]:
    """Predictions of all runs, by head."""
    device = device or torch.device("cpu")
    train = embeddings["train"]
    test = embeddings["test"]
    n, c, d = train.features.shape
    # All versions of an image follow one another: row i is version i % c of image i // c.
    features = train.features.reshape(-1, d).to(device)
    test_features = test.features.reshape(-1, d).to(device)
    targets = {
        TRANSFORMATION: torch.arange(c).repeat(n).to(device),
        SEMANTIC: train.labels.repeat_interleave(c).to(device),
    }
    sizes = {TRANSFORMATION: c, SEMANTIC: classes}
    with work_of(task.name):
        predictions = run_probes(spec, features, targets, test_features, sizes, training)
    return {name: flat.view(training.runs, -1, c) for name, flat in predictions.items()}


def _judged_transformations(
    task: Task, test: TaskEmbeddings, predicted: Predicted
) -> dict[str, Judged]:
    # The version of column j is of class j.
    right = predicted == torch.arange(len(task.classes))
    judged = {ACCURACY: (right, torch.ones_like(test.held_out))}
    for name, counted in _parts(task, test).items():
        judged[name] = (right, counted)
    return judged


def _judged_labels(task: Task, test: TaskEmbeddings, predicted: Predicted) -> dict[str, Judged]:
    right = predicted == test.labels[:, None]
    # The identity shows the clean image, all other classes an obfuscated one.
    identity = task.names.index(IDENTITY)
    clean = torch.zeros_like(test.held_out)
    clean[:, identity] = True
    return {CLEAN: (right, clean), OBFUSCATED: (right, ~clean)}


def changes(after: Measured, before: Measured) -> dict[str, MetricValue]:
    """Differences of all metrics of a probe, of runs with the same seeds on the same images."""
    differences = {}
    for name, (right, counted) in after.judged.items():
        right_before, _ = before.judged[name]
        differences[name] = measures.difference(right, right_before, counted)
    return differences


def _parts(task: Task, test: TaskEmbeddings) -> dict[str, measures.Counted]:
    """What is held out in each category, each class, and each member, as far as there are any."""
    parts: dict[str, Tensor] = {}
    for i, category in enumerate(task.classes):
        of_class = torch.zeros_like(test.held_out)
        of_class[:, i] = True
        if any(member.held_out for member in category.members):
            parts[f"held_out/{category.name}"] = of_class & test.held_out
        parts[f"class/{category.name}"] = of_class
        if len(category.members) > 1:
            for k, member in enumerate(category.members):
                of_member = test.member == k
                parts[f"transformation/{member.name}"] = of_class & of_member
    # With few images, testing may show a transformation to none: such a part has no accuracy.
    return {name: counted for name, counted in parts.items() if bool(counted.any())}
