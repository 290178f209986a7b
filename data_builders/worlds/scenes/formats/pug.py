"""PUG: SPAR's and PUG: Animals' csv files (Bordes et al. 2023, sections 3.2 and 3.4).

In: rendered grids. Out: the texts of the files.
"""

from collections.abc import Sequence

from data_builders.text_files import csv_table
from data_builders.worlds.scenes.grids import BLANK, AnimalCell, SparCell
from data_builders.worlds.scenes.image_files import SceneImage

SPAR = ("filename", "world_name", "character_name", "character2_name", "character1_pos",
        "character2_pos", "character_texture", "character2_texture")  # fmt: skip
ANIMALS = ("filename", "world_name", "character_name", "character_scale", "camera_yaw",
           "character_texture")  # fmt: skip


def spar(images: Sequence[SceneImage], cells: Sequence[SparCell]) -> str:
    """Returns `labels.csv`; names are capitalised, except "blank" for no object."""
    rows = (
        (image.name, c.world.capitalize(), _name(c.first), _name(c.second),
         c.side, c.side2, c.texture, c.texture2)
        for image, c in zip(images, cells, strict=True)
    )  # fmt: skip
    return csv_table(SPAR, rows)


def animals(images: Sequence[SceneImage], cells: Sequence[AnimalCell]) -> str:
    """Returns `labels_pug_animal.csv`; an image is `<character_name>/<filename>`."""
    rows = (
        (image.name, c.world.capitalize(), _name(c.shape), c.scale, c.yaw, c.texture)
        for image, c in zip(images, cells, strict=True)
    )
    return csv_table(ANIMALS, rows)


def _name(shape: str) -> str:
    return shape if shape == BLANK else shape.capitalize()
