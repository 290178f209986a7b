"""Options are in kebab case, underscores are accepted; words are completed as in docs/train.md."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vlmtune.cli.commands import command_parser
from vlmtune.cli.main import TimmWithoutWandb, main
from vlmtune.config import stems

(COMMANDS,) = (a.choices for a in command_parser()._actions if a.dest == "command")
OPTIONS = [
    (command, option, action.nargs == 0)
    for command, parser in COMMANDS.items()
    for action in parser._actions
    for option in action.option_strings
    if re.search("[-_]", option.lstrip("-"))
]


@pytest.mark.parametrize(("command", "option", "is_flag"), OPTIONS)
def test_options_have_dashes_and_may_be_given_with_underscores(capsys, command, option, is_flag):
    assert "_" not in option
    given = f"--{option[2:].replace('-', '_')}"
    corpus = ["table"] if command == "build" else []
    assert main([command, *corpus, f"{given}=x" if is_flag else given]) == 2
    assert f"argument {option}: " in capsys.readouterr().err


def test_an_option_of_several_values_may_be_repeated():
    words = ["evaluate", "--model", "m", "--benchmarks", "a", "--benchmarks", "b", "c"]
    options = command_parser().parse_args([*words, "--packages", "p", "--packages", "q"])
    assert (options.benchmarks, options.packages) == (["a", "b", "c"], ["p", "q"])
    assert command_parser().parse_args(words).packages == []


@pytest.mark.parametrize("corpus", stems("builders"))
def test_the_help_of_a_builder_shows_dashes(capsys, corpus):
    assert main(["build", corpus, "--help"]) == 0
    options = re.findall(r"^  (--[\w+-]+)(?!\S)", capsys.readouterr().out, re.M)
    assert options
    assert not [option for option in options if "_" in option]


def test_the_summaries_of_timm_do_not_import_wandb(monkeypatch):
    importlib.import_module("timm.utils.summary")
    for name in list(sys.modules):
        if name.partition(".")[0] == "wandb" or name == "timm.utils.summary":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [TimmWithoutWandb(), *sys.meta_path])
    importlib.import_module("timm.utils.summary")
    assert "wandb" not in sys.modules
    assert importlib.util.find_spec("wandb") is not None


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
