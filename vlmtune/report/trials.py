"""The trials of a sweep in one table: what varied, and what each reached.

In: the folder of a sweep, with a run in each subfolder. Out: trials, best first, and how each
hyper-parameter goes with the metric. Never: a training.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator, PercentFormatter
from scipy.stats import spearmanr

from vlmtune.errors import UserError, counted
from vlmtune.report.formats import csv_text, no_formula
from vlmtune.report.plots import RUN_COLOURS, STYLE, plot_axes, svg_of
from vlmtune.report.printable import printable
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import interval, number
from vlmtune.results.metric_value import MetricValue

# Keys that differ between trials because each has its own folder, log and name.
RUN_KEYS = re.compile(
    r"default_root_dir|ckpt_path|dirpath|logger|^config\b|^trainer\.callbacks\..*\bname$"
)
CLASS = "class_path"
EARLIER = "earlier_"  # folders of what a run wrote before it was started again
WIDE = 20  # largest by smallest number, from which on an axis is logarithmic
FEWEST = 4
"""Trials below which a correlation says nothing."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        folder: Its folder.
        name: Its folder's path in the sweep's folder.
        report: Its report, without what it says of each item.
        values: Its value of each key that varied, in the order of `Trials.keys`.
        metric: What it reached.
    """

    folder: Path
    name: str
    report: RunReport
    values: tuple[Any, ...]
    metric: MetricValue


@dataclass(frozen=True)
class Trials:
    """The finished trials of a sweep, best first.

    Attributes:
        metric: What they are sorted by, as "cola/accuracy".
        keys: What varied.
        trials: The trials.
        unfinished: Names of the folders without a report.
        lacking: Names of the folders whose report lacks the metric.
    """

    metric: str
    keys: tuple[str, ...]
    trials: tuple[Trial, ...]
    unfinished: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()

    @property
    def mixed(self) -> str:
        """A warning if not all trials measured the same items by the same definition, or ""."""
        benchmark, _, _ = self.metric.partition("/")
        measured = set()
        for trial in self.trials:
            result = trial.report.of(benchmark)
            if result is not None:
                measured.add((result.definition, result.items_digest))
        if len(measured) < 2:
            return ""
        return (
            f"{benchmark} has other items or another version in some trials, so their order says "
            "little: evaluate them again."
        )

    def correlation(self, key: str) -> float | None:
        r"""Spearman's $\rho$ of a numeric hyper-parameter and the metric; None for few values."""
        xs = self.numbers(key)
        ys = [trial.metric.value for trial in self.trials]
        if xs is None or len(xs) < FEWEST:
            return None
        # A constant has no rank order, and so no correlation.
        if len(set(xs)) < 2 or len(set(ys)) < 2:
            return None
        rho, _ = np.asarray(spearmanr(xs, ys))
        return float(rho)

    def numbers(self, key: str) -> list[float] | None:
        """The values of a key, if all of them are numbers."""
        position = self.keys.index(key)
        numbers = []
        for trial in self.trials:
            value = trial.values[position]
            # Python counts True and False as integers.
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            numbers.append(float(value))
        return numbers


def trial_files(folder: Path) -> list[Path]:
    """The reports of the runs of a sweep, or of `vlmtune compare`, which has a folder a seed."""
    files = [*folder.glob("*/report.json"), *folder.glob("*/seed-*/report.json")]
    return sorted(file for file in files if not file.parent.name.startswith(EARLIER))


def read_trials(folder: Path, metric: str | None = None, searched: str = "") -> Trials:
    """Reads the trials in the subfolders of a sweep.

    `metric` is a benchmark's name, or BENCHMARK/METRIC; by default what the sweep `searched` by, or
    else what checkpoints are chosen by, or else the first benchmark.
    """
    reports = {}
    for file in trial_files(folder):
        report = RunReport.load(file)
        if "fit" in report.provenance.config:  # `compare` also measures the untrained model
            reports[file.parent] = _without_items(report)
    if not reports:
        raise UserError(
            f"expected trained runs in {folder}, got none: name the folder of a sweep, or each "
            f"report, as in {folder}/*"
        )
    configs = []
    for report in reports.values():
        config = report.provenance.config.get("fit", {})
        configs.append(dict(_flat(config)))
    # Only what differs: a config has some hundred keys.
    keys = _varied(configs)
    with_results = [report for report in reports.values() if report.results]
    first_report = [*with_results, *reports.values()][0]
    if not metric:
        metric = _default_metric(searched, configs[0], first_report)
    trials = []
    lacking = []
    for (path, report), config in zip(reports.items(), configs, strict=True):
        reached = _reached(report, metric)
        if reached is None:
            lacking.append(str(path.relative_to(folder)))
            continue
        trial = Trial(
            folder=path,
            name=str(path.relative_to(folder)),
            report=report,
            values=tuple(_value(config, key) for key in keys),
            metric=reached,
        )
        trials.append(trial)
    if not trials:
        known = [f"{result.benchmark}/{result.primary}" for result in first_report.results]
        raise UserError(
            f"expected {metric!r} in the reports of {folder}, got {', '.join(known) or 'no number'}"
            ": name one of these by --metric"
        )
    # Sorting is stable: equal trials keep the order of their folders.
    higher_first = trials[0].metric.higher_is_better
    trials.sort(key=lambda trial: trial.metric.value, reverse=higher_first)
    short_keys = tuple(map(_short, keys))
    return Trials(metric, short_keys, tuple(trials), _without_report(folder), tuple(lacking))


def _without_items(report: RunReport) -> RunReport:
    """A report without what it says of each item, which would fill the memory for many trials."""
    results = []
    for result in report.results:
        bare = replace(
            result, outcomes=(), clusters=(), caption_sets=(), groups=(), group_weights=(), runs=(),
            series={}, examples=(), readings=(),
        )  # fmt: skip
        results.append(bare)
    return replace(report, results=tuple(results))


def _without_report(folder: Path) -> tuple[str, ...]:
    """The names of the subfolders whose run is running or failed."""
    with_report = {file.parent for file in trial_files(folder)}
    names = []
    for path in sorted(folder.iterdir()):
        # `vlmtune compare` has a folder for each seed.
        runs = sorted(path.glob("seed-*")) or [path]
        for run in runs:
            is_trial = run.is_dir() and not run.name.startswith(EARLIER)
            if is_trial and run not in with_report:
                names.append(str(run.relative_to(folder)))
    return tuple(names)


def _flat(config: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a config by dotted keys."""
    if isinstance(config, Mapping):
        items = list(config.items())
    elif isinstance(config, list | tuple):
        items = list(enumerate(config))
    else:
        yield key, config
        return
    for name, value in items:
        inner = f"{key}.{name}".removeprefix(".")
        yield from _flat(value, inner)


def _varied(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values differ between trials.

    An argument that only some trials have differs if they give it several values, or if all trials
    have the same classes around it: else the choice of the class says as much.
    """
    keys: dict[str, None] = {}
    for config in configs:
        keys |= dict.fromkeys(config)
    varied = []
    for key in keys:
        if RUN_KEYS.search(key):
            continue
        stated = [repr(config[key]) for config in configs if key in config]
        is_missing = len(stated) < len(configs)
        differs = len(set(stated)) > 1 or (is_missing and not _in_other_class(key, configs))
        # A null is the same as nothing to a reader of the table.
        shown = {repr(_value(config, key)) for config in configs}
        if differs and len(shown) > 1:
            varied.append(key)
    return varied


def _in_other_class(key: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the trials have several classes around a key."""
    parts = key.split(".")
    for length in range(1, len(parts)):
        around = ".".join([*parts[:length], CLASS])
        classes = {config.get(around) for config in configs}
        if around != key and len(classes) > 1:
            return True
    return False


def _value(config: Mapping[str, Any], key: str) -> Any:
    """The value of a key; of a class its name alone."""
    value = config.get(key)
    if key.endswith(CLASS) and value is not None:
        return str(value).rpartition(".")[2]
    return value


def _short(key: str) -> str:
    """A key without the words that all keys have.

    Example:
        >>> _short("model.optimizer.init_args.lr")
        'optimizer.lr'
    """
    parts = [part for part in key.split(".") if part not in ("init_args", CLASS)]
    return ".".join(parts).removeprefix("model.")


def _default_metric(searched: str, config: Mapping[str, Any], report: RunReport) -> str:
    """What chose in the sweep or its runs, if it is a number of a benchmark; else the first one."""
    monitors = [str(value) for key, value in config.items() if key.endswith(".monitor")]
    names = [result.benchmark for result in report.results]
    for metric in (searched, *monitors):
        benchmark, _, _ = metric.partition("/")
        if benchmark in names:
            return metric
    return names[0] if names else ""


def _reached(report: RunReport, name: str) -> MetricValue | None:
    benchmark, _, metric = name.partition("/")
    result = report.of(benchmark)
    if result is None:
        return None
    return result.metrics.get(metric or result.primary)


def trials_csv(trials: Trials) -> str:
    """Writes a line for each trial, best first: what varied, the metric and its interval."""
    heads = ["trial", *trials.keys, trials.metric, "low", "high", "seconds"]
    lines: list[list[Any]] = [heads]
    for trial in trials.trials:
        cells: list[Any] = []
        for cell in (trial.name, *trial.values):
            if not isinstance(cell, int | float):
                # Strangers chose names and texts: a spreadsheet must not obey them.
                cell = no_formula(printable(str(cell)))
            cells.append(cell)
        metric = trial.metric
        cells += [metric.value, metric.low, metric.high]
        cells.append(round(trial.report.provenance.seconds))
        lines.append(cells)
    return csv_text(lines)


def trials_view(trials: Trials) -> dict[str, Any]:
    """The table and the plots as the template of the page shows them."""
    rows = []
    for trial in trials.trials:
        row = {
            "name": trial.name,
            "cells": list(map(_text, trial.values)),
            "reached": number(trial.metric.value, trial.metric.unit),
            "interval": interval(trial.metric),
        }
        rows.append(row)
    lead = f"{counted(len(rows), 'trial')}, the best first, with what varied between them."
    if trials.unfinished:
        lead += f" Without a report, running or failed: {', '.join(trials.unfinished)}."
    if trials.lacking:
        lead += f" Without {trials.metric}: {', '.join(trials.lacking)}."
    if trials.mixed:
        lead += f" Warning: {trials.mixed}"
    lead += (
        " The 95 % interval is beside each number. The best of many trials is partly luck: measure "
        "it again on a benchmark that chose nothing."
    )
    best = rows[0]
    title = f"The best of {counted(len(rows), 'trial')} is {best['name']}"
    return {
        "title": f"{title}: {best['reached']} {trials.metric}",
        "lead": lead,
        "metric": trials.metric,
        "columns": list(trials.keys),
        "rows": rows,
        "plots": [_plot(trials, position) for position in range(len(trials.keys))],
    }


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "none" if value is None else str(value)


def _plot(trials: Trials, position: int) -> dict[str, Any]:
    key = trials.keys[position]
    xs: Sequence[Any] | None = trials.numbers(key)
    if xs is None:
        xs = [_text(trial.values[position]) for trial in trials.trials]
    ys = [trial.metric.value for trial in trials.trials]
    rho = trials.correlation(key)
    text = ""
    if rho is not None:
        text = f"Spearman's ρ {rho:+.2f} over {counted(len(ys), 'trial')}"
    svg = scatter_plot(xs, ys, f"trial{position}", trials.trials[0].metric.unit)
    return {"name": key, "rho": text, "svg": svg}


def scatter_plot(xs: Sequence[Any], ys: Sequence[float], key: str, unit: str = "") -> Markup:
    """Draws a dot for each pair; the axis of numbers over a wide range is logarithmic.

    Texts as x are categories, in alphabetical order.
    """
    are_texts = any(isinstance(x, str) for x in xs)
    categories = sorted(set(map(str, xs)))
    positions = list(xs)
    if are_texts:
        positions = [categories.index(str(x)) for x in xs]
    low = min(positions)
    high = max(positions)
    with mpl.rc_context(STYLE):
        figure, axes = plot_axes()
        axes.scatter(positions, ys, color=RUN_COLOURS[1], s=22, alpha=0.8, linewidth=0)
        if are_texts:
            axes.set_xticks(range(len(categories)), categories)
            axes.margins(x=0.2)
        elif low > 0 and high >= WIDE * low:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        else:
            whole = all(float(x).is_integer() for x in positions)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=whole))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        if unit == "fraction":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        return svg_of(figure, key)
