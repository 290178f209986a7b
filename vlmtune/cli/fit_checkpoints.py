"""What `vlmtune fit` says of its checkpoints at the end of a run.

In: a trainer whose run has ended. Out: a path, and lines to print. Never: a change of a file.
"""

import shlex
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from vlmtune.model.loading import check_checkpoint, foreign_packages, is_checkpoint
from vlmtune.training.module import adaptation


def last_checkpoint(trainer: pl.Trainer) -> Path | None:
    """The checkpoint of the last step, if one was saved."""
    for callback in trainer.checkpoint_callbacks:
        path = Path(getattr(callback, "last_model_path", ""))
        if is_checkpoint(path) and check_checkpoint(path)["global_step"] == trainer.global_step:
            return path
    return None


def exported_checkpoints(trainer: pl.Trainer) -> dict[Path, list[str]]:
    """The checkpoints that a run exports, each as "best" by a monitored number, "last", or both."""
    exported: dict[Path, list[str]] = {}
    last = last_checkpoint(trainer)
    for best in list(_monitored(trainer))[:1]:  # of several monitors the first chooses
        path = Path(best)
        if last is not None and check_checkpoint(path)["global_step"] == trainer.global_step:
            path = last
        exported[path] = ["best"]
    if last is not None:
        exported.setdefault(last, []).append("last")
    return exported


def _monitored(trainer: pl.Trainer) -> dict[str, tuple[str, float]]:
    """The checkpoints that are best by a number, each with its name and value."""
    monitored = {}
    for callback in trainer.checkpoint_callbacks:
        # Without a monitor the best is the last: it is not named twice.
        if isinstance(callback, ModelCheckpoint) and callback.monitor:
            path = callback.best_model_path
            score = callback.best_model_score
            if score is not None and is_checkpoint(path):
                monitored[path] = (callback.monitor, float(score))
    return monitored


def checkpoint_lines(trainer: pl.Trainer) -> list[str]:
    """Says which checkpoint has the last weights, which the best, and what to type next."""
    paths: dict[str, int] = {}  # and the step of each
    monitored = _monitored(trainer)
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint):
            continue
        for path in (callback.last_model_path, callback.best_model_path):
            if path and is_checkpoint(path):
                paths[path] = check_checkpoint(path)["global_step"]
    if not paths:
        return []
    last = [path for path, step in paths.items() if step == trainer.global_step]
    # The last weights come first, then the best ones, then any others.
    shown = [*last, *monitored, *paths][0]
    lines = [f"checkpoint: {shown} (weights of step {paths[shown]})"]
    for path, (monitor, score) in monitored.items():
        step = paths[path]
        if step != trainer.global_step:
            best = f"{monitor} {score:.4g}"
            lines.append(f"best: {path} (weights of step {step}, {best})")
    module = adaptation(trainer.lightning_module)
    packages = foreign_packages(module.backbone.spec(), module.adapter.spec())
    more = " ".join(["", "--packages", *packages]) if packages else ""
    return [*lines, f"next: vlmtune export {shlex.quote(shown)} --out FOLDER{more}"]
