"""Runs side by side: which numbers compare, which is best, and how each is formatted.

In: run reports. Out: rows and sections, and the columns of facts that every rendering walks.
Never: a new number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal

from vlmtune.errors import UserError
from vlmtune.report.run_report import RunReport
from vlmtune.results.metric_value import MetricValue

COLOURS = 8  # of the page; further runs repeat them
MARKERS = "ooDs^vPh"  # of the colours of runs, as the page's legend has them
Definition = tuple[str, str, str]  # benchmark, version and convention
_Line = tuple[str, int, str]  # the name of a metric, the number of its items, and their digest
Kind = Literal["compositional", "retained", "sensitivity"]
KINDS: tuple[Kind, ...] = ("compositional", "retained")  # of benchmarks
ORDER: tuple[Kind, ...] = (*KINDS, "sensitivity")
UNIT_DIGITS = {"cosine": 3, "rank": 2, "count": 0}


@dataclass(frozen=True)
class Row:
    """One metric of all runs.

    Numbers share a row only if they compare: same benchmark, version of the definition,
    convention, metric and items. Where the items are not known, their number counts.
    """

    benchmark: str
    version: str
    convention: str
    metric: str  # "family/group" for a metric of some of the items
    primary: bool
    cells: tuple[MetricValue | None, ...]  # one a run
    text_only: frozenset[int] = frozenset()  # positions of runs that are never the best
    kind: Kind = "compositional"

    @property
    def definition(self) -> Definition:
        """Benchmark, version and convention."""
        return self.benchmark, self.version, self.convention

    @property
    def first(self) -> MetricValue:
        """The first metric; all share n, chance and direction."""
        return next(cell for cell in self.cells if cell is not None)

    @cached_property
    def best(self) -> frozenset[int]:
        """Positions of the best runs; empty for counts, sensitivities and a single run."""
        if self.kind == "sensitivity":  # more of it is neither better nor worse
            return frozenset()
        present = {}
        for i, cell in enumerate(self.cells):
            if cell is not None and i not in self.text_only:
                present[i] = cell.value
        if len(present) < 2 or self.first.unit == "count":
            return frozenset()
        choose = max if self.first.higher_is_better else min
        top = choose(present.values())
        return frozenset(i for i, value in present.items() if value == top)

    @property
    def arrow(self) -> str:
        """↑ if higher is better, ↓ if lower is."""
        if self.first.unit == "count" or self.kind == "sensitivity":
            return ""
        return "↑" if self.first.higher_is_better else "↓"

    @property
    def directed(self) -> str:
        """The metric with its arrow."""
        return f"{self.metric} {self.arrow}".strip()

    @property
    def title(self) -> str:
        """The benchmark, with its convention unless that is the strict one."""
        return titled(self.benchmark, self.convention)


@dataclass(frozen=True)
class Section:
    """A benchmark under one version and one convention: the rows of one table."""

    rows: tuple[Row, ...]  # the primary metric, other metrics of all items, metrics of groups

    @property
    def primary(self) -> tuple[Row, ...]:
        """The rows of the primary metric; several if numbers of items differ."""
        return tuple(row for row in self.rows if row.primary)

    @property
    def head(self) -> Row:
        """The first row, for the benchmark's name, kind, version and convention."""
        return self.rows[0]


@dataclass(frozen=True)
class Column:
    """A fact about a metric: a column of every table, left of the scores of the runs."""

    title: str
    value: Callable[[MetricValue], float | None]  # for CSV and loggers
    text: Callable[[Row], str] | None  # for people; None if another column's text includes it


# A new entry appears on the terminal, in Markdown, HTML, LaTeX, CSV and in loggers.
COLUMNS = (
    Column("n", lambda metric: metric.n, lambda row: size(row.first)),
    Column("clusters", lambda metric: metric.clusters, None),
    Column("chance", lambda metric: metric.chance, lambda row: chance(row.first)),
)
TITLES = tuple(column.title for column in COLUMNS if column.text is not None)


def facts(row: Row) -> list[str]:
    """The cells of a row under `TITLES`.

    Example:
        >>> TITLES, facts(Row("b", "1", "strict", "map", True, (MetricValue(0.5, 9, 0.25),)))
        (('n', 'chance'), ['9', '25.0 %'])
    """
    return [column.text(row) for column in COLUMNS if column.text is not None]


def check_runs(runs: Sequence[RunReport]) -> None:
    """Raises `UserError` if two runs share a name."""
    names = [run.name for run in runs]
    for name in sorted(names):
        if names.count(name) > 1:
            raise UserError(
                f"expected runs of different names, got {name!r} twice: rename one, or leave one "
                "out if both are the same run"
            )


def rows(runs: Sequence[RunReport]) -> tuple[Row, ...]:
    """All metrics of all runs, by kind of benchmark and by what it asks.

    Otherwise they keep their order of first appearance, and so do these groups.
    """
    # Rows are collected by definition first: a later run may add metrics to an earlier benchmark.
    cells: dict[Definition, dict[_Line, list[MetricValue | None]]] = {}
    primary: set[tuple[Definition, _Line]] = set()
    questions: dict[str, tuple[Kind, str]] = {}
    digests: dict[Definition, set[str]] = {}
    for result in chain.from_iterable(run.results for run in runs):
        digests.setdefault(result.definition, set()).add(result.items_digest)
    for position, run in enumerate(runs):
        for result in run.results:
            questions.setdefault(result.benchmark, (result.kind, result.asks))
            lines = cells.setdefault(result.definition, {})
            # Numbers over other items do not compare, so they get another row.
            known = digests[result.definition] - {""}
            digest = result.items_digest if len(known) > 1 else ""
            for name, metric in result.metrics.items():
                line = (name, metric.n, digest)
                row = lines.setdefault(line, [None] * len(runs))
                row[position] = metric
                if name == result.primary:
                    primary.add((result.definition, line))
    # Sorting is stable: questions of one kind keep their order of first appearance.
    groups = list(dict.fromkeys(questions.values()))
    groups.sort(key=lambda group: ORDER.index(group[0]))

    def position_of_question(definition: Definition) -> int:
        return groups.index(questions[definition[0]])

    text_only = frozenset(i for i, run in enumerate(runs) if run.text_only)
    out = []
    for definition in sorted(cells, key=position_of_question):
        benchmark, *_ = definition
        kind, _ = questions[benchmark]
        for line, of_runs in cells[definition].items():
            metric, *_ = line
            table_row = Row(
                *definition,
                metric=metric,
                primary=(definition, line) in primary,
                cells=tuple(of_runs),
                text_only=text_only,
                kind=kind,
            )
            out.append(table_row)
    return tuple(out)


def sections(runs: Sequence[RunReport]) -> tuple[Section, ...]:
    """The rows by benchmark, version and convention."""
    parts: dict[Definition, list[Row]] = {}
    for row in rows(runs):
        parts.setdefault(row.definition, []).append(row)
    out = []
    for part in parts.values():
        # Sorting is stable: primary, other and grouped metrics keep their order among themselves.
        part.sort(key=lambda row: (not row.primary, "/" in row.metric))
        out.append(Section(tuple(part)))
    return tuple(out)


def baseline(runs: Sequence[RunReport]) -> int | None:
    """Position of the run to compare the others with: the first that is not text-only.

    None if there is no other run to compare.
    """
    with_images = [i for i, run in enumerate(runs) if not run.text_only]
    return with_images[0] if len(with_images) > 1 else None


def colours(runs: Sequence[RunReport]) -> tuple[int, ...]:
    """Number of each run's colour: 0, the neutral one, for the first zero-shot run, else from 1.

    Text-only runs count as trained, to tell them from the zero-shot run. With more runs than
    colours they repeat.
    """
    out: list[int] = []
    coloured = 0
    for run in runs:
        zero_shot = not run.text_only and not run.provenance.trainable_parameters
        if zero_shot and 0 not in out:
            out.append(0)
        else:
            out.append(1 + coloured % (COLOURS - 1))
            coloured += 1
    return tuple(out)


def titled(benchmark: str, convention: str) -> str:
    """Formats the name of a benchmark, with its convention unless that is the strict one.

    Example:
        >>> titled("valse", "strict"), titled("valse", "reference")
        ('valse', 'valse (reference)')
    """
    return benchmark if convention == "strict" else f"{benchmark} ({convention})"


def number(value: float, unit: str) -> str:
    """Formats a number in its unit.

    Example:
        >>> number(0.2142, "fraction"), number(-0.25, "cosine"), number(8.853, "rank")
        ('21.4 %', '-0.250', '8.85')
    """
    if unit == "fraction":
        return f"{100 * value:.1f} %"
    return f"{value:.{UNIT_DIGITS[unit]}f}"


def interval(metric: MetricValue) -> str:
    """Formats the 95 % interval; "" if there is none.

    Example:
        >>> interval(MetricValue(0.5, 10, low=0.2366, high=0.7634))
        '23.7–76.3'
    """
    if metric.low is None or metric.high is None:
        return ""
    low = number(metric.low, metric.unit).removesuffix(" %")
    high = number(metric.high, metric.unit).removesuffix(" %")
    return f"{low}–{high}"


def bracketed(metric: MetricValue | None) -> str:
    """Formats a number with its interval, if it has one; a dash for None.

    Example:
        >>> bracketed(MetricValue(0.5, 10, low=0.2366, high=0.7634)), bracketed(MetricValue(0.5, 4))
        ('50.0 % [23.7–76.3]', '50.0 %')
    """
    if metric is None:
        return "–"
    text = number(metric.value, metric.unit)
    limits = interval(metric)
    return f"{text} [{limits}]" if limits else text


def size(metric: MetricValue) -> str:
    """Formats the number of items, and that of their clusters if it is smaller.

    Example:
        >>> size(MetricValue(0.5, 12)), size(MetricValue(0.5, 500, clusters=2))
        ('12', '500 (2 clusters)')
    """
    if metric.clusters is None or metric.clusters >= metric.n:
        return str(metric.n)
    noun = "clusters" if metric.clusters > 1 else "cluster"
    return f"{metric.n} ({metric.clusters} {noun})"


def change(difference: float, unit: str) -> str:
    """Formats a difference with its sign, in percentage points for fractions.

    Example:
        >>> change(0.21, "fraction"), change(-0.25, "rank"), change(0.0001, "fraction")
        ('+21.0', '-0.25', '±0.0')
    """
    if unit == "fraction":
        difference = 100 * difference
        digits = 1
    else:
        digits = UNIT_DIGITS[unit]
    rounded = round(difference, digits)
    if rounded == 0:
        return f"±{0:.{digits}f}"
    return f"{rounded:+.{digits}f}"


def direction(difference: float, higher_is_better: bool) -> str:
    """Whether a number that changed so is "better" or "worse"; "" if it did not change."""
    if not difference:
        return ""
    return "better" if (difference > 0) == higher_is_better else "worse"


def amount(difference: float, unit: str) -> str:
    """Formats a difference with its sign and unit.

    Example:
        >>> amount(0.21, "fraction"), amount(-1.0, "rank"), amount(0.25, "cosine")
        ('+21.0 points', '-1.00 ranks', '+0.250')
    """
    noun = {"fraction": "points", "rank": "ranks"}.get(unit, "")
    return f"{change(difference, unit)} {noun}".strip()


def signed_interval(low: float | None, high: float | None, unit: str) -> str:
    """Formats the interval of a difference; "" if there is none.

    Example:
        >>> signed_interval(-0.012, 0.3, "fraction")
        '-1.2 to +30.0'
    """
    if low is None or high is None:
        return ""
    return f"{change(low, unit)} to {change(high, unit)}"


def p_value(p: float) -> str:
    """Formats a p value.

    Example:
        >>> p_value(0.21875), p_value(0.00001)
        ('0.219', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def chance(metric: MetricValue) -> str:
    """Formats the chance level, or a dash."""
    return "–" if metric.chance is None else number(metric.chance, metric.unit)


def count(n: int) -> str:
    """Formats a number of parameters.

    Example:
        >>> count(0), count(512), count(999_700), count(7_752_704), count(1_260_000_000)
        ('0', '512', '1 M', '7.75 M', '1.26 B')
    """
    if n >= 0.9995 * 10**9:  # what would be rounded to "1e+03 M"
        return f"{n / 10**9:.3g} B"
    if n >= 0.9995 * 10**6:
        return f"{n / 10**6:.3g} M"
    if n >= 10**4:  # smaller numbers are written out
        return f"{n / 1000:.3g} k"
    return str(n)


def duration(seconds: float) -> str:
    """Formats a time span.

    Example:
        >>> duration(0.0), duration(42.4), duration(754.0), duration(7322.0)
        ('0 s', '42 s', '12 min 34 s', '2 h 2 min')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minute} min"
    if minutes:
        return f"{minute} min {second} s"
    return f"{second} s"
