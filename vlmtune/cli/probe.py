"""`vlmtune probe`: what an embedding knows of how an image was transformed.

In: a model and images. Out: report.json and its pages, tables.md, probe.json, confusion matrices.
Never: a change of the model. `probe_options` declares its options.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from vlmtune.cli.evaluate import default_name
from vlmtune.cli.plugins import find_device, find_model
from vlmtune.errors import UserError
from vlmtune.export.model import Model
from vlmtune.probing.categories import STYLES, categories
from vlmtune.probing.embeddings import Embedder, embed_tasks, label_names
from vlmtune.probing.experiment import Measured, measure, probe_specs
from vlmtune.probing.fine import fine
from vlmtune.probing.probe import Training
from vlmtune.probing.results import main_probe, to_json, to_results, to_tables, write_confusion
from vlmtune.probing.sheet import write_sheet
from vlmtune.probing.sources import LabelledImage, labelled_images
from vlmtune.probing.styles import load_styles
from vlmtune.probing.tasks import Task
from vlmtune.report.environment import code_commit, library_versions, now
from vlmtune.report.html import write_report
from vlmtune.report.run_report import Provenance, RunReport
from vlmtune.report.screen import show
from vlmtune.storage.files import write_text
from vlmtune.storage.folder import digest

TASKS = {"fine": fine, "categories": categories}


def run(options: argparse.Namespace) -> None:
    """Writes the report of all probes into `options.out`, or sheets into `options.pictures`."""
    _check(options)
    styles = None if options.styles is None else load_styles(options.styles, STYLES)
    tasks = [TASKS[name](styles) for name in dict.fromkeys(options.transformations)]
    if options.pictures is not None:
        image = labelled_images(options.images, options.labels, limit=2)[0].open()
        for task in tasks:
            file = options.pictures / f"{task.name}.jpg"
            write_sheet(file, image, task, options.side)
            print(f"pictures: {file}")
        return
    training = Training(options.steps, runs=options.runs, seed=options.seed)
    images = labelled_images(options.images, options.labels, options.limit)
    model = find_model(options.model, options.pretrained, options.architecture, texts=False)
    device = find_device(options.device)
    embedder = Embedder(model.to(device).batched(options.batch_size), options.layer)
    options.out.mkdir(parents=True, exist_ok=True)  # fails now rather than after the work
    began = time.monotonic()
    store = options.store or options.out / "features"
    runnable = [task.runnable() for task in tasks]
    embedded = embed_tasks(embedder, images, runnable, store, options.side, options.seed)
    classes = len(label_names(images))
    measured = [
        measure(task, spec, embedded[task.name], classes, training, device)
        for task in runnable
        for spec in probe_specs(options.widths, classes > 0)
    ]
    seconds = time.monotonic() - began
    name = options.name or _default_name(model, options)
    origin = _provenance(model, options, images, seconds)
    results = to_results(measured, digest(sorted(x.digest for x in images)))
    reasons = [
        (f"probe_{task.name}/{', '.join(x.name for x in task.not_run)}", "no weights (--styles)")
        for task in tasks
        if task.not_run
    ]
    report = RunReport(name, origin, tuple(results), not_run=tuple(reasons))
    page = _write(options.out, report, measured, tasks, images)
    show([report])
    print(f"tables: {options.out / 'tables.md'}")
    print(f"report: {page}")


def _check(options: argparse.Namespace) -> None:
    if options.pictures is None and (options.model is None or options.out is None):
        raise UserError(
            "expected --model and --out, or --pictures alone, got neither: add them (see `vlmtune "
            "probe --help`)"
        )
    for name, lowest in (("side", 8), ("limit", 2)):
        value = getattr(options, name)
        if value is not None and value < lowest:
            raise UserError(f"expected --{name} of {lowest} or more, got {value}: raise it")
    if min(options.widths) < 0:
        raise UserError(f"expected widths of 0 or more, got {min(options.widths)}: correct them")


def _default_name(model: Model, options: argparse.Namespace) -> str:
    name = default_name(model, options.model)
    return name if options.layer == "pooled" else f"{name}, {options.layer}"


def _write(
    out: Path,
    report: RunReport,
    measured: Sequence[Measured],
    tasks: Sequence[Task],
    images: Sequence[LabelledImage],
) -> Path:
    train = sum(image.split == "train" for image in images)
    report.save(out / "report.json")
    tables = to_tables(measured, report.name, train, len(images) - train, tasks)
    write_text(out / "tables.md", tables)
    write_text(out / "probe.json", json.dumps(to_json(measured), indent=1) + "\n")
    for task in tasks:
        if (one := main_probe(measured, task.name)) is not None:
            write_confusion(out / f"confusion_{task.name}.png", one, report.name)
    return write_report(out, [report])


def _provenance(
    model: Model, options: argparse.Namespace, images: Sequence[LabelledImage], seconds: float
) -> Provenance:
    settings = {
        name: getattr(options, name)
        for name in ("layer", "transformations", "widths", "steps", "runs", "limit", "side")
    }
    return Provenance(
        backbone=model.backbone.title,
        adapter="zero-shot" if model.untrained else type(model.adapter).__name__,
        model={"backbone": model.backbone.spec(), "adapter": model.adapter.spec()},
        fingerprint=model.backbone.fingerprint,
        data=f"{options.images} ({len(images)} images)",
        config={"evaluated": options.model, "pretrained": options.pretrained, "probe": settings},
        versions=library_versions(),
        commit=code_commit(),
        date=now(),
        seed=options.seed,
        trainable_parameters=0,
        seconds=seconds,
    )
