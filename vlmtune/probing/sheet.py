"""A sheet of pictures: one image under each transformation of a task.

In: an image and a task. Out: a JPEG file. Never: a transformation that another image would not get.
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from vlmtune.probing.tasks import Task
from vlmtune.storage.files import write_atomically

TILE = 112  # pixels of a picture's side
LABEL = 16  # pixels below a picture for its name
COLUMNS = 8
GAP = 4
QUALITY = 80  # of JPEG


def square(image: Image.Image, side: int) -> Image.Image:
    """Cuts the middle square out of an image and scales it to a side."""
    picture = image.convert("RGB")
    return ImageOps.fit(picture, (side, side), Image.Resampling.BICUBIC)


def write_sheet(path: Path, image: Image.Image, task: Task, side: int = 224) -> None:
    """Writes the image, as a square of a side, under each transformation that can run.

    Parameters are those of testing.
    """
    base = square(image, side)
    # A fixed seed: two sheets of one task differ in the image alone.
    generator = np.random.default_rng(0)
    tiles = []
    for member in task.members:
        if member.test is None:
            continue
        star = " *" if member.held_out else ""
        parameters = member.test.sample(generator)
        picture = member.test.apply(base, parameters)
        tiles.append((member.name + star, picture))
    across = TILE + GAP
    down = TILE + LABEL + GAP
    rows = -(-len(tiles) // COLUMNS)
    size = (GAP + COLUMNS * across, GAP + rows * down)
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(10)
    for i, (name, picture) in enumerate(tiles):
        row, column = divmod(i, COLUMNS)
        left = GAP + column * across
        top = GAP + row * down
        picture.thumbnail((TILE, TILE))
        sheet.paste(picture, (left, top))
        pen.text((left, top + TILE + 1), name, "black", font)
    with write_atomically(path) as temporary:
        sheet.save(temporary, "JPEG", quality=QUALITY)
