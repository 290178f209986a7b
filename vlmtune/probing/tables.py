"""Tables 1 to 6 of the paper, for one embedding or several side by side.

In: measured probes. Out: Markdown. Never: a new number, but differences of two embeddings.
Source: Rashtchian et al. 2023, Tables 1 to 6.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from vlmtune.probing.experiment import ACCURACY, CLEAN, OBFUSCATED, Measured, changes
from vlmtune.probing.probe import SEMANTIC, TRANSFORMATION
from vlmtune.probing.tasks import Task, TransformationClass
from vlmtune.report.table import change, interval, number, signed_interval
from vlmtune.results.metric_value import MetricValue

FINE, CATEGORIES = "fine", "categories"
MAIN_WIDTH = 2048
NOT_RUN = "not run"
NOTE = (
    "Percent, the mean over {runs} runs. Brackets: 95 % interval over runs and test "
    "images; ±: standard deviation over runs. {train} images for training, {test} for testing."
)
CHANGES_NOTE = (
    "Percentage points, {after} minus {before}: runs of the same seed and the same images, "
    "paired. Brackets: 95 % interval of the paired difference."
)


@dataclass(frozen=True)
class Probed:
    """An embedding and its probes.

    Attributes:
        name: Of the embedding.
        measured: Its probes.
        before: Name of the embedding that it was adapted from, which is probed too; else "".
    """

    name: str
    measured: Sequence[Measured]
    before: str = ""


def to_tables(embeddings: Sequence[Probed], train: int, test: int, tasks: Sequence[Task]) -> str:
    """Writes Tables 1 to 6 of the paper, as far as the probes were trained.

    An embedding is a row of most tables, and a column of Tables 5 and 6. `train` and `test` are
    numbers of images; the whole tasks name what was not run.
    """
    probes = itertools.chain.from_iterable(x.measured for x in embeddings)
    runs = max((len(values) for one in probes for values in one.runs.values()), default=0)
    note = NOTE.format(runs=runs, train=train, test=test)
    lines = [f"# Probes of {', '.join(x.name for x in embeddings)}", "", note, ""]
    # Tables 5 and 6 also name what was not run, so they need the whole task.
    whole = next((task.classes for task in tasks if task.name == CATEGORIES), ())
    written = [_table_1(embeddings), _table_2(embeddings)]
    written.append(("Table 3: one head and two, width 2048", _heads(embeddings, 2048)))
    written.append(("Table 4: one head and two, width 1024", _heads(embeddings, 1024)))
    written += [_table_5(embeddings, whole), _table_6(embeddings, whole)]
    for title, table in written:
        if table:
            lines += [f"## {title}", "", *table, ""]
    named = {embedding.name: embedding for embedding in embeddings}
    for embedding in embeddings:
        if embedding.before in named:
            lines += _changes(embedding, named[embedding.before])
    for task in tasks:
        if task.not_run:
            names = ", ".join(x.name for x in task.not_run)
            lines += [f"Not run in {task.name}, as weights are missing: {names}.", ""]
    return "\n".join(lines)


def main_probe(measured: Sequence[Measured], task: str) -> Measured | None:
    """The probe of transformations alone of width 2,048, else the widest there is."""
    alone = [x for x in measured if x.task.name == task and x.spec.heads == (TRANSFORMATION,)]
    widest = max(alone, key=lambda x: x.spec.width, default=None)
    return next((x for x in alone if x.spec.width == MAIN_WIDTH), widest)


def _table_1(embeddings: Sequence[Probed]) -> tuple[str, list[str]]:
    rows, width = [], 0
    for one in embeddings:
        fine = main_probe(one.measured, FINE)
        coarse = main_probe(one.measured, CATEGORIES)
        shown = fine or coarse
        width = 0 if shown is None else shown.spec.width
        held_out = [_held_out(coarse, name) for name in ("noise", "style_transfer")]
        rows.append([one.name, _cell(fine, ACCURACY), _cell(coarse, ACCURACY), *held_out])
    heads = ["embedding", "fine-grained", "generalization", "held-out noise", "held-out style"]
    network = f"hidden layer of width {width}" if width else "linear probe"
    return f"Table 1: transformation accuracy, {network}", _markdown(heads, rows)


def _held_out(one: Measured | None, category: str) -> str:
    missing = one is not None and category not in one.task.names
    return NOT_RUN if missing else _cell(one, f"held_out/{category}")


def _table_2(embeddings: Sequence[Probed]) -> tuple[str, list[str]]:
    rows = []
    for one in embeddings:
        chosen = [x for x in one.measured if x.spec.heads == (TRANSFORMATION,)]
        for width in sorted({x.spec.width for x in chosen}, reverse=True):
            network = str(width) if width else "linear"
            by_task = {x.task.name: x for x in chosen if x.spec.width == width}
            cells = [_cell(by_task.get(task), ACCURACY) for task in (FINE, CATEGORIES)]
            rows.append([one.name, network, *cells])
    heads = ["embedding", "width", "fine-grained", "generalization"]
    return "Table 2: transformation accuracy by width", _markdown(heads, rows)


def _heads(embeddings: Sequence[Probed], width: int) -> list[str]:
    kinds = {
        "transformation only": (TRANSFORMATION,),
        "semantic only": (SEMANTIC,),
        "2-head": (SEMANTIC, TRANSFORMATION),
    }
    rows = []
    for one in embeddings:
        for kind, heads in kinds.items():
            chosen = [x for x in one.measured if (x.spec.width, x.spec.heads) == (width, heads)]
            by_task = {x.task.name: x for x in chosen}
            cells = []
            for task in (FINE, CATEGORIES):
                cells += [_cell(by_task.get(task), x) for x in (CLEAN, OBFUSCATED, ACCURACY)]
            if by_task:
                rows.append([f"{one.name} ({kind})", *cells])
    columns = []
    for task in (FINE, CATEGORIES):
        columns += [f"{task}: {x}" for x in ("sem", "obfsem", "transf")]
    return _markdown(["embedding", *columns], rows)


def _table_5(
    embeddings: Sequence[Probed], whole: Sequence[TransformationClass]
) -> tuple[str, list[str]]:
    parts = []
    for one in whole:
        held_out = [x.test is not None for x in one.members if x.held_out]
        if held_out:
            parts.append((f"held_out/{one.name}", one.name, any(held_out)))
    title = "Table 5: transformations that training never showed, by category"
    return title, _grouped(embeddings, parts, "category")


def _table_6(
    embeddings: Sequence[Probed], whole: Sequence[TransformationClass]
) -> tuple[str, list[str]]:
    parts = []
    for one in whole:
        for x in one.members:
            if len(one.members) > 1:  # alone, it is the category itself
                name = f"{x.name}{' *' * x.held_out}"
                parts.append((f"transformation/{x.name}", name, x.test is not None))
    title = "Table 6: each transformation of the categories (* never shown in training)"
    return title, _grouped(embeddings, parts, "transformation")


def _grouped(
    embeddings: Sequence[Probed], parts: Sequence[tuple[str, str, bool]], head: str
) -> list[str]:
    """A row for each part of the categories, a column for each embedding.

    A part is the metric of it, its name, and whether it was run; with 0 images it has no number.
    """
    probes: dict[str, Measured] = {}
    for embedding in embeddings:
        main = main_probe(embedding.measured, CATEGORIES)
        if main is not None:
            probes[embedding.name] = main
    if not probes:
        return []
    rows = []
    for key, part, ran in parts:
        if not ran:
            rows.append([part, "—", *[NOT_RUN] * len(probes)])
            continue
        sizes = [one.metrics[key].n for one in probes.values() if key in one.metrics]
        n = str(sizes[0]) if sizes else "0"
        rows.append([part, n, *(_cell(one, key) for one in probes.values())])
    first = next(iter(probes.values()))
    chance = number(1 / len(first.task.classes), "fraction")
    return _markdown([head, "n", *(f"{name} (chance {chance})" for name in probes)], rows)


def _changes(after: Probed, before: Probed) -> list[str]:
    """What adaptation changed: a table of the probes, and one of the categories' parts."""
    rows = []
    for one in after.measured:
        other = _same(one, before.measured)
        if other is not None:
            metrics = changes(one, other)
            cells = [_signed(metrics.get(x)) for x in (ACCURACY, CLEAN, OBFUSCATED)]
            rows.append([one.task.name, one.spec.name, *cells])
    heads = ["task", "probe", "transformation", "clean semantic", "obfuscated semantic"]
    lines = [f"## What adaptation changed: {after.name}", ""]
    lines += [CHANGES_NOTE.format(after=after.name, before=before.name), ""]
    lines += [*_markdown(heads, rows), ""]
    main = main_probe(after.measured, CATEGORIES)
    other = None if main is None else _same(main, before.measured)
    if main is not None and other is not None:
        rows = []
        for name, metric in changes(main, other).items():
            if name.startswith(("held_out/", "class/")):
                part = name.replace("held_out/", "held out: ").removeprefix("class/")
                rows.append([part, _signed(metric)])
        lines += [*_markdown([f"category ({main.spec.name})", "transformation"], rows), ""]
    return lines


def _same(one: Measured, others: Sequence[Measured]) -> Measured | None:
    """The probe of the same form on the same task."""
    return next((x for x in others if (x.task.name, x.spec) == (one.task.name, one.spec)), None)


def _signed(metric: MetricValue | None) -> str:
    if metric is None:
        return "—"
    ends = signed_interval(metric.low, metric.high, metric.unit)
    value = change(metric.value, metric.unit)
    return f"{value} [{ends}]" if ends else value


def _cell(one: Measured | None, metric: str) -> str:
    if one is None or metric not in one.metrics:
        return "—"
    cell = f"{100 * one.metrics[metric].value:.2f}"
    if ends := interval(one.metrics[metric]):
        cell += f" [{ends}]"
    runs = one.runs.get(metric, [])
    if len(runs) > 1:
        cell += f" ±{100 * statistics.stdev(runs):.2f}"
    return cell


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    line = ["---", *["---:"] * (len(heads) - 1)]
    return [f"| {' | '.join(row)} |" for row in (heads, line, *rows)]
