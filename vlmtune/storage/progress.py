"""The one progress bar.

In: a label and a total. Out: a bar with rate and time left. Never: output anywhere but on a
terminal's stderr.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from rich.console import Console, RenderableType
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
from rich.text import Text
from typing_extensions import override

# One for all bars: a bar within another is drawn below it.
CONSOLE = Console(stderr=True, force_interactive=True)
_OWNER: ContextVar[str] = ContextVar("owner", default="")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        rate = "" if task.speed is None else f"{task.speed:,.4g}/s"
        return Text(rate)


class _Bars(Progress):
    @override
    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:
            if task.fields["note"]:
                yield Text(task.fields["note"], no_wrap=True, overflow="ellipsis")


@contextlib.contextmanager
def work_of(owner: str) -> Iterator[None]:
    """Names what the bars in this block work for, such as a benchmark, in their labels."""
    token = _OWNER.set(owner)
    try:
        yield
    finally:
        _OWNER.reset(token)


def labelled(label: str) -> str:
    """A label with what the work is for, as "winoground: scoring".

    Example:
        >>> with work_of("winoground"):
        ...     labelled("scoring")
        'winoground: scoring'
    """
    return f"{_OWNER.get()}: {label}" if _OWNER.get() else label


def make_bar(show: bool = True) -> Progress:
    """Returns a bar that is not started; the field `note` of a task is the line below the bars."""
    return _Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        console=CONSOLE,
        disable=not (show and sys.stderr.isatty()),
        transient=True,  # what remains on the screen are results
    )


@contextlib.contextmanager
def progress(
    label: str, total: int | float | None, show: bool = True
) -> Iterator[Callable[[float], None]]:
    """Shows a bar on a terminal, and gives the function that advances it by a count."""
    bar = make_bar(show)
    with contextlib.suppress(LiveError):  # an older rich shows one bar at a time
        bar.start()
    task = bar.add_task(labelled(label), total=total, note="")
    try:
        yield lambda count: bar.advance(task, count)
    finally:
        bar.stop()
