"""Part B of What'sUp (Kamath et al. 2023): which of four statements of place is true.

In: sets of four rendered scenes. Out: the contents of the file.
"""

from collections.abc import Sequence
from typing import Any

from data_builders.phrases import related
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.scene import GROUND_RELATIONS
from data_builders.worlds.scenes.statements import Noun

PART = "controlled_clevr"
SIDES = ("left_of", "right_of", "in-front_of", "behind")  # as the release writes GROUND_RELATIONS


def files(sets: int) -> tuple[str, ...]:
    """Returns the names of so many sets of images, which state the relation as the release does."""
    names = []
    for k in range(sets):
        names += [f"whats_up/{PART}/first-{k}_{side}_second-{k}.png" for side in SIDES]
    return tuple(names)


def controlled(images: Sequence[SceneImage]) -> list[dict[str, Any]]:
    """Returns a row for each image: its four statements, the true one first as in the release."""
    rows = []
    for k, image in enumerate(images):
        first, second = [Noun.of(obj) for obj in image.scene.objects]
        true = GROUND_RELATIONS[k % len(GROUND_RELATIONS)]
        others = [name for name in GROUND_RELATIONS if name != true]
        texts = [related(first, name, second) for name in (true, *others)]
        rows.append({"image_path": f"data/{PART}/{image.name}", "caption_options": texts})
    return rows
