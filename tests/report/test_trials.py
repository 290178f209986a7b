"""The trials of a sweep: what varied, their order, and their plots."""

import csv
import json
from dataclasses import replace

import pytest

from tests.refusals import command_refused, refused
from vlmtune.cli.main import main
from vlmtune.cli.report_trials import metric_of_sweep
from vlmtune.report.run_report import RunReport
from vlmtune.report.trials import read_trials, scatter_plot, trials_csv, trials_view


@pytest.fixture
def sweep(tmp_path, make_run):
    """Writes a sweep of trials with these learning rates, norms and scores; returns its folder."""

    def write(trials, monitor="cola_multi/accuracy"):
        for i, (rate, first, score) in enumerate(trials):
            report = make_run(f"run {i}", score)
            fit = {
                "model": {
                    "optimizer": {"init_args": {"lr": rate}},
                    "adapter": {"class_path": "a.B", "init_args": {"norm_first": first}},
                },
                "trainer": {
                    "default_root_dir": f"runs/{i}",
                    "callbacks": [{"init_args": {"monitor": monitor}}],
                },
            }
            provenance = replace(report.provenance, config={"fit": fit})
            folder = tmp_path / "sweep" / f"trial{i}"
            folder.mkdir(parents=True)
            replace(report, provenance=provenance).save(folder / "report.json")
        return tmp_path / "sweep"

    return write


NO_CHECKPOINT = "checkpoints/last.ckpt, got no such file"
FOUR = [(0.001, True, 0.4), (0.01, True, 0.6), (0.1, False, 0.7), (0.0001, False, 0.3)]


def test_trials_are_sorted_and_what_varied_are_columns(sweep):
    folder = sweep(FOUR)
    (folder / "running").mkdir()
    trials = read_trials(folder)
    assert trials.metric == "cola_multi/accuracy"
    # Folders differ too, and are no hyper-parameter.
    assert trials.keys == ("optimizer.lr", "adapter.norm_first")
    names = [trial.folder.name for trial in trials.trials]
    assert names == ["trial2", "trial1", "trial0", "trial3"]
    assert trials.trials[0].values == (0.1, False)
    assert trials.unfinished == ("running",)
    assert trials.correlation("optimizer.lr") == pytest.approx(1.0)
    assert trials.correlation("adapter.norm_first") is None


def test_arguments_of_one_class_are_told_by_its_name(sweep):
    folder = sweep(FOUR)
    file = folder / "trial0/report.json"
    stated = json.loads(file.read_text())
    fit = stated["provenance"]["config"]["fit"]
    fit["model"]["adapter"] = {"class_path": "a.Other", "init_args": {"width": 8}}
    fit["trainer"]["callbacks"][0]["init_args"]["name"] = "run 0"
    fit["model"]["seed"] = None  # as in the others, which do not state it
    file.write_text(json.dumps(stated))
    trials = read_trials(folder)
    # The width has one value, the names are of runs.
    assert trials.keys == ("optimizer.lr", "adapter", "adapter.norm_first")
    by_name = {trial.name: trial.values for trial in trials.trials}
    assert by_name["trial0"] == (0.001, "Other", None)
    assert by_name["trial1"] == (0.01, "B", True)


def test_lists_that_vary_are_told_and_trials_without_the_metric_too(sweep):
    folder = sweep(FOUR)
    for i, names in enumerate((["a"], ["a", "b"])):
        file = folder / f"trial{i}/report.json"
        stated = json.loads(file.read_text())
        stated["provenance"]["config"]["fit"]["data"] = {"names": names}
        if i == 0:
            stated["results"] = []
        file.write_text(json.dumps(stated))
    (folder / "row/seed-0").mkdir(parents=True)
    (folder / "earlier_0").mkdir()
    moved = (folder / "trial2/report.json").read_text()
    (folder / "earlier_0/report.json").write_text(moved)
    trials = read_trials(folder, "cola_multi")
    assert {"data.names.0", "data.names.1"} <= set(trials.keys)
    assert trials.lacking == ("trial0",)
    assert trials.unfinished == ("row/seed-0",)
    assert "Without cola_multi: trial0." in trials_view(trials)["lead"]


def test_another_metric_sorts_in_its_own_direction(sweep):
    folder = sweep([(0.1, True, 0.4), (0.2, True, 0.6)])
    assert read_trials(folder, "cola_single").trials[0].folder.name == "trial1"
    file = folder / "trial0/report.json"
    file.write_text(file.read_text().replace("8.85", "9.25"))
    ranked = read_trials(folder, "cola_single/mean_rank_true").trials
    assert [trial.metric.value for trial in ranked] == [8.85, 9.25]


def test_runs_of_a_comparison_are_trials_without_the_untrained_model(sweep, make_run):
    folder = sweep(FOUR)
    (folder / "row").mkdir()
    (folder / "trial2").rename(folder / "row/seed-0")
    make_run().save(folder / "zero_shot/report.json")
    trials = read_trials(folder)
    assert [trial.name for trial in trials.trials][:2] == ["row/seed-0", "trial1"]
    assert len(trials.trials) == 4
    assert trials.unfinished == ()


def test_an_unknown_metric_is_one_line_and_a_monitored_loss_none_of_a_benchmark(sweep):
    folder = sweep(FOUR, "val/loss")
    assert read_trials(folder).metric == "cola_multi"
    with refused("expected 'nothing/here' in the reports of .*got cola_multi/accuracy"):
        read_trials(folder, "nothing/here")


def test_a_sweep_is_sorted_by_the_metric_of_its_yaml(sweep, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "runs/sweeps/corpora/mine"
    folder.parent.mkdir(parents=True)
    sweep(FOUR).rename(folder)
    monkeypatch.chdir(tmp_path)
    yaml = tmp_path / "configs/sweeps/corpora/mine.yaml"
    yaml.parent.mkdir(parents=True)
    yaml.write_text("metric: {name: cola_single/map}")
    assert main(["report", str(folder), "--out", "out"]) == 0
    assert "the best by cola_single/map is trial2" in capsys.readouterr().out
    assert read_trials(folder, searched="val/loss").metric == "cola_multi/accuracy"
    yaml.write_text("method: grid")
    assert metric_of_sweep(folder) == ""


def test_the_csv_has_full_precision_and_plots_are_of_numbers_and_of_categories(sweep):
    trials = read_trials(sweep(FOUR))
    head, *lines = csv.reader(trials_csv(trials).splitlines())
    assert head[:4] == ["trial", "optimizer.lr", "adapter.norm_first", "cola_multi/accuracy"]
    assert lines[0][:4] == ["trial2", "0.1", "False", "0.7"]
    numbers, categories = trials_view(trials)["plots"]
    assert numbers["rho"] == "Spearman's ρ +1.00 over 4 trials"
    assert categories["rho"] == ""
    # A logarithmic axis would lose the dot at 0.
    _, _, dots = scatter_plot([0.0, 0.1], [0.3, 0.4], "zero").partition("PathCollection_1")
    assert dots.partition("matplotlib.axis_1")[0].count("<use") == 2
    assert {"True", "False"} <= set(str(categories["svg"]).replace("<", ">").split(">"))


def test_the_command_writes_the_page_and_the_table(sweep, tmp_path, capsys):
    folder = sweep([(0.1 + i, True, 0.3 + i / 50) for i in range(7)])
    out = tmp_path / "out"
    assert main(["report", str(folder), "--out", str(out), "--csv", str(out / "all.csv")]) == 0
    page = (out / "report.html").read_text()
    assert "7 trials, the best first" in page
    assert "trial0" in page  # in the table, the best five alone side by side
    assert "trial0" not in (out / "all.csv").read_text()
    assert len((out / "trials.csv").read_text().splitlines()) == 8
    assert "the best by cola_multi/accuracy is trial6" in capsys.readouterr().out
    # Examples of all trials are not held in memory; those of the best are shown.
    for trial in read_trials(folder).trials:
        assert all(not result.examples for result in trial.report.results)
    assert "red cup &lt;on&gt; blue box" in page


def test_trials_that_measured_other_items_are_told(sweep, tmp_path, capsys):
    folder = sweep(FOUR)
    assert read_trials(folder).mixed == ""
    report = RunReport.load(folder / "trial0/report.json")
    results = tuple(replace(result, items_digest="others") for result in report.results)
    replace(report, results=results).save(folder / "trial0/report.json")
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert "cola_multi has other items or another version in some" in capsys.readouterr().err


def test_without_a_checkpoint_or_a_sweep_nothing_is_exported(sweep, make_run, tmp_path, capsys):
    make_run().save(tmp_path / "one/report.json")
    arguments = ["report", str(tmp_path / "one"), "--out", str(tmp_path / "out")]
    said = "expected the folder of one sweep with --metric"
    command_refused(capsys, [*arguments, "--metric", "cola_multi"], said)
    (tmp_path / "failed/trial0").mkdir(parents=True)
    for name, missing in (("absent", "absent"), ("failed", "failed/report.json")):
        arguments = ["report", str(tmp_path / name), "--out", str(tmp_path / "out")]
        said = f"expected a report.json of vlmtune in {tmp_path / missing}, got no such file"
        command_refused(capsys, [*arguments, "--metric", "cola_multi"], said)
    arguments = ["report", str(sweep(FOUR)), "--out", str(tmp_path / "out")]
    command_refused(capsys, [*arguments, "--export", tmp_path / "best"], NO_CHECKPOINT)
    assert not (tmp_path / "best").exists()
