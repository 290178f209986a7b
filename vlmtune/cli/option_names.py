"""Names of options: with dashes on our command lines, with underscores where they are keys.

In: a word of the command line. Out: the same word under the other name. Never: a changed value.
"""


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
