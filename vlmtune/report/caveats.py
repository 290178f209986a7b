"""What must be known before a number is believed: blind scores, lost rows, what occurs twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Repeat
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import Row, chance, interval, number, sections

REPEATED = {
    "item": "items that repeat an earlier one",
    "caption": "items whose right caption is also a wrong one",
    "image": "items with the same image twice",
}


@dataclass(frozen=True)
class Remark:
    """A sentence on a benchmark.

    Attributes:
        benchmark: The benchmark, with its convention where that is not the strict one.
        text: The sentence.
        serious: Whether it questions the numbers, rather than stating what was counted.
        lines: What it speaks of, one by one.
    """

    benchmark: str
    text: str
    serious: bool
    lines: tuple[str, ...] = ()


def remarks(runs: Sequence[RunReport]) -> tuple[Remark, ...]:
    """All remarks, benchmark by benchmark, the serious ones first."""
    found: list[Remark] = []
    for section in sections(runs):
        serious = [text for row in section.primary for text in _blind(row, runs)]
        plain = [text for row in section.primary for text in _lacking(row)]
        plain += [text for row in section.rows for text in _counted(row, runs)]
        plain += _drawn(section.head.benchmark, runs)
        title = section.head.title
        found += [Remark(title, text, True) for text in serious]
        found += [Remark(title, text, False) for text in plain]
        found += [
            Remark(title, text, False, lines) for text, lines in _repeated(section.head, runs)
        ]
    return tuple(found)


def beats_chance(metric: MetricValue) -> bool:
    """Whether the whole interval is better than chance.

    Example:
        >>> beats_chance(MetricValue(0.6, 100, 0.5, 0.51, 0.69))
        True
    """
    ends = (metric.low, metric.high)
    if metric.chance is None or None in ends:
        return False
    low, high = ends
    assert low is not None
    assert high is not None
    return low > metric.chance if metric.higher_is_better else high < metric.chance


def _blind(row: Row, runs: Sequence[RunReport]) -> list[str]:
    """What is solved without the image, and which runs do no better than that."""
    found = []
    for i in sorted(row.text_only):
        metric = row.cells[i]
        if metric is None or not beats_chance(metric):
            continue
        found.append(
            f"{runs[i].name} reaches {number(metric.value, metric.unit)} [{interval(metric)}], "
            f"chance is {chance(metric)}: captions alone give part of the answers away"
        )
        sign = 1 if metric.higher_is_better else -1
        found += [
            f"{runs[j].name} is no better than {runs[i].name} "
            f"({number(cell.value, cell.unit)}, not above {number(metric.value, metric.unit)})"
            for j, cell in enumerate(row.cells)
            if cell is not None
            and j not in row.text_only
            and sign * (cell.value - metric.value) <= 0
        ]
    return found


def _lacking(row: Row) -> list[str]:
    first = row.first
    found = [] if first.chance is not None else [f"no chance level is defined for {row.metric}"]
    if all(cell is None or cell.low is None for cell in row.cells):
        found.append(f"{row.metric} has no interval")
    return found


def _counted(row: Row, runs: Sequence[RunReport]) -> list[str]:
    """A count that is not zero, once where all runs agree."""
    if row.first.unit != "count":
        return []
    counts = {
        runs[i].name: f"{cell.value:.0f} of {cell.n}"
        for i, cell in enumerate(row.cells)
        if cell is not None and cell.value
    }
    name = row.metric.replace("_", " ")
    if len(set(counts.values())) == 1:
        return [f"{name}: {next(iter(counts.values()))}"]
    return [f"{name}: {text} ({run})" for run, text in counts.items()]


def _repeated(head: Row, runs: Sequence[RunReport]) -> list[tuple[str, tuple[str, ...]]]:
    """What occurs twice, with the first ones, once where all runs agree."""
    wanted = (head.benchmark, head.version, head.convention)
    found: dict[Repeat, list[str]] = {}
    seeing = [run for run in runs if not run.text_only]
    own = {
        run.name: result
        for run in seeing or runs
        for result in run.results
        if (result.benchmark, result.version, result.convention) == wanted
    }
    for name, result in own.items():
        for repeat in result.repeats:
            found.setdefault(repeat, []).append(name)
    said = []
    for one, names in found.items():
        text = f"{REPEATED[one.kind]}: {one.total} of {one.n}"
        text += "" if len(names) == len(own) else f" ({', '.join(names)})"
        said.append((text, _listed(one)))
    return said


def _listed(repeat: Repeat) -> tuple[str, ...]:
    lines, shown = [], 0
    for one in repeat.listed:
        places = ", ".join(map(str, one.items))
        texts = "; ".join(f'"{text}"' for text in one.texts)
        lines.append(f"{places} ({', '.join(one.images)}): {texts}")
        shown += len(one.items) - (repeat.kind == "item")
    more = repeat.total - shown
    return (*lines, f"and {more} more") if more > 0 else tuple(lines)


def _drawn(benchmark: str, runs: Sequence[RunReport]) -> list[str]:
    """That a benchmark was run on a part of its items, once where all runs agree."""
    found: dict[str, list[str]] = {}
    for run in runs:
        made: Any = run.provenance.config
        for key in ("benchmarks", benchmark, "init_args"):
            made = made.get(key) if isinstance(made, dict) else None
        if run.text_only or not isinstance(made, dict) or made.get("limit") is None:
            continue
        seed = made.get("seed")
        how = "the first ones" if seed is None else f"drawn with seed {seed}"
        text = f"a part of the items only, limit {made['limit']}, {how}"
        found.setdefault(text, []).append(run.name)
    if len(found) == 1:
        return list(found)
    return [f"{text} ({', '.join(names)})" for text, names in found.items()]
