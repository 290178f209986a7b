"""YAML that people write: files of configs, plug-ins and experiments, and values of options.

In: a path or a text. Out: the values in it. Never: a named pipe, or aliases that multiply to more
values than memory holds.
"""

import contextlib
import json
import math
import os
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from vlmtune.config import find_path
from vlmtune.errors import UserError
from vlmtune.storage.files import reading, regular

MOST_VALUES = 100_000
"""Values in a file, each counted as often as aliases repeat it."""


class _Loader(yaml.SafeLoader):
    """Reads a date as a text, such as the name of a run: JSON has no dates."""


_Loader.add_constructor("tag:yaml.org,2002:timestamp", yaml.SafeLoader.construct_yaml_str)


def read_yaml(path: Path) -> Any:
    """Reads a YAML file; raises `UserError` if it cannot be read or is not YAML."""
    check_yaml(path)
    with reading(path, "YAML"):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":  # it may have tabs, which YAML forbids
            with contextlib.suppress(ValueError):
                return json.loads(text)
        return _Loader(text).get_single_data()


def read_value(text: str) -> Any:
    """Returns the value that the text of an option stands for.

    Example:
        >>> read_value("1e-5"), read_value("null"), read_value("[2026-11-29]"), read_value("a: [")
        (1e-05, None, ['2026-11-29'], 'a: [')
    """
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)  # YAML 1.1 takes 1e-5 for a text
    with contextlib.suppress(ValueError, yaml.YAMLError, RecursionError):
        return _Loader(text).get_single_data()
    return text


def yaml_digests(words: Sequence[str]) -> dict[str, str]:
    """Returns the sha256 of each config that words of a command name, and that these name in turn.

    A config names others relative to its own folder. Words may also be settings in JSON, or options
    with their value. Plug-ins that go by a stem are not among them, and neither are `.json` files
    that a config names: most of these are data.
    """
    waiting = []
    for word in words:
        value = word.partition("=")[2] if word.startswith("--") else word
        names_json = value == word and word.endswith(".json")
        waiting += [word] if names_json else _names_in(value) or _names_in(read_value(value))
    digests: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        path = find_path(name)
        # A text that ends like a YAML may name none.
        if path is None or name in digests:
            continue
        with reading(name, "YAML"):
            digests[name] = sha256(regular(path).read_bytes()).hexdigest()
        folder = os.path.dirname(name)
        for inner in _names_in(read_yaml(path)):
            beside = os.path.join(folder, inner)
            waiting.append(os.path.normpath(beside))
    return dict(sorted(digests.items()))


def _names_in(value: Any) -> list[str]:
    """The texts in a value that end like names of YAMLs."""
    if isinstance(value, str):
        return [value] if value.endswith((".yaml", ".yml")) else []
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return []
    return list(chain.from_iterable(map(_names_in, value)))


def check_yaml(path: str | Path) -> None:
    """Raises `UserError` for what is not YAML, would be read for ever or fill the memory.

    The last two are a named pipe or a device, and a file whose aliases repeat too many values.
    """
    with reading(path, "a config", "write it to a file, in UTF-8"):
        path = regular(path)
        if not path.is_file():
            return
        text = path.read_text(encoding="utf-8")
    try:
        # Composed, not loaded: a node stands for all of its aliases and takes no memory.
        node = yaml.compose(text, yaml.SafeLoader)
        values = 0.0 if node is None else _values(node, {})
    except (ValueError, yaml.YAMLError) as error:
        if path.suffix == ".json":  # it may have tabs
            return
        line = " ".join(str(error).split()).replace('in "<unicode string>", ', "in ")
        raise UserError(f"expected YAML in {path}, got {line}: correct it") from error
    except RecursionError:
        values = math.inf
    if not values:
        raise UserError(f"expected a config in {path}, got an empty file: write keys into it")
    if values > MOST_VALUES:
        raise UserError(
            f"expected at most {MOST_VALUES} values in {path}, got aliases or nested lists that "
            "make more: write them out, or remove them"
        )


def _values(node: yaml.Node, known: dict[int, float]) -> float:
    """How many values a node holds, with those that its aliases repeat; infinity for a circle."""
    if id(node) not in known:
        # A node that is met again before its count is known holds itself.
        known[id(node)] = math.inf
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = list(chain.from_iterable(node.value))  # keys and values
        known[id(node)] = 1.0 + sum(_values(part, known) for part in parts)
    return known[id(node)]
