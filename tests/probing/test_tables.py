from dataclasses import replace

import pytest
import torch

from vlmtune.probing import measures, transformation
from vlmtune.probing.experiment import ACCURACY, Measured, changes
from vlmtune.probing.probe import TRANSFORMATION, ProbeSpec
from vlmtune.probing.results import to_results
from vlmtune.probing.tables import Probed, to_tables
from vlmtune.probing.tasks import Member, Task, TransformationClass
from vlmtune.results.metric_value import MetricValue

PLAIN = transformation(lambda image: image)
TASK = Task(
    "categories",
    (
        TransformationClass("identity", (Member("identity", PLAIN, PLAIN),)),
        TransformationClass("noise", (Member("dots", None, PLAIN, held_out=True),)),
    ),
)


def probed(right: torch.Tensor, name: str, before: str = "") -> Probed:
    counted = torch.ones(right.shape[1:], dtype=torch.bool)
    noise = counted.clone()
    noise[:, 0] = False
    judged = {ACCURACY: (right, counted), "held_out/noise": (right, noise)}
    metrics = {key: measures.accuracy(*one, 0.5) for key, one in judged.items()}
    runs = {ACCURACY: measures.by_run(*judged[ACCURACY])}
    spec = ProbeSpec(2048, (TRANSFORMATION,))
    return Probed(name, [Measured(TASK, spec, metrics, runs, judged=judged)], before)


def hand_made() -> tuple[torch.Tensor, torch.Tensor]:
    """Two runs on 40 images: before, the second class is never right; after, in run 0 always."""
    before = torch.ones(2, 40, 2, dtype=torch.bool)
    before[:, :, 1] = False
    after = before.clone()
    after[0, :, 1] = True
    return before, after


def test_a_difference_is_paired_by_run_and_image():
    before, after = hand_made()
    counted = torch.ones(40, 2, dtype=torch.bool)
    one = measures.difference(after, before, counted)
    assert (one.value, one.n, one.chance) == (0.25, 80, None)
    assert one.low < 0.01  # of two runs one changed nothing
    assert one.high > 0.49
    assert measures.difference(before, before, counted) == MetricValue(0.0, 80, clusters=40)
    generator = torch.Generator().manual_seed(0)
    noisy = torch.rand(3, 400, 1, generator=generator) < 0.5
    better = noisy.clone()
    better[:, :40] = True
    gained = (better & ~noisy).sum() / noisy.numel()
    paired = measures.difference(better, noisy, torch.ones(400, 1, dtype=torch.bool))
    assert paired.value == pytest.approx(float(gained))
    # Pairing removes what both share: two apart have intervals of 2 x 0.05 x 2 ** 0.5 or so.
    assert paired.high - paired.low < 0.06


def test_rows_are_embeddings_and_changes_follow_their_original():
    before, after = hand_made()
    first, second = probed(before, "frozen"), probed(after, "adapted", before="frozen")
    assert changes(second.measured[0], first.measured[0])["held_out/noise"].value == 0.5
    lines = to_tables([first, second], 9, 40, [TASK]).splitlines()
    assert lines[0] == "# Probes of frozen, adapted"
    rows = {line.split(" | ")[0]: line for line in lines if line.startswith("| ")}
    assert "50.00" in rows["| frozen"]
    assert any(x.startswith("| adapted | — | 75.00") for x in lines)
    (noise,) = [x for x in lines if x.startswith("| noise | 40")]
    assert noise.split(" | ")[2].startswith("0.00")
    assert noise.split(" | ")[3].startswith("50.00")
    assert "## What adaptation changed: adapted" in lines
    (row,) = [x for x in lines if x.startswith("| categories | mlp-2048/transformation")]
    assert row.startswith("| categories | mlp-2048/transformation | +25.0 [")
    (row,) = [x for x in lines if x.startswith("| held out: noise")]
    assert row.startswith("| held out: noise | +50.0 [")
    alone = to_tables([second], 9, 40, [TASK])
    assert "What adaptation changed" not in alone


def test_probes_of_more_styles_have_other_items():
    right, _ = hand_made()
    (plain,) = probed(right, "a").measured
    style = Member("pasta", PLAIN, PLAIN, weights="pasta")
    styles = TransformationClass("style_transfer", (style,))
    styled = replace(plain, task=Task("categories", (*TASK.classes, styles)))
    first, second, other = to_results([plain, styled, plain], ["224", "digest"])
    assert first.items_digest == other.items_digest != second.items_digest
    (cropped,) = to_results([plain], ["64", "digest"])
    assert cropped.items_digest != first.items_digest
