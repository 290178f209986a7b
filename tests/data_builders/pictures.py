"""Encoded images that a builder accepts."""

import io

from PIL import Image


def encoded(kind: str = "JPEG", shade: int = 7) -> bytes:
    """A picture of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(buffer, kind)
    return buffer.getvalue()


JPEG = encoded()
