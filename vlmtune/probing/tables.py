"""Tables 1 to 6 of the paper, for one embedding or several side by side.

In: measured probes. Out: Markdown. Never: a new number, but differences of two embeddings.
Source: Rashtchian et al. 2023, Tables 1 to 6.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vlmtune.probing.experiment import ACCURACY, CLEAN, OBFUSCATED, Measured, changes
from vlmtune.probing.probe import SEMANTIC, TRANSFORMATION
from vlmtune.probing.tasks import Task, TransformationClass
from vlmtune.report.markdown_table import markdown_table
from vlmtune.report.table import change, interval, number, signed_interval
from vlmtune.results.metric_value import MetricValue

FINE = "fine"
CATEGORIES = "categories"
MAIN_WIDTH = 2048  # of Tables 1, 5 and 6
NOT_RUN = "not run"  # weights of a style are missing
NOTE = (
    "Percent, the mean over {runs} runs. Brackets: 95 % interval over runs and test "
    "images; ±: standard deviation over runs. {train} images for training, {test} for testing."
)
NOTE_ON_ONE_RUN = (
    "Percent, of one run. Brackets: 95 % interval over test images, as if every run were the same. "
    "{train} images for training, {test} for testing."
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


@dataclass(frozen=True)
class PartRow:
    """A part of the categories: a row of Tables 5 and 6.

    Attributes:
        metric: Name of its metric; a part of 0 images has no number.
        title: What the row says.
        ran: Whether its weights were there.
    """

    metric: str
    title: str
    ran: bool


def to_tables(embeddings: Sequence[Probed], train: int, test: int, tasks: Sequence[Task]) -> str:
    """Writes Tables 1 to 6 of the paper, as far as the probes were trained.

    An embedding is a row of most tables, and a column of Tables 5 and 6. `train` and `test` are
    numbers of images; the whole tasks name what was not run.
    """
    names = ", ".join(embedding.name for embedding in embeddings)
    runs = _most_runs(embeddings)
    form = NOTE_ON_ONE_RUN if runs == 1 else NOTE
    note = form.format(runs=runs, train=train, test=test)
    lines = [f"# Probes of {names}", "", note, ""]
    # Tables 5 and 6 also name what was not run, so they need the whole task.
    whole: Sequence[TransformationClass] = ()
    for task in tasks:
        if task.name == CATEGORIES:
            whole = task.classes
            break
    tables = [
        _table_1(embeddings),
        _table_2(embeddings),
        ("Table 3: one head and two, width 2048", _heads(embeddings, 2048)),
        ("Table 4: one head and two, width 1024", _heads(embeddings, 1024)),
        _table_5(embeddings, whole),
        _table_6(embeddings, whole),
    ]
    for title, table in tables:
        if table:
            lines += [f"## {title}", "", *table, ""]
    by_name = {embedding.name: embedding for embedding in embeddings}
    for embedding in embeddings:
        before = by_name.get(embedding.before)
        if before is not None:
            lines += _changes(embedding, before)
    for task in tasks:
        if task.not_run:
            missing = ", ".join(member.name for member in task.not_run)
            lines += [f"Not run in {task.name}, as weights are missing: {missing}.", ""]
    return "\n".join(lines)


def _most_runs(embeddings: Sequence[Probed]) -> int:
    most = 0
    for embedding in embeddings:
        for probe in embedding.measured:
            for values in probe.runs.values():
                most = max(most, len(values))
    return most


def main_probe(measured: Sequence[Measured], task: str) -> Measured | None:
    """The probe of transformations alone of width 2,048, else the widest there is."""
    single = _with_heads(measured, (TRANSFORMATION,))
    probes = [probe for probe in single if probe.task.name == task]
    for probe in probes:
        if probe.spec.width == MAIN_WIDTH:
            return probe
    return max(probes, key=lambda probe: probe.spec.width, default=None)


def _with_heads(measured: Sequence[Measured], heads: tuple[str, ...]) -> list[Measured]:
    return [probe for probe in measured if probe.spec.heads == heads]


def _by_task(probes: Sequence[Measured], width: int) -> dict[str, Measured]:
    """The probe of a width on each task."""
    return {probe.task.name: probe for probe in probes if probe.spec.width == width}


def _table_1(embeddings: Sequence[Probed]) -> tuple[str, list[str]]:
    rows = []
    width = 0
    for embedding in embeddings:
        fine = main_probe(embedding.measured, FINE)
        coarse = main_probe(embedding.measured, CATEGORIES)
        shown = fine or coarse
        # Both tasks were probed with the same widths, so either tells it.
        width = 0 if shown is None else shown.spec.width
        row = [
            embedding.name,
            _cell(fine, ACCURACY),
            _cell(coarse, ACCURACY),
            _held_out(coarse, "noise"),
            _held_out(coarse, "style_transfer"),
        ]
        rows.append(row)
    heads = ["embedding", "fine-grained", "generalization", "held-out noise", "held-out style"]
    network = f"hidden layer of width {width}" if width else "linear probe"
    return f"Table 1: transformation accuracy, {network}", markdown_table(heads, rows)


def _held_out(probe: Measured | None, category: str) -> str:
    if probe is not None and category not in probe.task.names:
        return NOT_RUN
    return _cell(probe, f"held_out/{category}")


def _table_2(embeddings: Sequence[Probed]) -> tuple[str, list[str]]:
    rows = []
    for embedding in embeddings:
        probes = _with_heads(embedding.measured, (TRANSFORMATION,))
        widths = {probe.spec.width for probe in probes}
        for width in sorted(widths, reverse=True):
            network = str(width) if width else "linear"
            by_task = _by_task(probes, width)
            fine = _cell(by_task.get(FINE), ACCURACY)
            coarse = _cell(by_task.get(CATEGORIES), ACCURACY)
            rows.append([embedding.name, network, fine, coarse])
    heads = ["embedding", "width", "fine-grained", "generalization"]
    return "Table 2: transformation accuracy by width", markdown_table(heads, rows)


def _heads(embeddings: Sequence[Probed], width: int) -> list[str]:
    kinds = {
        "transformation only": (TRANSFORMATION,),
        "semantic only": (SEMANTIC,),
        "2-head": (SEMANTIC, TRANSFORMATION),
    }
    metrics = {
        "sem": CLEAN,
        "obfsem": OBFUSCATED,
        "transf": ACCURACY,
    }
    rows = []
    for embedding in embeddings:
        for kind, heads in kinds.items():
            by_task = _by_task(_with_heads(embedding.measured, heads), width)
            if not by_task:
                continue
            row = [f"{embedding.name} ({kind})"]
            for task in (FINE, CATEGORIES):
                for metric in metrics.values():
                    row.append(_cell(by_task.get(task), metric))
            rows.append(row)
    columns = ["embedding"]
    for task in (FINE, CATEGORIES):
        columns += [f"{task}: {title}" for title in metrics]
    return markdown_table(columns, rows)


def _table_5(
    embeddings: Sequence[Probed], whole: Sequence[TransformationClass]
) -> tuple[str, list[str]]:
    parts = []
    for category in whole:
        held_out = [member for member in category.members if member.held_out]
        if held_out:
            ran = any(member.test is not None for member in held_out)
            parts.append(PartRow(f"held_out/{category.name}", category.name, ran))
    title = "Table 5: transformations that training never showed, by category"
    return title, _grouped(embeddings, parts, "category")


def _table_6(
    embeddings: Sequence[Probed], whole: Sequence[TransformationClass]
) -> tuple[str, list[str]]:
    parts = []
    for category in whole:
        if len(category.members) == 1:  # alone, it is the category itself
            continue
        for member in category.members:
            # The caption of the table says what the star means.
            star = " *" if member.held_out else ""
            ran = member.test is not None
            parts.append(PartRow(f"transformation/{member.name}", member.name + star, ran))
    title = "Table 6: each transformation of the categories (* never shown in training)"
    return title, _grouped(embeddings, parts, "transformation")


def _grouped(embeddings: Sequence[Probed], parts: Sequence[PartRow], head: str) -> list[str]:
    """A row for each part of the categories, a column for each embedding."""
    probes: dict[str, Measured] = {}
    for embedding in embeddings:
        main = main_probe(embedding.measured, CATEGORIES)
        if main is not None:
            probes[embedding.name] = main
    if not probes:
        return []
    rows = []
    for part in parts:
        if part.ran:
            size = _size(part.metric, probes.values())
            cells = [_cell(probe, part.metric) for probe in probes.values()]
        else:
            size = "—"
            cells = [NOT_RUN] * len(probes)
        rows.append([part.title, size, *cells])
    first = next(iter(probes.values()))
    chance = number(1 / len(first.task.classes), "fraction")
    columns = [f"{name} (chance {chance})" for name in probes]
    return markdown_table([head, "n", *columns], rows)


def _size(metric: str, probes: Iterable[Measured]) -> str:
    """How many predictions a metric counts; 0 if no probe has it."""
    for probe in probes:
        if metric in probe.metrics:
            return str(probe.metrics[metric].n)
    return "0"


def _changes(after: Probed, before: Probed) -> list[str]:
    """What adaptation changed: a table of the probes, and one of the categories' parts."""
    rows = []
    for probe in after.measured:
        other = _same(probe, before.measured)
        if other is not None:
            metrics = changes(probe, other)
            row = [
                probe.task.name,
                probe.spec.name,
                _signed(metrics.get(ACCURACY)),
                _signed(metrics.get(CLEAN)),
                _signed(metrics.get(OBFUSCATED)),
            ]
            rows.append(row)
    heads = ["task", "probe", "transformation", "clean semantic", "obfuscated semantic"]
    lines = [
        f"## What adaptation changed: {after.name}",
        "",
        CHANGES_NOTE.format(after=after.name, before=before.name),
        "",
        *markdown_table(heads, rows),
        "",
    ]
    main = main_probe(after.measured, CATEGORIES)
    other = None if main is None else _same(main, before.measured)
    if main is not None and other is not None:
        lines += [*_changed_parts(main, other), ""]
    return lines


def _changed_parts(after: Measured, before: Measured) -> list[str]:
    """What adaptation changed in each category, and in what training never showed of it."""
    rows = []
    for name, metric in changes(after, before).items():
        kind, _, category = name.partition("/")
        if kind in ("held_out", "class"):
            part = f"held out: {category}" if kind == "held_out" else category
            rows.append([part, _signed(metric)])
    return markdown_table([f"category ({after.spec.name})", "transformation"], rows)


def _same(probe: Measured, others: Sequence[Measured]) -> Measured | None:
    """The probe of the same form on the same task."""
    for other in others:
        if other.task.name == probe.task.name and other.spec == probe.spec:
            return other
    return None


def _signed(metric: MetricValue | None) -> str:
    if metric is None:
        return "—"
    ends = signed_interval(metric.low, metric.high, metric.unit)
    value = change(metric.value, metric.unit)
    return f"{value} [{ends}]" if ends else value


def _cell(probe: Measured | None, metric: str) -> str:
    if probe is None or metric not in probe.metrics:
        return "—"
    measured = probe.metrics[metric]
    cell = f"{100 * measured.value:.2f}"
    if ends := interval(measured):
        cell += f" [{ends}]"
    runs = probe.runs.get(metric, [])
    if len(runs) > 1:
        deviation = 100 * statistics.stdev(runs)
        cell += f" ±{deviation:.2f}"
    return cell
