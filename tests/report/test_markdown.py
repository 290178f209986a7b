from dataclasses import replace

from vlmtune.report.markdown import to_markdown


def test_table(make_run):
    text = to_markdown([make_run("zero-shot", 0.2, trained=0), make_run("mm", 0.41)])
    lines = text.splitlines()
    assert (
        lines[2] == "| run | trained parameters | cola_multi accuracy ↑ (n = 210) "
        "| cola_single map ↑ (n = 96) |"
    )
    assert lines[4] == "| *chance* |  | 25.0 % | 15.0 % |"
    assert lines[5] == "| zero-shot | 0 | 20.0 % [15.0–25.0] | 10.0 % [9.0–11.0] |"
    assert lines[6] == "| mm | 7.75 M | **41.0 %** [36.0–46.0] | **20.5 %** [19.5–21.5] |"
    assert "| cola_single (v1) | mean_rank_true ↓ | 96 | 31.00 |" in text
    assert "- cola_multi: Ray 2023" in text
    assert f"- commit: {'c' * 40}" in text


def test_what_was_not_run_is_said(make_run):
    plain, missing = make_run("plain"), replace(make_run("mm"), not_run=(("aro", "no a|b.json"),))
    assert "- aro of mm: not run: no a\\|b.json\n" in to_markdown([plain, missing])
    assert "not run" not in to_markdown([plain])


def test_nothing_is_bold_alone_and_names_cannot_break_the_table(make_run):
    text = to_markdown([make_run("a|b\nc")])
    assert "**" not in text
    assert "| a\\|b c | 7.75 M |" in text
