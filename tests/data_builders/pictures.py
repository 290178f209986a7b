"""Encoded images that a builder accepts."""

from PIL import Image

from tests import tiny


def encoded(kind: str = "JPEG", shade: int = 7) -> bytes:
    """A picture of one colour."""
    return tiny.encoded(Image.new("RGB", (8, 8), (shade, 0, 0)), kind)


JPEG = encoded()
