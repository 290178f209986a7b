"""Rewrites arguments of `vlmtune fit` into those that its parser takes.

In: words of a command line, and the config they change. Out: words.
Never: a plug-in, or a check of a value; the parser makes and checks both.

Three things are rewritten. A plug-in may go by the stem of its YAML (`--model.adapter lora`), a
backbone by the name of a model (`--model.backbone ViT-B-32-quickgelu:openai`), and an item of a
list by its position, class or name (`--trainer.callbacks.BenchmarkCallback.every_n_steps 30`).
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmtune.cli.option_names import given_options
from vlmtune.cli.plugins import class_path_of, find
from vlmtune.cli.yaml_files import read_value, read_yaml
from vlmtune.config import find_path
from vlmtune.errors import UserError
from vlmtune.model.resolving import FILES, backbone_spec

# Last part of a key -> folder of configs/plugins.
KINDS = {
    "model": "modules",
    "backbone": "backbones",
    "adapter": "adapters",
    "pairs": "pairs",
    "objectives": "objectives",
    "benchmarks": "benchmarks",
}
ADAPTERS = ("--model", "--model.adapter", "--model.init_args.adapter")
LISTS = ("objectives", "benchmarks")
SHARDS = ("data.train", "data.val")
HELP = ".help"
POSITION = re.compile(r"\[(\d+)\](?=\.|$)")  # callbacks[0] is callbacks.0
STEM = re.compile(r"[a-z][a-z0-9_]*")
CLASS = re.compile(r"[A-Za-z_][\w.]*")
Override = tuple[str, Any]


def rewritten(arguments: Sequence[str]) -> tuple[list[str], list[Override]]:
    """Returns the arguments with a YAML for each stem, and apart the overrides of items of lists.

    Example:
        >>> words, items = rewritten(["--data.batch_size=4", "--trainer.callbacks.0.name", "mine"])
        >>> words, items
        (['--data.batch_size=4'], [('trainer.callbacks.0.name', 'mine')])
    """
    words = []
    items = []
    # Only options of plug-ins and of items of lists are read here; the parser reads the rest.
    for given in given_options(arguments, _is_read):
        if not given.key:
            words += given.words
            continue
        key = _dotted(given.key)
        value = _expanded(key, given.value)
        if _is_item(key):
            items.append((key, read_value(value)))
        else:
            words.append(f"--{key}={value}")
    return words, items


def _dotted(key: str) -> str:
    """A key with .0 for [0]."""
    return POSITION.sub(r".\1", key)


def _is_read(key: str) -> bool:
    dotted = _dotted(key)
    return _is_item(dotted) or _changes(dotted)


def loses_name(arguments: Sequence[str]) -> bool:
    """Whether the arguments replace the adapter, so that a config's name of the run is wrong.

    Example:
        >>> loses_name(["--model.adapter=lora"]), loses_name(["--model.adapter.init_args.rank=2"])
        (True, False)
        >>> loses_name(["--model.adapter=lora", "--trainer.callbacks.BenchmarkCallback.name=mine"])
        False
    """
    keys = [word.partition("=")[0] for word in arguments]
    # The arguments may name the run themselves.
    named = any(key.startswith("--trainer.callbacks") and key.endswith(".name") for key in keys)
    return not named and any(key in ADAPTERS for key in keys)


def changed_lists(config: dict[str, Any], items: Sequence[Override]) -> list[str]:
    """Returns the arguments that give `config` its lists with the changed items.

    A part of a key that stands for an item is its position from 0, its class, or its `name`.
    `init_args` may be left out.

    Example:
        >>> config = {"callbacks": [{"class_path": "a.One", "init_args": {"every": 5}}]}
        >>> changed_lists(config, [("callbacks.One.every", 30)])
        ['--callbacks=[{"class_path": "a.One", "init_args": {"every": 30}}]']
    """
    lists: dict[str, Any] = {}
    for key, value in items:
        *parents, last = key.split(".")
        node: Any = config
        parent = ""  # the key of `node`
        for part in parents:
            node = _arguments(node, part)
            _note_list(lists, parent, node)
            node = node[_step(node, part, parent, key, may_be_new=False)]
            parent = f"{parent}.{part}".removeprefix(".")
        node = _arguments(node, last)
        _note_list(lists, parent, node)
        node[_step(node, last, parent, key, may_be_new=True)] = value
    return [f"--{key}={json.dumps(value)}" for key, value in lists.items()]


def _note_list(lists: dict[str, Any], key: str, node: Any) -> None:
    """Adds a list to those that change, unless it lies inside another such list."""
    inside = any(key.startswith(f"{known}.") for known in lists)
    if isinstance(node, list) and not inside:
        lists[key] = node


def _step(node: Any, part: str, parent: str, key: str, may_be_new: bool) -> int | str:
    """The index of a list, or the key of a dictionary, that a part of a dotted key names."""
    if isinstance(node, list):
        return _position(node, part, parent)
    if isinstance(node, dict) and (may_be_new or part in node):
        return part
    known = ", ".join(node) if isinstance(node, dict) else repr(node)
    raise UserError(f"expected one of {known} in {parent}, got {part!r}: change --{key}")


def _is_item(key: str) -> bool:
    """Whether a key goes through an item of a list, by its position or its class."""
    _, *parts = key.split(".")
    has_position = any(part.isdigit() for part in parts)
    has_class = any(part[:1].isupper() for part in parts[:-1])
    return has_position or has_class


def _changes(key: str) -> bool:
    if key in SHARDS or key == "model":
        return True
    last = _last(key)
    return last in KINDS and last != "model"  # backbones have an argument `model`, too


def _last(key: str) -> str:
    """The last part of a key but for positions and `help`; `objectives` for `objectives+`."""
    names = [part for part in key.removesuffix(HELP).split(".") if not part.isdigit()]
    return names[-1].rstrip("+")


def _expanded(key: str, text: str) -> str:
    """The value of a key with the YAML of each stem; a list where a single plug-in was given."""
    content = read_value(text)
    if not _changes(key):
        return text
    if isinstance(content, list):
        items = [_item(key, item) for item in content]
        return json.dumps(items)
    if not isinstance(content, str):
        return text
    item = _item(key, content)
    takes_list = key in SHARDS or key.endswith(LISTS)
    path = Path(content)
    # A YAML may hold a list itself.
    has_list = takes_list and path.is_file() and isinstance(read_yaml(path), list)
    if takes_list and not has_list:
        return json.dumps([item])
    return item if isinstance(item, str) else json.dumps(item)


def _item(key: str, item: Any) -> Any:
    """A plug-in or a shard set, by what was typed."""
    if not isinstance(item, str):
        return item
    if key in SHARDS:
        return item if item.endswith((".yaml", ".yml")) else {"path": item}
    last = _last(key)
    if last == "backbone" and _is_model(item):
        return backbone_spec(item)
    is_missing = item.endswith((".yaml", ".yml")) and find_path(item) is None
    if STEM.fullmatch(item) or is_missing:
        source = find(KINDS[last], item)  # its error names what there is
        return class_path_of(source) if key.endswith(HELP) else source
    return item


def _is_model(name: str) -> bool:
    """Whether a backbone goes by the name of a model: a path, a hub id, or a name with a dash."""
    # A hub id has a slash and most names of models a dash, which no class has.
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json"):
        return False
    return path.exists() or path.suffix in FILES or not CLASS.fullmatch(name)


def _arguments(node: Any, part: str) -> Any:
    """The arguments of a plug-in, unless `part` is a key of the plug-in itself."""
    is_plugin = isinstance(node, dict) and "class_path" in node
    if is_plugin and part not in ("class_path", "init_args"):
        return node.setdefault("init_args", {})
    return node


def _position(items: Sequence[Any], part: str, key: str) -> int:
    """Position of the item that `part` names."""
    if part.isdigit() and int(part) < len(items):
        return int(part)
    # A class or a name; the error lists all, so that a person sees the choice.
    fitting = []
    listed = []
    for i, item in enumerate(items):
        names = _names(item)
        listed.append(f"{i} ({', '.join(names) or '?'})")
        if part in names:
            fitting.append(i)
    if len(fitting) == 1:
        return fitting[0]
    got = f"{part!r}, which is {len(fitting)} of them" if fitting else repr(part)
    known = ", ".join(listed) or "none"
    raise UserError(f"expected an item of {key}, {known}, got {got}: name one of these")


def _names(item: Any) -> list[str]:
    """The class and the `name` of an item."""
    if not isinstance(item, dict):
        return []
    _, _, class_name = item.get("class_path", "").rpartition(".")
    name = item.get("init_args", item).get("name")
    return list(filter(None, (class_name, name)))
