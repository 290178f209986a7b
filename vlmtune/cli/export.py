"""`vlmtune export`: a checkpoint becomes a folder that loads in three lines."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vlmtune.backbones.base import Backbone
from vlmtune.cli.sweep import sweep
from vlmtune.errors import UserError
from vlmtune.export import FILES, read_checkpoint, save_export
from vlmtune.export.files import check_target
from vlmtune.export.model import Model
from vlmtune.export.wise_ft import WiseFT, check_alpha
from vlmtune.report.environment import code_commit, library_versions, now
from vlmtune.report.run_report import RunReport


def run(options: argparse.Namespace) -> None:
    """Writes the export of `options.checkpoint` to `options.out`, at `options.alpha`.

    With `options.alphas` the model is measured at each of them; without `options.out` nothing is
    written then. An export at one of them has its scores on the model card.

    Raises:
        UserError: The checkpoint or the report cannot be used, `options.out` is taken, or options
            contradict each other.
    """
    _check_options(options)
    model = read_checkpoint(options.checkpoint)
    alpha = 1.0 if options.alpha is None else options.alpha
    provenance: dict[str, Any] = {}
    if options.report is not None:
        provenance = _told(RunReport.load(_file(options.report)), model)
    if options.alphas is not None or alpha != 1:
        line = WiseFT(model.backbone, model.adapter)
        if options.alphas is not None:
            points = dict(sweep(line, options))
            if alpha in points:
                provenance.setdefault("results", points[alpha].results)
        line.at(alpha)
    if options.out is None:
        return
    provenance = {
        "versions": library_versions(),
        "commit": code_commit(),
        "date": now(),
        **model.provenance,
        **provenance,
    }
    save_export(
        options.out,
        model.backbone,
        model.adapter,
        provenance=provenance,
        overwrite=options.overwrite,
        alpha=alpha,
    )
    size = sum((options.out / name).stat().st_size for name in FILES)
    print(f"{options.out}: {size / 1e6:.1f} MB; load it with vlmtune.load({str(options.out)!r})")


def _check_options(options: argparse.Namespace) -> None:
    if options.out is None and (options.alphas is None or options.alpha is not None):
        raise UserError(
            "expected --out FOLDER to write to, or --alphas and --benchmarks alone to measure, got "
            "neither: add --out"
        )
    if (options.alphas is None) != (options.benchmarks is None):
        given, missing = ("--alphas", "--benchmarks")[:: -1 if options.alphas is None else 1]
        raise UserError(f"expected {missing} with {given}, got {given} alone: add it")
    if options.alphas is not None and options.out is not None and options.alpha is None:
        raise UserError(
            "expected --alpha to say which of --alphas to write to --out, got none: choose one"
        )
    for alpha in [*(options.alphas or ()), *([] if options.alpha is None else [options.alpha])]:
        check_alpha(alpha)
    if options.report is not None and options.alpha not in (None, 1.0):
        raise UserError(
            f"expected no --report with --alpha {options.alpha:g}, as its scores are those of the "
            "trained weights: leave it out, or measure with --alphas and --benchmarks"
        )
    if options.out is not None:
        check_target(options.out, options.overwrite)


def _file(path: Path) -> Path:
    return path / "report.json" if path.is_dir() else path


def _told(report: RunReport, model: Model) -> dict[str, Any]:
    """What a report says of where the weights come from, and its scores if it is of these."""
    _check(report, model.backbone, model.adapter.spec()["class_path"])
    steps, measured = _steps(model.provenance), _steps(vars(report.provenance))
    if steps is not None and steps != measured:
        print(
            f"the report is of {measured} steps and the checkpoint of {steps}: left out; its "
            "scores would not be those of the export",
            file=sys.stderr,
        )
        return {}
    told = asdict(report.provenance)
    kept = ("config", "versions", "commit", "date", "data", "seed", "seconds")
    return {**{key: told[key] for key in kept}, "results": report.results}


def _steps(provenance: Mapping[str, Any]) -> int | None:
    """How long was trained, as a checkpoint or a report tells."""
    config = provenance.get("config")
    return config.get("steps") if isinstance(config, Mapping) else None


def _check(report: RunReport, backbone: Backbone, adapter: str) -> None:
    described = report.provenance.model.get("adapter", {}).get("class_path")
    if report.provenance.fingerprint != backbone.fingerprint or described != adapter:
        raise UserError(
            f"expected the report of this checkpoint's {adapter}, got one of {described} on "
            f"backbone {report.provenance.fingerprint[:12]}: pass the report of the same run"
        )
