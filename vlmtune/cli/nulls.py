"""Keeps a null on the command line a null, at any depth below a class.

In: words of a command line. Out: words. Never: another change of a value.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vlmtune.cli.option_names import given_options
from vlmtune.cli.yaml_files import read_value


def with_nulls(words: Sequence[str], root: str) -> list[str]:
    """Returns the words with each null below `--root`, an option for a class, inside an object.

    jsonargparse hands a value down two classes as Python writes it: null becomes the text None.
    Words beside a null (`--root.columns.caption title --root.columns.split null`) go into the same
    object, as a later object replaces a mapping.

    Example:
        >>> with_nulls(["--model.backbone.init_args.pretrained=null", "--model.seed", "1"], "model")
        ['--model={"backbone": {"init_args": {"pretrained": null}}}', '--model.seed', '1']
    """
    options = list(_options(words, root))
    mappings: dict[tuple[str, ...], dict[str, Any]] = {}  # the mappings in which a null stands
    for option in options:
        parent = option.parent
        if _holds_null(option.content) and parent and parent[-1] != "init_args":
            mappings[parent] = {}
    for option in options:
        if option.parent in mappings:
            name = option.path[-1]
            mappings[option.parent][name] = option.content
    out: list[str] = []
    written: set[tuple[str, ...]] = set()
    for option in options:
        if option.parent in written:
            continue  # the first of the siblings stands for all of them
        if option.parent in mappings:
            written.add(option.parent)
            out.append(_object(root, option.parent, mappings[option.parent]))
        elif option.path and _holds_null(option.content):
            out.append(_object(root, option.path, option.content))
        else:
            out += option.words
    return out


class _Option(NamedTuple):
    """An option below the root with its value; without a path, any other word."""

    words: list[str]
    path: tuple[str, ...] = ()
    content: Any = ""

    @property
    def parent(self) -> tuple[str, ...]:
        """The path of the mapping that the option belongs to."""
        return self.path[:-1]


def _options(words: Sequence[str], root: str) -> Iterator[_Option]:
    prefix = f"{root}."
    for given in given_options(words, lambda key: key.startswith(prefix)):
        if not given.key:
            yield _Option(given.words)
            continue
        parts = given.key.removeprefix(prefix).split(".")
        # YAML takes an empty text for null.
        content = read_value(given.value) if given.value else ""
        yield _Option(given.words, tuple(parts), content)


def _object(root: str, path: Sequence[str], content: Any) -> str:
    for part in reversed(path):
        content = {part: content}
    return f"--{root}={json.dumps(content)}"


def _holds_null(content: Any) -> bool:
    if isinstance(content, dict):
        return any(map(_holds_null, content.values()))
    if isinstance(content, list):
        return any(map(_holds_null, content))
    return content is None
