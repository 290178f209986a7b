"""What a run ran on: library versions, git commit, time."""

import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

LIBRARIES = (
    "vlmtune",
    "torch",
    "torchvision",
    "open_clip_torch",
    "transformers",
    "pytorch-lightning",
    "webdataset",
    "numpy",
    "pillow",
)


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that can change a number, where installed.

    Example:
        >>> sorted(library_versions())[:1]
        ['numpy']
    """
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_commit(folder: Path) -> str:
    """Commit of the repository `folder` is in, "-dirty" appended where files were changed.

    Example:
        >>> git_commit(Path("/"))
        'unknown'
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return "unknown"
    return f"{commit}-dirty" if _git(folder, "status", "--porcelain") else commit


def code_commit() -> str:
    """Commit of the repository this code is a part of, wherever it is run from.

    "unknown" where it was installed without one, be it into another project's repository.
    """
    here = Path(__file__)
    return git_commit(here.parent) if _git(here.parent, "ls-files", here.name) else "unknown"


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
