import csv
import io
import json
from dataclasses import replace

import pytest

from vlmtune.report.formats import CSV_COLUMNS, escaped, to_csv, to_latex, write_formats
from vlmtune.results import MetricValue, Result


def test_every_number_of_every_run_is_a_line(make_run):
    second = replace(make_run("mm", 0.1 + 0.2), text_only=True)
    runs = [make_run("zero, shot", 0.2, trained=0), second]
    lines = list(csv.DictReader(io.StringIO(to_csv(runs))))
    assert tuple(lines[0]) == CSV_COLUMNS
    assert len(lines) == sum(len(r.metrics) for run in runs for r in run.results)
    first = lines[0]
    names = (first["run"], first["benchmark"], first["metric"])
    assert names == ("zero, shot", "cola_multi", "accuracy")
    assert float(first["value"]) == 0.2
    assert (first["n"], first["chance"], first["convention"]) == ("210", "0.25", "strict")
    row = (first["primary"], first["text_only"], first["kind"])
    assert row == ("true", "false", "compositional")
    last = lines[-1]
    assert (last["chance"], last["low"], last["high"], last["unit"]) == ("", "", "", "count")
    assert float(lines[len(lines) // 2]["value"]) == 0.1 + 0.2  # in full
    assert last["text_only"] == "true"


def test_primary_numbers_with_the_best_bold_and_a_dash_for_a_missing_one(make_run):
    runs = [make_run("zero_shot", 0.2, trained=0), make_run("mm & co", 0.4)]
    lines = to_latex(runs).splitlines()
    assert lines[1:4] == [
        r"\begin{tabular}{llrrrr}",
        r"\toprule",
        r"Benchmark & Metric & $n$ & Chance & zero\_shot & mm \& co \\",
    ]
    numbers = r"210 & 25.0 \% & 20.0 \% & \textbf{40.0 \%} \\"
    assert lines[5] == rf"cola\_multi & accuracy $\uparrow$ & {numbers}"
    assert lines[6] == r" &  &  &  & {\scriptsize [15.0--25.0]} & {\scriptsize [35.0--45.0]} \\"
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert not any("mean\\_rank" in line for line in lines)
    run = make_run("a")
    other = replace(run.results[0], convention="reference")
    text = to_latex([run, replace(run, name="b", results=(other,))])
    assert r"cola\_multi & accuracy $\uparrow$ & 210 & 25.0 \% & 40.0 \% & -- \\" in text
    published = r"cola\_multi (reference) & accuracy $\uparrow$ & 210 & 25.0 \% & -- & 40.0 \% \\"
    assert published in text


def test_latex_prints_the_signs_of_a_name():
    signs = r"\textless{}a\textbar{}b\textgreater{} \textasciitilde{}\textasciicircum{}"
    assert escaped("<a|b> ~^") == signs
    assert escaped("\\{&%$#_}") == r"\textbackslash{}\{\&\%\$\#\_\}"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("\x1b[31mred\x1b]0;t\x07", r"\x1b[31mred\x1b]0;t\x07"),
        *((name, f"'{name}") for name in ('=HYPERLINK("evil")', " =1", "+1", "-1", "@SUM(A1)")),
    ],
)
def test_a_name_commands_neither_a_terminal_nor_a_spreadsheet(make_run, name, written):
    text = to_csv([make_run(name, 0.2)])
    assert {line["run"] for line in csv.DictReader(io.StringIO(text))} == {written}


def test_mteb_reads_the_benchmarks_that_it_has(make_run, tmp_path, capsys):
    names = {"text_accuracy": 0.3, "image_accuracy": 0.2, "group_accuracy": 0.1}
    metrics = {name: MetricValue(value, 400) for name, value in names.items()}
    results = (
        Result("winoground", "1", "group_accuracy", metrics),
        Result("aro_relation", "2", "accuracy", {"accuracy": MetricValue(0.6, 9)}),
        *make_run().results,
    )
    run = replace(make_run("me/clip"), results=results)
    write_formats([run, replace(run, name="text", text_only=True)], None, None, tmp_path)
    folder = tmp_path / "results/me__clip/0123456789ab"
    *files, about = sorted(tmp_path.rglob("*.json"))
    assert json.loads(about.read_text()) == {"name": "me/clip", "revision": folder.name}
    assert about.name == "model_meta.json"
    assert files == [folder / "AROVisualRelation.json", folder / "Winoground.json"]
    relation, winoground = (json.loads(file.read_text()) for file in files)
    assert (relation["task_name"], relation["dataset_revision"]) == (files[0].stem, "vlmtune-2")
    subset = {"hf_subset": "default", "languages": ["eng-Latn"]}
    assert relation["scores"] == {"test": [{**subset, "text_acc": 0.6, "main_score": 0.6}]}
    scores = {"text_acc": 0.3, "image_acc": 0.2, "accuracy": 0.1, "main_score": 0.1}
    assert winoground["scores"] == {"test": [subset | scores]}
    assert capsys.readouterr().err == ""
    unknown = replace(run.provenance, fingerprint="")  # of another tool's items
    write_formats([replace(run, provenance=unknown)], None, None, tmp_path)
    assert (tmp_path / "results/me__clip/no_revision_available/Winoground.json").is_file()
    write_formats([make_run()], None, None, tmp_path / "none")
    said = "none: not written, as no run with images has a benchmark of mteb\n"
    assert capsys.readouterr().err.endswith(said)
    assert not (tmp_path / "none").exists()
