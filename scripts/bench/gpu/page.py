"""Writes the table of docs/costs.md from the figures that `python -m scripts.bench.gpu` measured.

Each file, of one machine, makes a table.

    python -m scripts.bench.gpu.page docs/results/gpu.json
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path("docs/costs.md")
BEGIN, END = "<!-- figures of scripts.bench.gpu -->\n", "<!-- end of figures -->\n"


def shown(value: float | None, unit: str) -> str:
    """A number of four digits with its unit, or "-"."""
    if value is None:
        return "-"
    digits = ",.0f" if value >= 1000 else ".4g"
    return f"{value:{digits}} {unit}".strip()


def rows(content: dict[str, Any]) -> Iterator[str]:
    """Yields a row for each figure, and before the figures of a part its name."""
    for part in content["parts"]:
        if not part["figures"]:
            continue
        yield f"| **{part['part']}** | | |"
        for figure in part["figures"]:
            bound = ""
            if figure["bound"] is not None:
                bound = shown(figure["bound"], figure["unit"])
            measured = shown(figure["value"], figure["unit"])
            yield f"| {figure['name']} | {measured} | {bound} |"


def table(files: list[Path]) -> str:
    """Returns the table of all files."""
    lines = []
    for file in files:
        content = json.loads(file.read_text(encoding="utf-8"))
        lines += [f"| {content['device']}, torch {content['torch']} | measured | bound |"]
        lines += ["| --- | ---: | ---: |", *rows(content), ""]
    return "\n".join(lines)


def main() -> None:
    """Replaces the table in the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    files = [Path(name) for name in sys.argv[1:]]
    PAGE.write_text(f"{before}{BEGIN}\n{table(files)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
