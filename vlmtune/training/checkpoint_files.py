"""The checkpoints in the folder of a run.

In: the folder. Out: the newest checkpoint that the run resumes from. Never: what it holds.
"""

from pathlib import Path

LAST = "checkpoints/last.ckpt"
ON_SIGNAL = "last-on-signal.ckpt"
"""Written where a signal stops the run."""


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the newer of both checkpoints, or None.

    Example:
        >>> newest_checkpoint(Path("none"))
    """
    paths = [path for name in (LAST, ON_SIGNAL) if (path := folder / name).is_file()]
    return max(paths, key=lambda path: path.stat().st_mtime, default=None)
