"""`vlmtune quickstart`: the commands it runs; `test_documented_commands` runs the whole of it."""

import re
from pathlib import Path

import pytest
import yaml

from vlmtune.cli import quickstart
from vlmtune.cli.main import main
from vlmtune.errors import UserError

OUT = Path("runs/quickstart")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the quickstart in an empty folder with a stand-in for its commands; returns those."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, fails: str = "") -> list[list[str]]:
        calls: list[list[str]] = []

        def command(words):
            calls.append(words)
            if words[0] == fails:
                raise UserError("expected a step, got a toy: choose another")

        monkeypatch.setattr(quickstart, "run_command", command)
        monkeypatch.setattr(quickstart, "cores", lambda: 1)
        assert main(["quickstart", *arguments]) == (2 if fails else 0)
        return calls

    return run


def value(call: list[str], option: str) -> str:
    return call[call.index(option) + 1]


def test_the_steps_and_what_is_printed(run, capsys):
    calls = run()
    assert [call[0] for call in calls] == [
        *("build", "build", "build", "evaluate", "fit"),
        *("build", "build", "build", "build"),
        *("build", "build", "fit", "export", "score", "report"),
    ]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(calls) + 1
    assert all(re.match(r"\[ +\d+ s\] \S", line) for line in lines)
    assert lines[-1].endswith("open runs/quickstart/report/report.html")
    frozen, recipe, mixture = calls[3], calls[4], calls[11]
    assert calls[9:11] == calls[1:3]  # the mixture waits for the queries and the relations
    assert value(frozen, "--text-only") == value(calls[1], "--out")
    runs = [value(call, "--trainer.default_root_dir") for call in (recipe, mixture)]
    assert calls[-1][1:4] == [value(frozen, "--out"), *runs]


def test_the_configs_are_those_of_the_package_with_the_folder_in_every_path(run, tmp_path):
    run()
    for path in sorted((OUT / "configs").glob("*.yaml")):
        source = Path(__file__).parents[2] / quickstart.CONFIGS / path.name
        text = source.read_text().replace("../../plugins", str(source.parents[2] / "plugins"))
        assert yaml.safe_load(path.read_text()) == yaml.safe_load(text)
    folder = tmp_path / "a folder: mine, #1"
    calls = run("--out", str(folder))
    assert "runs/quickstart" not in str(calls)
    for path in (folder / "configs").glob("*.yaml"):
        assert "runs/quickstart" not in path.read_text()
    config = yaml.safe_load((folder / "configs/mm_adapter.yaml").read_text())
    assert config["data"]["train"] == [{"path": f"{folder}/queries"}]


def test_a_seed_has_folders_of_its_own_and_shares_the_data(run):
    calls, other = run(), run("--seed", "3")
    for call, seeded in zip(calls, other, strict=True):
        same = [re.sub("^3$", "0", word).replace("seed-3", "seed-0") for word in seeded]
        assert same == call
    seeded = "--seed_everything 3"
    assert [seeded in " ".join(call) for call in other] == [call[0] == "fit" for call in other]
    shared = [i for i, call in enumerate(calls) if call[0] in ("build", "evaluate")]
    assert [other[i] for i in shared] == [calls[i] for i in shared]
    for call in (call for call in other if call[0] == "fit"):
        assert value(call, "--trainer.default_root_dir").startswith("runs/quickstart/seed-3/")


def test_a_second_call_goes_on_from_the_last_checkpoints(run):
    last = OUT / "seed-0/mm-adapter/checkpoints/last.ckpt"
    last.parent.mkdir(parents=True)
    last.touch()
    recipe, mixture = (call for call in run() if call[0] == "fit")
    assert value(recipe, "--ckpt_path") == str(last)
    assert "--ckpt_path" not in mixture


def test_the_full_size_has_more_images_foils_steps_and_benchmarks(run):
    run()
    small = {path.stem: yaml.safe_load(path.read_text()) for path in (OUT / "configs").iterdir()}
    run("--size", "full")
    full = {path.stem: yaml.safe_load(path.read_text()) for path in (OUT / "configs").iterdir()}
    assert full["world"]["train"] > small["world"]["train"]
    assert full["world"]["long_foils"] > small["world"]["long_foils"] == 0
    assert (full["world"]["synonyms"], small["world"]["synonyms"]) == (True, False)
    steps = [size["grounded_words"]["trainer"]["max_steps"] for size in (small, full)]
    assert steps[0] < steps[1]
    assert full["benchmarks"] == small["benchmarks"] + small["suite"]
    assert full["mm_adapter"] == small["mm_adapter"]


def test_a_step_that_fails_ends_it(run, capsys):
    commands = [call[0] for call in run(fails="evaluate")]
    assert commands == ["build", "build", "build", "evaluate"]
    assert capsys.readouterr().err == (
        "vlmtune: error: expected a step, got a toy: choose another\n"
    )


def test_a_second_process_that_fails_ends_it(tmp_path):
    lane = [("scoring", ["score", "nowhere", "--nothing"])]
    with (
        pytest.raises(UserError, match=r"run to end well, got .*score --help.*see .*recipe.log"),
        quickstart.beside(lane, 0.0, tmp_path / "recipe.log"),
    ):
        pass


@pytest.mark.parametrize("size", quickstart.SIZES)
@pytest.mark.parametrize("name", ["grounded_words", "mm_adapter"])
def test_the_exported_weights_are_those_of_the_last_step(size, name, tmp_path):
    configs = quickstart.write_configs(tmp_path, size)
    trainer = yaml.safe_load((configs / f"{name}.yaml").read_text(encoding="utf-8"))["trainer"]
    (every,) = (
        callback["init_args"]["every_n_train_steps"]
        for callback in trainer["callbacks"]
        if callback["class_path"].endswith(".ModelCheckpoint")
    )
    assert trainer["max_steps"] % every == 0
