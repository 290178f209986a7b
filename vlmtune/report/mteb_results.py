"""The numbers of a run as mteb writes its results: one JSON for each of its tasks.

In: a run report. Out: the files' contents. Never: a benchmark that mteb does not have.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from vlmtune.report.printable import printable
from vlmtune.report.run_report import RunReport
from vlmtune.results.result import Result
from vlmtune.storage.files import write_text

# The names of benchmarks here, and of tasks in mteb 2.26.
TASKS = {
    "winoground": "Winoground",
    "sugar_crepe": "SugarCrepe",
    "aro_relation": "AROVisualRelation",
    "aro_attribution": "AROVisualAttribution",
    "coco_order": "AROCocoOrder",
    "flickr30k_order": "AROFlickrOrder",
}
METRICS = {"text_accuracy": "text_acc", "image_accuracy": "image_acc", "group_accuracy": "accuracy"}
# Of an image and its captions; mteb's image_acc and accuracy of such items are always 0.
METRICS["accuracy"] = "text_acc"


def write_mteb(folder: Path, runs: Sequence[RunReport]) -> None:
    """Writes `results/RUN/FINGERPRINT/TASK.json` in `folder`, and what mteb asks of the model.

    Runs without images are left out. The layout is that of `mteb.ResultCache(folder)`. The items
    are read from the original files, not from mteb's copies, and ties do not count as right, so
    `dataset_revision` names the version of the metric of vlmtune and no revision of mteb.
    """
    written = 0
    for run in runs:
        # A slash would make a folder; mteb writes two underscores for it.
        model = printable(run.name).replace("/", "__")
        # Of another tool's items no weights are known; mteb has a word for that.
        revision = run.provenance.fingerprint[:12] or "no_revision_available"
        for result in run.results:
            task = TASKS.get(result.benchmark)
            if task is None or run.text_only:
                continue
            path = folder / "results" / model / revision
            # mteb passes over results without the name of their model.
            about = {"name": printable(run.name), "revision": revision}
            write_text(path / "model_meta.json", json.dumps(about, indent=2) + "\n")
            content = json.dumps(_task_result(task, result), indent=2)
            write_text(path / f"{task}.json", f"{content}\n")
            written += 1
    if not written:
        print(
            f"{folder}: not written, as no run with images has a benchmark of mteb", file=sys.stderr
        )


def _task_result(task: str, result: Result) -> dict[str, object]:
    """The fields of mteb's `TaskResult`; its version is none, as mteb measured nothing."""
    scores: dict[str, object] = {"hf_subset": "default", "languages": ["eng-Latn"]}
    for name, metric in result.metrics.items():
        if name in METRICS:
            scores[METRICS[name]] = metric.value
    # Of Winoground the group score, else the choice of the caption.
    scores["main_score"] = scores.get("accuracy", scores.get("text_acc"))
    return {
        "dataset_revision": f"vlmtune-{result.version}",
        "task_name": task,
        "mteb_version": None,
        "scores": {"test": [scores]},
        "evaluation_time": None,
        "kg_co2_emissions": None,
    }
