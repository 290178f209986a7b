"""`vlmtune compare --grid`: every strategy with every combination of some values.

In: an experiment, and keys of a config with values. Out: the experiment with a row for each
combination. Never: a value that `vlmtune fit` would not take after `--KEY=`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

from vlmtune.cli.compare_jobs import FOLDER, NAME, Experiment, Strategy
from vlmtune.errors import UserError

OF_COMPARE = ("seed_everything", FOLDER.strip("-="), NAME.strip("-="))
"""Keys that `vlmtune compare` sets itself."""


def with_grid(experiment: Experiment, grid: Sequence[str]) -> Experiment:
    """Returns the experiment with a row for each strategy and combination.

    Each item of `grid` is a key with its values, "model.optimizer.init_args.lr=0.001,0.01".
    """
    axes = [_axis(text) for text in grid]
    if not axes:
        return experiment
    rows: dict[str, Strategy] = {}
    for row, strategy in experiment.rows.items():
        for point in itertools.product(*axes):
            # A name for people, a folder that no other point has, and the words of `fit`.
            names = []
            folder = [row]
            words = []
            for key, value in point:
                _, _, last = key.rpartition(".")
                names.append(f"{last} {value}")
                folder.append(f"{last}-{value}")
                words.append(f"--{key}={value}")
            # A value may hold a slash: quoted, it makes no further folder.
            stem = quote("_".join(folder), safe="=")
            name = f"{strategy['name']}, {', '.join(names)}"
            rows[stem] = {"name": name, "configs": strategy["configs"], "words": words}
    return replace(experiment, rows=rows)


def chosen_rows(experiment: Experiment, grid: Sequence[str], only: Sequence[str]) -> list[str]:
    """The rows that `--only` names; a strategy's name stands for all of its combinations."""
    rows = []
    for name in only:
        if name in experiment.rows:
            alone = replace(experiment, rows={name: experiment.rows[name]})
            rows += with_grid(alone, grid).rows
        else:
            rows.append(name)
    return rows


def _axis(text: str) -> list[tuple[str, str]]:
    """A key with each of its values."""
    key, equals, values = text.partition("=")
    key = key.removeprefix("--")
    listed = [value.strip() for value in _split(values)]
    repeated = len(set(listed)) < len(listed)
    if not equals or not key or "" in listed or repeated or key in OF_COMPARE:
        raise UserError(
            f"expected KEY=VALUE,VALUE,... with --grid, got {text!r}: write for example "
            "model.optimizer.init_args.lr=0.001,0.01, and seeds with --seeds"
        )
    return [(key, value) for value in listed]


def _split(text: str) -> list[str]:
    """Splits a text at the commas that stand in no quotes, list or mapping.

    `vlmtune fit` would take the quotes around a whole value for a part of it, so they are dropped.
    """
    values = [""]
    depth = 0
    quote = ""
    for letter in text:
        opens = letter in "\"'" and not values[-1][-1:].isalnum()  # "dog's" has an apostrophe
        if letter == quote or (opens and not quote):
            quote = "" if quote else letter
            letter = letter if depth else ""
        elif letter in "[{" and not quote:
            depth += 1
        elif letter in "]}" and not quote:
            depth -= 1
        if letter == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += letter
    return values
