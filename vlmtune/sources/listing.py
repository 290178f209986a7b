"""What a person reads before a download: the list of all sources, and the plan of an order.

In: orders and the ledger. Out: lines. Never: the network.
"""

import textwrap
from collections.abc import Iterator, Sequence

from vlmtune.errors import counted
from vlmtune.sources.addresses import HAND
from vlmtune.sources.ledger import Ledger
from vlmtune.sources.licences import is_new
from vlmtune.sources.order import Order
from vlmtune.sources.source import DataSource, sources
from vlmtune.sources.state import state

WIDTH = 98
GROUPS = ("Benchmarks", "Corpora", "Other data", "Weights")
NEEDS = {
    "open": "nothing",
    "token": "an account of Hugging Face that accepted its terms, and `hf auth login`",
    "form": "a person asks for files",
    "local": "nothing, you make or build it",
    "shipped": "nothing, it comes with vlmtune",
}


def megabytes(count: int) -> str:
    """A count of bytes for people.

    Example:
        >>> megabytes(158_863), megabytes(1_820_000_000), megabytes(19_021_600_724)
        ('0.2 MB', '1.8 GB', '19 GB')
    """
    if count < 10_000_000:
        return f"{count / 1e6:.1f} MB"
    if count < 1_000_000_000:
        return f"{count / 1e6:.0f} MB"
    return f"{round(count / 1e9, 1):g} GB"


def list_lines(ledger: Ledger) -> Iterator[str]:
    """Lists all sources: benchmarks, corpora, images, and published weights."""
    for title in GROUPS:
        yield from ["", title]  # a blank line between groups
        for name, source in sources().items():
            if group(source) == title:
                yield from _source_lines(Order(name, source), ledger)


def group(source: DataSource) -> str:
    """The heading of `GROUPS` under which a source is listed."""
    if source.model is not None or source.licence.images == "none":
        return "Weights"
    if source.serves.benchmarks:
        return "Benchmarks"
    return "Corpora" if source.serves.builders else "Other data"


def _source_lines(order: Order, ledger: Ledger) -> Iterator[str]:
    source = order.source
    title = f"  {order.name}"
    if source.files or source.access == "shipped":
        title += f"  [{_here(order, ledger)}]"
    yield title
    facts = [f"{source.title}: {source.holds}"]
    others = [name for name in source.names if name != order.name]
    if others:
        facts.append(f"read by {', '.join(others)}")
    if source.files or source.images:
        facts.append("; ".join(sizes(order)))
    licence = source.licence
    facts.append(f"licence: {licence.annotations}; of images: {licence.images}")
    facts.append(f"needs: {needs(order)}")
    for fact in facts:
        yield from textwrap.wrap(fact, WIDTH, initial_indent="    ", subsequent_indent="      ")


def _here(order: Order, ledger: Ledger) -> str:
    """How much of an order is here; of what a person places without a download nothing is known."""
    if order.source.access == "shipped":
        return "whole"
    here = state(order, ledger)
    if here == "whole" and has_steps(order):
        return f"{here}, but for the steps"
    return here


def has_steps(order: Order) -> bool:
    """Whether a person has to do something that no later download can see."""
    # A file that a person gets by hand is checked when it is there.
    for file in order.files:
        if any(url.startswith(HAND) for url in file.urls):
            return False
    without_files = bool(order.source.steps) and not order.source.files
    return without_files or order.source.access in ("form", "local")


def needs(order: Order) -> str:
    """What a person has to have or to do before a source comes."""
    source = order.source
    needed = NEEDS[source.access]
    if source.access == "open" and not source.files:
        needed = "a person follows its steps"
    if source.terms is None:
        return needed
    terms = f"`--accept {order.name}` of its terms: {' '.join(source.terms.split())}"
    return terms if source.access == "open" else f"{needed}; {terms}"


def sizes(order: Order) -> Iterator[str]:
    """What an order fetches."""
    if order.files:
        known = [file.size for file in order.files if file.size is not None]
        noun = "file" if len(order.files) == 1 else "files"
        parts = [f"{len(order.files):,} {noun}"]
        if known:
            is_exact = all(file.about is None for file in order.files)
            about = "" if is_exact else "about "
            parts.append(about + megabytes(sum(known)))
        if unknown := len(order.files) - len(known):
            parts.append(f"{unknown} of unknown size")
        yield ", ".join(parts)
    for images in order.images:
        line = f"{counted(images.count, 'image')}, about {megabytes(images.bytes)}"
        if images.whole:
            files = [file for name in images.whole for file in sources()[name].files]
            size = megabytes(sum(file.size or 0 for file in files))
            line += f" (or --whole: {', '.join(images.whole)}, {size})"
        yield line


def plan_lines(wanted: Sequence[Order], ledger: Ledger) -> Iterator[str]:
    """Says what a download brings, under which licences, and what a person has to do."""
    for order in wanted:
        here = _here(order, ledger)
        line = f"{order.name}: {'; '.join(sizes(order)) or 'nothing to download'}"
        if order.files:
            line += f" [{here}]"
        yield line
        if order.whole and order.images:
            yield "  without an archive of all images: they come one by one"
        if is_new(order, ledger.root):
            licence = order.source.licence
            yield f"  licence: {licence.annotations}; of images: {licence.images}"
            if order.source.terms is not None:
                yield f"  terms: {' '.join(order.source.terms.split())}"
            yield f"  {order.source.page}"
        if order.source.steps and here != "whole":
            yield "  to do:"
            for step in order.source.steps:
                yield from textwrap.wrap(
                    f"- {' '.join(step.split())}",
                    WIDTH,
                    initial_indent="  ",
                    subsequent_indent="    ",
                    break_on_hyphens=False,  # a path in a step stays whole
                )
