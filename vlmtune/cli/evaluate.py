"""`vlmtune evaluate`: measures a model and writes the report."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.benchmarks.base import Benchmark
from vlmtune.cli.devices import find_device
from vlmtune.cli.plugins import make_list
from vlmtune.cli.tables import show
from vlmtune.cli.text_only import blind_runs, fitted, save_blind
from vlmtune.evaluation.scorer import Scorer
from vlmtune.evaluation.suite import load_all, run_suite
from vlmtune.export import resolve
from vlmtune.export.model import Model
from vlmtune.report.environment import code_commit, library_versions, now
from vlmtune.report.html import write_report
from vlmtune.report.run_report import Provenance, RunReport


def run(options: argparse.Namespace) -> None:
    """Writes report.json, report.md and report.html into `options.out` and shows the numbers.

    A benchmark that cannot be run is reported as not run, those whose files are missing before the
    first image is encoded. With `options.blind` the blind rows stand beside the model's, and in
    files of their own.

    Raises:
        UserError: The model, all benchmarks or the captions of `options.blind` cannot be had;
            nothing is written then.
    """
    benchmarks = make_list(Benchmark, "benchmarks", options.benchmarks)  # type: ignore[type-abstract]
    for name, why in load_all(benchmarks):
        print(f"not run: {name}: {why}", file=sys.stderr)
    text_only = None if options.blind is None else fitted(options.blind)
    model = resolve(options.model, options.pretrained)
    device = find_device(options.device)
    scorer = Scorer(
        model.backbone.to(device), model.adapter.to(device), options.store, options.batch_size
    )
    options.out.mkdir(parents=True, exist_ok=True)  # refused now rather than after the work
    suite = run_suite(benchmarks, scorer)
    name = options.name or Path(options.model).stem or options.model
    provenance = _provenance(model, options, benchmarks)
    report = RunReport(name, provenance, suite.results, not_run=suite.not_run)
    runs = [report]
    if text_only is not None:
        done = {result.benchmark for result in suite.results}
        ran = [benchmark for benchmark in benchmarks if benchmark.name in done]
        runs += blind_runs(ran, scorer, text_only, str(options.blind), provenance)
    report.save(options.out / "report.json")
    save_blind(options.out, runs[1:])
    page = write_report(options.out, runs)
    show(runs)
    print(f"report: {page}")


def _provenance(
    model: Model, options: argparse.Namespace, benchmarks: Sequence[Benchmark]
) -> Provenance:
    untrained = isinstance(model.adapter, ZeroShot)
    parts = (model.backbone, model.adapter)
    trained = sum(p.numel() for part in parts for p in part.parameters() if p.requires_grad)
    # Versions, commit and date are those of this evaluation; those of the training are kept apart.
    told = model.provenance
    training = {k: told[k] for k in ("config", "versions", "commit", "date") if k in told}
    return Provenance(
        backbone=str(
            model.backbone.spec()["init_args"].get("model", type(model.backbone).__name__)
        ),
        adapter="zero-shot" if untrained else type(model.adapter).__name__,
        model={"backbone": model.backbone.spec(), "adapter": model.adapter.spec()},
        fingerprint=model.backbone.fingerprint,
        data=data if isinstance(data := told.get("data"), str) else "",
        config={
            "evaluated": options.model,
            "pretrained": options.pretrained,
            "benchmarks": {one.name: one.spec() for one in benchmarks},
            "training": training,
        },
        versions=library_versions(),
        commit=code_commit(),
        date=now(),
        seed=seed if isinstance(seed := told.get("seed"), int) else None,
        trainable_parameters=0 if untrained else trained,
        seconds=float(seconds) if isinstance(seconds := told.get("seconds"), int | float) else 0.0,
    )
