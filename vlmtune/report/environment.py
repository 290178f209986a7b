"""What a run ran on: library versions, git commit, time.

In: nothing but the machine. Out: texts for the report. Never: a change of a repository.
"""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from vlmtune.storage.secrets import without_secrets

LIBRARIES = (
    *("vlmtune", "torch", "torchvision", "open_clip_torch", "transformers", "pytorch-lightning"),
    *("webdataset", "numpy", "pillow"),
)


def library_versions() -> dict[str, str]:
    """Versions of Python and of the installed libraries that can change a number."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def code_commit() -> str:
    """Commit of the repository that tracks this code, with "-dirty" if files were changed.

    "unknown" for an installed package, whose folder may lie inside a repository of something else.
    """
    here = Path(__file__)
    commit = _git("rev-parse", "HEAD")
    if not commit or not _git("ls-files", here.name):
        return "unknown"
    return f"{commit}-dirty" if _git("status", "--porcelain") else commit


def session() -> dict[str, str]:
    """The command line of this process, without credentials, and its hardware."""
    program = Path(sys.argv[0]).name
    words = ["vlmtune" if program == "__main__.py" else program]  # of `python -m vlmtune`
    option = ""
    for word in sys.argv[1:]:
        # A word without a dash is a value of the option before it.
        prefix, value = "", word
        if word.startswith("-"):
            option, equals, value = word.partition("=")
            prefix = option + equals
        words.append(prefix + _recorded(option, value))
    hardware = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if torch.cuda.is_available():
        hardware += f", {torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return {"command": shlex.join(words), "hardware": hardware}


def _recorded(option: str, value: str) -> str:
    """A value of an option; "..." in place of a credential."""
    # A mapping in JSON or YAML and a command of a shell hold credentials under any name.
    nested = value.lstrip().startswith(("{", "[")) and ":" in value
    if nested or ": " in value or value.startswith("pipe:"):
        return "..."
    if not value:
        return ""
    kept = without_secrets({option: value})[option]
    return "..." if kept is None else kept


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        # Ten seconds, as git may wait for a slow network disk.
        process = subprocess.run(command, capture_output=True, text=True, timeout=10)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""
