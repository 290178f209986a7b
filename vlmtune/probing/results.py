"""What probes measured, as results of a report and as confusion matrices.

In: measured probes. Out: `Result`s, JSON, PNG. Never: a new number.
Source: Rashtchian et al. 2023, Figures 4 to 9.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vlmtune.probing.experiment import ACCURACY, Measured
from vlmtune.probing.tasks import VERSION
from vlmtune.results.result import Result
from vlmtune.storage.files import write_atomically
from vlmtune.storage.folder import digest

CITATION = "Rashtchian et al. 2023, Substance or Style: What Does Your Image Embedding Know?"


def to_results(measured: Sequence[Measured], facts: Sequence[str]) -> list[Result]:
    """Returns a result for each probe, the images as its items; `facts` say which and how shown.

    Probes of transformations measure a sensitivity, probes of semantic classes what the embedding
    still knows.
    """
    results = []
    for probe in measured:
        # An image is an item and a cluster; its outcome is the mean over runs.
        by_image = zip(*probe.outcomes, strict=True)
        outcomes = tuple(statistics.fmean(runs) for runs in by_image)
        kind = "sensitivity" if probe.primary == ACCURACY else "retained"
        # With weights of styles a probe tells more transformations apart.
        styles = [member.weights for member in probe.task.members if member.weights]
        result = Result(
            benchmark=f"probe_{probe.task.name}/{probe.spec.name}",
            version=str(VERSION),
            primary=probe.primary,
            metrics=probe.metrics,
            citation=CITATION,
            outcomes=outcomes,
            clusters=tuple(range(len(outcomes))),
            kind=kind,
            items_digest=digest([*facts, *styles]),
            runs=tuple(map(tuple, probe.outcomes)),
        )
        results.append(result)
    return results


def to_json(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Returns the runs and the confusion matrix of each probe, as values of JSON."""
    facts = []
    for probe in measured:
        confusion = probe.confusion
        row = {
            "task": probe.task.name,
            "probe": probe.spec.name,
            **asdict(probe.spec),
            "runs": probe.runs,
            "classes": list(probe.task.names),
        }
        row["confusion"] = None if confusion is None else confusion.tolist()
        facts.append(row)
    return facts


def write_confusion(path: Path, one: Measured, name: str) -> None:
    """Draws a confusion matrix: rows are the classes, columns the predictions, in percent."""
    assert one.confusion is not None
    names = one.task.names
    percent = (100 * one.confusion).tolist()
    # Room for a row of 0.34 inches a class, and for the names beside them.
    side = 2.5 + 0.34 * len(names)
    # The canvas of files alone: pyplot would choose a window, and keep every figure.
    figure = Figure(figsize=(side, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(percent, cmap="Blues", vmin=0, vmax=100)
    ticks = range(len(names))
    axes.set_xticks(ticks, names, rotation=90, fontsize=7)
    axes.set_yticks(ticks, names, fontsize=7)
    axes.set_xlabel("predicted")
    axes.set_ylabel("applied")
    axes.set_title(f"{name}: {one.task.name}, {one.spec.name}", fontsize=9)
    for row, line in enumerate(percent):
        for column, value in enumerate(line):
            if value >= 0.5:  # others would read 0
                ink = "white" if value > 50 else "black"
                text = f"{value:.0f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=6, color=ink)
    # The metadata would name the version of matplotlib, so that equal matrices would differ.
    with write_atomically(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110, metadata={"Software": None})
