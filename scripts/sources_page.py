"""Writes docs/sources.md: every source of data and weights, by what it is for.

In: configs/sources. Out: the page. Never: the network, or a fact that no source states.
"""

from vlmtune.config import ROOT
from vlmtune.sources.listing import GROUPS, group, needs, sizes
from vlmtune.sources.order import Order
from vlmtune.sources.source import sources

PAGE = ROOT / "docs/sources.md"
HEAD = """\
# Sources

`python -m scripts.sources_page` writes this page from `configs/sources`. [Download data](data.md)
explains the command. Each YAML states its addresses and where we read them. No download was tried
when this page was written. Layouts of some archives come from public code that reads them.

"None stated" means that the source itself states no licence: ask its authors. `--whole` takes
archives of all images instead of the images that a benchmark uses, one by one.
"""
TABLE = """\
| name | what | size | licence | images | needs |
| --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The text of docs/sources.md."""
    text = HEAD
    for name in GROUPS:
        text += f"\n## {name}\n\n"
        text += TABLE
        for stem, source in sources().items():
            if group(source) == name:
                text += _row(Order(stem, source))
    return text


def _row(order: Order) -> str:
    source = order.source
    readers = [f"`{name}`" for name in source.names if name != order.name]
    link = source.page.removeprefix("docs/")
    what = f"[{source.title}]({link}): {source.holds}"
    if readers:
        what += f" (read by {', '.join(readers)})"
    licence = source.licence
    size = "; ".join(sizes(order)).replace("--whole", "`--whole`") or "–"
    cells = [f"`{order.name}`", what, size, licence.annotations, licence.images, needs(order)]
    return f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |\n"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
