"""The documentation: its size, its pages, and the core path that CONTRIBUTING lists."""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LINES = 4182  # of the core path, at most
RESULTS = ROOT / "docs/results"
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_readme_and_the_claims_are_short():
    assert len(README) <= 8000
    assert len((ROOT / "docs/experiments.md").read_text(encoding="utf-8")) <= 8000


def test_the_readme_and_the_index_list_every_page():
    assert {name for name in PAGES if f"(docs/{name})" not in README} == {"index.md"}
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    listed = "\n".join(re.findall(r"```{toctree}\n(.*?)```", index, re.DOTALL)).split()
    named = {x for x in listed if f"{x}.md" in PAGES} | {"index"}
    assert {Path(name).stem for name in PAGES} == named


def test_the_pictures_are_small():
    pictures = [*(ROOT / "docs/images").iterdir()]
    assert len(pictures) > 1
    assert max(path.stat().st_size for path in pictures) < 300_000


def test_the_core_path_is_short():
    (listed,) = re.findall(r"<!-- core path -->\n```text\n(.*?)```", CONTRIBUTING, re.DOTALL)
    files = [ROOT / line.split()[0] for line in listed.splitlines()]
    assert len(files) == len(set(files))
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= LINES


def test_the_glossary_names_classes_that_exist():
    (table,) = re.findall(r"## Glossary\n(.*?)\n## ", CONTRIBUTING, re.DOTALL)
    nouns = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    classes = {name for noun in nouns for name in re.findall(r"\b[A-Z]\w+", noun)}
    classes -= {"Checkpoint", "Export"}
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "vlmtune").rglob("*.py"))
    assert {name for name in classes if not re.search(rf"^class {name}\b", source, re.M)} == set()
    assert len(nouns) > 20


def test_the_wrapped_lines_of_the_pages_are_short():
    """Tables, links and code may be wide, prose may not. A line that begins with % is a comment."""
    for path in [*(ROOT / "docs").glob("*.md"), *RESULTS.glob("*.md")]:
        prose = re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        lines = [line for line in prose.splitlines() if not line.startswith("|")]
        assert max(map(len, lines)) <= 110, path
        assert not [line for line in lines if line.lstrip().startswith("%")], path


def test_a_page_shows_each_table():
    pages = "\n".join(path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md"))
    # With a backtick in its title, a fence is no fence.
    shown = re.findall(r"^```\{csv-table\}[^`\n]*\n:file: (.+)$", pages, re.MULTILINE)
    assert sorted(shown) == sorted(path.name for path in RESULTS.glob("*.csv"))


def test_the_numbers_of_the_claims_stand_in_the_tables():
    """A claim may shorten a cell to its mean, "63.3" of "63.3 (73 / 46 / 71)"."""
    measured = set()
    for path in RESULTS.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        measured.update(cells, [cell.partition(" (")[0] for cell in cells])
    page = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!---)[^|]*\|(.*)\|$", page, re.MULTILINE)
    claimed = {cell.strip() for row in rows for cell in row.split("|")}
    numbers = {cell for cell in claimed if re.match(r"[\d.]+( [(/]|$)", cell)}
    assert len(numbers) > 50
    assert numbers - measured == set()
