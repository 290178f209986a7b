"""Options of a command line: their names, with dashes or underscores, and their values.

In: words of a command line. Out: words under the other name, or options with their values.
Never: a changed value.
"""

import argparse
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from vlmtune.errors import UserError

TABLE = "table."
ADVISES_OPTION = re.compile(r"--[a-z]|`[a-z]+(\.[a-z_]+)?`|Option")


def renamed_option(word: str, old: str, new: str) -> str:
    """Returns a word of the command line, an option with `new` for `old`: dashes or underscores.

    Our parser names options with dashes, Lightning's and those of builders with underscores. What
    has a dot is a key of a config and stays as it is.

    Example:
        >>> renamed_option("--held_out=a_b", "_", "-"), renamed_option("--data.seed_a", "_", "-")
        ('--held-out=a_b', '--data.seed_a')
    """
    option, equals, value = word.partition("=")
    if option.startswith("--") and "." not in option:
        option = f"--{option.removeprefix('--').replace(old, new)}"
    return f"{option}{equals}{value}"


class Given(NamedTuple):
    """An option in the words that were typed, with its value; of any other word the key is ""."""

    words: list[str]
    key: str = ""
    value: str = ""


def given_options(words: Sequence[str], is_read: Callable[[str], bool]) -> Iterator[Given]:
    """Yields the options `--key=value` and `--key value` whose key `is_read`, and other words.

    The last word has no value after it: it passes as another word, and the parser asks for one.

    Example:
        >>> words = ["--a=1", "--flag", "--b", "2", "--b"]
        >>> [(one.key, one.value) for one in given_options(words, lambda key: key in "ab")]
        [('a', '1'), ('', ''), ('b', '2'), ('', '')]
    """
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        is_option = word.startswith("--") and is_read(key)
        has_value = equals or waiting
        if not is_option or not has_value:
            yield Given([word])
            continue
        given = [word]
        if not equals:
            value = waiting.pop(0)
            given.append(value)
        yield Given(given, key, value)


def table_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the options of a table, `--table.KEY`, as `--KEY=VALUE`, and all other words.

    Example:
        >>> table_options(["--out", "a", "--table.images", "photos"])
        (['--images=photos'], ['--out', 'a'])
    """
    options: list[str] = []
    others: list[str] = []
    for given in given_options(words, lambda key: key.startswith(TABLE)):
        if given.key:
            options.append(f"--{given.key.removeprefix(TABLE)}={given.value}")
        else:
            others += given.words
    return options, others


@contextlib.contextmanager
def naming_table_options(has_table: bool = True) -> Iterator[None]:
    """Adds to an error that advises an option of a table how a command line names it."""
    try:
        yield
    except UserError as error:
        line = str(error)
        if has_table and ADVISES_OPTION.search(line):
            line += "; here its options begin with --table."
        raise UserError(line) from error


def at_least(lowest: int) -> Callable[[str], int]:
    """Returns the type of an option for whole numbers from `lowest` on."""

    def number(text: str) -> int:
        value = int(text)
        if value < lowest:
            raise argparse.ArgumentTypeError(f"expected {lowest} or more, got {value}")
        return value

    return number
