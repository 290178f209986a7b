from dataclasses import replace

import pytest
from PIL import Image

from vlmtune.report.run_report import Provenance, RunReport
from vlmtune.results import Example, ItemRow, MetricValue, Result
from vlmtune.types import ImageRef


def run_maker(folder):
    """Makes a run report of two benchmarks, a curve and examples, with images in a folder."""

    def make(name="adapter", value=0.4, trained=7_752_704, version="1", n=210, **more):
        images = []
        for i, colour in enumerate(("red", "blue")):
            path = folder / f"{i}.png"
            Image.new("RGB", (300, 200), colour).save(path)
            images.append(ImageRef(path, (250, 0, 100, 100) if i else None))
        examples = (
            Example("red cup <on> blue box", tuple(images), (1.5, 0.5), (True, False), True),
            Example("blue cup", tuple(images), (1.5, 0.5), (False, True), False),
        )
        accuracy = MetricValue(value, n, 0.25, value - 0.05, value + 0.05)
        rank = MetricValue(8.85, 96, 31.0, 8.0, 9.5, higher_is_better=False, unit="rank")
        precision = MetricValue(value / 2, 96, 0.15, value / 2 - 0.01, value / 2 + 0.01)
        single = {"map": precision, "mean_rank_true": rank}
        single["classes_without_positives"] = MetricValue(3.0, 96, unit="count")
        results = (
            Result("cola_multi", version, "accuracy", {"accuracy": accuracy}, examples, "Ray 2023"),
            Result("cola_single", "1", "map", single, (), "Ray 2023, section 10"),
        )
        provenance = Provenance(
            backbone="ViT-B/32",
            adapter="MM-Adapter" if trained else "zero-shot",
            model={"backbone": {"class_path": "a.B", "init_args": {}}, "adapter": None},
            fingerprint="0123456789abcdef",
            data="scenes" if trained else "",
            config={"lr": 1e-5, "folder": "data"},
            versions={"python": "3.12", "torch": "2.11"},
            commit="c" * 40,
            date="2026-01-02T03:04:05+00:00",
            seed=7 if trained else None,
            trainable_parameters=trained,
            seconds=754.0 if trained else 0.0,
        )
        curves = {"loss": ((0, 0.7), (10, None), (20, 0.3))} if trained else {}
        return RunReport(name, provenance, results, more.get("curves", curves))

    return make


@pytest.fixture
def make_run(tmp_path):
    return run_maker(tmp_path)


def changed(run, **changes):
    """The run with its first result alone, and so much of that changed."""
    return replace(run, results=(replace(run.results[0], **changes),))


@pytest.fixture
def item_rows(tmp_path):
    """Makes items of an image with a true and a false caption; every second image is a crop."""
    path = tmp_path / "a.png"
    Image.new("RGB", (20, 10), "red").save(path)
    images = [ImageRef(path), ImageRef(path, (2, 2, 4, 4))]

    def made(outcomes, scores, false=None):
        rows = []
        for i, (outcome, score) in enumerate(zip(outcomes, scores, strict=True)):
            texts, grid = (f"right {i}", f"wrong {i}"), (((True, False),), ((score, false),))
            rows.append(ItemRow(f"cola/{i}", "cola", outcome, (images[i % 2],), texts, *grid))
        return tuple(rows)

    return made
