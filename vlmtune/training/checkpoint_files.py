"""The checkpoints in the folder of a run.

In: the folder. Out: the newest checkpoint that the run resumes from. Never: what it holds.
"""

from pathlib import Path

LAST = "checkpoints/last.ckpt"
ON_SIGNAL = "last-on-signal.ckpt"
"""Written where a signal stops the run."""


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the checkpoint with more steps, or None; clocks may be wrong.

    Raises:
        UserError: There are two, and one of them is not a checkpoint.

    Example:
        >>> newest_checkpoint(Path("none"))
    """
    paths = [path for name in (LAST, ON_SIGNAL) if (path := folder / name).is_file()]
    return max(paths, key=_step) if len(paths) > 1 else next(iter(paths), None)


def _step(path: Path) -> int:
    from vlmtune.model import check_checkpoint  # it imports torch, and two checkpoints are rare

    return check_checkpoint(path).get("global_step", 0)
