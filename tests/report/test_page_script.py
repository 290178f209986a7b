"""The script of the page, run in Chromium: search, filters, order and sorting.

Expected values are read off the runs below by hand.
"""

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from vlmtune.report.html import write_report
from vlmtune.report.leaderboard import COSTS, Cost, MeasuredModel, write_leaderboard
from vlmtune.results import MetricValue, Result

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-quic"),
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(NAMES)} is installed")

# What a person does, and what the page shows after it.
STEPS = """
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const one = (selector) => document.querySelector(selector);
const id = (card) => card.querySelector(".query span").textContent;
const left = (node) => !node.closest("[hidden]");
const shown = () => all(".items article").filter(left).map(id);
const search = (text) => {
  const input = one(".bar input");
  input.value = text;
  input.dispatchEvent(new Event("input"));
  return {cards: shown(), output: one(".bar output").textContent,
    tables: all("main table:not(.heat)").filter(left).length,
    open: all("details.items").filter((x) => x.open).length};
};
const choose = (key, value) => {
  const select = one(`[data-key=${key}]`);
  select.value = value;
  select.dispatchEvent(new Event("change"));
};
const results = {};
const first = () => one("main table");
const column = () => all("tbody tr th", first()).map((x) => x.firstChild.textContent.trim());
const click = (text) => {
  const head = all("thead th", first()).find((x) => x.textContent.trim() === text);
  head.dispatchEvent(new Event("click"));
  return [column(), head.getAttribute("aria-sort")];
};
results.visible = [one(".bar").hidden, one(".filters").hidden];
results.zebra = search("zebra");
results.two = search("ARO  right");
results.none = search("zebra aro");
results.cleared = search("");
choose("verdict", "lost");
results.lost = shown();
choose("verdict", "won");
choose("benchmark", "cola");
results.won = shown();
results.both = search("zebra").cards;
search("");
choose("order", "-1");
results.gained = shown();
choose("order", "1");
results.fell = shown();
choose("order", "");
results.again = shown();
choose("benchmark", "");
choose("verdict", "");
results.everything = shown();
results.n = [click("n"), click("n"), click("n")];
results.benchmark = [click("benchmark"), click("benchmark")];
const head = all("thead th", first()).find((x) => x.textContent.trim() === "new");
head.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
results.enter = column();
one(".filters button").click();
results.opened = [all("details.items").every((x) => x.open), one(".filters button").textContent];
one(".filters button").click();
results.closed = all("details.items").some((x) => x.open);
"""

COSTS_STEPS = """
const results = {};
const table = document.querySelector("main table");
for (const head of table.querySelectorAll("thead th")) {
  head.dispatchEvent(new Event("click"));
  const rows = [...table.querySelectorAll("tbody tr th")];
  results[head.textContent] = rows.map((x) => x.textContent.match(/\\d/)[0]).join("");
}
"""


@pytest.fixture
def page(make_run, item_rows, tmp_path):
    """Of cola, 0 and 1 are won, 2 is lost; of aro and bivlc, 0 is won."""

    def rows(name, outcomes, margins):
        made = item_rows(outcomes, margins, 0.0)
        named = [replace(row, id=f"{name}/{i}", benchmark=name) for i, row in enumerate(made)]
        if name == "cola":
            named[1] = replace(named[1], captions=("right zebra", "wrong"))
        return tuple(named)

    def run(name, cola, aro, bivlc):
        results = []
        for benchmark, outcomes in (("cola", cola), ("aro", aro), ("bivlc", bivlc)):
            accuracy = MetricValue(sum(outcomes) / len(outcomes), len(outcomes), 0.5)
            metrics = {"accuracy": accuracy}
            results.append(Result(benchmark, "1", "accuracy", metrics, outcomes=outcomes))
        return replace(make_run(name), results=tuple(results))

    old = ((0.0, 0.0, 1.0, 1.0), (0.0, 1.0), (0.0, 0.0, 0.0))
    new = ((1.0, 1.0, 0.0, 1.0), (1.0, 1.0), (1.0, 0.0, 0.0))
    runs = [run("old", *old), run("new", *new)]
    # Margins of the won items of cola grow by 0.5 and by 2.
    margins = {"old": ((-0.25, -1.0, 1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0, -1.0))}
    margins["new"] = ((0.25, 1.0, -1.0, 1.0), (1.0, 1.0), (1.0, -1.0, -1.0))
    items = {}
    for name, outcomes in (("old", old), ("new", new)):
        parts = zip(("cola", "aro", "bivlc"), outcomes, margins[name], strict=True)
        items[name] = {benchmark: rows(benchmark, *pair) for benchmark, *pair in parts}
    return write_report(tmp_path / "report", runs, items)


def shown(page, tmp_path, steps=STEPS):
    """What the page shows after each step."""
    text = page.read_text(encoding="utf-8")
    assert "script-src 'sha256-" in text
    text = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", text)
    steps = f"<script>{{{steps}\nconst out = document.createElement('pre'); out.id = 'results'; "
    steps += "out.textContent = JSON.stringify(results); document.body.append(out);}</script>"
    (tmp_path / "steps.html").write_text(text.replace("</body>", f"{steps}</body>"), "utf-8")
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, (tmp_path / "steps.html").as_uri()], capture_output=True, text=True, timeout=300
    )
    match = re.search(r'<pre id="results">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stderr[-2000:] + done.stdout[-500:]
    return json.loads(html.unescape(match[1]))


def test_search_filters_and_sorting(page, tmp_path):
    got = shown(page, tmp_path)
    everything = ["cola/0", "cola/1", "cola/2", "aro/0", "bivlc/0"]
    assert got["visible"] == [False, False]
    # A caption is found, and its group opens; of two words both must be there, in any case.
    found = {"cards": ["cola/1"], "output": "1 item, 0 rows", "tables": 0, "open": 1}
    assert got["zebra"] == found
    assert (got["two"]["cards"], got["two"]["output"]) == (["aro/0"], "1 item, 0 rows")
    assert (got["none"]["cards"], got["none"]["output"]) == ([], "0 items, 0 rows")
    assert (got["cleared"]["cards"], got["cleared"]["output"]) == (everything, "")
    assert got["cleared"]["tables"] > 2
    assert got["cleared"]["open"] == 0
    assert got["lost"] == ["cola/2"]
    assert got["won"] == ["cola/0", "cola/1"]
    assert got["both"] == ["cola/1"]
    assert got["gained"] == ["cola/1", "cola/0"]
    assert got["fell"] == ["cola/0", "cola/1"]
    assert got["again"] == ["cola/0", "cola/1"]
    assert got["everything"] == everything
    # n is 4, 2 and 3; a number begins with the largest, a third click undoes both.
    listed = ["cola", "aro", "bivlc"]
    assert got["n"] == [
        [["cola", "bivlc", "aro"], "descending"],
        [["aro", "bivlc", "cola"], "ascending"],
        [listed, None],
    ]
    assert got["benchmark"] == [
        [["aro", "bivlc", "cola"], "ascending"],
        [["cola", "bivlc", "aro"], "descending"],
    ]
    assert got["enter"] == ["aro", "cola", "bivlc"]  # 100, 75 and 33 %
    assert got["opened"] == [True, "close all"]
    assert got["closed"] is False


def test_costs_are_sorted_by_their_size_in_any_unit(make_run, tmp_path):
    costs = (
        (512, 64, 999_700.0, 42.0),
        (7_752_704, 1024, 2000.0, 754.0),
        (12_000, 512, None, 7322.0),
    )
    entries = []
    for i, (trained, size, speed, seconds) in enumerate(costs):
        run = make_run(f"model {i}", trained=trained)
        origin = replace(run.provenance, seconds=seconds)
        entries.append(MeasuredModel(replace(run, provenance=origin), Cost(size, speed)))
    page = write_leaderboard(tmp_path / "board", entries)
    got = shown(page, tmp_path, COSTS_STEPS)
    assert [got[name] for name in COSTS] == ["231", "231", "123", "321"]
