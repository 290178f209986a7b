"""Tab completion, as docs/train.md has it."""

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/train.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["vlmtune", "ex"], ["export"]),
        (["vlmtune", "search", "--rec"], ["--recall"]),
        (["vlmtune", "evaluate", "--te"], ["--text-only"]),
        (["vlmtune", "nothing-like-it"], []),
    ],
)
def test_words_are_completed(words, completed, tmp_path):
    shtab = pytest.importorskip("shtab", reason="shtab is not installed")
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    (path,) = re.findall(r"`shtab --shell=bash (\S+) > ", PAGE)
    module, _, name = path.rpartition(".")
    script = tmp_path / "vlmtune"
    script.write_text(shtab.complete(getattr(importlib.import_module(module), name)(), "bash"))
    line = f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
    line += "_shtab_vlmtune; echo ${COMPREPLY[@]}"
    done = subprocess.run([bash, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.split() == completed
