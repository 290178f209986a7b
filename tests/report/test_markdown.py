from dataclasses import replace

from tests.report.conftest import changed
from vlmtune.report.markdown import to_markdown
from vlmtune.results.result import Occurrence, Repeat


def test_tables(make_run):
    text = to_markdown([make_run("zero-shot", 0.2, trained=0), make_run("mm", 0.41)])
    lines = text.splitlines()
    assert lines[2:7] == [
        "| benchmark | metric | n | chance | zero-shot | mm |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| *trainable parameters* |  |  |  | 0 | 7.75 M |",
        "| cola_multi | accuracy ↑ | 210 | 25.0 % | 20.0 % [15.0–25.0] | **41.0 %** [36.0–46.0] |",
        "| cola_single | map ↑ | 96 | 15.0 % | 10.0 % [9.0–11.0] | **20.5 %** [19.5–21.5] |",
    ]
    assert "## cola_single (v1, strict convention)" in lines
    assert "| mean_rank_true ↓ | 96 | 31.00 |" in text
    assert "- cola_multi: Ray 2023" in text
    assert f"- commit: {'c' * 40}" in text
    assert "- time: 12 min 34 s" in text
    run = make_run("mm")  # an export of before seconds were recorded
    untimed = replace(run, provenance=replace(run.provenance, seconds=0.0))
    assert "- time:" not in to_markdown([untimed])


def test_changes_are_tested(make_run):
    def run(name, outcomes, **more):
        whole = make_run(name)
        first = replace(whole.results[0], outcomes=outcomes, kind="retained")
        return replace(whole, results=(first, *whole.results[1:]), **more)

    won, lost = (1.0,) * 10 + (0.0,) * 4, (0.0,) * 10 + (1.0,) * 4
    text = to_markdown([run("a", lost), run("b", won), run("c", won, text_only=True)])
    assert "Between two images they tie, and a tie counts as wrong." in text
    lines = text.splitlines()
    retained = lines[lines.index("## Retained abilities, change from a") + 4]
    assert retained.startswith("| cola_multi | b | ±0.0 | ")
    assert retained.endswith(" | 10 | 4 | 14 | 0.180 (McNemar) | not significant |")
    changed = lines[lines.index("## Change from a") + 4]
    reason = "not tested: the report has no outcomes of items"
    assert changed == f"| cola_single | b | ±0.0 |  |  |  |  |  | {reason} |"
    assert "- **Text-only:** cola_multi: c reaches 40.0 %" in text
    assert "- cola_single: classes without positives: 3 of 96" in text
    assert "Retained abilities" not in to_markdown([run("a", lost)])


def test_what_was_not_run_is_listed_and_names_cannot_break_the_table(make_run):
    plain, missing = make_run("plain"), replace(make_run("mm"), not_run=(("aro", "no a|b.json"),))
    assert "- aro of mm: not run: no a\\|b.json\n" in to_markdown([plain, missing])
    assert "not run" not in to_markdown([plain])
    text = to_markdown([make_run("a|b\nc")])
    assert "**" not in text
    assert "| chance | a\\|b c |\n" in text


def test_repeats_are_listed_under_its_benchmark(make_run):
    repeat = Repeat("caption", 1, 9, (Occurrence((4,), ("a/4.png",), ("a|dog",)),))
    text = to_markdown([changed(make_run("a"), repeats=(repeat,))])
    listed = "- cola_multi: items whose right caption is also a wrong one: 1 of 9\n"
    assert f'{listed}  - 4 (a/4.png): "a\\|dog"\n' in text
