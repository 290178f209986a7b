"""Errors are one line, and what the user or the machine causes is no fault of vlmtune."""

import errno
import json

import pytest
from wandb.errors import UsageError

from tests.refusals import refused
from tests.tiny import fit_config
from vlmtune.cli.explain import configuration_error, explain, is_expected
from vlmtune.cli.main import main
from vlmtune.cli.plugins import make_benchmarks

ERRORS = [
    (RuntimeError("DataLoader worker (pid 123) is killed by signal: Killed. "),
     "expected the data workers to run on, got DataLoader worker (pid 123) is killed by signal: "
     "Killed: free memory"),
    (RuntimeError("DataLoader worker (pid(s) 1, 2) exited unexpectedly"),
     "expected the data workers to run on, got DataLoader worker (pid(s) 1, 2) exited "
     "unexpectedly: free memory"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp] can't allocate memory"),
     "expected enough memory, got [enforce fail"),
    (ValueError("Invalid learning rate: nan"), "expected a valid optimizer, got: Invalid lear"),
    (RuntimeError("`fused` and `foreach` cannot"), "expected a valid optimizer, got: `fused`"),
    (type("InductorError", (RuntimeError,), {})("no g++"), "expected a compiler for Compile"),
    (ValueError("Invalid beta parameter at index 0: 2.0"), "expected a valid optimizer, got: "),
    (MemoryError(), "expected enough memory, got MemoryError: lower the batch size"),
    (UsageError("No API key configured."), "expected a run of Weights & Biases, got: No API"),
    (OSError(errno.ENOSPC, "No space left on device", "a.txt"),
     "expected room on the disk for a.txt, got: No space"),
    (OSError(errno.EDQUOT, "Quota"), "expected room on the disk, got: Quota: free"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "line"), ERRORS)
def test_what_the_machine_lacks_is_no_fault_of_vlmtune(error, line):
    assert explain(error).startswith(line)
    assert is_expected(error)
    assert not is_expected(RuntimeError("shapes differ"))


PROBLEM = "Problem with given class_path '{path}': "
WRONG_CLASSES = [
    ("vlmtune.training.ema.EMAA",
     f"{PROBLEM}module 'vlmtune.training.ema' has no attribute 'EMAA': did you mean 'EMA'?"),
    ("vlmtune.training.emma.EMA",
     f"{PROBLEM}No vlmtune.training attribute emma: did you mean 'ema'?"),
    ("vlmtune.adapters.LoRAA",
     f"{PROBLEM}No vlmtune.adapters attribute LoRAA: did you mean 'LoRA'?"),
    ("nowhere.Callback", f"{PROBLEM}No module named 'nowhere': change the config"),
    ("vlmtune.adapters.zero_shot.ZeroShot",
     "Import path {path} does not correspond to a subclass of {kind}: change the config"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "line"), WRONG_CLASSES)
def test_a_wrong_class_is_named_and_nothing_else(path, line, tmp_path):
    wanted = f"expected a valid config, got: {line.format(path=path, kind='Benchmark')}"
    (tmp_path / "a.yaml").write_text(json.dumps({"class_path": path, "init_args": {"path": "x"}}))
    for name in (path, str(tmp_path / "a.yaml")):
        with refused() as error:
            make_benchmarks([name])
        assert str(error.value) == wanted


@pytest.mark.parametrize("written_out", [True, False])
@pytest.mark.parametrize(("path", "line"), WRONG_CLASSES)
def test_a_wrong_callback_is_named_and_nothing_else(
    path, line, written_out, tmp_path, model_folder, shards, capsys, monkeypatch
):
    line = line.format(path=path, kind="Callback")
    wanted = f"expected a valid config, got: trainer.callbacks: {line}"
    listed = {"callbacks": [{"class_path": path}]} if written_out else {}
    words = ["fit", "--config", str(fit_config(tmp_path, model_folder, shards, trainer=listed))]
    words += [] if written_out else ["--trainer.callbacks", path]
    assert main(words) == 2
    assert capsys.readouterr().err == f"vlmtune: error: {wanted}\n"


@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        ("lr", "1e-3,5", "lr: torch.optim.AdamW takes no such value. Got value: 1e-3,5"),
        ("weight_decay", "abc", "weight_decay: Expected a <class 'float'>. Got value: abc"),
    ],
)
def test_a_wrong_value_of_the_optimizer_is_named_and_nothing_else(
    option, value, line, tmp_path, model_folder, shards, capsys
):
    config = fit_config(tmp_path, model_folder, shards)
    words = ["fit", "--config", str(config), f"--model.optimizer.init_args.{option}", value]
    assert main(words) == 2
    advice = "name its class, too, as --model.optimizer torch.optim.AdamW"
    assert f"Option '{option}' is not accepted: {advice}\n" in capsys.readouterr().err
    assert main([*words[:3], "--model.optimizer", "torch.optim.AdamW", *words[3:]]) == 2
    wanted = f"expected a valid config, got: model.optimizer: {line}: change the config"
    assert capsys.readouterr().err == f"vlmtune: error: {wanted}\n"


def test_a_name_below_a_misspelt_one_has_a_suggestion():
    error = configuration_error(
        ValueError("unrecognized arguments: --columms.caption=x"), ["columns"]
    )
    assert str(error).endswith("did you mean 'columns'?")
    wrong = ValueError("unrecognized arguments: --model.optimizerr.init_args.lr=1")
    error = configuration_error(wrong, ["model.optimizer.help", "model.optimizer", "model.store"])
    assert str(error).endswith("did you mean 'model.optimizer'?")


def test_an_option_that_a_subclass_does_not_pass_on_is_not_suggested():
    wrong = ValueError("Option 'records_per_shard' is not accepted")
    error = configuration_error(wrong, ["path", "records_per_shard"])
    assert str(error).endswith("Option 'records_per_shard' is not accepted: change the config")


def test_a_file_in_the_wrong_place_is_named_without_its_content(tmp_path, capsys):
    table = tmp_path / "photos.csv"
    table.write_text("path,caption\na.png,a dog\n")
    assert main(["fit", "--config", str(table)]) == 2
    advice = "name a YAML with --config, and a table with --data"
    assert capsys.readouterr().err.endswith(f"got: Unexpected config: {advice}\n")
    assert main(["fit", "mine.yaml"]) == 2
    assert capsys.readouterr().err.endswith("arguments: mine.yaml: write --config before it\n")


def test_the_extra_of_a_package_that_is_missing_is_named():
    said = "Requirement 'wandb>=0.12.10' not met. HINT: Try `pip install`"
    error = configuration_error(ModuleNotFoundError(said), [])
    assert "pip install 'vlmtune[wandb]'" in str(error)


def test_a_module_of_the_working_directory_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "margin.py").touch()
    error = configuration_error(ImportError("No module named 'margin'"), [])
    assert str(error).endswith("margin.py lies here, so put PYTHONPATH=. before the command")
    error = configuration_error(ImportError("No module named 'other'"), [])
    assert str(error).endswith(": change the config")
