"""The layout of an export: its files, and the configuration that loading reads.

In: the path of a file. Out: its checked content. Never: a file written.
"""

from pathlib import Path
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from vlmtune.storage.files import read_json

VERSION = 1  # of the layout; exports of any other are refused
WEIGHTS, CONFIG, CARD = "adapter.safetensors", "adapter_config.json", "README.md"
PEFT_WEIGHTS = "adapter_model.safetensors"
FILES = (WEIGHTS, PEFT_WEIGHTS, CONFIG, CARD)


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
    licence: NotRequired[str | None]
    provenance: NotRequired[Any]  # a file may hold anything here
    weights_sha256: NotRequired[str]


EXPECTED = "the configuration of an export"
FIX = "export again, or use the version of vlmtune that wrote it"


def read_config(path: Path) -> dict[str, Any]:
    """Reads and checks `adapter_config.json`."""
    return read_json(path, EXPECTED, FIX, ExportConfig)


def is_peft(path: Path) -> bool:
    """Whether an `adapter_config.json` is one of PEFT, which has the same name."""
    content = read_json(path, EXPECTED, FIX) if path.is_file() else None
    return isinstance(content, dict) and "peft_type" in content
