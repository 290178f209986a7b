"""The checkpoints in the folder of a run.

In: the folder. Out: the newest checkpoint that the run resumes from. Never: what it holds.
"""

from pathlib import Path

from vlmtune.storage.files import remove_leftovers

LAST = "checkpoints/last.ckpt"  # the newest that `ModelCheckpoint` wrote
ON_SIGNAL = "last-on-signal.ckpt"
"""Written where a signal stops the run."""
LAST_FINITE = "last-before-nan.ckpt"
WITHIN = "within-budget.ckpt"
"""Written by `RetentionBudget`."""


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the checkpoint with more steps, or None; clocks may be wrong.

    Example:
        >>> newest_checkpoint(Path("none"))
    """
    paths = [folder / name for name in (LAST, ON_SIGNAL)]
    for path in paths:
        remove_leftovers(path)  # restores a folder, if a kill came as another one replaced it
    present = [path for path in paths if path.exists()]
    if len(present) > 1:
        return max(present, key=_step)
    return present[0] if present else None


def _step(path: Path) -> int:
    from vlmtune.model import check_checkpoint  # it imports torch, and two checkpoints are rare

    return check_checkpoint(path).get("global_step", 0)
