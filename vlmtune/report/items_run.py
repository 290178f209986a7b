"""A run of another tool, from its items: numbers to compare with vlmtune's runs.

In: a file's items and the other runs of the report. Out: a run, and its items in their order.
Never: a comparison of items that are not the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import (
    cluster_robust_mean,
    connected_components,
    macro_mean,
    mean_cosine,
)
from vlmtune.metrics.intervals import bootstrap_mean
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.report.differences import item_groups
from vlmtune.report.items_file import STEM, Items, part_names
from vlmtune.report.run_report import Provenance, RunReport
from vlmtune.results.item_row import ItemRow
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Result
from vlmtune.types import ImageRef

VERSION = "items"  # of a benchmark that no run of vlmtune has


def run_of_items(
    path: Path, items: Items, others: Sequence[tuple[RunReport, Items]]
) -> tuple[RunReport, Items, tuple[str, ...]]:
    """Returns the run of a file of items, its items, and the benchmarks that do not compare.

    A benchmark compares with one of `others` if name and ids of all items agree and no caption
    differs from those in the other's items, as far as they are known. Its items then take the
    other's order, and its number is the other's primary metric. Without such a run the number is
    the mean of the outcomes.
    """
    if not items:
        raise UserError(f"expected items in {path}, got none: name a file with items")
    parts: set[str] = set()
    for name in items:
        parts.update(part_names(items, name))
    measured = {result.benchmark for run, _ in others for result in run.results}
    results = []
    ordered = {}
    apart = []
    for name, rows in items.items():
        by_id = {row.id: row for row in rows}
        if len(by_id) < len(rows):
            raise UserError(
                f"expected items of different ids in {path}, got one twice in {name}: give each "
                "its own"
            )
        ordered[name] = rows
        if name in parts:
            continue  # only the whole benchmark has a number
        like, listed = _counterpart(by_id, name, others)
        if like is not None:
            ordered[name] = listed
        elif name in measured:
            apart.append(name)
        results.append(_result(ordered[name], like))
    run_name = path.stem
    if path.stem == STEM and path.parent.name:
        run_name = path.parent.name
    report = RunReport(run_name, _provenance(path), tuple(results))
    return report, ordered, tuple(apart)


def _counterpart(
    by_id: Mapping[str, ItemRow], name: str, others: Sequence[tuple[RunReport, Items]]
) -> tuple[Result | None, tuple[ItemRow, ...]]:
    """The first result that is of these items, and the items in its order."""
    for run, known in others:
        result = run.of(name)
        listed = () if result is None else _like(by_id, result, known.get(name, ()))
        if listed:
            return result, listed
    return None, ()


def _like(
    by_id: Mapping[str, ItemRow], result: Result, rows: Sequence[ItemRow]
) -> tuple[ItemRow, ...]:
    """The items in the order of `result`; none if the items differ."""
    n = len(result.outcomes)
    ids = [row.id for row in rows]
    if len(rows) != n:  # vlmtune numbers items whose file is not there
        ids = [f"{result.benchmark}/{i}" for i in range(n)]
    has_all_ids = by_id.keys() >= set(ids)
    if len(by_id) != n or not has_all_ids:
        return ()
    listed = tuple(by_id[item_id] for item_id in ids)
    for row, known in zip(listed, rows, strict=False):
        both_known = row.captions and known.captions
        if both_known and row.captions != known.captions:
            return ()
    return listed


def _result(rows: Sequence[ItemRow], like: Result | None) -> Result:
    """The primary metric of the items, as `like` defines it."""
    if like is None:
        return _new_result(rows)
    outcomes = tuple(row.outcome for row in rows)
    every_item_alone = (tuple(range(len(rows))),)
    ways = like.cluster_ways or every_item_alone
    known_metric = like.metrics[like.primary]
    mean = _mean(outcomes, ways, item_groups(like), known_metric.unit)
    # Grades vary less than right and wrong answers: without clusters they are resampled.
    is_alone = not (like.cluster_ways or like.groups)
    is_graded = any(row.right is None for row in rows)
    if is_alone and is_graded and known_metric.unit == "fraction":
        mean = bootstrap_mean(torch.tensor(outcomes, dtype=torch.float64))
    # Chance, unit and direction belong to the definition of the metric, which both tools have.
    metric = replace(
        known_metric, value=mean.value, low=mean.low, high=mean.high, clusters=mean.clusters
    )
    if like.degree != 1:  # the formula of the interval holds for a plain mean only
        metric = replace(metric, low=None, high=None)
    # Whatever else the other run reports is of its own model.
    return replace(
        like,
        metrics={like.primary: metric},
        outcomes=outcomes,
        runs=(),
        examples=(),
        readings=(),
        series={},
        repeats=(),
    )


def _new_result(rows: Sequence[ItemRow]) -> Result:
    """The mean outcome of the items of a benchmark that no other run has."""
    outcomes = tuple(row.outcome for row in rows)
    clusters = _clusters(rows)
    # An outcome below 0 can only be a cosine.
    unit = "fraction" if min(outcomes) >= 0 else "cosine"
    graded = any(row.right is None for row in rows)
    name = "outcome" if graded else "accuracy"
    return Result(
        benchmark=rows[0].benchmark,
        version=VERSION,
        primary=name,
        metrics={name: _mean(outcomes, (clusters,), None, unit)},
        citation="items of another tool",
        outcomes=outcomes,
        clusters=clusters,
    )


def _mean(
    outcomes: Sequence[float], ways: Sequence[Sequence[int]], groups: ItemGroups | None, unit: str
) -> MetricValue:
    values = torch.tensor(outcomes, dtype=torch.float64)
    clusters = torch.tensor(ways).T
    if unit == "cosine":
        return mean_cosine(values, clusters)
    if groups is None:
        return cluster_robust_mean(values, clusters)
    return macro_mean(values, groups.members, clusters, weights=groups.present_weights())


def _clusters(rows: Sequence[ItemRow]) -> tuple[int, ...]:
    """Items that share an image get one number."""
    numbers: dict[object, int] = {}  # of each image; of an item without images, of its id
    members = []
    for row in rows:
        images = _shared(row) or (row.id,)
        of_item = [numbers.setdefault(image, len(numbers)) for image in images]
        members.append(of_item)
    # A tensor has rows of one length: the first image of an item is repeated.
    most = max(map(len, members))
    for of_item in members:
        of_item += of_item[:1] * (most - len(of_item))
    components = connected_components(torch.tensor(members))
    return tuple(components.tolist())


def _shared(row: ItemRow) -> tuple[ImageRef, ...]:
    """The images of an item; of a query, whose others are candidates, its best true one."""
    if row.rank is None:
        return row.images
    for image, truths in zip(row.images, row.true, strict=True):
        if any(truths):
            return (image,)
    return ()


def _provenance(path: Path) -> Provenance:
    return Provenance(
        backbone=f"unknown: scores of {path.name}",
        adapter="unknown",
        model={},
        fingerprint="",
        data="",
        config={"items": str(path)},
        versions={},
        commit="",
        date="",
        seed=None,
        trainable_parameters=0,
        seconds=0.0,
    )
