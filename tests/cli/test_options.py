"""Options are in kebab case, underscores are accepted; wandb is imported where it is used."""

import importlib
import re
import sys

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
