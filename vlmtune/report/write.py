"""A folder with the report of one or more runs."""

from collections.abc import Sequence
from pathlib import Path

from vlmtune.report.files import write_text
from vlmtune.report.html import to_html
from vlmtune.report.markdown import to_markdown
from vlmtune.report.run_report import RunReport


def write_report(folder: Path, runs: Sequence[RunReport]) -> Path:
    """Writes `report.md` and `report.html`, the runs side by side in the order given.

    The first run that is not blind is what the others are compared with. Both files are whole or
    not there.

    Args:
        folder: Where to write; made where it is not there.
        runs: At least one, with different names.

    Returns:
        The path of `report.html`.

    Raises:
        UserError: There are no runs, two have one name, or the folder cannot be written.
    """
    markdown, html = to_markdown(runs), to_html(runs)
    write_text(folder / "report.md", markdown)
    write_text(folder / "report.html", html)
    return folder / "report.html"
