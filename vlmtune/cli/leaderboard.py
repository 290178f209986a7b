"""`vlmtune leaderboard`: measures many models on many benchmarks and ranks them on one page.

In: names of models, and benchmarks. Out: leaderboard.html, .md and .csv, and in OUT/measured a
report for each model and benchmark. Never: the same weights measured twice on the same items.
"""

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from vlmtune.benchmarks.base import Benchmark
from vlmtune.benchmarks.pair_scorer import PairScorer
from vlmtune.cli.evaluate import default_name
from vlmtune.cli.leaderboard_cost import cost_of
from vlmtune.cli.option_names import naming_table_options
from vlmtune.cli.plugins import is_table, make_benchmarks, model_of
from vlmtune.cli.provenance import provenance_of
from vlmtune.cli.text_only import N_GRAM, SHORTEST, captions, n_gram_provenance, without_model
from vlmtune.config import instantiate
from vlmtune.data.images import digest as image_digest
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.evaluation.suite import NotRun, load_all, run_suite
from vlmtune.evaluation.text_only import FewestWords, TextOnlyScore
from vlmtune.model.model import Model
from vlmtune.report.leaderboard import TWIN, Cost, MeasuredModel, write_leaderboard
from vlmtune.report.run_report import SCHEMA, Provenance, RunReport
from vlmtune.results.result import Result
from vlmtune.storage.folder import digest, locked
from vlmtune.training.checkpoint_files import newest_checkpoint
from vlmtune.types import ImageRef


class Cache:
    """The measured numbers of a leaderboard: a report for each model and benchmark.

    A file is named by the digest of the weights, of the benchmark's options, and of its items:
    their images byte by byte, captions and truth. So whatever changes is measured again, but for
    vlmtune itself: after an update that changes scores another folder is needed.

    Args:
        folder: Where the reports lie.
        benchmarks: What each model is measured on; all are loaded.
        failed: Why others are not.
    """

    def __init__(
        self, folder: Path, benchmarks: Sequence[Benchmark], failed: Sequence[NotRun]
    ) -> None:
        self.folder = folder
        self.benchmarks = benchmarks
        self.failed = failed
        known: dict[ImageRef, str] = {}  # images that several benchmarks show are read once
        self._items = {one.name: items_digest(one, known) for one in benchmarks}

    def file(self, identity: str, benchmark: Benchmark) -> Path:
        """The report of a model on a benchmark."""
        items = self._items[benchmark.name]
        key = [SCHEMA, identity, benchmark.spec(), benchmark.version, items]
        return self.folder / f"{digest(key)[:32]}.json"

    def cost(self, model: Model, identity: str) -> Cost | None:
        """What a search with the model costs on its kind of device, measured once."""
        captions = [one.items.texts[0] for one in self.benchmarks]
        file = self.folder / f"cost-{model.device.type}-{identity[:32]}.json"
        with locked(self.folder / identity[:32]):
            return cost_of(model, captions, file)

    def measured(
        self, name: str, identity: str, scorer: PairScorer, provenance: Provenance
    ) -> RunReport:
        """Returns the numbers of a model, after measuring those that are missing.

        Each is written as soon as it is known. If another process measures the same model, this
        one waits and reads what it wrote.
        """
        # Scores of texts alone have no embeddings.
        embeds = isinstance(scorer, Scorer)
        chosen = [one for one in self.benchmarks if embeds or one.needs == "scores"]
        files = {one.name: self.file(identity, one) for one in chosen}
        titles = {one.name: one.title.removesuffix(TWIN) for one in chosen}

        def keep(result: Result) -> None:
            titled = replace(result, title=titles[result.benchmark])
            RunReport(name, provenance, (titled,)).save(files[result.benchmark])

        not_run = list(self.failed)
        with locked(self.folder / identity[:32]):
            missing = [one for one in chosen if not files[one.name].is_file()]
            print(f"{name}: {len(files) - len(missing)} measured, {len(missing)} to measure")
            if missing:
                suite = run_suite(missing, scorer, at_least_one=False, measured=keep)
                not_run += suite.not_run
        # A number that was just measured is read back like all others, so both are the same.
        results: list[Result] = []
        for file in files.values():
            if file.is_file():
                results += RunReport.load(file).results
        return RunReport(name, provenance, tuple(results), not_run=tuple(not_run))


def run(options: argparse.Namespace) -> None:
    """Measures `options.models` and writes the leaderboard into `options.out`.

    Run again after a kill, or with more models or benchmarks, it measures only what is missing.
    """
    with naming_table_options(any(map(is_table, options.benchmarks))):
        benchmarks = make_benchmarks(options.benchmarks, options.overrides)
        if options.download:
            from vlmtune.sources.downloads import download_missing  # most need no network

            download_missing(benchmarks)
        benchmarks = with_twins(benchmarks)
        failed = load_all(benchmarks)
    for name, reason in failed:
        print(f"not run: {name}: {reason}", file=sys.stderr)
    reasons = dict(failed)
    loaded = [benchmark for benchmark in benchmarks if benchmark.name not in reasons]
    texts = None if options.text_only is None else list(captions(options.text_only))
    cache = Cache(options.out / "measured", loaded, failed)
    store = options.store or options.out / "features"
    specs = {benchmark.name: benchmark.spec() for benchmark in loaded}

    entries: list[MeasuredModel] = []
    for given, name in _names(options).items():
        model = named_model(options, given)
        weights = weights_options(given, options.pretrained, options.architecture)
        origin = provenance_of(model, given, weights["pretrained"], {"benchmarks": specs})
        # As an index names its model: all weights, the adapter's arguments, the preprocessing.
        identity = digest([model.backbone.fingerprint, model.digest()])
        report = cache.measured(name, identity, model.scorer(store), origin)
        entries.append(MeasuredModel(report, cache.cost(model, identity)))
    if texts is not None:
        n_gram = TextOnlyScore.fitted(texts)
        origin = entries[0].report.provenance
        of_captions = n_gram_provenance(n_gram, str(options.text_only), origin)
        of_lengths = without_model(origin, "the caption with the fewest words")
        measured = [
            cache.measured(N_GRAM, digest([N_GRAM, texts]), n_gram, of_captions),
            cache.measured(SHORTEST, digest([SHORTEST]), FewestWords(), of_lengths),
        ]
        for report in measured:
            entries.append(MeasuredModel(replace(report, text_only=True), None))
    page = write_leaderboard(options.out, entries)
    print(f"leaderboard: {page}")


def _names(options: argparse.Namespace) -> dict[str, str]:
    """The name of each model in the leaderboard, by what was given; one given twice counts once.

    All are loaded before the first is measured, so a wrong name is an error at once.
    """
    names = {}
    paths = set()
    for given in options.models:
        path = Path(given).resolve()
        if path in paths:
            continue
        if path.exists():
            paths.add(path)
        names[given] = default_name(named_model(options, given), newest_of_run(given))
    times = Counter(names.values())
    for given, name in names.items():
        if times[name] > 1:  # exports may have one name in different folders
            names[given] = given
    return names


def named_model(options: argparse.Namespace, given: str) -> Model:
    """Loads one of the models, with the options for weights that belong to it."""
    weights = weights_options(given, options.pretrained, options.architecture)
    return model_of(options, texts=False, model=newest_of_run(given), **weights)


def with_twins(benchmarks: Sequence[Benchmark]) -> list[Benchmark]:
    """The benchmarks, each followed by its twin that counts as the published script does.

    One whose script counts in the same way has no twin, and neither has one whose twin needs
    options that are not given.
    """
    out = []
    for benchmark in benchmarks:
        out.append(benchmark)
        if not (benchmark.strict and hasattr(benchmark, "convention")):
            continue
        spec = benchmark.spec()
        changed = {"convention": "reference", "name": f"{benchmark.name}{TWIN}"}
        with contextlib.suppress(UserError):
            twin = {**spec, "init_args": {**spec["init_args"], **changed}}
            out.append(instantiate(twin, Benchmark))  # type: ignore[type-abstract]
    return out


def items_digest(benchmark: Benchmark, known: dict[ImageRef, str]) -> str:
    """The sha256 of a benchmark's items: the bytes of their images, captions, pairs and truth.

    `known` keeps the digests of images, which benchmarks share.
    """
    total = sha256()
    items = benchmark.items
    for image in items.images:
        if image not in known:
            known[image] = image_digest(image)
        total.update(f"{known[image]} {image.upright}".encode())
    for field in fields(items):
        # Images are known by content, and so are the items that are listed for repeats.
        if field.name in ("images", "compared"):
            continue
        value = _plain(getattr(items, field.name))
        total.update(f"{field.name} {value!r}".encode())
    return total.hexdigest()


def _plain(value: Any) -> Any:
    """A value with lists for all tensors in it, of which `repr` leaves most numbers out."""
    if isinstance(value, Tensor):
        return value.tolist()
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value


def newest_of_run(given: str) -> str:
    """The newest checkpoint in the folder of a run; any other name unchanged."""
    folder = Path(given)
    checkpoint = newest_checkpoint(folder) if folder.is_dir() else None
    return given if checkpoint is None else str(checkpoint)


def weights_options(
    given: str, pretrained: str | None, architecture: str | None
) -> dict[str, str | None]:
    """What of the options for weights belongs to one of several models.

    `pretrained` belongs to plain names of open_clip, `architecture` to weights files.

    Example:
        >>> weights_options("ViT-B-32", "openai", None)
        {'pretrained': 'openai', 'architecture': None}
        >>> weights_options("published:scenes/prompts", "openai", None)
        {'pretrained': None, 'architecture': None}
    """
    path = Path(given)
    is_plain = not path.exists() and not {":", "/"}.intersection(given)
    is_weights = path.is_file() and path.suffix not in (".ckpt", ".yaml", ".yml")
    return {
        "pretrained": pretrained if is_plain else None,
        "architecture": architecture if is_weights else None,
    }
