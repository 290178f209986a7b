"""What a name on the Hugging Face hub, or a folder that its libraries wrote, holds.

In: a hub id or a folder. Out: its kind, and the spec of its backbone.
"""

from pathlib import Path
from typing import Any

from vlmtune.backbones.advice import supported_types
from vlmtune.config import Spec, find_path
from vlmtune.errors import UserError
from vlmtune.model.layout import CONFIG, is_peft
from vlmtune.storage.files import read_json, reading

HF, OPEN_CLIP, PEFT = "config.json", "open_clip_config.json", "peft_type"
NETWORK = "check the name, the revision and the network"  # what errors advise


def is_hub_id(name: str, pretrained: str | None) -> bool:
    """Whether `name` must be the id of a hub repository."""
    # Names of open_clip may have a slash, too, but they come with `pretrained`.
    parts = name.split("/")
    return (
        len(parts) == 2
        and all(parts)
        and not name.startswith((".", "~", "hf-hub:", "local-dir:"))
        and pretrained is None
        and find_path(name) is None
    )


def hub_kind(name: str, revision: str | None = None) -> str:
    """The file that says what a hub repository holds.

    It is an export or an adapter of PEFT, or else a model of transformers, or of open_clip. A
    repository of both counts as one of open_clip if the type of the other is not supported.
    Anything else is a `UserError`.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError  # a local folder does not need it

    from vlmtune.backbones.hub_connection import hub_or_cache

    with hub_or_cache(name) as answers:
        # An export first: its repository may hold files of its base model too.
        if adapter := _hub_file(name, CONFIG, revision):
            return PEFT if is_peft(Path(adapter)) else CONFIG
        config = _hub_file(name, HF, revision)
        open_clip = _hub_file(name, OPEN_CLIP, revision)
        if not (answers or config or open_clip):
            raise LocalEntryNotFoundError(name)
    kind = _type(Path(config)) if config else None
    if kind is not None and (kind in supported_types() or not open_clip):
        return HF
    if open_clip:
        return OPEN_CLIP
    raise UserError(
        "expected an export, a model of transformers or one of open_clip on the Hugging Face hub, "
        f"got {name!r} without {CONFIG}, {HF} with a model_type, or {OPEN_CLIP}: {NETWORK}"
    )


def is_hf_folder(path: Path) -> bool:
    """Whether `save_pretrained` wrote this folder; relative to what `find_path` knows."""
    folder = find_path(path)
    # A folder of both libraries is loaded by open_clip.
    if folder is None or (folder / OPEN_CLIP).is_file():
        return False
    config = folder / HF
    return config.is_file() and _type(config) is not None


def hf_spec(name: str, revision: str | None = None) -> Spec:
    """The spec of the backbone of a model of transformers, by its type, at a revision."""
    folder = find_path(name)
    file = _hub_file(name, HF, revision) if folder is None else folder / HF
    kind = None if file is None else _type(Path(file))
    types = supported_types()
    if kind not in types:
        got = f"{name} of type {kind}: use another model"
        if file is None:
            got = f"{name!r} without {HF}: {NETWORK}"
        raise UserError(f"expected a model of a supported type ({', '.join(types)}), got {got}")
    return {"class_path": types[kind], "init_args": {"model": name, "revision": revision}}


def peft_base(name: str, revision: str | None) -> tuple[str, str | None]:
    """The base model that a PEFT adapter names, with its revision."""
    folder = find_path(name)
    file = _hub_file(name, CONFIG, revision) if folder is None else folder / CONFIG
    config = read_json(file or "", "the configuration of a PEFT adapter", NETWORK)
    named = config.get("base_model_name_or_path")
    has_moved = bool(named) and Path(named).is_absolute() and not Path(named).is_dir()
    if not named or has_moved:
        got = f"{named}, which is not here" if named else "none"
        raise UserError(
            f"expected base_model_name_or_path in {file}, got {got}: name the base model with "
            "--pretrained"
        )
    return named, config.get("revision")


def _type(config: Path) -> str | None:
    """The model type in a config of transformers; None if it has none."""
    content: Any = read_json(config, "a config of transformers")
    kind = content.get("model_type") if isinstance(content, dict) else None
    return kind if isinstance(kind, str) else None


def _hub_file(name: str, file: str, revision: str | None) -> str | None:
    """The local path of a repository's file; None if it has none, or is out of reach."""
    from huggingface_hub import hf_hub_download  # a local folder does not need it
    from huggingface_hub.errors import EntryNotFoundError

    with reading(name, "an export or a model on the Hugging Face hub", NETWORK):
        try:
            return hf_hub_download(name, file, revision=revision)
        except EntryNotFoundError:  # offline: not in the cache
            return None
