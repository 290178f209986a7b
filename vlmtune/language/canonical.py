"""When two captions say the same in the same words.

In: captions. Out: forms that are equal for such captions. Never: a caption to show.
"""

import re

PART = re.compile(r"\s*(?:[,;&]|\b(?:and|or)\b)\s*")


def canonical(caption: str) -> str:
    """The caption in lower case, with single spaces and without a full stop at the end.

    Example:
        >>> canonical(" A man  on a Horse. ")
        'a man on a horse'
    """
    words = caption.lower().rstrip(" .\n\t").split()
    return " ".join(words)


def canonical_parts(caption: str) -> tuple[str, ...]:
    """The sorted parts of a caption: equal for captions that differ only in their order.

    Commas, semicolons, "and" and "or" separate parts.

    Example:
        >>> canonical_parts("Two dogs, one white and one black.")
        ('one black', 'one white', 'two dogs')
    """
    parts = PART.split(canonical(caption))
    return tuple(sorted(filter(None, parts)))
