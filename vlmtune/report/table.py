"""Runs side by side: which numbers compare, which is best, and how a number is written."""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmtune.errors import UserError
from vlmtune.report.results import RunReport
from vlmtune.types import Metric

SERIES = 8  # distinct colours of the page; further runs start over
UNIT_DIGITS = {"rank": 2, "count": 0}


@dataclass(frozen=True)
class Row:
    """One metric over all runs.

    Numbers stand in one row only where they compare: same benchmark, same version of the
    definition, same convention, same metric, same number of items.

    Attributes:
        benchmark: Name of the benchmark.
        version: Version of its definition; the convention is added where it is not "strict".
        metric: Name of the metric.
        primary: True where it stands for the benchmark.
        cells: The metric of each run, None where the run does not have it.
    """

    benchmark: str
    version: str
    metric: str
    primary: bool
    cells: tuple[Metric | None, ...]

    @property
    def first(self) -> Metric:
        """Any of the metrics; n, chance and direction are those of all."""
        return next(cell for cell in self.cells if cell is not None)

    @property
    def best(self) -> frozenset[int]:
        """Positions of the best runs; empty for counts and where nothing is compared."""
        present = {i: cell.value for i, cell in enumerate(self.cells) if cell is not None}
        if len(present) < 2 or self.first.unit == "count":
            return frozenset()
        choose = max if self.first.higher_is_better else min
        top = choose(present.values())
        return frozenset(i for i, value in present.items() if value == top)

    @property
    def arrow(self) -> str:
        """The direction in which numbers get better."""
        return "" if self.first.unit == "count" else "↑" if self.first.higher_is_better else "↓"


def check_runs(runs: Sequence[RunReport]) -> None:
    """Raises `UserError` where there are no runs, or two have one name."""
    names = [run.name for run in runs]
    if not names:
        raise UserError("expected at least one run to report, got none: evaluate a model first")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"expected runs of different names, got {twice[0]!r} twice: rename one")


def rows(runs: Sequence[RunReport]) -> tuple[Row, ...]:
    """All metrics of all runs; benchmarks and metrics keep their order of first appearance."""
    cells: dict[tuple[str, str, str, int], list[Metric | None]] = {}
    primary = set()
    for i, run in enumerate(runs):
        for result in run.results:
            strict = result.convention == "strict"
            version = result.version if strict else f"{result.version}, {result.convention}"
            for name, metric in result.metrics.items():
                key = (result.benchmark, version, name, metric.n)
                cells.setdefault(key, [None] * len(runs))[i] = metric
                if name == result.primary:
                    primary.add(key)
    order = list(dict.fromkeys(key[:2] for key in cells))
    keys = sorted(cells, key=lambda key: order.index(key[:2]))
    return tuple(Row(*key[:3], key in primary, tuple(cells[key])) for key in keys)


def zero_shot(runs: Sequence[RunReport]) -> int | None:
    """Position of the one run in which nothing was trained, or None.

    It is what the others are compared with.
    """
    found = [i for i, run in enumerate(runs) if run.provenance.trainable_parameters == 0]
    return found[0] if len(found) == 1 else None


def series(runs: Sequence[RunReport]) -> tuple[int, ...]:
    """Number of each run's colour: 0, the neutral one, where nothing was trained, else 1 on.

    With more runs than colours they repeat.
    """
    trained = iter(range(len(runs)))
    return tuple(
        1 + next(trained) % (SERIES - 1) if run.provenance.trainable_parameters else 0
        for run in runs
    )


def number(value: float, unit: str) -> str:
    """Writes a number in its unit.

    Example:
        >>> number(0.2142, "fraction"), number(8.853, "rank"), number(3.0, "count")
        ('21.4 %', '8.85', '3')
    """
    return f"{100 * value:.1f} %" if unit == "fraction" else f"{value:.{UNIT_DIGITS[unit]}f}"


def interval(metric: Metric) -> str:
    """Writes the 95 % interval, or nothing where there is none.

    Example:
        >>> interval(Metric(0.5, 10, low=0.2366, high=0.7634))
        '23.7–76.3'
    """
    if metric.low is None or metric.high is None:
        return ""
    low, high = (number(x, metric.unit).removesuffix(" %") for x in (metric.low, metric.high))
    return f"{low}–{high}"


def chance(metric: Metric) -> str:
    """Writes the chance level, or a dash."""
    return "–" if metric.chance is None else number(metric.chance, metric.unit)


def count(n: int) -> str:
    """Writes how many parameters there are.

    Example:
        >>> count(0), count(512), count(7_752_704), count(1_260_000_000)
        ('0', '512', '7.75 M', '1.26 B')
    """
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**4, "k")):
        if n >= size:
            unit = 1000 if letter == "k" else size
            return f"{n / unit:.3g} {letter}"
    return str(n)


def duration(seconds: float) -> str:
    """Writes a time span.

    Example:
        >>> duration(0.0), duration(42.4), duration(754.0), duration(7322.0)
        ('0 s', '42 s', '12 min 34 s', '2 h 2 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
