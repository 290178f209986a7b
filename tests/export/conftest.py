import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def images():
    """Images that no preprocessing resizes, one that is, and one that is cropped too."""
    pixels = np.random.default_rng(0).integers(0, 255, (3, 48, 64, 3), dtype=np.uint8)
    made = [Image.fromarray(array) for array in pixels]
    return [made[0].crop((0, 0, 32, 32)), made[1].crop((0, 0, 48, 48)), made[2]]
