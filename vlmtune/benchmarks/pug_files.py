"""Folder names of the PUG data as words.

In: names of folders and factors. Out: words.
"""

import re

# Before a capital that follows a small letter or a digit, or that begins a word after capitals.
_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def spoken(name: str) -> str:
    """The name of a folder or a factor as words: split at underscores and capitals, lower case.

    Hyphens stay, and so do the misspellings of the data ("Kangarou", "Table_Lamb").

    Example:
        >>> [spoken(name) for name in ("VillageSquare", "Jack_O_Lantern", "Chain-saw", "JellyFish")]
        ['village square', 'jack o lantern', 'chain-saw', 'jelly fish']
    """
    words = _BORDER.sub(" ", name).replace("_", " ").split()
    return " ".join(words).lower()
