"""Finding models by path, and telling whose weights they are by their name."""

from pathlib import Path

import vlmtune


def find(path: str) -> Path | None:
    """Returns the absolute form of an existing path, or None where there is none.

    A relative path is looked for in the working directory, then beside the `vlmtune` package.
    """
    roots = (Path.cwd(), Path(vlmtune.__file__).resolve().parent.parent)
    candidates = (root / Path(path).expanduser() for root in roots)
    return next((c.resolve() for c in candidates if path and c.exists()), None)


def named_openai(name: str) -> bool:
    """Whether a hub id, folder or file is named as OpenAI's weights, which need QuickGELU.

    Of a path only the last part counts.

    Example:
        >>> named_openai("timm/vit_base_patch32_clip_224.openai")
        True
        >>> named_openai("openai/clip-vit-base-patch32"), named_openai("/data/openai/mine.pt")
        (True, False)
    """
    parts = name.lower().split("/")
    return "openai" in (parts[0] if len(parts) == 2 else "") or "openai" in parts[-1]
