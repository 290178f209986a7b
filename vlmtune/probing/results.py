"""What probes measured, as results of a report, as the paper's tables and as matrices.

In: measured probes. Out: `Result`s, Markdown, JSON, PNG. Never: a new number.
Source: Rashtchian et al. 2023, Tables 1 to 6 and Figures 4 to 9.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vlmtune.metrics.value import MetricValue
from vlmtune.probing.experiment import ACCURACY, CLEAN, OBFUSCATED, Measured
from vlmtune.probing.probe import SEMANTIC, TRANSFORMATION
from vlmtune.probing.tasks import Task
from vlmtune.report.result import Result
from vlmtune.report.table import interval, number
from vlmtune.storage.files import write_atomically

CITATION = "Rashtchian et al. 2023, Substance or Style: What Does Your Image Embedding Know?"
VERSION = "1"
FINE, CATEGORIES = "fine", "categories"
MAIN_WIDTH = 2048
NOTE = (
    "Percent, the mean over {runs} runs. Brackets: 95 % interval of a bootstrap over runs and test "
    "images; ±: standard deviation over runs. {train} images for training, {test} for testing."
)


def to_results(measured: Sequence[Measured], digest: str) -> list[Result]:
    """Returns a result for each probe, the images as its items; `digest` is that of the images."""
    return [
        Result(
            benchmark=f"probe_{one.task.name}/{one.spec.name}",
            version=VERSION,
            primary=one.primary,
            metrics=one.metrics,
            citation=CITATION,
            outcomes=tuple(one.outcomes),
            clusters=tuple(range(len(one.outcomes))),
            items_digest=digest,
        )
        for one in measured
    ]


def main_probe(measured: Sequence[Measured], task: str) -> Measured | None:
    """The probe of transformations alone of width 2,048, else the widest there is."""
    alone = [x for x in measured if x.task.name == task and x.spec.heads == (TRANSFORMATION,)]
    widest = max(alone, key=lambda x: x.spec.width, default=None)
    return next((x for x in alone if x.spec.width == MAIN_WIDTH), widest)


def to_json(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Returns the runs and the confusion matrix of each probe, as values of JSON."""
    return [
        {
            "task": one.task.name,
            "probe": one.spec.name,
            "width": one.spec.width,
            "heads": list(one.spec.heads),
            "dropout": one.spec.dropout,
            "runs": one.runs,
            "classes": list(one.task.names),
            "confusion": None if one.confusion is None else one.confusion.tolist(),
        }
        for one in measured
    ]


def to_tables(
    measured: Sequence[Measured], name: str, train: int, test: int, tasks: Sequence[Task]
) -> str:
    """Writes Tables 1 to 6 of the paper for one embedding, as far as its probes were trained.

    Args:
        measured: The probes.
        name: Of the embedding.
        train: Number of training images.
        test: Number of test images.
        tasks: The whole tasks, to name what was not run.
    """
    runs = max((len(x) for one in measured for x in one.runs.values()), default=0)
    note = NOTE.format(runs=runs, train=train, test=test)
    lines = [f"# Probes of {name}", "", note, ""]
    writers = (_table_1, _table_2, _table_3, _table_4, _table_5, _table_6)
    for writer in writers:
        title, table = writer(measured, name)
        if table:
            lines += [f"## {title}", "", *table, ""]
    for task in tasks:
        if task.not_run:
            names = ", ".join(x.name for x in task.not_run)
            lines += [f"Not run in {task.name}, as weights are missing: {names}.", ""]
    return "\n".join(lines)


def _table_1(measured: Sequence[Measured], name: str) -> tuple[str, list[str]]:
    fine, coarse = (main_probe(measured, task) for task in (FINE, CATEGORIES))
    cells = {
        "fine-grained": _cell(fine, ACCURACY),
        "generalization": _cell(coarse, ACCURACY),
        "held-out noise": _cell(coarse, "held_out/noise"),
        "held-out style": _cell(coarse, "held_out/style_transfer"),
    }
    width = next((x.spec.width for x in (fine, coarse) if x is not None), 0)
    title = f"Table 1: transformation accuracy, {_network(width)}"
    return title, _markdown(["embedding", *cells], [[name, *cells.values()]])


def _network(width: int) -> str:
    return f"hidden layer of width {width}" if width else "linear probe"


def _table_2(measured: Sequence[Measured], name: str) -> tuple[str, list[str]]:
    chosen = [x for x in measured if x.spec.heads == (TRANSFORMATION,)]
    widths = sorted({x.spec.width for x in chosen}, key=lambda width: -width)
    rows = []
    for width in widths:
        of = {x.task.name: x for x in chosen if x.spec.width == width}
        cells = [_cell(of.get(task), ACCURACY) for task in (FINE, CATEGORIES)]
        rows.append([name, str(width) if width else "linear", *cells])
    heads = ["embedding", "width", "fine-grained", "generalization"]
    return "Table 2: transformation accuracy by width", _markdown(heads, rows)


def _table_3(measured: Sequence[Measured], name: str) -> tuple[str, list[str]]:
    return "Table 3: one head and two, width 2048", _heads(measured, name, MAIN_WIDTH)


def _table_4(measured: Sequence[Measured], name: str) -> tuple[str, list[str]]:
    return "Table 4: one head and two, width 1024", _heads(measured, name, MAIN_WIDTH // 2)


def _heads(measured: Sequence[Measured], name: str, width: int) -> list[str]:
    kinds = {
        "transformation only": (TRANSFORMATION,),
        "semantic only": (SEMANTIC,),
        "2-head": (SEMANTIC, TRANSFORMATION),
    }
    rows = []
    for kind, heads in kinds.items():
        of = {x.task.name: x for x in measured if (x.spec.width, x.spec.heads) == (width, heads)}
        metrics = (CLEAN, OBFUSCATED, ACCURACY)
        cells = [_cell(of.get(task), x) for task in (FINE, CATEGORIES) for x in metrics]
        if of:
            rows.append([f"{name} ({kind})", *cells])
    columns = [f"{task}: {x}" for task in (FINE, CATEGORIES) for x in ("sem", "obfsem", "transf")]
    return _markdown(["embedding", *columns], rows)


def _table_5(measured: Sequence[Measured], name: str) -> tuple[str, list[str]]:
    title = "Table 5: transformations that training never showed, by category"
    return title, _grouped(measured, name, "held_out/", "category")


def _table_6(measured: Sequence[Measured], name: str) -> tuple[str, list[str]]:
    title = "Table 6: each transformation of the categories (* never shown in training)"
    return title, _grouped(measured, name, "transformation/", "transformation")


def _grouped(measured: Sequence[Measured], name: str, prefix: str, head: str) -> list[str]:
    one = main_probe(measured, CATEGORIES)
    if one is None:
        return []
    held_out = {x.name for group in one.task.classes for x in group.members if x.held_out}
    parts = {k.removeprefix(prefix): x for k, x in one.metrics.items() if k.startswith(prefix)}
    rows = [
        [f"{part} *" if part in held_out else part, str(metric.n), _number(metric)]
        for part, metric in parts.items()
    ]
    chance = number(1 / len(one.task.classes), "fraction")
    return _markdown([head, "n", f"{name} (chance {chance})"], rows)


def _cell(one: Measured | None, metric: str) -> str:
    if one is None or metric not in one.metrics:
        return "—"
    runs = one.runs.get(metric, [])
    deviation = f" ±{100 * statistics.stdev(runs):.2f}" if len(runs) > 1 else ""
    return f"{_number(one.metrics[metric])}{deviation}"


def _number(metric: MetricValue) -> str:
    brackets = interval(metric)
    return f"{100 * metric.value:.2f}{f' [{brackets}]' if brackets else ''}"


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    line = ["---", *["---:"] * (len(heads) - 1)]
    return [f"| {' | '.join(row)} |" for row in (heads, line, *rows)]


def write_confusion(path: Path, one: Measured, name: str) -> None:
    """Draws a confusion matrix: rows are the classes, columns the predictions, in percent.

    Raises:
        UserError: The file cannot be written.
    """
    assert one.confusion is not None
    names, matrix = one.task.names, (100 * one.confusion).tolist()
    side = 2.5 + 0.34 * len(names)
    figure = Figure(figsize=(side, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(matrix, cmap="Blues", vmin=0, vmax=100)
    ticks = range(len(names))
    axes.set_xticks(ticks, names, rotation=90, fontsize=7)
    axes.set_yticks(ticks, names, fontsize=7)
    axes.set_xlabel("predicted")
    axes.set_ylabel("applied")
    axes.set_title(f"{name}: {one.task.name}, {one.spec.name}", fontsize=9)
    for row, line in enumerate(matrix):
        for column, value in enumerate(line):
            if value >= 0.5:
                ink = "white" if value > 50 else "black"
                axes.text(
                    column, row, f"{value:.0f}", ha="center", va="center", fontsize=6, color=ink
                )
    with write_atomically(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110, metadata={"Software": None})
