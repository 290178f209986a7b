"""What limits a number: text-only scores above chance, few clusters, repeated items, limits.

In: the runs of a report. Out: one sentence a caveat. Never: a change of a number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlmtune.report.run_report import RunReport
from vlmtune.report.table import Row, Section, chance, interval, number, sections
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Repeat

REPEATED = {
    "item": "items that repeat an earlier one",
    "caption": "items whose right caption is also a wrong one",
    "image": "items with the same image twice",
}
TEXT_ONLY = (
    "Text-only runs never see the image and do not compete. Between two images they tie, and a tie "
    "counts as wrong. The fewest words also tie between captions of equal length."
)
MATCHED = "group_match"  # the metric of `matching_correct`
FEW = 20  # clusters: with fewer an interval is rough
NAMED = 5  # numbers of few clusters that are named
RANDOM = "the frozen model has random weights: these numbers say nothing about a pre-trained model"


@dataclass(frozen=True)
class Caveat:
    """A sentence on a benchmark, or on a run where all its numbers are meant.

    `text_only` says that captions alone reach the number, `examples` are the first items in
    question.
    """

    benchmark: str
    text: str
    text_only: bool = False
    examples: tuple[str, ...] = ()


def caveats(runs: Sequence[RunReport]) -> tuple[Caveat, ...]:
    """All caveats: random weights, then benchmark by benchmark, text-only scores first."""
    random = [run for run in runs if run.provenance.random_weights]
    out = [Caveat(run.name, RANDOM) for run in random]
    for section in sections(runs):
        title = section.head.title
        for row in section.primary:
            for text in _text_only(row, runs):
                out.append(Caveat(title, text, text_only=True))
        for text in _lines(section, runs):
            out.append(Caveat(title, text))
        for text, examples in _repeats(section.head, runs):
            out.append(Caveat(title, text, examples=examples))
    return tuple(out)


def _lines(section: Section, runs: Sequence[RunReport]) -> list[str]:
    """What a benchmark's numbers lack: a chance level, an interval, clusters, captions or items."""
    lines: list[str] = []
    for row in section.primary:
        if row.first.chance is None:
            lines.append(f"{row.metric} has no chance level")
        if all(cell is None or cell.low is None for cell in row.cells):
            lines.append(f"{row.metric} has no interval")
    for row in section.rows:
        lines += _counts(row, runs)
        if row.metric.partition("/")[0] == MATCHED:
            lines.append(
                f"{row.metric} (GroupMatch) asks less than a group or a set, chance is "
                f"{chance(row.first)}: it compares with no other accuracy"
            )
    lines += _few_clusters(section.rows)
    lines += _few_captions(section.head, runs)
    lines += _limits(section.head.benchmark, runs)
    return lines


def beats_chance(metric: MetricValue) -> bool:
    """Whether the whole interval is better than chance.

    Example:
        >>> beats_chance(MetricValue(0.6, 100, 0.5, 0.51, 0.69))
        True
    """
    if metric.chance is None or metric.low is None or metric.high is None:
        return False
    if metric.higher_is_better:
        return metric.low > metric.chance
    return metric.high < metric.chance


def _text_only(row: Row, runs: Sequence[RunReport]) -> list[str]:
    """Text-only runs above chance, and the runs that do no better than they do."""
    lines = []
    for i in sorted(row.text_only):
        metric = row.cells[i]
        if metric is None or not beats_chance(metric):
            continue
        # The model with images must do better than this one to show that it looks at them.
        name = runs[i].name
        reached = number(metric.value, metric.unit)
        lines.append(
            f"{name} reaches {reached} [{interval(metric)}], chance is {chance(metric)}: captions "
            "give some answers away without the image"
        )
        sign = 1 if metric.higher_is_better else -1
        for j, cell in enumerate(row.cells):
            if cell is None or j in row.text_only:
                continue
            lead = sign * (cell.value - metric.value)
            if lead <= 0:
                score = number(cell.value, cell.unit)
                lines.append(f"{runs[j].name} is no better than {name} ({score} against {reached})")
    return lines


def _few_clusters(rows: Sequence[Row]) -> list[str]:
    """Numbers whose interval rests on few independent clusters."""
    names = []
    for row in rows:
        metric = row.first
        if metric.low is not None and metric.clusters and metric.clusters < FEW:
            names.append(f"{row.metric} {metric.clusters}")
    if not names:
        return []
    if len(names) > NAMED:
        names[NAMED:] = [f"{len(names) - NAMED} more"]
    return [
        f"fewer than {FEW} independent clusters (items that share an image or captions are one): "
        f"{', '.join(names)}. The 95 % interval of so few is rough"
    ]


def _few_captions(head: Row, runs: Sequence[RunReport]) -> list[str]:
    """Benchmarks whose items have few captions, however many images."""
    sizes = set()
    for run in runs:
        result = run.of(head.benchmark)
        if result is None:
            continue
        n = len(result.caption_sets)
        sets = len(set(result.caption_sets))
        if 0 < sets < FEW and sets < n:
            sizes.add((n, sets))
    return [f"only {sets} different sets of captions for {n} items" for n, sets in sorted(sizes)]


def _counts(row: Row, runs: Sequence[RunReport]) -> list[str]:
    """Counts above zero."""
    if row.first.unit != "count":
        return []
    name = row.metric.replace("_", " ")
    counts = {}
    # A run with none of them has no caveat.
    for run, cell in zip(runs, row.cells, strict=True):
        if cell is not None and cell.value:
            counts[run.name] = f"{name}: {cell.value:.0f} of {cell.n}"
    return _by_text(counts, row.benchmark, runs)


def _repeats(head: Row, runs: Sequence[RunReport]) -> list[tuple[str, tuple[str, ...]]]:
    """What occurs twice in the items, with the first examples."""
    # A text-only run has scored the same items as the others.
    seeing = [run for run in runs if not run.text_only] or runs
    measured = 0
    names: dict[Repeat, list[str]] = {}
    for run in seeing:
        result = run.result(*head.definition)
        if result is None:
            continue
        measured += 1
        for repeat in result.repeats:
            names.setdefault(repeat, []).append(run.name)
    out = []
    for repeat, having in names.items():
        text = f"{REPEATED[repeat.kind]}: {repeat.total} of {repeat.n}"
        if len(having) < measured:
            text = f"{text} ({', '.join(having)})"
        out.append((text, _examples(repeat)))
    return out


def _examples(repeat: Repeat) -> tuple[str, ...]:
    lines = []
    shown = 0
    for occurrence in repeat.listed:
        positions = ", ".join(map(str, occurrence.items))
        images = ", ".join(occurrence.images)
        texts = "; ".join(f'"{text}"' for text in occurrence.texts)
        lines.append(f"{positions} ({images}): {texts}")
        shown += len(occurrence.items)
        # `total` counts items that repeat an earlier one, so not the first of each occurrence.
        if repeat.kind == "item":
            shown -= 1
    more = repeat.total - shown
    if more > 0:
        lines.append(f"and {more} more")
    return tuple(lines)


def _limits(benchmark: str, runs: Sequence[RunReport]) -> list[str]:
    """Runs that evaluated only some items of a benchmark."""
    texts = {}
    for run in runs:
        # The config may belong to another tool, or to a version with other keys.
        options: Any = run.provenance.config
        for key in ("benchmarks", benchmark, "init_args"):
            options = options.get(key) if isinstance(options, dict) else None
        limited = isinstance(options, dict) and options.get("limit") is not None
        if run.text_only or not limited:
            continue
        seed = options.get("seed")
        how = f"items sampled with seed {seed}"
        if seed is None:
            how = "the first items only"
        texts[run.name] = f"limit {options['limit']}: {how}"
    return _by_text(texts, benchmark, runs)


def _by_text(texts: dict[str, str], benchmark: str, runs: Sequence[RunReport]) -> list[str]:
    """Each text once, followed by its runs unless all runs of the benchmark agree."""
    measured = [run for run in runs if run.of(benchmark) is not None]
    seeing = {run.name for run in measured if not run.text_only}
    different = list(dict.fromkeys(texts.values()))
    if len(different) == 1 and seeing <= texts.keys():
        return different
    lines = []
    for text in different:
        having = ", ".join(name for name in texts if texts[name] == text)
        lines.append(f"{text} ({having})")
    return lines
