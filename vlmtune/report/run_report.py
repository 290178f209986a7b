"""`report.json`: what one run scored, with everything needed to trust and repeat it.

Field by field (all fields are always present; unknown ones are refused on reading):

    schema                    int     version of this layout, `SCHEMA`
    name                      str     name of the run, unique within a report
    provenance
      backbone                str     the frozen model, as people call it
      adapter                 str     what was trained over it, as people call it; "zero-shot"
      model                   object  class paths and arguments: {"backbone": spec, "adapter": spec}
      fingerprint             str     digest of backbone weights and preprocessing
      data                    str     what it was trained on; "" where nothing was trained
      config                  object  of a training: objectives, pairs and steps, and under "fit"
                                      the complete config of `vlmtune fit`, empty for Python;
                                      of an evaluation: the model, and its training's if known;
                                      "benchmarks" has class path and arguments of each that was
                                      asked for, by name
      versions                object  library name -> version, Python included
      commit                  str     git commit of the code, "-dirty" appended where files were
                                      changed; "unknown" outside a repository
      date                    str     when the run ended, ISO 8601, UTC
      seed                    int?    seed of the run; null where nothing was drawn
      trainable_parameters    int     how many numbers training could change; 0 for zero-shot
      seconds                 float   wall-clock time of training, evaluation left out
    results                   list    one object for each benchmark
      benchmark               str     name of the benchmark instance
      version                 str     version of the metric's definition; others do not compare
      primary                 str     key of the metric that stands for the benchmark
      metrics                 object  name of the metric ->
        value                 float   a fraction (0.25 is 25 %) unless `unit` says otherwise
        n                     int     items it is a mean over
        chance                float?  what random scores reach; null where undefined
        low, high             float?  95 % interval; null where there is none
        higher_is_better      bool    the direction
        unit                  str     "fraction", "cosine", "rank" or "count"
      examples                list    retrievals for the gallery
        query                 str     the caption
        images                list    {"path": str, "box": [x, y, width, height]?}, best first
        scores                list    score of each image
        true                  list    whether the caption is true of each image
        correct               bool    whether the retrieval counts as right
      citation                str     where the metric is defined
      convention              str     "strict" (a tie is never a win, every row counts) or
                                      "reference" (as the published script does)
      outcomes                list    of each item what the primary metric gives it, 0 to 1, or a
                                      cosine; empty where that is no mean over items
      clusters                list    of each item the number of its image; empty where none
      series                  object  name -> one number for each item, whose distribution is drawn;
                                      `mean_scores` is four numbers, the mean 2 x 2 matrix by rows
      kind                    str     "compositional", or "retained" for what the model could do
                                      before training
      items                   str     digest of the images and captions scored; "" where unknown
      groups                  list    where the primary metric is a mean over groups of the mean
                                      within each: of each item the number of its group, -1 where
                                      it counts in none; empty for a plain mean
      shares                  list    weight of each group, by number; empty where all weigh alike
      degree                  int     2 where an outcome is a mean over pairs of its item with
                                      others, else 1
      repeats                 list    what occurs twice among the items
        kind                  str     "item": images and captions of an earlier item; "caption":
                                      the right caption is also a wrong one; "image": an image
                                      stands twice within an item
        total                 int     how many items are such
        n                     int     of how many
        listed                list    the first ones
          items               list    positions of the items, from 0
          images              list    their images
          texts               list    the captions in question
    curves                    object  name -> [[step, value], ...]; value is null where the number
                                      was not finite
    not_run                   list    [name, why] of each benchmark that could not be run
    blind                     bool    whether the scores never saw the image that was asked for

A `?` marks fields that may be null. In `config` and
`model`, paths and other objects are written as strings, numbers that are not finite as null.
Schema 1 lacked `not_run`, `convention`, `outcomes`, `clusters` and `series`, schema 2 `blind`,
`kind` and `items`, schema 3 `groups`, `shares`, `degree` and `repeats`; all are still read.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from vlmtune.errors import UserError
from vlmtune.metrics.value import MetricValue
from vlmtune.report.decode import MalformedError, decode
from vlmtune.report.files import write_text
from vlmtune.report.result import Result

SCHEMA = 4
# What each layout added to a run and to its results, and what that was before.
ADDED: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {
    2: (
        {"not_run": []},
        {"convention": "strict", "outcomes": [], "clusters": [], "series": {}},
    ),
    3: ({"blind": False}, {"kind": "compositional", "items": ""}),
    4: ({}, {"groups": [], "shares": [], "degree": 1, "repeats": []}),
}
CONVENTIONS = ("strict", "reference")
UNITS = ("fraction", "cosine", "rank", "count")
Curve = tuple[tuple[int, float | None], ...]


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from; the fields are described in the module docstring."""

    backbone: str
    adapter: str
    model: dict[str, Any]
    fingerprint: str
    data: str
    config: dict[str, Any]
    versions: dict[str, str]
    commit: str
    date: str
    seed: int | None
    trainable_parameters: int
    seconds: float


@dataclass(frozen=True)
class RunReport:
    """The numbers of one run and where they come from: `report.json` in memory.

    Attributes:
        name: Name of the run, unique within a report.
        provenance: Where the numbers come from.
        results: One for each benchmark.
        curves: Loss and metrics over training steps, by name.
        not_run: Name of each benchmark that could not be run, and why.
        blind: Whether the scores never saw the image that was asked for: what a benchmark gives
            away by its captions alone.

    Raises:
        UserError: A number is not finite, a primary metric is absent, or a benchmark occurs twice.
    """

    name: str
    provenance: Provenance
    results: tuple[Result, ...]
    curves: dict[str, Curve] = field(default_factory=dict)
    not_run: tuple[tuple[str, str], ...] = ()
    blind: bool = False

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise UserError("expected a name for the run, got a blank one: name it")
        names = [result.benchmark for result in self.results] + [name for name, _ in self.not_run]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(
                f"expected each benchmark once in run {self.name!r}, got {twice[0]!r} twice: "
                "give the two different names"
            )
        for result in self.results:
            _check(result)

    def save(self, path: Path) -> None:
        """Writes `report.json`: to a temporary name first, so that it is whole or not there.

        Raises:
            UserError: The file cannot be written.
        """
        whole = {"schema": SCHEMA, **_plain(self)}
        write_text(path, json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> "RunReport":
        """Reads `report.json`.

        Raises:
            UserError: The file cannot be read, or differs from the layout in any place.
        """
        try:
            raw = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
            if not isinstance(raw, dict):
                raise MalformedError("an object", raw, "the whole file")
            schema = raw.pop("schema", None)
            if type(schema) is not int or not 1 <= schema <= SCHEMA:
                raise MalformedError(f"1 to {SCHEMA}", schema, "schema")
            return decode(cls, _upgraded(raw, schema), "")
        except (OSError, ValueError) as error:
            raise UserError(
                f"expected a report.json of vlmtune in {path}, got {error}: "
                "evaluate the model again to write a new one"
            ) from error


def _upgraded(raw: dict[str, Any], schema: int) -> dict[str, Any]:
    """Adds what an earlier layout lacked; whatever else is wrong is left to be found."""
    for added in range(schema + 1, SCHEMA + 1):
        to_run, to_result = ADDED[added]
        results = raw.get("results")
        if isinstance(results, list):
            results = [{**to_result, **one} if isinstance(one, dict) else one for one in results]
            raw = {**raw, "results": results}
        raw = {**to_run, **raw}
    return raw


def _check(result: Result) -> None:
    if result.primary not in result.metrics:
        raise UserError(
            f"expected the primary metric {result.primary!r} among the metrics of "
            f"{result.benchmark}, got {sorted(result.metrics)}: correct the benchmark"
        )
    if result.convention not in CONVENTIONS:
        raise UserError(
            f"expected a convention of {', '.join(CONVENTIONS)} for {result.benchmark}, "
            f"got {result.convention!r}: correct the benchmark"
        )
    every = {"outcomes": result.outcomes, "shares": result.shares, **result.series}
    for name, numbers in every.items():
        if not all(math.isfinite(number) for number in numbers):
            raise UserError(
                f"expected finite numbers in {name} of {result.benchmark}, got others: "
                "evaluate again"
            )
    _check_groups(result)
    for name, metric in result.metrics.items():
        if metric.unit not in UNITS:
            raise UserError(
                f"expected a unit of {', '.join(UNITS)} for {name} of {result.benchmark}, "
                f"got {metric.unit!r}: correct the benchmark"
            )
        numbers = (metric.value, metric.chance, metric.low, metric.high)
        if any(x is not None and not math.isfinite(x) for x in numbers):
            raise UserError(
                f"expected finite numbers for {name} of {result.benchmark}, got {_show(metric)}: "
                "evaluate again"
            )


def _check_groups(result: Result) -> None:
    """That there is a group for each outcome, and a weight for each group."""
    n, shares, largest = len(result.outcomes), len(result.shares), max(result.groups, default=-1)
    for name, numbers in (("clusters", result.clusters), ("groups", result.groups)):
        if numbers and len(numbers) != n:
            raise UserError(
                f"expected {name} of {n} items of {result.benchmark}, got {len(numbers)}: "
                "evaluate again"
            )
    if (result.groups and largest < 0) or (shares and shares <= largest):
        raise UserError(
            f"expected groups with weights in {result.benchmark}, got {shares} weights and the "
            f"group {largest}: evaluate again"
        )


def _show(metric: MetricValue) -> str:
    return f"value {metric.value}, chance {metric.chance}, interval {metric.low} to {metric.high}"


def _plain(value: Any) -> Any:
    """Turns dataclasses, tuples and paths into what JSON has; other objects into strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return str(value)


def _refuse(constant: str) -> None:
    raise MalformedError("a finite number", constant, "a number")
