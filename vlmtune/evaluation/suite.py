"""Several benchmarks on one model, with every image and caption encoded once.

In: benchmarks and a scorer. Out: results, and the reason for each benchmark without one.
Never: a stop of all because one benchmark fails.
"""

import inspect
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple, TypeVar

from vlmtune.benchmarks.base import Benchmark, check_images, files_from
from vlmtune.benchmarks.pair_scorer import Embedder, MatrixFunction, PairScorer, pair_scorer
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import ImageFileError, UserError, counted
from vlmtune.evaluation.class_scorer import ClassScorer
from vlmtune.evaluation.item_rows import EmbeddingRecorder, Recorder, item_rows
from vlmtune.evaluation.reading import readings
from vlmtune.evaluation.scorer import Scorer
from vlmtune.results.item_row import ItemRow
from vlmtune.results.metric_value import TRUNCATED, MetricValue, count
from vlmtune.results.result import Result
from vlmtune.storage.progress import work_of
from vlmtune.types import ImageRef

T = TypeVar("T")
Content = tuple[Sequence[ImageRef], Sequence[str]]
"""The images and the texts of a benchmark."""

log = logging.getLogger("vlmtune")


class NotRun(NamedTuple):
    """A benchmark without numbers.

    Attributes:
        name: Name of the benchmark.
        reason: One line: the expected, the actual, and the advice.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class SuiteResult:
    """The results of a suite.

    Attributes:
        results: Results of the benchmarks that were run, in the given order.
        not_run: The other benchmarks, in the given order.
    """

    results: tuple[Result, ...]
    not_run: tuple[NotRun, ...]


def check_names(benchmarks: Sequence[Benchmark]) -> None:
    """Raises a `UserError` if there is no benchmark, or two have one name."""
    names = [benchmark.name for benchmark in benchmarks]
    counts = Counter(names)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice or not names:
        got = f"{twice[0]!r} twice" if twice else "none"
        raise UserError(
            f"expected benchmarks of different names, got {got}: "
            "give each a `name` of its own in its YAML, and list at least one"
        )


def load_all(
    benchmarks: Sequence[Benchmark], scorer: PairScorer | None = None
) -> tuple[NotRun, ...]:
    """Reads the files of all benchmarks; returns those that cannot be run.

    A benchmark that one rank cannot load is run on no rank.
    """
    _, not_run = _load(benchmarks, scorer)
    _check_any_is_left(benchmarks, not_run)
    return not_run


def run_suite(
    benchmarks: Sequence[Benchmark],
    scorer: PairScorer | MatrixFunction,
    at_least_one: bool = True,
    items: list[ItemRow] | None = None,
    measured: Callable[[Result], None] | None = None,
) -> SuiteResult:
    """Loads all benchmarks, encodes their images and captions once, then evaluates each.

    A missing file is reported before anything is encoded. A benchmark that fails is reported as not
    run and does not stop the rest.

    Args:
        benchmarks: The benchmarks; names must differ.
        scorer: A `Scorer`, or any function `(images, texts)` that returns a row of scores for each
            image: images are `ImageRef`s. Its weights may not change meanwhile.
        at_least_one: Whether to raise if no benchmark could be run.
        items: A list that gets a row for each item, or None.
        measured: Called with each result as soon as it is known.

    Raises:
        UserError: No benchmark could be run, or two have one name.
    """
    scorer = pair_scorer(scorer)
    contents, not_run = _load(benchmarks, scorer)
    # Benchmarks share images and captions: together they are encoded once.
    all_images: dict[ImageRef, None] = {}
    all_texts: dict[str, None] = {}
    for images, texts in contents.values():
        all_images |= dict.fromkeys(images)
        all_texts |= dict.fromkeys(texts)
    # A function of images and texts has no session.
    encoding_scorer = scorer if isinstance(scorer, Scorer) and contents else None
    session: AbstractContextManager[None] = nullcontext()
    if encoding_scorer is not None:
        session = encoding_scorer.session(list(all_images), list(all_texts))
    done: dict[str, Result] = {}
    failed = dict(not_run)
    with session:
        for benchmark in benchmarks:
            name = benchmark.name
            if name in failed:
                continue

            def described(one: Benchmark = benchmark) -> Result:
                result = _measured(one, scorer, items)
                return _described(result, one, contents[one.name], encoding_scorer)

            result, reason = _tried(benchmark, described)
            # A failure on one rank is a failure on all.
            reasons = ProcessGroup().objects(reason)
            if reason := _first(reasons):
                failed[name] = reason
            elif result is not None:
                done[name] = result
                if measured is not None:
                    measured(done[name])
    not_run = _in_order(benchmarks, failed)
    if at_least_one:
        _check_any_is_left(benchmarks, not_run)
    return SuiteResult(tuple(done.values()), not_run)


def _described(
    result: Result, benchmark: Benchmark, content: Content, scorer: Scorer | None
) -> Result:
    """A result with what a report says of the benchmark and of its items."""
    images, texts = content
    shown = () if scorer is None else readings(scorer, benchmark, result)
    return replace(
        result,
        metrics=result.metrics | _truncated(texts, scorer),
        kind=benchmark.kind,
        title=benchmark.title,
        asks=benchmark.asks,
        about=benchmark.about,
        items_digest=_digest(images, texts),
        repeats=benchmark.repeats(),
        readings=shown,
    )


def _load(
    benchmarks: Sequence[Benchmark], scorer: PairScorer | None
) -> tuple[dict[str, Content], tuple[NotRun, ...]]:
    """Returns the images and texts of each benchmark that can be run, and why others cannot."""
    check_names(benchmarks)
    contents: dict[str, Content] = {}
    failures: dict[str, str | None] = {}
    for benchmark in benchmarks:

        def checked(one: Benchmark = benchmark) -> Content:
            # What the model cannot do is known before files of many images are looked up.
            if one.needs == "embeddings" and isinstance(scorer, Scorer):
                scorer.check_embeds()
            _check_image_model(one, scorer)
            one.load()
            images = one.items.images
            texts = one.items.texts
            # The former again, for plug-ins whose `items` does not.
            check_images(images, one)
            _check_texts(texts, one.name)
            if isinstance(scorer, Scorer):
                scorer.backbone.check_words(texts)
            return images, texts

        # Every rank tries every benchmark, so that all ranks exchange the same list.
        content, failures[benchmark.name] = _tried(benchmark, checked)
        if content is not None:
            contents[benchmark.name] = content
    # A failure on one rank is a failure on all: else the others wait for it in the next call.
    failures_by_rank = ProcessGroup().objects(failures)
    failed = {}
    for name in failures:
        reasons = [failures_of_rank[name] for failures_of_rank in failures_by_rank]
        if reason := _first(reasons):
            failed[name] = reason
            contents.pop(name, None)
    return contents, _in_order(benchmarks, failed)


def _check_texts(texts: Sequence[object], name: str) -> None:
    """Raises a `UserError` unless all texts have words: a blank one gets a score like any other."""
    wrong = [text for text in texts if not (isinstance(text, str) and text.strip())]
    if wrong:
        raise UserError(
            f"expected texts with words for {name}, got {len(wrong)} without, first "
            f"{wrong[0]!r}: fill them in, or leave their rows out"
        )


def _check_image_model(benchmark: Benchmark, scorer: PairScorer | None) -> None:
    """A model that reads no texts is measured where its own classifier knows the candidates."""
    if not isinstance(scorer, Scorer) or scorer.backbone.encodes_texts:
        return
    outputs = None
    if isinstance(scorer, ClassScorer):
        outputs = benchmark.outputs(scorer.labels)
    if outputs is not None:
        return
    raise UserError(
        f"expected a model that reads texts for {benchmark.name}, got {scorer.backbone.title}, "
        "which only reads images: use it with vlmtune probe, or with a classifier of its own on "
        "pug_imagenet or zero_shot_classification"
    )


def _measured(
    benchmark: Benchmark, scorer: PairScorer, items: list[ItemRow] | None = None
) -> Result:
    """Runs a benchmark and checks that its numbers are finite."""
    recorder: Recorder | None = None
    # Scores of a classifier's classes are not scores of captions, so no row has them.
    if items is not None and not isinstance(scorer, ClassScorer):
        # A benchmark looks for the methods of an `Embedder`: only a recorder of one has them.
        recorder = Recorder(scorer)
        if isinstance(scorer, Embedder):
            recorder = EmbeddingRecorder(scorer)
    with work_of(benchmark.name):
        result = benchmark.run(recorder or scorer)
    # NaN in a report would sort anywhere, and a plug-in's metric may be one.
    for name, metric in result.metrics.items():
        numbers = (metric.value, metric.chance, metric.low, metric.high)
        if not all(number is None or math.isfinite(number) for number in numbers):
            raise UserError(
                f"expected finite numbers for {name} of {benchmark.name}, got {metric.value}: "
                "this is a fault of the benchmark's code"
            )
    if items is not None:
        scores = None if recorder is None else recorder.scores
        items += item_rows(benchmark, result, scores)
    return result


def _truncated(texts: Sequence[str], scorer: Scorer | None) -> dict[str, MetricValue]:
    """Counts the captions whose ends the model does not read, if there are any."""
    long = [] if scorer is None else scorer.backbone.too_long(texts)
    if not long:
        return {}
    return {TRUNCATED: count(len(long), len(texts))}


def _digest(images: Sequence[ImageRef], texts: Sequence[str]) -> str:
    """Returns a digest of the items, whatever folder they are in."""
    digest = sha256()
    for image in images:
        # The name alone: a data set may lie in another folder on another machine.
        facts = (image.path.name, image.box)
        digest.update(repr(facts).encode())
    for text in texts:
        digest.update(repr(text).encode())
    return digest.hexdigest()[:16]  # 64 bits tell two lists of items apart


def _tried(benchmark: Benchmark, do: Callable[[], T]) -> tuple[T | None, str | None]:
    """Returns the result of `do`, or the reason of its failure in one line."""
    name = benchmark.name
    try:
        return do(), None
    except ImageFileError as error:
        # Without a source the files are the user's own.
        advice = f"; for its files: {files_from(benchmark)}" if benchmark.source else ""
        return None, f"{error} ({name} needs it{advice})"
    except UserError as error:
        return None, str(error)
    except Exception as error:  # a fault in one plug-in must not stop the rest
        log.exception("%s failed", name)  # the report has one line, the log the traceback
        line = " ".join(f"{type(error).__name__}: {error}".split())
        advice = f"mend what the traceback shows; {inspect.getfile(type(benchmark))} has the class"
        return None, f"expected {name} to run, got {line}: {advice}"


def _first(reasons: Sequence[str | None]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _in_order(benchmarks: Sequence[Benchmark], failed: dict[str, str]) -> tuple[NotRun, ...]:
    return tuple(NotRun(one.name, failed[one.name]) for one in benchmarks if one.name in failed)


def _check_any_is_left(benchmarks: Sequence[Benchmark], not_run: Sequence[NotRun]) -> None:
    """Raises the first failure if all benchmarks failed."""
    if len(not_run) < len(benchmarks):
        return
    reason = not_run[0].reason
    others = len(not_run) - 1
    if others:
        reason += f" (and {counted(others, 'other benchmark')} failed)"
    raise UserError(reason)
