"""The one progress bar. In: a label and a total. Out: a bar with rate and time left on a terminal.

Never: output anywhere but on a terminal's stderr.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator

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
from rich.text import Text


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.4g}/s")


@contextlib.contextmanager
def progress(label: str, total: int | None, show: bool = True) -> Iterator[Callable[[int], None]]:
    """Shows a bar on a terminal, and gives the function that advances it by a count.

    A total of None is an unknown total.
    """
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate()
    bar = Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not (show and sys.stderr.isatty()),
        transient=True,
    )
    with contextlib.suppress(LiveError):  # another bar, such as the trainer's, is on the screen
        bar.start()
    task = bar.add_task(label, total=total)
    try:
        yield lambda count: bar.advance(task, count)
    finally:
        bar.stop()
