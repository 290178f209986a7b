import re
from html.parser import HTMLParser

import pytest

from vlmtune.errors import UserError
from vlmtune.report.html import to_html
from vlmtune.report.write import write_report

VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Collects tags and text, and fails where elements are not nested."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def runs(make_run):
    return [make_run("zero-shot", 0.2, trained=0), make_run("probe", 0.15), make_run("mm", 0.41)]


def test_page_holds_everything_and_fetches_nothing(runs):
    text = to_html(runs)
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in {"script", "link", "iframe", "base", "object"}
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:image/jpeg;base64,"))
    assert not re.search(r"@import|url\((?!#)", text)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for used in re.findall(r"url\(#([^)]+)\)", text):
        assert used in ids


def test_numbers_chance_intervals_and_gains_are_shown(runs):
    page = Page(to_html(runs))
    words = [word.strip() for word in page.text]
    for expected in ("41.0 %", "36.0–46.0", "25.0 %", "7.75 M parameters", "12 min 34 s", "8.85"):
        assert expected in words
    assert "+21.0" in words
    assert "-5.0" in words
    gains = [a["class"] for tag, a in page.tags if a.get("class", "").startswith("gain")]
    assert gains == ["gain worse", "gain worse", "gain better", "gain better"]
    assert sum(tag == "svg" for tag, _ in page.tags) == 3  # two benchmarks, one curve
    assert sum(tag == "img" for tag, _ in page.tags) == 3 * 4


def test_colours_come_from_the_page(runs):
    text = to_html(runs)
    svgs = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--series-2)" in svgs
    assert "var(--muted)" in svgs
    assert not re.search(r"#0[1-5]0[0-9]0[0-9]", svgs)
    defined = set(re.findall(r"(--[\w-]+):", text))
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= defined
    assert "prefers-color-scheme: dark" in text


def test_names_and_queries_are_escaped(make_run):
    text = to_html([make_run("<b>$x$ & 名前"), make_run("b" * 200)])
    assert "red cup &lt;on&gt; blue box" in text
    assert "<b>$x$" not in text
    Page(text)


def test_gallery_marks_true_and_false(runs):
    page = Page(to_html(runs[:1]))
    kinds = [a["class"] for tag, a in page.tags if a.get("class", "").startswith("thumb ")]
    assert kinds == ["thumb true", "thumb false", "thumb false", "thumb true"]
    verdicts = [a["class"] for tag, a in page.tags if a.get("class", "").startswith("verdict")]
    assert verdicts == ["verdict right", "verdict"]


def test_images_that_are_gone_leave_a_note(runs, tmp_path):
    (tmp_path / "0.png").unlink()
    (tmp_path / "1.png").write_text("no image")
    text = to_html(runs)
    assert "<img" not in text
    assert "0.png not found" in text


def test_runs_without_results_or_with_one_point(make_run):
    from dataclasses import replace

    Page(to_html([replace(make_run("a"), results=(), curves={})]))
    Page(to_html([make_run("a", curves={"loss": ((0, 1.0),), "nothing": ((0, None),)})]))


def test_what_was_not_run_is_said(make_run):
    from dataclasses import replace

    page = Page(to_html([replace(make_run("mm"), not_run=(("aro", "no <a>.json"),))]))
    assert "aro of mm: not run: no <a>.json" in page.text
    assert "Not run" in page.text
    assert "Not run" not in Page(to_html([make_run("mm")])).text


def test_write_report(tmp_path, runs):
    path = write_report(tmp_path / "out", runs)
    assert path == tmp_path / "out" / "report.html"
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.html", "report.md"]
    assert path.read_text(encoding="utf-8") == to_html(runs)
    with pytest.raises(UserError, match="at least one run"):
        write_report(tmp_path / "none", [])
    assert not (tmp_path / "none").exists()


def test_a_primary_metric_that_is_a_rank(make_run):
    from dataclasses import replace

    def with_rank(run, value):
        single = run.results[1]
        rank = replace(single.metrics["mean_rank_true"], value=value)
        single = replace(single, primary="mean_rank_true", metrics={"mean_rank_true": rank})
        return replace(run, results=(single,))

    page = Page(
        to_html([with_rank(make_run("zero", trained=0), 12.0), with_rank(make_run("mm"), 8.0)])
    )
    assert "-4.00" in page.text
    assert [a["class"] for _, a in page.tags if a.get("class", "").startswith("gain")] == [
        "gain better"
    ]
