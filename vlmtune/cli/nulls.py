"""Keeps a null on the command line a null, at any depth below a class.

In: words of a command line. Out: words. Never: another change of a value.
"""

import json
from collections.abc import Sequence
from typing import Any

from vlmtune.cli.yaml_files import read_value


def with_nulls(words: Sequence[str], root: str) -> list[str]:
    """Returns the words with each null below `--root`, an option for a class, inside an object.

    jsonargparse hands a value down two classes as Python writes it: null becomes the text None.

    Example:
        >>> with_nulls(["--model.backbone.pretrained=null", "--model.seed", "1"], "model")
        ['--model={"backbone": {"pretrained": null}}', '--model.seed', '1']
    """
    out, waiting = list[str](), list(words)
    while waiting:
        word = waiting.pop(0)
        key, equals, value = word.partition("=")
        below = key.startswith(f"--{root}.")
        if below and not equals and waiting:
            value = waiting[0]
        content = read_value(value)
        if not (below and value and _holds_null(content)):
            out.append(word)
            continue
        if not equals:
            waiting.pop(0)
        inner = key.removeprefix(f"--{root}.").split(".")
        for part in reversed(inner):
            content = {part: content}
        out.append(f"--{root}={json.dumps(content)}")
    return out


def _holds_null(content: Any) -> bool:
    if isinstance(content, dict):
        return any(map(_holds_null, content.values()))
    if isinstance(content, list):
        return any(map(_holds_null, content))
    return content is None
