"""`vlmtune export`: a checkpoint becomes a folder that loads in three lines."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.export import FILES, read_checkpoint, save_export
from vlmtune.report.environment import git_commit, library_versions, now
from vlmtune.report.results import RunReport


def run(options: argparse.Namespace) -> None:
    """Writes the export of `options.checkpoint` to `options.out`.

    Raises:
        UserError: The checkpoint or the report cannot be used, or `options.out` is taken.
    """
    model = read_checkpoint(options.checkpoint)
    backbone, adapter = model.backbone, model.adapter
    provenance: dict[str, Any] = {
        "versions": library_versions(),
        "commit": git_commit(Path.cwd()),
        "date": now(),
        **model.provenance,
    }
    if options.report is not None:
        report = RunReport.load(_file(options.report))
        _check(report, backbone, adapter.spec()["class_path"])
        told = asdict(report.provenance)
        for key in ("config", "versions", "commit", "date", "data", "seed", "seconds"):
            provenance[key] = told[key]
        provenance["results"] = report.results
    save_export(options.out, backbone, adapter, provenance=provenance, overwrite=options.overwrite)
    size = sum((options.out / name).stat().st_size for name in FILES)
    print(f"{options.out}: {size / 1e6:.1f} MB; load it with vlmtune.load({str(options.out)!r})")


def _file(path: Path) -> Path:
    return path / "report.json" if path.is_dir() else path


def _check(report: RunReport, backbone: Backbone, adapter: str) -> None:
    described = report.provenance.model.get("adapter", {}).get("class_path")
    if report.provenance.fingerprint != backbone.fingerprint or described != adapter:
        raise UserError(
            f"expected the report of this checkpoint's {adapter}, got one of {described} on "
            f"backbone {report.provenance.fingerprint[:12]}: pass the report of the same run"
        )
