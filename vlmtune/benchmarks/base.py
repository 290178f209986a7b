"""What a benchmark is: a reader of items, common options, and a rule that evaluates scores.

In: annotation files, then the scores of their images and captions. Out: a `Result`. Never: a model.

Laws (tests/contracts/test_benchmarks.py): an oracle reaches 1, its inverse 0, a constant
scorer never wins, NaN raises, the order of candidates is irrelevant.
"""

import inspect
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, dataclass_transform, get_type_hints

import torch
from jaxtyping import Float, Int
from pydantic import PositiveInt, TypeAdapter, ValidationError
from torch import Tensor

from vlmtune.benchmarks.files import Row, check_chosen, get_file, obtain, read_rows
from vlmtune.benchmarks.items import Items, as_stored, find_repeats, sample
from vlmtune.benchmarks.pair_scorer import MatrixFunction, PairScorer, check_scores, pair_scorer
from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.results.item_row import ItemRow
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Example, Repeat, Result
from vlmtune.types import ImageRef

Convention = Literal["strict", "reference"]
I = TypeVar("I", bound=Items)  # noqa: E741
SHOWN = 4  # right and wrong items each in the gallery


@dataclass_transform(eq_default=False, field_specifiers=(field,))
@dataclass(eq=False, repr=False)
class Benchmark(Configured, ABC, Generic[I]):
    """Items with a rule that turns their scores into numbers.

    A subclass is a dataclass: its annotated attributes are its options, in the order in which they
    are written, and `limit`, `seed` and `name` come after them. It reads nothing until `items` is
    asked for, so a config may name files that do not exist yet.

    A benchmark whose published script counts differently from the strict rule has the option
    `convention: Convention = "strict"`. In "strict" a tie is never a win and every item counts;
    "reference" does what the script does, and reads images as stored, not turned by EXIF.

    Most have `path`, the annotation file or folder, and `images`, the folder with the image files.

    Args:
        name: Name in reports, unique within a run. By default the name of the plug-in's file.
        limit: Evaluate at most so many items, of each group where `limit_per_group` is True.
        seed: Seed that draws them; null takes the first ones.
    """

    name: str = field(default="", kw_only=True)
    limit: PositiveInt | None = field(default=None, kw_only=True)
    # Files are often sorted by subset, so the first items would stand for one subset alone.
    seed: int | None = field(default=0, kw_only=True)

    version: ClassVar[str] = "1"  # version of the metric's definition
    primary_metric: ClassVar[str] = "accuracy"  # key of the metric that stands for the whole
    reference_metric: ClassVar[str] = ""  # the same in the convention "reference", where it differs
    full_name: ClassVar[str] = ""  # as people write it; "" for tables of the user
    asks: ClassVar[str] = ""  # what it asks, such as "relations": reports group benchmarks by it
    citation: ClassVar[str] = ""  # where the metric is defined
    source: ClassVar[str] = ""  # where to get the files, or the command of vlmtune that does
    # True where the primary metric gives credit for part of an item (average precision). Inverse
    # and constant scorers then reach at most chance, not 0.
    partial_credit: ClassVar[bool] = False
    # "compositional", or "retained" for an ability the model had before training, such as retrieval
    # or classification. Reports show its loss as forgetting.
    kind: ClassVar[Literal["compositional", "retained"]] = "compositional"
    limit_per_group: ClassVar[bool] = False  # whether `limit` counts within each group

    # Options that list names, with all names they may list.
    subsets_of: ClassVar[Mapping[str, Sequence[object]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        options = inspect.get_annotations(cls)
        # The default name is the stem of the plug-in's file, so each subclass has its own.
        if "name" not in options:
            cls.__annotations__ = {**options, "name": str}
            default = cls.__module__.rpartition(".")[2]
            setattr(cls, "name", field(default=default, kw_only=True))  # noqa: B010
        dataclass(eq=False, repr=False)(cls)
        super().__init_subclass__(**kwargs)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for option in fields(self):
            value = getattr(self, option.name)
            # A misspelt convention would silently count by the other convention.
            if isinstance(value, str | int | float | list | tuple):
                _check_option(option.name, value, hints[option.name])
        for name, known in self.subsets_of.items():
            values = getattr(self, name)
            if values is not None:
                check_chosen(name, values, known)

    # -- what a benchmark and its rule define --------------------------------------------------

    @classmethod
    def fixture(cls, folder: Path) -> "Benchmark[I]":
        """Writes about three items in the real layout; contract tests run on the benchmark.

        Only benchmarks that come with vlmtune need one.
        """
        raise NotImplementedError(f"{cls.__name__} has no fixture")

    @abstractmethod
    def read(self) -> Sequence[Any]:
        """Reads the annotation files: all items, in the order of the file."""

    @abstractmethod
    def arrange(self, items: Sequence[Any]) -> I:
        """Turns the items that `limit` leaves into arrays."""

    @abstractmethod
    def evaluate(self, scores: Float[Tensor, "P"] | Float[Tensor, "N M"]) -> Result:
        """Turns finite scores on the CPU, in the order of `items.pairs`, into numbers."""

    def outputs(self, labels: Sequence[str]) -> Sequence[int] | None:
        """The position in `labels` of each candidate's class; None where these are captions."""
        return None

    # -- what all share ------------------------------------------------------------------------

    @cached_property
    def items(self) -> I:
        """The items as arrays; the files are read once, at the first access."""
        items = self.listed()
        check_images(items.images, self)
        return items

    def listed(self) -> I:
        """Reads the items, whether or not their images are there."""
        read = list(self.read())  # a reader may yield its items
        # Without `limit_per_group` all items are one group, whatever groups they report by.
        groups = [""] * len(read)
        if self.limit_per_group:
            groups = [item.group for item in read]
        rows = [read[i] for i in sample(groups, self.limit, self.seed)]
        if not rows:
            raise UserError(
                f"expected items in the files of {self.name}, got none: {files_from(self)}"
            )
        if not self.strict:
            rows = list(map(as_stored, rows))
        return self.arrange(rows)

    def load(self) -> None:
        """Reads the annotation files and looks for the images."""
        _ = self.items

    @property
    def strict(self) -> bool:
        """Whether a tie counts as lost and every item counts; else as in the published script."""
        return getattr(self, "convention", "strict") == "strict"

    @property
    def title(self) -> str:
        """The name for people: `full_name` and what `name` adds to the default one."""
        default = type(self).__module__.rpartition(".")[2]
        name = self.name
        stem = name.partition(".")[0]
        known = stem if default.startswith(f"{stem}_") else default  # "zero_shot" is shortened
        if self.full_name and name.startswith(known):
            name = self.full_name + name.removeprefix(known)
        return name.replace("_", " ")

    @property
    def about(self) -> str:
        """What it measures, in one line: the first of its file."""
        module = sys.modules[type(self).__module__]
        return (module.__doc__ or "").partition("\n")[0]

    @property
    def needs(self) -> Literal["scores", "embeddings"]:
        """What `run` needs of the model: scores, or the embeddings of a dual one (`Embedder`)."""
        return "scores"

    @property
    def primary(self) -> str:
        """Key of the metric that stands for the whole."""
        if not self.strict and self.reference_metric:
            return self.reference_metric
        return self.primary_metric

    def queries(self, result: Result, scores: Tensor) -> tuple[ItemRow, ...]:
        """Rows of the queries of a ranking (`query_row`); none where items compare a short list."""
        return ()

    def repeats(self) -> tuple[Repeat, ...]:
        """What occurs twice among the items, for the report."""
        return find_repeats(self.items.compared)

    @property
    def fix(self) -> str:
        """What to do where a file is missing or damaged, as errors end."""
        return get_file(self.source)

    def rows(self, path: str | Path, *keys: str) -> list[Row]:
        """Reads the rows of a JSON file, each with a text under every key."""
        return read_rows(path, keys, self.source)

    def run(self, score: PairScorer | MatrixFunction) -> Result:
        """Scores everything once and evaluates the scores."""
        items = self.items
        scorer = pair_scorer(score)
        given = scorer(items.images, items.texts, items.pairs)
        scores = torch.as_tensor(given).detach().cpu()  # a function may give an array
        check_scores(scores, items.shape, self.name)
        return self.evaluate(scores)

    def result(
        self,
        metrics: dict[str, MetricValue],
        outcomes: Float[Tensor, "n"],
        clusters: Int[Tensor, "n"] | None = None,
        **more: Any,
    ) -> Result:
        """Makes the result; `more` are further fields of it."""
        convention = "strict" if self.strict else "reference"
        numbers = () if clusters is None else tuple(clusters.tolist())
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics=metrics,
            citation=self.citation,
            convention=convention,
            outcomes=tuple(outcomes.tolist()),
            clusters=numbers,
            **more,
        )


def gallery(
    right: Sequence[bool | None],
    key: Callable[[int], Hashable],
    example: Callable[[int], Example],
    shown: int = SHOWN,
    apart: bool = False,
) -> tuple[Example, ...]:
    """Shows the first right and the first wrong items, `shown` each, no two of them of one key.

    An item whose `right` is None is left out. With `apart` no key is both right and wrong.

    Example:
        >>> show = lambda i: Example(str(i), (), (), (), i != 1)
        >>> [one.query for one in gallery([True, False, True, True], "aabb".__getitem__, show, 2)]
        ['0', '2', '1']
    """
    examples: list[Example] = []
    keys: set[Hashable] = set()
    for correct in (True, False):
        if not apart:
            keys = set()
        of_kind: list[Example] = []
        for position, won in enumerate(right):
            if len(of_kind) == shown:
                break
            if won is not correct or key(position) in keys:
                continue
            keys.add(key(position))
            of_kind.append(example(position))
        examples += of_kind
    return tuple(examples)


def check_images(images: Sequence[ImageRef], benchmark: Benchmark[Any]) -> None:
    """Raises `UserError` that counts the image files that are missing or empty; names the first.

    Files are looked up and not opened, which would take minutes. Encoding reports damaged ones.
    """
    paths = dict.fromkeys(image.path for image in images)
    sizes = {path: _size(path) for path in paths}
    missing = [path for path, size in sizes.items() if size is None]
    # An interrupted download leaves empty files.
    empty = [path for path, size in sizes.items() if size == 0]
    faults = []
    if missing:
        faults.append(f"{len(missing)} are missing, first {str(missing[0])!r}")
    if empty:
        faults.append(f"{len(empty)} are empty files, first {str(empty[0])!r}")
    if faults:
        # Without a source they are the user's own.
        fix = files_from(benchmark) if benchmark.source else "put them there"
        raise UserError(
            f"expected {len(paths)} images for {benchmark.name}, {' and '.join(faults)}: "
            f"{fix}, or name their folder by `images`"
        )


def files_from(benchmark: Benchmark[Any]) -> str:
    """What to do where files of a benchmark are missing or damaged."""
    return obtain("them", benchmark.source) if benchmark.source else "mend them"


def _check_option(name: str, value: Any, hint: Any) -> None:
    try:
        TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        # pydantic begins with "Input should be" or "String should".
        message = message.replace("Input", "it").replace("String", "it")
        raise UserError(f"expected a valid {name}, got {value!r}: {message}") from None


def _size(path: Path) -> int | None:
    """Bytes of a file; None where there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # the latter for names no file can have
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
