"""`vlmtune export`: turns a checkpoint into a folder that loads in three lines.

In: a checkpoint. Out: the folder, a merged checkpoint, or what mixtures of weights score.
Never: an overwritten export without --overwrite.
"""

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from vlmtune.cli.option_names import naming_table_options
from vlmtune.cli.plugins import is_table, make_benchmarks, model_of
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.evaluation.suite import SuiteResult, load_all, run_suite
from vlmtune.export import save_export
from vlmtune.export.files import check_target
from vlmtune.model import read_checkpoint
from vlmtune.model.layout import CONFIG
from vlmtune.model.loading import loading_call
from vlmtune.model.model import Model
from vlmtune.model.resolving import PUBLISHED, device_of_this_machine
from vlmtune.report.environment import code_commit, library_versions, now
from vlmtune.report.run_report import RunReport
from vlmtune.report.screen import show_alphas, show_not_run
from vlmtune.storage.image_files import image_files

if TYPE_CHECKING:  # most exports have the trained weights as they are
    from vlmtune.model.wise_ft import WiseFT

PEFT = "peft"
REPEATED = ("config", "versions", "commit", "date", "data", "seed", "seconds")
"""Fields of a report's provenance that an export repeats."""


def run(options: argparse.Namespace) -> None:
    """Writes the export of `options.checkpoint` to `options.out`, at `options.alpha`.

    Of `options.model` it only writes the merged checkpoint.

    With `options.alphas` it measures the model at each of them. Without `options.out` it then
    writes nothing. If `options.alpha` is one of them, the model card has its scores.
    """
    given = options.checkpoint
    is_export = given is not None and (given / CONFIG).is_file()
    names_model = is_export or str(given).startswith(PUBLISHED)
    if names_model and options.model is None:
        # An export is a model that is named, and no checkpoint.
        options.model = str(given)
        options.checkpoint = None
    # Contradictions are found before the work.
    _check_options(options)
    model = _source(options)
    alpha = 1.0 if options.alpha is None else options.alpha
    provenance: dict[str, Any] = {}
    if options.report is not None:
        provenance = _reported(options.report, model)
    # Some adapters have no weights between, so none are made unless they are asked for.
    if options.alphas is not None or alpha != 1:
        from vlmtune.model.wise_ft import WiseFT

        weights = WiseFT(model.backbone, model.adapter)
        if options.alphas is not None:
            suites = measure(weights, options)
            if alpha in suites:
                provenance.setdefault("results", suites[alpha].results)
        # Measuring left the last of the alphas in the model.
        weights.at(alpha)
    if options.merged is not None:
        _merge(options, model)
    if options.out is None:
        return

    # A report knows more than the checkpoint, and the checkpoint more than this process.
    today = {"versions": library_versions(), "commit": code_commit(), "date": now()}
    recorded = {**today, **model.provenance, **provenance}
    # An export that is written again keeps its alpha and its licence.
    alpha = recorded.pop("alpha", alpha)
    licence = recorded.pop("licence", None)
    save_export(
        options.out,
        model.backbone,
        model.adapter,
        provenance=recorded,
        overwrite=options.overwrite,
        alpha=alpha,
        licence=options.licence or licence,
        peft=options.format == PEFT,
    )
    size = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"{options.out}: {decimal(size)}; load it with {loading_call(str(options.out), model)}")
    if options.format == PEFT and model.adapter.init_args.get("learn_scale"):
        print("left out, as PEFT has no form for it: the trained scale of scores", file=sys.stderr)
    if options.push_to_hub is not None:
        from vlmtune.export.publishing import push  # most exports stay here

        commit = push(options.out, options.push_to_hub, options.public)
        print(f"{options.push_to_hub}: commit {commit}; {loading_call(options.push_to_hub, model)}")


def _source(options: argparse.Namespace) -> Model:
    """The model to export, with --image-size at that size, with --vectors as one of vectors."""
    if options.model is None:
        model = read_checkpoint(options.checkpoint, options.packages, options.pretrained)
    else:
        model = model_of(options, device="cpu")
    if options.image_size is not None:
        from vlmtune.export.to_image_size import to_image_size  # most exports keep theirs

        model = to_image_size(model, options.image_size)
    if options.vectors is None:
        return model
    from vlmtune.export.to_vectors import to_vectors  # most exports have other adapters

    images = [] if options.images is None else image_files(options.images)
    return to_vectors(model, options.vectors, options.directions, images)


def _merge(options: argparse.Namespace, model: Model) -> None:
    """Writes the merged checkpoint and says how to load it."""
    # The forms of other libraries load every family of backbones, so only a merge imports them.
    from vlmtune.export.merging import loading_line, save_merged

    left_out = save_merged(options.merged, model, options.format)
    library = options.format or "the model's own library"
    kind = "two graphs of ONNX" if library == "onnx" else f"a checkpoint of {library}"
    if left_out:
        kind += f" ({left_out})"
    line = loading_line(options.merged, model.backbone, options.format)
    print(f"{options.merged}: {kind}; load it with {line}")


def _check_options(options: argparse.Namespace) -> None:
    """Raises `UserError` for the first contradiction."""
    checkpoint = options.checkpoint
    model = options.model
    merged = options.merged
    out = options.out
    target = merged or out
    alpha = options.alpha
    alphas = options.alphas
    sources = "neither" if model is None else f"{checkpoint} and {model}"
    changes = merged or options.vectors is not None or options.image_size
    contradictions = (
        (
            (checkpoint is None) == (model is None),
            f"expected a checkpoint or --model, got {sources}: give one of them",
        ),
        (
            model is None and options.architecture,
            f"expected --model with --architecture, got {checkpoint}: write --model {checkpoint}",
        ),
        (
            model is not None and (not changes or alphas is not None or alpha is not None),
            f"expected --merged FOLDER, --vectors or --image-size with --model {model}, which is "
            "not a checkpoint of `vlmtune fit`: add one, and leave out --alpha and --alphas",
        ),
        (
            out is None
            and (options.report or options.push_to_hub or options.licence or options.public),
            "expected --out FOLDER with --report, --push-to-hub, --licence or --public, got none: "
            "add it, or leave these out",
        ),
        (
            options.format not in (None, PEFT) and merged is None,
            f"expected --merged FOLDER with --format {options.format}, got none: add it",
        ),
        (
            options.format == PEFT and out is None,
            "expected --out FOLDER with --format peft, got none: add it",
        ),
        (
            merged is not None and out is not None,
            "expected --out or --merged, got both: run one export after the other",
        ),
        (
            target is None and (alphas is None or alpha is not None),
            "expected --out FOLDER to write to, or only --alphas and --benchmarks to measure, got "
            "neither: add --out or --merged",
        ),
        (
            alphas is not None and options.benchmarks is None,
            "expected --benchmarks with --alphas, got none: add it",
        ),
        (
            alphas is None and options.benchmarks is not None,
            "expected --alphas with --benchmarks, got none: add it",
        ),
        (
            alphas is not None and target is not None and alpha is None,
            "expected --alpha to say which of --alphas to write to --out, got none: choose one",
        ),
        (
            options.vectors is not None and not 0 <= options.vectors < math.inf,
            f"expected a weight of at least 0 with --vectors, got {options.vectors}: use 1 or 2",
        ),
        (
            (options.directions is None) != (options.images is None)
            or (options.directions is not None and options.vectors is None),
            "expected --vectors, --directions and --images together, got some of them: add the "
            "others, or give --vectors alone",
        ),
        (
            options.report is not None and alpha not in (None, 1.0),
            f"expected no --report with --alpha {alpha}, as its scores belong to the trained "
            "weights: leave it out, or measure with --alphas and --benchmarks",
        ),
    )
    for contradicted, line in contradictions:
        if contradicted:
            raise UserError(line)
    if options.push_to_hub is not None:
        from vlmtune.export.publishing import check_repository

        check_repository(options.push_to_hub)
    given = [*(alphas or ())]
    if alpha is not None:
        given.append(alpha)
    if given:
        from vlmtune.model.wise_ft import check_alpha

        for one in given:
            check_alpha(one)
    if out is not None:
        check_target(out, options.overwrite)


def _reported(path: Path, model: Model) -> dict[str, Any]:
    """The provenance and the scores of a report, if it measured these weights."""
    # The scores of another run on a model card would be wrong numbers.
    file = path / "report.json" if path.is_dir() else path
    report = RunReport.load(file)
    provenance = report.provenance
    adapter = model.adapter.spec()["class_path"]
    described = provenance.model.get("adapter", {}).get("class_path")
    other_backbone = provenance.fingerprint != model.backbone.fingerprint
    if other_backbone or described != adapter:
        raise UserError(
            f"expected the report of this checkpoint's {adapter}, got one of {described} on "
            f"backbone {provenance.fingerprint[:12]}: pass the report of the same run"
        )
    if provenance.config.get("digest") == model.digest():
        return {"results": report.results}  # of `vlmtune evaluate`, which knows the weights
    origin = asdict(provenance)
    difference = _difference(origin, model.provenance)
    if difference is not None:
        print(f"the report is left out: {difference}", file=sys.stderr)
        return {}
    facts = {key: origin[key] for key in REPEATED}
    return {**facts, "results": report.results}


def _difference(measured: Mapping[str, Any], trained: Mapping[str, Any]) -> str | None:
    """Why what a report measured is not what was trained; None if nothing speaks against it."""
    if "digest" in measured["config"]:
        return "it measured other weights"
    config = trained.get("config")
    if not isinstance(config, Mapping):
        return None  # an old checkpoint
    # A run reports its last step, and its best checkpoint may be of another.
    steps = config.get("steps")
    measured_steps = measured["config"].get("steps")
    if steps is not None and steps != measured_steps:
        return f"it measured {measured_steps} steps, the checkpoint has {steps}"
    facts = _facts(measured)
    for name, value in _facts(trained).items():
        if value is not None and value != facts[name]:
            return f"it is of another run, with other {name}"
    return None


def _facts(origin: Mapping[str, Any]) -> dict[str, Any]:
    """What the report and the checkpoints of a run share, however often it was resumed."""
    config = origin["config"]
    return {
        "seeds": origin.get("seed"),
        "training data": config.get("training_data"),
        "objectives": config.get("objectives"),
        "pairs": config.get("pairs"),
        "options of the model": config.get("fit", {}).get("model"),
    }


def measure(weights: "WiseFT", options: argparse.Namespace) -> dict[float, SuiteResult]:
    """Measures the model at each alpha and shows the numbers; frozen parts are encoded once."""
    with naming_table_options(any(map(is_table, options.benchmarks))):
        benchmarks = make_benchmarks(options.benchmarks, options.overrides)
        load_all(benchmarks)
    device = device_of_this_machine(options.device)
    backbone = weights.backbone.to(device)
    adapter = weights.adapter.to(device)
    scorer = Scorer(backbone, adapter, options.store, options.batch_size)
    suites = {}
    not_run = []
    for alpha in options.alphas:
        weights.at(alpha)
        suites[alpha] = run_suite(benchmarks, scorer)
        not_run += suites[alpha].not_run
    show_alphas({alpha: suite.results for alpha, suite in suites.items()})
    show_not_run(not_run)
    return suites
