"""The layout of an export: its files, and the configuration that loading reads.

In: the path of a file. Out: its checked content. Never: a file written.
"""

from pathlib import Path
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from vlmtune.errors import UserError, without_advice
from vlmtune.storage.files import check_shape, read_json

VERSION = 1
WEIGHTS, CONFIG, CARD = "adapter.safetensors", "adapter_config.json", "README.md"
FILES = (WEIGHTS, CONFIG, CARD)


class PluginSpec(TypedDict):
    """A plug-in as files name it."""

    class_path: str
    init_args: dict[str, Any]


class BackboneSpec(PluginSpec):
    """The backbone of an export, with the digest of its weights and preprocessing."""

    fingerprint: str


class ExportConfig(TypedDict):
    """The content of `adapter_config.json` that loading reads.

    `weights_sha256` is the checksum of the weights; older exports have none.
    """

    version: Literal[1]
    backbone: BackboneSpec
    adapter: PluginSpec
    alpha: NotRequired[float]
    provenance: NotRequired[Any]  # a file may hold anything here
    weights_sha256: NotRequired[str]


def read_config(path: Path) -> dict[str, Any]:
    """Reads and checks `adapter_config.json`."""
    expected = "the configuration of an export"
    fix = "export again, or use the version of vlmtune that wrote it"
    config = read_json(path, expected, fix)
    if isinstance(config, dict) and "peft_type" in config:
        raise UserError(
            f"expected {expected} of vlmtune in {path}, got a PEFT adapter: merge it into its "
            "model first (merge_and_unload) and save that"
        )
    check_shape(config, ExportConfig, path, expected, fix)
    return config


def one_line(error: BaseException) -> str:
    """The error of a library as part of a line.

    Example:
        >>> one_line(ValueError("not   a number"))
        'ValueError: not a number'
    """
    text = without_advice(error)[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
