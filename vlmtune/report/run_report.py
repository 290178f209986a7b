"""`report.json`: what one run scored, with everything needed to judge and repeat it.

In: results and provenance. Out: `report.json`, and the run again. Never: a secret, or NaN.

The classes of this room are the layout of the file; their attributes document its fields. All
fields are written, unknown ones are refused on reading. In `config` and `model`, paths and other
objects become strings; numbers that are NaN or infinite become null, as they do in curves.
"""

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from vlmtune.errors import UserError
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Result
from vlmtune.storage.files import read_json, write_text
from vlmtune.storage.secrets import without_secrets

SCHEMA = 5  # version of the layout, the field `schema` of the file
Curve = tuple[tuple[int, float | None], ...]


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from.

    Attributes:
        backbone: Name of the frozen model.
        adapter: Name of the trained adapter, or "zero-shot".
        model: Class paths and arguments: `{"backbone": spec, "adapter": spec}`.
        fingerprint: Digest of backbone weights and preprocessing.
        data: Training data; "" if nothing was trained.
        config: For training: objectives, pairs and steps, the records and the digest of each
            training set, and under "fit" the complete config of `vlmtune fit` (empty for a run
            from Python). For an evaluation: the model, and its
            training if known; under "benchmarks" the class path and arguments of each benchmark.
            Always the command line and the hardware. Without passwords, tokens and keys.
        versions: Version of each library and of Python.
        commit: Git commit of the code, with "-dirty" if files were changed; "unknown" outside a
            repository.
        date: When the run ended, ISO 8601, UTC.
        seed: Seed of the run, or None if nothing was random.
        trainable_parameters: Number of trainable parameters; 0 for zero-shot.
        seconds: Wall-clock time of training, without evaluation.
    """

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

    def __post_init__(self) -> None:
        # The checkpoint or export that is measured may be one of before secrets were left out.
        for name in ("data", "model", "config"):
            object.__setattr__(self, name, without_secrets(getattr(self, name)))

    @property
    def known(self) -> bool:
        """Whether vlmtune measured the run; False if another tool did, and only items are known."""
        return bool(self.commit)

    @property
    def random_weights(self) -> bool:
        """Whether the frozen model was never trained; `Backbone.title` says so in its name."""
        return self.backbone.endswith("(random weights)")


@dataclass(frozen=True)
class RunReport:
    """The numbers of one run and where they come from: `report.json` in memory.

    Attributes:
        name: Name of the run, unique within a report.
        provenance: Where the numbers come from.
        results: One for each benchmark.
        curves: Loss and metrics over training: name -> (step, value) pairs. A value that was not
            finite is None in the file.
        not_run: Name of each benchmark that could not run, and why.
        text_only: Whether the scores do not depend on the image: what the captions alone give away.

    Raises:
        UserError: A number is not finite, a primary metric is absent, or a benchmark occurs twice.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False
    )

    name: str
    provenance: Provenance
    results: tuple[Result, ...]
    curves: dict[str, Curve] = field(default_factory=dict)
    not_run: tuple[tuple[str, str], ...] = ()
    text_only: bool = False

    def __post_init__(self) -> None:
        names = [result.benchmark for result in self.results]
        names += [name for name, _ in self.not_run]
        # Reports compare by name: of two results the second would hide the first.
        for name in sorted(names):
            if names.count(name) > 1:
                raise UserError(
                    f"expected each benchmark once in run {self.name!r}, got {name!r} twice: "
                    "give the two different names"
                )
        for result in self.results:
            _check(result)

    def save(self, path: Path) -> None:
        """Writes `report.json` atomically."""
        # pydantic writes NaN as null, and as text what JSON does not know.
        layout = LAYOUT.dump_json(self, fallback=str)
        content = {"schema": SCHEMA, **json.loads(layout)}
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_text(path, f"{text}\n")

    @classmethod
    def load(cls, path: Path) -> "RunReport":
        """Reads and checks `report.json`."""
        expected, fix = "a report.json of vlmtune", "evaluate the model again to write a new one"
        content = read_json(path, expected, fix, dict[str, Any])
        schema = content.pop("schema", None)
        reason = f"schema {schema!r}, not {SCHEMA}"
        if schema == SCHEMA:
            try:
                # Strict pydantic accepts a list for a tuple only when it reads JSON text.
                text = json.dumps(content)
                return LAYOUT.validate_json(text)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                reason = f"{where}: {first['msg']}".removeprefix(": ")
        raise UserError(f"expected {expected} in {path}, got {reason}: {fix}")

    def of(self, benchmark: str) -> Result | None:
        """Returns the result of a benchmark, or None."""
        for result in self.results:
            if result.benchmark == benchmark:
                return result
        return None

    def result(self, benchmark: str, version: str, convention: str) -> Result | None:
        """Returns the result of a benchmark under one version and one convention, or None."""
        result = self.of(benchmark)
        is_same = result is not None and result.definition == (benchmark, version, convention)
        return result if is_same else None

    def metric(self, benchmark: str, name: str) -> MetricValue:
        """Returns a metric; raises `UserError` if the run has none of this name."""
        result = self.of(benchmark)
        known = {} if result is None else result.metrics
        if name in known:
            return known[name]
        near = ", ".join(difflib.get_close_matches(name, known) or list(known)[:5])
        hint = f", such as {near}" if near else ""
        raise UserError(
            f"expected {name} of {benchmark} in the report of {self.name!r}, got none: name "
            f"another metric{hint}, or evaluate again"
        )


LAYOUT = TypeAdapter(RunReport)


def _check(result: Result) -> None:
    """Raises `UserError` for numbers that are not finite or do not fit each other."""
    if result.primary not in result.metrics:
        raise UserError(
            f"expected the primary metric {result.primary!r} among the metrics of "
            f"{result.benchmark}, got {sorted(result.metrics)}: report this metric"
        )
    runs = {f"run {i}": outcomes for i, outcomes in enumerate(result.runs, 1)}
    _check_finite(result, runs)
    _check_lengths(result, runs)


def _check_finite(result: Result, runs: Mapping[str, Sequence[float]]) -> None:
    """Raises `UserError` for NaN and infinity in any number of a result."""
    numbers: dict[str, Sequence[float]] = {
        "outcomes": result.outcomes,
        "group_weights": result.group_weights,
        **result.series,
        **runs,
    }
    for name, metric in result.metrics.items():
        parts = (metric.value, metric.chance, metric.low, metric.high)
        numbers[name] = [part for part in parts if part is not None]
    for name, values in numbers.items():
        if not all(map(math.isfinite, values)):
            raise UserError(
                f"expected finite numbers for {name} of {result.benchmark}, got NaN or infinity: "
                "evaluate again"
            )


def _check_lengths(result: Result, runs: Mapping[str, Sequence[float]]) -> None:
    """Raises `UserError` unless each outcome has a cluster and a group, and each group a weight.

    Clusters, groups and weights may also be absent.
    """
    n = len(result.outcomes)
    rows: dict[str, Sequence[float]] = {
        "clusters": result.clusters,
        "groups": result.groups,
        "caption_sets": result.caption_sets,
        **runs,
    }
    for name, row in rows.items():
        if row and len(row) != n:
            raise UserError(
                f"expected {name} of {n} items of {result.benchmark}, got {len(row)}: "
                "evaluate again"
            )
    weights = len(result.group_weights)
    # Groups are numbers from 0; a weight is looked up by this number.
    largest = max(result.groups, default=-1)
    no_group = bool(result.groups) and largest < 0
    too_few_weights = bool(weights) and weights <= largest
    if no_group or too_few_weights:
        raise UserError(
            f"expected groups with weights in {result.benchmark}, got {weights} weights and the "
            f"group {largest}: evaluate again"
        )


def distinct_folder(file: Path, files: Sequence[Path]) -> str:
    """The end of a file's folder that tells it from those of the other files."""
    folders = [path.resolve().parent.parts for path in files]
    parts = file.resolve().parent.parts
    for length in range(1, len(parts)):
        alike = [other for other in folders if other[-length:] == parts[-length:]]
        if len(alike) == 1:
            return "/".join(parts[-length:])
    return str(file.parent)
