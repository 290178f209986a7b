"""A download that is killed at any moment ends in the same bytes once it is repeated."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.faulty_server import FaultyServer
from tests.forks import forked, status
from tests.sources.conftest import content, declare, declare_toy, publish, tarred, zipped
from vlmtune.cli.main import main

NAMES = ("toy", "zip", "tar", "made")


def publish_all(server: FaultyServer) -> None:
    """Publishes images one by one, an archive of each kind, and a file that is converted."""
    declare_toy(server, count=12)
    members = {f"{number}.txt": f"text {number}" for number in range(300)}
    for kind, pack in (("zip", zipped), ("tar", tarred)):
        address = f"https://host.example/{kind}.archive"
        publish(server, address, pack(members))
        declare(kind, files=[{"url": address, "path": kind, "unpack": kind}])
    address = "https://host.example/captions.json"
    rows = [{"image": "a.jpg", "caption": [f"a red cat sits on {n} mats"]} for n in range(50)]
    publish(server, address, json.dumps(rows).encode())
    conversion = {
        "call": "vlmtune.sources.conversions.shuffles.write_shuffles",
        "makes": "made/captions_shuffles.json",
        "arguments": {"captions": "made/captions.json"},
    }
    file = {"url": address, "path": "made/captions.json"}
    declare("made", files=[file], convert=[conversion])


def download(root: str, die_at: int | None = None) -> int:
    """Runs `vlmtune download`; it kills itself before an operation on a file, of this number."""
    operations = 0

    def watch(event: str, given: tuple[object, ...]) -> None:
        nonlocal operations
        if any(isinstance(x, str | Path) and f"{root}/" in str(x) for x in given):
            operations += 1
            if operations == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    done = main(["download", *NAMES, "--data-root", root])
    Path(f"operations of {root}").write_text(str(operations))
    return done


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_download_killed_at_any_moment_ends_in_the_same_bytes(mirror, tmp_path):
    publish_all(mirror)
    log = tmp_path / "log.txt"
    assert status(forked(download, "whole", log=log)) == 0, log.read_text()
    operations = int(Path("operations of whole").read_text())
    for number in range(1, 10):
        root = f"tenth{number}"
        killed = forked(download, root, number * operations // 10, log=log)
        assert status(killed) == -signal.SIGKILL
        assert status(forked(download, root, log=log)) == 0, log.read_text()
        assert content(Path(root)) == content(Path("whole"))
