"""What `fit` refuses in a config before it makes anything: silent mistakes, and foreign code.

In: the words of the command, and values of the parsed config. Out: errors of one line.
Never: an object that a config names.
"""

import inspect
import pkgutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from vlmtune.cli.option_names import given_options
from vlmtune.cli.yaml_files import check_yaml, read_value
from vlmtune.config import find_path
from vlmtune.data.schema import read_manifest
from vlmtune.data.shards import names_tars
from vlmtune.errors import UserError
from vlmtune.storage.remote.address import is_remote

LEAST = {
    "seed_everything": 0,
    "model.seed": 0,
    "model.init_args.seed": 0,
    "trainer.accumulate_grad_batches": 1,
    "trainer.log_every_n_steps": 0,
    "trainer.val_check_interval": 1,
}
MOST = 2**32 - 1  # of numpy's seeds


def check_numbers(config: Any) -> None:
    """Raises `UserError` for numbers that Lightning uses unchecked."""
    for name, least in LEAST.items():
        value = config.get(name)
        if type(value) is int and not least <= value <= MOST:  # True: any seed; None: the default
            raise UserError(
                f"expected --{name} from {least} to {MOST}, got {value}: choose another"
            )


def check_optimizer(optimizer: Any) -> None:
    """Raises `UserError` if a parsed `model.optimizer` makes no optimizer, such as `os.system`."""
    path = getattr(optimizer, "class_path", None)
    maker = optimizer
    if path is not None:
        maker = pkgutil.resolve_name(path)
    if maker is None or _makes_optimizer(maker):
        return
    raise UserError(
        f"expected an optimizer, or a function whose return type is one, got {path or optimizer}: "
        "change --model.optimizer"
    )


def check_shards(command: str, data: Any) -> None:
    """Raises `UserError` if a folder of the parsed `data` on this machine has no shards."""
    # Only `fit` reads the training sets.
    train = data.train if command == "fit" else []
    val = data.val or ()
    for shards in (*train, *val):
        arguments = getattr(shards, "init_args", None)
        path = getattr(arguments, "path", None)
        if not isinstance(path, str) or is_remote(path) or names_tars(path):
            continue
        folder = Path(path).expanduser()
        if not any(folder.glob("*.tar")):
            read_manifest(folder)  # its error says what to build


def _makes_optimizer(maker: Any) -> bool:
    if not inspect.isclass(maker):
        try:
            maker = inspect.signature(maker, eval_str=True).return_annotation
        except (TypeError, ValueError, NameError):
            return False
    return inspect.isclass(maker) and issubclass(maker, Optimizer)


def names_module(arguments: Sequence[str]) -> bool:
    """Tells whether an argument or a config among them names the class of the model.

    Example:
        >>> names_module(["--model.seed=1"])
        False
        >>> names_module(["--model", "vlmtune.training.methods.MMAdapterModule"])
        True
    """
    words: list[str] = []
    for word in arguments:
        words += word.split("=", 1)
    paths = []
    for word, value in pairwise(words):
        is_text = value.startswith("{")  # a config that stands in the command line
        if word in ("--config", "-c") and not is_text:
            paths.append(value)
    for path in paths:
        check_yaml(path)
    in_words = "--model" in words or "--model.class_path" in words
    return in_words or any(map(_has_class, paths))


def replaced(arguments: Sequence[str]) -> list[str]:
    """Returns a warning for each option that a config after it replaces."""
    lines = []
    before: list[str] = []
    for given in given_options(arguments, lambda key: True):
        if given.key != "config":
            before.append(given.key)
            continue
        content = _content(given.value)
        for key in before:
            if key and _sets(content, key.split(".")):
                lines.append(
                    f"vlmtune: warning: --{key} is replaced by a config that comes after it, "
                    f"{given.value:.80}: put --config first"
                )
    return lines


def _content(config: str) -> Any:
    """What a config holds, a file or text; the parser says what is wrong with it."""
    if config.startswith("{"):
        return read_value(config)
    path = find_path(config)
    if path is None or not path.is_file():
        return None
    return read_value(path.read_text(encoding="utf-8", errors="replace"))


def _sets(content: Any, parts: Sequence[str]) -> bool:
    """Whether a config has a value for a key."""
    for part in parts:
        if not isinstance(content, dict) or part not in content:
            return False
        content = content[part]
    return True


def _has_class(path: str) -> bool:
    """Whether the `model` of a config is a class; a config that cannot be read fails later."""
    content = _content(path)
    model = content.get("model") if isinstance(content, dict) else None
    return isinstance(model, str) or _sets(model, ["class_path"])
