"""Tells ids of the Hugging Face hub from other names.

In: a name. Out: yes or no. Never: a request.
"""

from vlmtune.config import find_path


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
