"""Names loaded weights by their digest, and reports weights that do not load.

In: a model, a file or an error. Out: a digest, or a `UserError`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlmtune.errors import UserError, one_line
from vlmtune.storage.files import sha256_of

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""The type of weights of each precision."""


def digest(described: Any, model: nn.Module) -> str:
    """Returns the sha256 of a description and of all weights and buffers, with names and types.

    It names the model in feature stores, checkpoints and exports.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> digest("a", layer) == digest("a", layer) != digest("b", layer)
        True
    """
    description = json.dumps(described, sort_keys=True, default=str)
    total = hashlib.sha256(description.encode())
    for name, value in sorted(model.state_dict().items()):
        facts = f"{name} {value.dtype} {tuple(value.shape)}"
        total.update(facts.encode())
        # numpy has no bfloat16, so the numbers are read as bytes.
        flat = value.detach().cpu().contiguous().reshape(-1)
        content = flat.view(torch.uint8).numpy()
        total.update(memoryview(content))
    return total.hexdigest()


def named_openai(name: str) -> bool:
    """Whether a hub id, folder or file is named as OpenAI's weights, which need QuickGELU.

    Of a path only the last part counts.

    Example:
        >>> named_openai("timm/vit_base_patch32_clip_224.openai")
        True
        >>> named_openai("openai/clip-vit-base-patch32"), named_openai("/data/openai/mine.pt")
        (True, False)
    """
    path, _, last = name.lower().rpartition("/")
    is_owner = "/" not in path  # of a hub id, and then it counts too
    return "openai" in last or (is_owner and "openai" in path)


def check_written(source: str | Path, damaged: str | None) -> None:
    """Raises a `UserError` that names the part of a file or folder with another checksum."""
    if damaged is not None:
        raise UserError(
            f"expected {source} as it was written, got another or no {damaged}: copy it again, or "
            "use another"
        )


def file_facts(file: Path, architecture: str) -> dict[str, str]:
    """Returns what a report says of weights that come from a file."""
    return {"file": file.name, "sha256": sha256_of(file), "architecture": architecture}


def check_none(model: str, pretrained: str | None) -> None:
    """Raises a `UserError` for `pretrained` beside a model that has its own weights."""
    if pretrained is not None:
        raise UserError(
            f"expected no pretrained for {model}, which has its own weights, got {pretrained!r}: "
            "leave it out"
        )


def check_finite(state: Mapping[str, Tensor], fix: str) -> None:
    """Raises a `UserError` that names the first tensor with NaN or infinity.

    Example:
        >>> check_finite({"a": torch.ones(2)}, "train again")
    """
    for name, value in state.items():
        # A sum is fast, and finite if all are.
        if not value.sum(dtype=torch.float64).isfinite():
            raise UserError(f"expected finite weights, got NaN or infinity in {name!r}: {fix}")


@contextmanager
def loaded_whole(parts: str) -> Iterator[None]:
    """Turns whatever a library raises while it loads `parts` into one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # libraries raise anything from AssertionError to HTTP errors
        # A library's message may be many lines, and advise to run the author's code.
        got = one_line(error)
        advice = "check the name, the files and, for hub models, the network"
        if isinstance(error, ImportError):  # SigLIP's tokenizer needs SentencePiece
            advice = "install the library that it names"
        if "trust_remote_code" in str(error):
            got = "Python code of its author, which vlmtune never runs"
            advice = "read that code, then remove auto_map and trust_remote_code from a local copy"
        raise UserError(f"expected {parts}, got {got}: {advice}") from error
