"""The text-only runs of an evaluation: the same benchmarks, scored without seeing the image.

In: captions and benchmarks. Out: three runs. Never: a score that depends on the image.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vlmtune.benchmarks.base import Benchmark
from vlmtune.benchmarks.pair_scorer import PairScorer
from vlmtune.data.shards import ShardSet, read_headers
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.evaluation.suite import run_suite
from vlmtune.evaluation.text_only import FewestWords, ImageAveraged, TextOnlyScore
from vlmtune.report.run_report import Provenance, RunReport
from vlmtune.storage.files import reading, regular

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow")  # their lines are not captions
N_GRAM, AVERAGED = "text-only (n-gram)", "text-only (image averaged)"
SHORTEST = "text-only (fewest words)"


def captions(source: Path | str) -> Iterator[str]:
    """Yields the lines of a text file, or the true captions of shards in a folder or at a URL.

    Blank lines and damaged records are left out.
    """
    if isinstance(source, str) or source.is_dir():
        shards = ShardSet(str(source))
        for _, group, _ in read_headers([shards]):
            true = group.truth.any(dim=0)  # of some image of the group
            yield from itertools.compress(group.texts, true.tolist())
        return
    if source.suffix.lower() in TABLES:
        raise UserError(
            f"expected shards or a text file with one caption a line, got the table {source}: "
            "build shards of it with `vlmtune build table`, or write its captions to a text file"
        )
    expected = "a text file with a caption a line or a folder of shards"
    with reading(source, expected), regular(source).open(encoding="utf-8-sig") as file:
        lines = map(str.strip, file)
        yield from filter(None, lines)


class TextOnly:
    """An n-gram model, the shortest caption, and the model with averaged images.

    Args:
        source: The captions of the n-gram model, see `captions`. They are read at once, so that a
            wrong file is an error before any model is loaded.
    """

    def __init__(self, source: Path | str) -> None:
        self.source = source
        self.n_gram = TextOnlyScore.fitted(captions(source))

    def runs(
        self, benchmarks: Sequence[Benchmark], scorer: Scorer, provenance: Provenance
    ) -> list[RunReport]:
        """Runs the benchmarks with each of them.

        Benchmarks that need embeddings are left out.
        """
        # Embeddings of images alone cannot be averaged into a text-only score.
        scored = [benchmark for benchmark in benchmarks if benchmark.needs == "scores"]
        if not scored:
            print("no text-only runs: no benchmark uses scores", file=sys.stderr)
            return []
        fitted = n_gram_provenance(self.n_gram, str(self.source), provenance)
        shortest = without_model(provenance, "the caption with the fewest words")
        averaged = replace(provenance, adapter=f"{provenance.adapter}, image averaged")
        runs = [
            _run(N_GRAM, scored, self.n_gram, fitted),
            _run(SHORTEST, scored, FewestWords(), shortest),
            _run(AVERAGED, scored, ImageAveraged(scorer), averaged),
        ]
        for run in runs:
            if not run.results:
                print(f"no {run.name} run: {run.not_run[0][1]}", file=sys.stderr)
        return [run for run in runs if run.results]


def n_gram_provenance(n_gram: TextOnlyScore, data: str, provenance: Provenance) -> Provenance:
    """The provenance of an n-gram model's numbers, beside a report with this `provenance`."""
    model = n_gram.model
    bare = without_model(provenance, f"n-grams of up to {model.order} words")
    return replace(bare, model={"n_gram": model.spec()}, data=data)


def without_model(provenance: Provenance, adapter: str) -> Provenance:
    """The provenance of numbers that the model of the report has no part in."""
    return replace(
        provenance,
        backbone="none",
        adapter=adapter,
        model={},
        fingerprint="",
        data="",
        seed=None,
        trainable_parameters=0,
        seconds=0.0,
    )


def _run(
    name: str, benchmarks: Sequence[Benchmark], score: PairScorer, provenance: Provenance
) -> RunReport:
    # The evaluation itself is finished, so no failure here may lose it.
    suite = run_suite(benchmarks, score, at_least_one=False)
    return RunReport(name, provenance, suite.results, not_run=suite.not_run, text_only=True)
