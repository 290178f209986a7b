"""PUG: SPAR's and PUG: Animals' csv files (Bordes et al. 2023, sections 3.2 and 3.4)."""

import csv
import io
from collections.abc import Iterable, Sequence

from data_builders.scenes.drawing import Drawn
from data_builders.scenes.grids import BLANK, AnimalCell, SparCell

SPAR = ("filename", "world_name", "character_name", "character2_name", "character1_pos",
        "character2_pos", "character_texture", "character2_texture")  # fmt: skip
ANIMALS = ("filename", "world_name", "character_name", "character_scale", "camera_yaw",
           "character_texture")  # fmt: skip


def spar(drawn: Sequence[Drawn], cells: Sequence[SparCell]) -> str:
    """Returns `labels.csv`; names are capitalised, and what is not there is called "blank"."""
    return _table(
        SPAR,
        (
            (d.file.rpartition("/")[2], c.world.capitalize(), _name(c.first), _name(c.second),
             c.side, c.side2, c.texture, c.texture2)
            for d, c in zip(drawn, cells, strict=True)
        ),
    )  # fmt: skip


def animals(drawn: Sequence[Drawn], cells: Sequence[AnimalCell]) -> str:
    """Returns `labels_pug_animal.csv`; an image is `<character_name>/<filename>`."""
    return _table(
        ANIMALS,
        (
            (d.file.rpartition("/")[2], c.world.capitalize(), _name(c.shape), c.scale, c.yaw,
             c.texture)
            for d, c in zip(drawn, cells, strict=True)
        ),
    )  # fmt: skip


def _name(shape: str) -> str:
    return shape if shape == BLANK else shape.capitalize()


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
