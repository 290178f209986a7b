import json

import pytest

from tests.refusals import command_refused
from vlmtune.cli.main import main
from vlmtune.report.run_report import Provenance, RunReport
from vlmtune.results import MetricValue, Result


@pytest.fixture
def evaluated(tmp_path):
    """Writes a run with a text-only run beside it, and returns its folder."""

    def made(folder, text_only_value, name="mm", seed=None, **fit):
        config = {"fit": fit}
        provenance = Provenance("b", "a", {}, "f", "", config, {}, "c", "2026", seed, 1, 0.0)

        def run(name, value, **more):
            metric = MetricValue(value, 9, 0.25, value - 0.1, value + 0.1)
            result = Result("cola", "1", "accuracy", {"accuracy": metric})
            return RunReport(name, provenance, (result,), **more)

        run(name, 0.5).save(tmp_path / folder / "report.json")
        text_only = run("text-only (n-gram)", text_only_value, text_only=True)
        text_only.save(tmp_path / folder / "text-only-n-gram.json")
        return tmp_path / folder

    return made


def heads(tmp_path, *runs):
    assert main(["report", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    line = (tmp_path / "out/report.md").read_text().splitlines()[2]
    return [head.strip() for head in line.strip("| ").split("|")][4:]


def test_text_only_runs_stand_last_and_go_by_their_folders_unless_they_are_equal(
    tmp_path, evaluated
):
    folders = evaluated("x", 0.3, "one"), evaluated("y", 0.3, "two")
    assert heads(tmp_path, *folders) == ["one", "two", "text-only (n-gram)"]
    folders = evaluated("x", 0.3), evaluated("y", 0.3)  # runs of one name
    assert heads(tmp_path, *folders) == ["x", "y", "text-only (n-gram)"]
    folders = evaluated("x", 0.3, "one"), evaluated("y", 0.4, "two")
    alone = [f"text-only (n-gram), {name}" for name in "xy"]
    assert heads(tmp_path, *folders) == ["one", "two", *alone]
    folders = evaluated("x/eval", 0.3, "one"), evaluated("y/eval", 0.4, "two")
    alone = [f"text-only (n-gram), {name}/eval" for name in "xy"]
    assert heads(tmp_path, *folders) == ["one", "two", *alone]


def test_only_what_is_asked_for_is_read_and_written(tmp_path, evaluated):
    folder = evaluated("x", 0.3)
    assert heads(tmp_path, folder / "report.json") == ["mm"]
    assert heads(tmp_path, folder, folder / "text-only-n-gram.json") == ["mm", "text-only (n-gram)"]
    heads(tmp_path, evaluated("x", 0.3))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.md", "report.html"}
    heads(tmp_path, folder, "--csv", tmp_path / "a.csv")
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert len(lines) == 1 + 2


@pytest.mark.parametrize("name", ["report.json", "text-only-n-gram.json"])
def test_what_is_read_is_not_written_over(tmp_path, evaluated, name, capsys):
    folder = evaluated("x", 0.3)
    before = (folder / name).read_bytes()
    (tmp_path / "link").symlink_to(folder)
    words = ["report", folder, "--out", tmp_path / "out"]
    for path in (folder / name, tmp_path / "link" / name):
        for option in ("--csv", "--latex"):
            command_refused(capsys, [*words, option, path], f"got {path}, which is read")
    assert (folder / name).read_bytes() == before
    assert not (tmp_path / "out").exists()


def test_seeds_of_a_recipe_are_one_column(tmp_path, evaluated, capsys):
    folders = [evaluated(f"seed-{i}", 0.3, seed=i, seed_everything=i, lr=0.1) for i in range(3)]
    other = evaluated("other", 0.3, "probe", seed=0)
    columns = heads(tmp_path, other, *folders)
    assert columns == ["probe", "mm (mean and range of 3 seeds)", "text-only (n-gram)"]
    assert capsys.readouterr().err == ""
    text = (tmp_path / "out/report.md").read_text()
    assert "one seed of another training is taken to vary as much" in text
    assert "Other seeds of the training were not tested" not in text


def test_runs_of_comparisons_are_told_apart_by_as_many_folders_as_that_takes(tmp_path, evaluated):
    folders = [evaluated(f"{row}/seed-0", 0.3, seed=0) for row in ("a", "b")]
    assert heads(tmp_path, *folders)[:2] == ["a/seed-0", "b/seed-0"]


def test_seeds_that_differ_in_more_are_named(tmp_path, evaluated, capsys):
    folders = [evaluated(f"seed-{i}", 0.3, seed=i, lr=i) for i in range(2)]
    assert heads(tmp_path, *folders)[0] == "mm (mean and range of 2 seeds)"
    assert "'mm' differ in more than seeds: fit.lr 0 here, 1 in another" in capsys.readouterr().err
    # The same of evaluations of both trainings.
    for folder in folders:
        file = folder / "report.json"
        stated = json.loads(file.read_text())
        stated["provenance"]["config"] = {"training": {"config": stated["provenance"]["config"]}}
        file.write_text(json.dumps(stated))
    heads(tmp_path, *folders)
    assert "'mm' differ in more than seeds: fit.lr 0 here, 1 in another" in capsys.readouterr().err
    file = folders[0] / "report.json"
    file.write_text(file.read_text().replace('"fingerprint": "', '"fingerprint": "other'))
    heads(tmp_path, *folders)
    assert "the runs called 'mm' have 2 frozen models" in capsys.readouterr().err
