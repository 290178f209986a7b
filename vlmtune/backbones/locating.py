"""Tells from the name of a model whose weights it has."""


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
