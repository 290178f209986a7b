import shutil
import subprocess
from datetime import datetime

import pytest

from vlmtune.report.environment import git_commit, library_versions, now


def test_versions():
    versions = library_versions()
    assert versions["torch"]
    assert versions["python"].count(".") == 2


def test_now_is_utc():
    assert datetime.fromisoformat(now()).utcoffset().total_seconds() == 0


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commit_and_changes(tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    assert git_commit(tmp_path) == "unknown"
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "a", "--no-verify")
    commit = git("rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"
