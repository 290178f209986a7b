"""What would hang, take all memory or run a stranger's code is refused."""

import os
from types import SimpleNamespace

import pytest
import torch

from data_builders.shard_files import sha256
from tests.refusals import command_refused, refused
from tests.tiny import fit_config
from vlmtune.backbones.state_dicts import read_state_dict
from vlmtune.benchmarks.files import read_csv, read_rows
from vlmtune.cli.fit_checks import check_optimizer, names_module
from vlmtune.cli.text_only import captions
from vlmtune.cli.yaml_files import MOST_VALUES, check_yaml, read_yaml
from vlmtune.data.images import digest
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
from vlmtune.model import check_checkpoint
from vlmtune.storage.files import read_json
from vlmtune.types import ImageRef


@pytest.mark.parametrize(
    "read",
    [
        lambda path: list(captions(path)),
        lambda path: read_csv(path, ["a"], "there"),
        lambda path: read_rows(f"{path}.jsonl", ["a"], "there"),
        lambda path: read_json(path, "a list"),
        lambda path: digest(ImageRef(path)),
        lambda path: read_state_dict(path),
        lambda path: sha256(path),
        lambda path: check_checkpoint(path),
        lambda path: ShardSet(str(path.parent)).manifest,
    ],
)
def test_every_reader_refuses_a_pipe(tmp_path, read):
    for name in ("fifo", "fifo.jsonl", "fifo.tar"):
        os.mkfifo(tmp_path / name)
    with pytest.raises((UserError, OSError), match="a pipe or a device"):
        read(tmp_path / "fifo")


def bomb(levels):
    """A YAML of `levels` lists, each of nine times the one before."""
    lists = ["a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    for level in range(1, levels):
        inner = ", ".join([f"*a{level - 1}"] * 9)
        lists.append(f"a{level}: &a{level} [{inner}]")
    return "\n".join(lists)


@pytest.mark.parametrize("text", [bomb(12), "[" * 500 + "]" * 500])
def test_a_bomb_is_no_plug_in_and_no_model(tmp_path, text, capsys):
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    for words in (["build", path, "--out", "x"], ["score", path, "image.png", "--text", "a dog"]):
        (_,) = command_refused(capsys, words, "expected ")


@pytest.mark.parametrize("text", [bomb(12), "a: &a [*a]", "[" * 500])
def test_aliases_that_multiply_are_refused(tmp_path, text):
    path = tmp_path / "fit.yaml"
    path.write_text(text)
    for read in (lambda: names_module(["--config", str(path)]), lambda: read_yaml(path)):
        with refused(f"expected at most {MOST_VALUES} values in .*fit.yaml, got aliases"):
            read()


@pytest.mark.parametrize("text", [bomb(3), "a: &a {b: 1}\nc: *a"])
def test_what_may_be_read_or_fails_elsewhere_passes(tmp_path, text):
    (tmp_path / "fit.yaml").write_text(text)
    check_yaml(tmp_path / "fit.yaml")
    check_yaml(tmp_path / "absent.yaml")
    (tmp_path / "tabs.json").write_text('{\n\t"a": 1\n}')
    assert read_yaml(tmp_path / "tabs.json") == {"a": 1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"model: \xa5", "expected a config in "),
        (b"", "fit.yaml, got an empty file"),
        (
            b"model:\n  a: b: c",
            "fit.yaml, got mapping values are not allowed here in line 2, column",
        ),
        (b"\0", "expected YAML in "),
    ],
)
def test_a_config_that_cannot_be_read_is_one_line(content, words, tmp_path, capsys):
    (tmp_path / "fit.yaml").write_bytes(content)
    (_,) = command_refused(capsys, ["fit", "--config", tmp_path / "fit.yaml"], "expected ", words)


def test_an_absent_file_is_reported_in_a_few_words(tmp_path):
    with refused("expected YAML in .*absent.yaml, got no such file: get the file again"):
        read_yaml(tmp_path / "absent.yaml")


def mine(parameters) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=1.0)


@pytest.mark.parametrize("path", ["torch.optim.AdamW", f"{__name__}.mine", None])
def test_optimizers(path):
    check_optimizer(path and SimpleNamespace(class_path=path))
    check_optimizer(mine)


@pytest.mark.parametrize("path", ["os.system", "builtins.print", "pathlib.Path.touch", "os.path"])
def test_a_function_that_makes_no_optimizer_is_refused(path):
    with refused(f"expected an optimizer, or a function whose return type is one, got {path}"):
        check_optimizer(SimpleNamespace(class_path=path))


@pytest.mark.filterwarnings("ignore")
def test_a_fit_runs_no_other_function(tmp_path, model_folder, shards, capsys):
    command = {"class_path": "os.system", "init_args": {"command": f"touch {tmp_path}/ran"}}
    config = fit_config(tmp_path, model_folder, shards, model={"optimizer": command})
    command_refused(capsys, ["fit", "--config", config], "got os.system: change --model.optimizer")
    assert not (tmp_path / "ran").exists()
