"""The standard streams take any text; output on a terminal has no control characters."""

import io
import os
import subprocess
import sys

import pytest

from tests.forks import forked, status
from tests.runs import QUIET
from tests.tiny import fit_config
from vlmtune.cli.explain import explain
from vlmtune.cli.main import entry
from vlmtune.cli.streams import Output, Stream, sturdy
from vlmtune.report.printable import printable

pytestmark = QUIET


def pipe():
    """An output into a pipe, and the end to read from."""
    reading, writing = os.pipe()
    stream = io.TextIOWrapper(os.fdopen(writing, "wb"), encoding="ascii")
    return sturdy(stream), reading


def test_a_line_is_written_at_once_in_any_encoding():
    output, reading = pipe()
    print("hits → 3", file=output)
    os.set_blocking(reading, False)
    assert os.read(reading, 100) == b"hits \\u2192 3\n"
    output.close()
    os.close(reading)


def test_a_closed_pipe_or_output_ends_no_run():
    output, reading = pipe()
    os.close(reading)
    for _ in range(3):
        print("line", file=output, flush=True)
    output.close()
    with sturdy(None) as output:
        print("line", file=output, flush=True)


def fit_unread(config, writing):
    """Runs `vlmtune fit` as a program whose output goes into a closed pipe."""
    for number in (1, 2):
        os.dup2(writing, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
    sys.argv = ["vlmtune", "fit", "--config", str(config)]
    entry()


def test_a_training_needs_no_reader(tmp_path, model_folder, shards):
    config = fit_config(tmp_path, model_folder, shards, trainer={"max_steps": 1})
    reading, writing = os.pipe()
    os.close(reading)
    assert status(forked(fit_unread, config, writing, log=tmp_path / "log.txt")) == 0
    os.close(writing)
    assert len(list((tmp_path / "run").rglob("*.ckpt"))) == 1


def test_a_program_imports_no_module_of_its_folder(tmp_path):
    """`vlmtune.cli.main` imports this one; one that trains would import torch for seconds."""
    (tmp_path / "typing_extensions.py").write_text("raise ImportError('of the working folder')")
    words = [sys.executable, "-m", "vlmtune", "--version"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_bar_on_the_error_stream_keeps_its_control_characters(monkeypatch):
    file = io.BytesIO()
    stream = Stream(file, encoding="utf-8")
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    stream.write("\x1b[2K\r50 %")
    stream.flush()
    assert file.getvalue() == b"\x1b[2K\r50 %"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m\n"),  # the colours of tables
        ("a\x1b]0;owned\x07b", "a\\x1b]0;owned\\x07b"),
        ("a\x1b[2Jb\x9b1A", "a\\x1b[2Jb\\x9b1A"),
        ("tab\tcaf\u00e9", "tab\tcaf\u00e9"),
    ],
)
def test_a_terminal_gets_no_control_characters(text, shown, monkeypatch):
    for terminal in (True, False):
        file = io.BytesIO()
        output = Output(file, encoding="utf-8")
        monkeypatch.setattr(output, "isatty", lambda terminal=terminal: terminal, raising=False)
        output.write(text)
        output.flush()
        assert file.getvalue().decode() == (shown if terminal else text)


def test_errors_have_no_control_characters():
    assert printable("\x1b[31m\r") == "\\x1b[31m\\x0d"
    assert explain(ValueError("a \x1b]0;x\x07 caption")).startswith("ValueError: a \\x1b]0;x\\x07")
