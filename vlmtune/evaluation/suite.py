"""Several benchmarks, one model: everything encoded once, and no benchmark stops the others."""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple, TypeVar

from vlmtune.benchmarks.base import Benchmark, Score, check_images, files_from
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import ImageFileError, UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.report.result import Result
from vlmtune.types import ImageRef

T = TypeVar("T")
Contents = dict[str, tuple[Sequence[ImageRef], Sequence[str]]]

log = logging.getLogger("vlmtune")


class NotRun(NamedTuple):
    """A benchmark without numbers.

    Attributes:
        name: Name of the benchmark.
        why: What was expected, what came and what to do, in one line.
    """

    name: str
    why: str


@dataclass(frozen=True)
class SuiteResult:
    """What a suite says of a model.

    Attributes:
        results: Of the benchmarks that were run, in the given order.
        not_run: The others, in the given order.
    """

    results: tuple[Result, ...]
    not_run: tuple[NotRun, ...]


def check_names(benchmarks: Sequence[Benchmark]) -> None:
    """Raises `UserError` where there is no benchmark, or two have one name."""
    names = [benchmark.name for benchmark in benchmarks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not names:
        got = f"{twice[0]!r} twice" if twice else "none"
        raise UserError(
            f"expected benchmarks of different names, got {got}: "
            "give each a `name` of its own in its YAML, and list at least one"
        )


def load_all(benchmarks: Sequence[Benchmark], scorer: Score | None = None) -> tuple[NotRun, ...]:
    """Reads the files of all benchmarks; returns those that cannot be run.

    Where several ranks work together, what one of them cannot load is run on none.

    Args:
        benchmarks: What is to be measured; names must differ.
        scorer: The model, where it is there: one without embeddings cannot run what reads them.

    Raises:
        UserError: Not one can be run, or two have one name.
    """
    not_run = _load(benchmarks, scorer)[1]
    if len(not_run) == len(benchmarks):
        raise _nothing(not_run)
    return not_run


def run_suite(
    benchmarks: Sequence[Benchmark], scorer: Score, at_least_one: bool = True
) -> SuiteResult:
    """Loads all benchmarks, encodes their images and captions once, then evaluates each.

    What is missing is known before anything is encoded. A benchmark that fails, there or later, is
    reported as not run and does not stop the others.

    Args:
        benchmarks: What to measure; names must differ.
        scorer: The model, a `Scorer` or anything that scores. No weight of it may change meanwhile.
        at_least_one: Whether it is an error that not one could be run.

    Raises:
        UserError: Not one benchmark could be run, or two have one name.
    """
    contents, not_run = _load(benchmarks, scorer)
    images = dict.fromkeys(image for some, _ in contents.values() for image in some)
    texts = dict.fromkeys(text for _, some in contents.values() for text in some)
    done: dict[str, Result] = {}
    failed = dict(not_run)
    keeps = scorer if isinstance(scorer, Scorer) and contents else None
    with keeps.session(list(images), list(texts)) if keeps else nullcontext():
        for benchmark in benchmarks:
            if benchmark.name in failed:
                continue
            result, why = _tried(benchmark, lambda one=benchmark: _measured(one, scorer))
            # What failed on one rank alone must not be a number on the others.
            if why := _first(ProcessGroup().objects(why)):
                failed[benchmark.name] = why
            elif result is not None:
                done[benchmark.name] = replace(
                    result,
                    kind=benchmark.kind,
                    items_digest=_digest(*contents[benchmark.name]),
                    repeats=benchmark.repeats(),
                )
    not_run = _in_order(benchmarks, failed)
    if at_least_one and not done:
        raise _nothing(not_run)
    return SuiteResult(tuple(done.values()), not_run)


def _load(
    benchmarks: Sequence[Benchmark], scorer: Score | None
) -> tuple[Contents, tuple[NotRun, ...]]:
    """The images and texts of each benchmark that can be run, and why others cannot.

    Image files are looked for here too, for plug-ins that do not do so in `load`.
    """
    check_names(benchmarks)
    contents: Contents = {}
    told: dict[str, str | None] = {}
    for benchmark in benchmarks:

        def contained(one: Benchmark = benchmark) -> tuple[Sequence[ImageRef], Sequence[str]]:
            _check_embeddings(one, scorer)
            one.load()
            images, texts = one.items.images, one.items.texts
            check_images(images, one)
            return images, texts

        found, told[benchmark.name] = _tried(benchmark, contained)
        if found is not None:
            contents[benchmark.name] = found
    everywhere = ProcessGroup().objects(told)
    failed = {name: why for name in told if (why := _first([here[name] for here in everywhere]))}
    contents = {name: some for name, some in contents.items() if name not in failed}
    return contents, _in_order(benchmarks, failed)


def _check_embeddings(benchmark: Benchmark, scorer: Score | None) -> None:
    if benchmark.needs == "embeddings" and isinstance(scorer, Scorer) and not scorer.embeds:
        raise UserError(
            f"expected an adapter with embeddings for {benchmark.name}, got "
            f"{type(scorer.adapter).__name__}, a joint one: leave the benchmark out, or have it "
            "read scores where it can (`ensemble: scores`)"
        )


def _measured(benchmark: Benchmark, scorer: Score) -> Result:
    """Runs a benchmark, and refuses numbers that are none before they cost those of others."""
    result = benchmark.run(scorer)
    for name, metric in result.metrics.items():
        numbers = (metric.value, metric.chance, metric.low, metric.high)
        if not all(number is None or math.isfinite(number) for number in numbers):
            raise UserError(
                f"expected finite numbers for {name} of {benchmark.name}, got {metric.value}: "
                "correct the benchmark"
            )
    return result


def _digest(images: Sequence[ImageRef], texts: Sequence[str]) -> str:
    """Tells the items of one draw from those of another; the same wherever the folders are."""
    digest = sha256()
    for image in images:
        digest.update(repr((image.path.name, image.box)).encode())
    for text in texts:
        digest.update(repr(text).encode())
    return digest.hexdigest()[:16]


def _tried(benchmark: Benchmark, do: Callable[[], T]) -> tuple[T | None, str | None]:
    """What `do` returns, or why it failed in one line."""
    name = benchmark.name
    try:
        return do(), None
    except ImageFileError as error:
        line = " ".join(str(error).split())
        return None, f"{line} ({name} needs it; for its files: {files_from(benchmark)})"
    except UserError as error:
        return None, " ".join(str(error).split())
    except Exception as error:  # a fault in one plug-in must not cost the numbers of the others
        log.exception("%s failed", name)
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return None, f"expected {name} to run, got {line}: mend what the traceback in the log shows"


def _first(reasons: Sequence[str | None]) -> str | None:
    return next((why for why in reasons if why is not None), None)


def _in_order(benchmarks: Sequence[Benchmark], failed: dict[str, str]) -> tuple[NotRun, ...]:
    return tuple(NotRun(one.name, failed[one.name]) for one in benchmarks if one.name in failed)


def _nothing(not_run: Sequence[NotRun]) -> UserError:
    (_, why), *others = not_run
    return UserError(why + (f" (and {len(others)} other benchmarks failed)" if others else ""))
