"""The scenes of PUG: Animals, their captions, and which of them differ in one factor only.

In: rows of the csv. Out: scenes with captions, and the samples of each factor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from vlmtune.benchmarks.items import numbered
from vlmtune.benchmarks.pug_files import spoken
from vlmtune.errors import UserError
from vlmtune.storage.files import reading

SIZES = {0.7: "small", 1.0: "medium", 1.3: "big"}
COLUMNS = (
    "filename",
    "world_name",
    "character_name",
    "character_scale",
    "camera_yaw",
    "character_texture",
)
FACTORS = ("background", "size", "texture", "camera_yaw")
DESCRIBED = FACTORS[:3]  # by the captions


@dataclass(frozen=True)
class AnimalScene:
    """A row: its image file, the animal, and the value of each of `FACTORS`."""

    file: str
    animal: str
    values: tuple[str, str, str, str]

    @property
    def frontal(self) -> bool:
        """Whether the camera looks at the animal from the front."""
        return self.values[3] == "0"

    @property
    def caption(self) -> str:
        """The paper's caption; a texture is named unless it is the animal's own."""
        world, size, texture, _ = self.values
        textured = "" if texture == "Default" else f" textured with {spoken(texture)}"
        return (
            f"A photo of a {size} sized {spoken(self.animal)}{textured} "
            f"on a {spoken(world)} background"
        )


@dataclass(frozen=True)
class Samples:
    """n samples, each with all v values of one factor; samples differ in the other factors."""

    images: Int[Tensor, "n v"]
    # Numbers of their captions; None where captions do not tell the values apart
    texts: Int[Tensor, "n v"] | None
    clusters: Int[Tensor, "n"]  # number of the animal of each sample
    left_out: int  # how many samples lack a value


def read_scene(path: str, values: Mapping[str, str]) -> AnimalScene:
    """Turns a row of the csv at `path` into a scene."""
    file, world, animal, scale, yaw, texture = (values[name] for name in COLUMNS)
    layout = f"a character_scale of {list(SIZES)} and a camera_yaw in each row"
    with reading(path, layout, "pass PUG: Animals' csv"):
        size, angle = SIZES[float(scale)], f"{float(yaw):g}"
    return AnimalScene(f"{animal}/{file}", animal, (world, size, texture, angle))


def group_samples(
    factor: str, scenes: Sequence[AnimalScene], captions: Int[Tensor, "N"], path: str
) -> Samples:
    """Groups the scenes that differ in one factor only."""
    position = FACTORS.index(factor)
    described = factor in DESCRIBED
    usable = [i for i, scene in enumerate(scenes) if scene.frontal or not described]
    values = list(dict.fromkeys(scenes[i].values[position] for i in usable))
    groups: dict[tuple[str, ...], dict[str, int]] = {}
    for i in usable:
        scene = scenes[i]
        others = list(scene.values)
        value = others.pop(position)
        group = groups.setdefault((scene.animal, *others), {})
        if group.setdefault(value, i) != i:
            raise UserError(
                f"expected each combination of factors once in {path}, got "
                f"{scene.caption!r} twice: download it again"
            )
    # A sample lacks a value where the file lacks its image.
    complete = {others: group for others, group in groups.items() if len(group) == len(values)}
    if len(values) < 2 or len(complete) < 2:
        raise UserError(
            f"expected two samples with at least two values of {factor} in {path}, got "
            f"{len(complete)} with {len(values)}: pass the whole csv, or leave the factor out"
        )
    rows = []
    for group in complete.values():
        rows.append([group[value] for value in values])
    images = torch.tensor(rows)
    texts = captions[images] if described else None
    _, clusters = numbered(animal for animal, *_ in complete)
    return Samples(images, texts, clusters, len(groups) - len(complete))
