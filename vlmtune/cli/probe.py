"""`vlmtune probe`: how much an embedding reveals about image transformations.

In: models and images. Out: report.json and its pages, tables.md, probe.json, confusion matrices.
Never: a changed model. `probe_options` declares its options, `probe_models` reads the models.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from vlmtune.cli.probe_models import Embedding, embeddings_of
from vlmtune.cli.provenance import provenance_of
from vlmtune.errors import UserError
from vlmtune.model.resolving import device_of_this_machine
from vlmtune.probing.categories import STYLES, categories
from vlmtune.probing.embeddings import embed_tasks, label_names
from vlmtune.probing.experiment import Measured, measure, probe_specs
from vlmtune.probing.fine import fine
from vlmtune.probing.probe import Training
from vlmtune.probing.results import to_json, to_results, write_confusion
from vlmtune.probing.sheet import write_sheet
from vlmtune.probing.sources import LabelledImage, any_image, labelled_images
from vlmtune.probing.styles import load_styles
from vlmtune.probing.tables import Probed, main_probe, to_tables
from vlmtune.probing.tasks import Task
from vlmtune.report.html import write_report
from vlmtune.report.run_report import Provenance, RunReport
from vlmtune.report.screen import show
from vlmtune.storage.files import all_or_none, write_text

TASKS = {"fine": fine, "categories": categories}
SETTINGS = ("images", "transformations", "widths", "steps", "runs", "limit", "side", "seed")
"""Options that a report repeats."""


def run(options: argparse.Namespace) -> None:
    """Writes the report of all probes into `options.out`, or sheets into `options.pictures`."""
    if options.pictures is None and None in (options.model, options.out):
        raise UserError(
            "expected --model and --out, or only --pictures, got neither in full: add what is "
            "missing (see `vlmtune probe --help`)"
        )
    styles = None if options.styles is None else load_styles(options.styles, STYLES)
    tasks = [TASKS[name](styles) for name in dict.fromkeys(options.transformations)]
    if options.pictures is not None:
        image = any_image(options.images, options.labels)
        for task in tasks:
            file = options.pictures / f"{task.name}.jpg"
            write_sheet(file, image, task, options.side)
            print(f"pictures: {file}")
        return

    # Wrong numbers, images and devices are found before a model is loaded.
    training = Training(options.steps, runs=options.runs, seed=options.seed)
    images = labelled_images(options.images, options.labels, options.limit)
    device = device_of_this_machine(options.device)
    embeddings = embeddings_of(options)
    options.out.mkdir(parents=True, exist_ok=True)  # fails now rather than after the work
    store = options.store or options.out / "features"
    runnable = [task.runnable() for task in tasks]
    classes = len(label_names(images))

    # A model is measured and written before the next, so that a stop loses one of them.
    reports = []
    probed = []
    page = options.out
    several = len(embeddings) > 1
    for embedding in embeddings:
        start = time.monotonic()
        features = embed_tasks(
            embedding.embedder, images, runnable, store, options.side, options.seed
        )
        measured = []
        for task in runnable:
            for spec in probe_specs(options.widths, classes > 0):
                of_task = features[task.name]
                measured.append(measure(task, spec, of_task, classes, training, device))
        seconds = time.monotonic() - start
        origin = _origin(embedding, options, seconds)
        report = _report(embedding, origin, measured, tasks, images)
        one_probed = Probed(embedding.name, measured, embedding.before)
        folder = options.out / embedding.folder if several else options.out
        with all_or_none():
            page = _write(folder, [report], [one_probed], tasks, images)
            numbers = json.dumps(to_json(measured), indent=1)
            write_text(folder / "probe.json", f"{numbers}\n")
            for task in tasks:
                main = main_probe(measured, task.name)
                if main is not None:
                    picture = folder / f"confusion_{task.name}.png"
                    write_confusion(picture, main, embedding.name)
            report.save(folder / "report.json")
        reports.append(report)
        probed.append(one_probed)
    # Several models are compared on a page of all of them, beside the page of each.
    if several:
        page = _write(options.out, reports, probed, tasks, images)
    show(reports)
    print(f"tables: {options.out / 'tables.md'}")
    print(f"report: {page}")


def _origin(embedding: Embedding, options: argparse.Namespace, seconds: float) -> Provenance:
    settings = {name: getattr(options, name) for name in SETTINGS}
    settings["layer"] = embedding.embedder.layer
    settings["seconds"] = seconds
    model = embedding.embedder.model
    config = {"probe": settings}
    return provenance_of(model, embedding.given, options.pretrained, config)


def _report(
    embedding: Embedding,
    origin: Provenance,
    measured: Sequence[Measured],
    tasks: Sequence[Task],
    images: Sequence[LabelledImage],
) -> RunReport:
    settings = origin.config["probe"]
    # Probes of the same images compare only if they transform them alike: side and seed count.
    facts = [str(settings["side"]), str(settings["seed"])]
    facts += sorted(image.digest for image in images)
    results = to_results(measured, facts)
    reasons = []
    for task in tasks:
        if task.not_run:
            names = ", ".join(transformation.name for transformation in task.not_run)
            reasons.append((f"probe_{task.name}/{names}", "no weights (--styles)"))
    return RunReport(embedding.name, origin, tuple(results), not_run=tuple(reasons))


def _write(
    out: Path,
    reports: Sequence[RunReport],
    probed: Sequence[Probed],
    tasks: Sequence[Task],
    images: Sequence[LabelledImage],
) -> Path:
    train = sum(image.split == "train" for image in images)
    test = len(images) - train
    with all_or_none():
        write_text(out / "tables.md", to_tables(probed, train, test, tasks))
        return write_report(out, reports)
