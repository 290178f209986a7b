import shutil
import subprocess

import pytest

from vlmtune.report import environment
from vlmtune.report.environment import code_commit, session


def test_the_command_is_recorded_without_credentials(monkeypatch):
    words = ["/usr/bin/vlmtune", "fit", "--config", "a b.yaml", "--api_key", "hidden", "--x=1"]
    words += ["--token=hidden", "--trainer.logger", '{"api_key": "hidden"}', "--fast"]
    words += ["s3://me:hidden@host/shards", "--data", "pipe:curl -H 'x-token:hidden' host"]
    words += ["--trainer.logger=[{api_key: hidden}]", "--trainer.logger", "api_key: hidden"]
    words += ["--model.objectives", "[info_nce]"]
    monkeypatch.setattr("sys.argv", words)
    facts = session()
    assert facts["command"] == (
        "vlmtune fit --config 'a b.yaml' --api_key ... --x=1 --token=... --trainer.logger ... "
        "--fast s3://host/shards --data ... --trainer.logger=... --trainer.logger ... "
        "--model.objectives '[info_nce]'"
    )
    assert "cores" in facts["hardware"]
    monkeypatch.setattr("sys.argv", ["/lib/vlmtune/__main__.py", "fit"])  # of python -m vlmtune
    assert session()["command"] == "vlmtune fit"


@pytest.fixture
def git(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def run(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("init")
    return run


def test_commit_and_changes(git, tmp_path, monkeypatch):
    """Installed into the folder of another project, the code is no part of that repository."""
    code = tmp_path / "environment.py"
    code.write_text("1")
    monkeypatch.setattr(environment, "__file__", str(code))
    assert code_commit() == "unknown"
    git("commit", "-m", "other", "--no-verify", "--allow-empty")
    assert code_commit() == "unknown"
    git("add", code.name)
    git("commit", "-m", "a", "--no-verify")
    commit = git("rev-parse", "HEAD")
    assert code_commit() == commit
    code.write_text("2")
    assert code_commit() == f"{commit}-dirty"
