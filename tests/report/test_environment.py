import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from vlmtune.report import environment
from vlmtune.report.environment import code_commit, git_commit, library_versions, now


def test_versions():
    versions = library_versions()
    assert versions["torch"]
    assert versions["python"].count(".") == 2


def test_now_is_utc():
    assert datetime.fromisoformat(now()).utcoffset().total_seconds() == 0


@pytest.fixture
def git(tmp_path):
    """Runs git in a new repository."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def run(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("init")
    return run


def test_commit_and_changes(git, tmp_path):
    assert git_commit(tmp_path) == "unknown"
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "a", "--no-verify")
    commit = git("rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"


def test_the_commit_is_that_of_the_code_and_not_of_where_it_is_run(git, tmp_path, monkeypatch):
    here = git_commit(Path(environment.__file__).parent)
    git("commit", "-m", "a", "--no-verify", "--allow-empty")
    monkeypatch.chdir(tmp_path)
    assert code_commit() == here
    # Installed into the folder of another project, it is no part of that repository.
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "environment.py"))
    assert code_commit() == "unknown"
