"""The one progress bar. In: a label and a total. Out: a bar with rate and time left on a terminal.

Never: output anywhere but on a terminal's stderr.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from rich.console import Console
from rich.errors import LiveError
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

# One for all bars: a bar within another is drawn below it.
CONSOLE = Console(stderr=True, force_interactive=True)
_OWNER: ContextVar[str] = ContextVar("owner", default="")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.4g}/s")


class _Left(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        time = super().render(task)
        known = time.plain.strip() and "-" not in time.plain
        return time.append(" left") if known else time


@contextlib.contextmanager
def work_of(owner: str) -> Iterator[None]:
    """Names what the bars in this block work for, such as a benchmark, in their labels."""
    token = _OWNER.set(owner)
    try:
        yield
    finally:
        _OWNER.reset(token)


def labelled(label: str) -> str:
    """A label with what the work is for.

    Example:
        >>> with work_of("winoground"):
        ...     labelled("scoring")
        'winoground: scoring'
    """
    return f"{_OWNER.get()}: {label}" if _OWNER.get() else label


def make_bar(show: bool = True) -> Progress:
    """Returns a bar that is not started; `{task.fields[note]}` is the text at its end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        _Rate(),
        _Left(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=CONSOLE,
        disable=not (show and sys.stderr.isatty()),
        transient=True,
    )


@contextlib.contextmanager
def progress(label: str, total: int | None, show: bool = True) -> Iterator[Callable[[int], None]]:
    """Shows a bar on a terminal, and gives the function that advances it by a count.

    A total of None is an unknown total.
    """
    bar = make_bar(show)
    with contextlib.suppress(LiveError):  # an older rich shows one bar at a time
        bar.start()
    task = bar.add_task(labelled(label), total=total, note="")
    try:
        yield lambda count: bar.advance(task, count)
    finally:
        bar.stop()
