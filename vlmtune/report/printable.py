"""Texts of strangers, such as names of runs and captions, as a terminal may show them.

In: a text. Out: the same without control characters. Never: a character that a terminal obeys.
"""

import re

# Colours, which tables use, are allowed: ESC [ numbers m.
CONTROL = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
NEVER_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str, colours: bool = False) -> str:
    r"""Returns a text with its control characters as `\x1b`; tabs and ends of lines stay.

    With `colours` the escape sequences of colours stay too.

    Example:
        >>> printable("a red \x1b]0;owned\x07 cube")
        'a red \\x1b]0;owned\\x07 cube'
    """
    pattern = CONTROL if colours else NEVER_RAW
    return pattern.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
