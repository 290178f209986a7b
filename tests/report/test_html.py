import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape

from tests.report.conftest import changed, run_maker
from vlmtune.report import caveats, html, to_csv, to_html, to_latex, write_report
from vlmtune.results import ItemRow, MetricValue
from vlmtune.results.result import Example, Occurrence, Repeat
from vlmtune.types import ImageRef

VOID = {"meta", "img", "br", "link", "hr", "input", "wbr"}


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

    def classes(self, name):
        """Classes of the elements that have `name` among them."""
        names = [attributes.get("class", "").split() for _, attributes in self.tags]
        return [one for one in names if name in one]

    def begin(self, word):
        """What is the class of elements whose class begins so."""
        return [a["class"] for _, a in self.tags if a.get("class", "").startswith(word)]

    def flat(self):
        return " ".join("".join(self.text).split())


@pytest.fixture
def runs(make_run):
    return [make_run("zero-shot", 0.2, trained=0), make_run("probe", 0.15), make_run("mm", 0.41)]


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    """Two runs and a text-only one, with all that is drawn: groups, numbers, series, matrices."""
    make_run = run_maker(tmp_path_factory.mktemp("rich"))
    accuracy = MetricValue(0.4, 14, 0.25, 0.3, 0.5)
    groups = [f"accuracy/{group}" for group in ("a<b", "c", "d")]
    groups += [f"map/attributes={n}" for n in (1, 2, 3)]
    groups += [f"image/{group}" for group in ("size", "world", "texture")]
    text = tuple(i / 7 for i in range(30))
    series = {"mean_scores": (2.0, 1.0, 0.5, 0.75), "equivariance_text": text}

    def made(name, kind, outcomes, **more):
        run = make_run(name, trained=more.pop("trained", 1000))
        metrics = {name: accuracy for name in ("accuracy", "macro_accuracy", *groups)}
        metrics |= {name: replace(accuracy, unit="cosine") for name in groups[-3:]}
        metrics["identical_candidates"] = MetricValue(2.0, 14, unit="count")
        result = replace(run.results[0], metrics=metrics, series=series, outcomes=outcomes)
        kept = replace(result, benchmark="recall", kind=kind, convention="reference", examples=())
        return replace(run, results=(result, kept, *run.results[1:]), **more)

    won, lost = (1.0,) * 10 + (0.0,) * 4, (0.0,) * 10 + (1.0,) * 4
    return [
        made("zero-shot", "retained", lost, trained=0),
        made("mm <x>", "retained", won),
        made("text-only (n-gram)", "retained", won, text_only=True),
    ]


@pytest.fixture(scope="module")
def rich_text(rich):
    """Its page."""
    return to_html(rich)


@pytest.fixture(scope="module")
def rich_page(rich_text):
    return Page(rich_text)


@pytest.mark.parametrize("which", ["runs", "rich"])
def test_page_holds_everything_and_fetches_nothing(request, which):
    runs = request.getfixturevalue(which)
    text = to_html(runs)
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "base", "object"}
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:image/jpeg;base64,"))
    assert not re.search(r"@import|url\((?!#)", text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert script == (Path(html.__file__).parent / "page.js").read_text(encoding="utf-8")
    # The browser runs this script alone and asks no host for anything.
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for tag, a in page.tags if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert policy.endswith(f"script-src 'sha256-{digest}'")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"][1:] for tag, a in page.tags if tag == "a"]
    for used in re.findall(r"url\(#([^)]+)\)", text) + links:
        assert used in ids


def test_numbers_chance_intervals_and_gains_are_shown(runs):
    page = Page(to_html(runs))
    words = [word.strip() for word in page.text]
    for expected in ("41.0 %", "36.0–46.0", "25.0 %", "7.75 M parameters", "12 min 34 s", "8.85"):
        assert expected in words
    assert "+21.0" in words
    assert "-5.0" in words
    gains = page.begin("gain")
    # By benchmark, then probe and mm: in the table of primary numbers, then in that of each
    # benchmark, where the rank is equal.
    accuracy = mean_precision = ["gain worse", "gain better"]
    rank = ["gain ", "gain "]
    assert gains == [*accuracy, *mean_precision, *accuracy, *mean_precision, *rank]
    assert sum(tag == "svg" for tag, _ in page.tags) == 1  # the curve
    assert sum(a.get("class") == "dot" for _, a in page.tags) == 2 * 3
    assert sum(tag == "img" for tag, _ in page.tags) == 3 * 4


def test_colours_come_from_the_page_and_the_numbers_can_be_copied(rich, rich_text):
    text = rich_text
    svgs = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--series-2)" in svgs
    assert "var(--muted)" in svgs
    assert not re.search(r"#0[1-5]0[0-9]0[0-9]", svgs)
    defined = set(re.findall(r"(--[\w-]+):", text))
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= defined
    assert "prefers-color-scheme: dark" in text
    for written in (to_csv(rich), to_latex(rich)):
        assert str(escape(written)) in text


def test_tables_and_plots_follow_from_the_content_of_a_result(rich_page, rich_text, make_run):
    page = rich_page
    assert len(page.classes("bench")) == 3
    badges = [one[1] for one in page.classes("badge") if len(one) > 1]
    assert badges == ["strict", "strict", "reference"]  # compositional ones come first
    assert "retained ability" in page.text
    # For each of two benchmarks bars of three families and a distribution; one curve.
    assert sum(tag == "svg" for tag, _ in page.tags) == 2 + 1
    assert len(page.classes("bars")) == 2 * 3
    assert "\n.bar {" not in rich_text  # the rule of the search form moved and widened bars
    assert len(page.classes("heat")) == 2 * 2  # the text-only run has none
    assert len(page.classes("true-pair")) == 2 * 2 * 2
    plain = Page(to_html([make_run("plain", curves={})]))
    for name in ("bars", "heat"):
        assert plain.classes(name) == []
    assert not any(tag == "svg" for tag, _ in plain.tags)


def test_changes_are_tested_and_the_finding_stands_first(rich, rich_page):
    """Of 14 items 10 are won and 4 lost, which is not significant; see test_finding.py."""
    page = rich_page
    words = [word.strip() for word in page.text]
    assert "Change from zero-shot" in words
    assert "Retained abilities" in words
    assert len(page.classes("against")) == 2  # the text-only run is compared with nothing
    assert words.count("McNemar") == 2
    assert "0.180" in words
    assert "not tested: the report has no outcomes of items" in words
    single = Page(to_html(rich[:1]))
    assert single.classes("against") == []
    assert single.classes("finding") == []
    assert page.classes("finding") == [["finding"]]
    assert "mm <x> against zero-shot: 0 of 1 compositional measure rose" in page.flat()
    alone = Page(to_html([rich[0], rich[2]]))  # a text-only run is no run
    assert "runs side by side" not in alone.flat()


def test_benchmarks_are_grouped_by_what_they_ask(make_run):
    run = make_run("a")
    result = run.results[0]
    asked = {"b": "relations", "c": "attributes", "d": "relations"}
    results = [replace(result, benchmark=name, asks=asks) for name, asks in asked.items()]
    results.append(replace(result, benchmark="e", kind="retained", title="An <E>", about="E."))
    page = Page(to_html([replace(run, results=(results[3], *results[:3]))]))
    titles = [a.get("title", "n: items") for tag, a in page.tags if tag == "th"]
    names = [title for title in titles if not title.startswith("n: items")]
    assert names == ["b.", "d.", "c.", "e. E."]
    assert len(page.classes("group")) == 2 * 3  # in the chart and in the table
    assert "An <E>" in page.text


def test_where_numbers_come_from_stands_at_the_top(make_run):
    run = make_run("a")
    config = {"command": "vlmtune fit --config <a>", "hardware": "one GPU"}
    known = replace(run, provenance=replace(run.provenance, config=config))
    page = Page(to_html([known]))
    top = page.flat().partition("Overview")[0]
    for fact in ("ViT-B/32", "scenes", "2026-01-02", "one GPU", "torch 2.11", config["command"]):
        assert fact in top


def test_many_caveats_are_folded(rich):
    repeats = tuple(Repeat("caption", i, 40, (Occurrence((1,), ("a",), ("b",)),)) for i in range(9))
    run = changed(rich[0], repeats=repeats)
    folded = [one for one in caveats([run]) if not one.text_only]
    assert len(folded) > 9
    page = Page(to_html([run]))
    assert f"{len(folded)} caveats" in page.flat()
    assert len(page.classes("notes")) == 1  # no empty list of text-only scores


def test_text_only_rows_and_repeated_captions_are_caveats(rich_page):
    text = rich_page.flat()
    assert "captions give some answers away without the image" in text
    assert "Between two images they tie, and a tie counts as wrong." in text
    assert "mm <x> is no better than text-only (n-gram)" in text
    assert "identical candidates: 2 of 14" in text
    assert "Caveats" in text
    flags = rich_page.classes("flag")
    assert len(flags) == 3 + 3 * 3  # three flagged scores, three caveats on each


def test_many_benchmarks_have_a_contents_and_primary_metrics_curves(make_run):
    run = make_run("a")
    many = [replace(run.results[0], benchmark=f"b{i}", examples=()) for i in range(5)]
    page = Page(to_html([replace(run, results=tuple(many))]))
    assert [a["href"] for tag, a in page.tags if tag == "a"] == [f"#part{i}" for i in range(1, 6)]
    assert not any(tag == "a" for tag, _ in Page(to_html([run])).tags)
    steps = ((0, 0.1), (10, 0.2))
    names = ("cola_single/map", "cola_single/mean_rank_true", "train/loss")
    page = Page(to_html([make_run("a", curves=dict.fromkeys(names, steps))]))
    assert [name in page.text for name in names] == [True, False, True]


def test_a_script_in_any_text_stays_text(make_run, tmp_path):
    """Names, captions, files, metrics, sources and reasons come from anyone."""
    bad = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'"

    def run(name, outcome):
        metric = MetricValue(outcome, 4, 0.5)
        names = ("accuracy", *(f"accuracy/{bad}{i}" for i in "abc"))
        image = ImageRef(tmp_path / "no <script>.png")
        run = changed(
            make_run(f"{name} {bad}"),
            benchmark=f"cola {bad}",
            metrics=dict.fromkeys(names, metric),
            examples=(Example(bad, (image,), (1.0,), (True,), True),),
            citation=bad,
            outcomes=(outcome,) * 4,
            series={bad: (0.1, 0.2)},
            repeats=(Repeat("caption", 1, 4, (Occurrence((1,), (bad,), (bad,)),)),),
        )
        grid = ((True,),), ((1.0,),)
        row = ItemRow(bad, f"cola {bad}", outcome, (image,), (bad,), *grid)
        return replace(run, not_run=((bad, bad),)), (row,) * 4

    (old, before), (new, after) = run("old", 0.0), run("new", 1.0)
    items = {one.name: {f"cola {bad}": rows} for one, rows in ((old, before), (new, after))}
    path = write_report(tmp_path / "out", [old, new], items)
    page = Page(path.read_text(encoding="utf-8"))
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert not any(tag == "img" or "onerror" in a for tag, a in page.tags)
    assert "".join(page.text).count(bad) > 20
    assert "won 4" in page.flat()
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    assert "&lt;script>" in text
    assert "<script" not in text
    assert "<img" not in text


def test_bars_of_all_comparisons_have_one_scale(rich):
    """A change of 20 points in one table is half as long as one of 40 in another."""
    first, second = rich[:2]
    metric = first.results[0].metrics["accuracy"]

    def valued(run, *values):
        results = []
        for result, value in zip(run.results, values, strict=False):
            metrics = {"accuracy": replace(metric, value=value)}
            results.append(replace(result, metrics=metrics, series={}))
        return replace(run, results=tuple(results))

    page = Page(to_html([valued(first, 0.4, 0.4), valued(second, 0.2, 0.8)]))
    lengths = [a["style"] for tag, a in page.tags if a.get("class") in ("less", "more")]
    assert lengths == ["width: 25.0%", "width: 50.0%"]
    assert "from the middle to either end is 40.0 points" in page.flat()
    same = to_html([valued(first, 0.4, 0.4), valued(second, 0.4, 0.4)])
    assert "All bars have one scale" not in same


def test_the_gallery_marks_right_captions_which_are_not_taken_for_right_items(runs):
    """Of two captions of an item one may be right, and the item is not."""
    first = runs[0]
    text = to_html(runs[:1])
    page = Page(text)
    assert f"Examples of {first.name}" in page.flat()
    assert "object-fit: cover" not in text  # which cuts off what is at the edge of an image
    assert page.begin("thumb ") == [f"thumb {x}" for x in ("true", "false", "false", "true")]
    assert page.begin("verdict") == ["verdict right", "verdict"]
    paired = changed(first, series={"mean_scores": (1.0, 0.0, 0.0, 1.0)})
    note = "captions: 1 right, 1 wrong shown; an item counts only if both are right"
    assert note not in page.flat()
    assert note in Page(to_html([paired])).flat()


def test_pages_of_images_that_are_gone_or_of_no_results(runs, tmp_path, make_run):
    (tmp_path / "0.png").unlink()
    (tmp_path / "1.png").write_text("no image")
    text = to_html(runs)
    assert "<img" not in text
    assert "0.png not found" in text
    Page(to_html([replace(make_run("a"), results=(), curves={})]))
    Page(to_html([make_run("a", curves={"loss": ((0, 1.0),), "nothing": ((0, None),)})]))
