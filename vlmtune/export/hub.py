"""Where an export lies: a folder, or a repository of the Hugging Face hub."""

from pathlib import Path

from vlmtune.config import find_path
from vlmtune.errors import UserError
from vlmtune.export.files import CONFIG, FILES, WEIGHTS, one_line


def is_hub_id(name: str, pretrained: str | None) -> bool:
    """Whether `name` can only be the id of a hub repository.

    Args:
        name: What a person named.
        pretrained: Weights for it, which only names of open_clip have.
    """
    # open_clip's own names may have a slash, too, but those come with `pretrained`.
    parts = name.split("/")
    return (
        len(parts) == 2
        and all(parts)
        and not name.startswith((".", "~", "hf-hub:", "local-dir:"))
        and pretrained is None
        and find_path(name) is None
    )


def export_folder(source: str) -> Path:
    """Returns the local folder of an export, downloaded from the hub where `source` is an id.

    Raises:
        UserError: There is no such export.
    """
    folder = Path(source)
    if folder.is_dir():
        missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
        if missing:
            raise UserError(
                f"expected an export of vlmtune in {source}, it has no {missing[0]}: "
                "correct the path or export again"
            )
        return folder
    if not is_hub_id(source, None):
        raise UserError(
            f"expected the folder of an export or a hub id org/name, got {source!r}: correct it"
        )
    from huggingface_hub import snapshot_download  # not needed for a folder

    try:
        folder = Path(snapshot_download(source, allow_patterns=list(FILES)))
    except Exception as error:  # network, permission, name: all mean that it cannot be had
        raise UserError(
            f"expected an export in a folder or on the Hugging Face hub, got {source!r} "
            f"({one_line(error)}): check the name and the network"
        ) from error
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"expected an export of vlmtune in the hub repository {source}, it has no {CONFIG}: "
            f"for a model of open_clip write hf-hub:{source}"
        )
    return folder
