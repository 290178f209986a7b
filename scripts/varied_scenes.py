"""Scenes and pictures that vary more than those of the embedded world.

In: the world's scenes and their pictures. Out: scenes with smaller objects and plain floors, and
pictures in other light. Never: another renderer's picture.

`python -m scripts.pretrain_scenes_clip --varied` pre-trains on these, and `vlmtune fit
--data.augmentation scripts.varied_scenes.OtherLight` trains an adapter on them, for pictures of
another renderer (docs/results/renderer.md).
"""

import math
import random
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample, pad
from torchvision.transforms.functional import to_pil_image
from typing_extensions import override

from data_builders.worlds.scenes import shading
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.scene import Rgb

Pictures = Float[Tensor, "n 3 h w"]
UNCHANGED = 0.35  # of all pictures
GAMMA = 2.2
PLAIN = WorldSpec(min_objects=2, max_objects=5, textures=("plain",))
# Without textures, near the camera and as far away as CLEVR's.
SPECS = (replace(PLAIN.as_clevr(), min_objects=2, max_objects=5), PLAIN)


class _Floors(dict[str, Rgb]):
    """The colours of floors, unless the backdrop was made plain."""

    plain: Rgb | None = None

    def __getitem__(self, name: str) -> Rgb:
        return super().__getitem__(name) if self.plain is None else self.plain


class _Backgrounds(dict[str, tuple[Rgb, Rgb]]):
    """The colours of backgrounds. Half of them are one gray, as is the floor: no horizon."""

    def __init__(self, colors: dict[str, tuple[Rgb, Rgb]], floors: _Floors) -> None:
        super().__init__(colors)
        self.floors = floors
        self.rng = random.Random(1)

    def __getitem__(self, name: str) -> tuple[Rgb, Rgb]:
        # The renderer asks for the background first.
        self.floors.plain = None
        if self.rng.random() < 0.5:
            gray = self.rng.randint(50, 210)
            red, green, blue = (gray + self.rng.randint(-12, 12) for _ in range(3))
            self.floors.plain = (red, green, blue)
            return self.floors.plain, self.floors.plain
        return super().__getitem__(name)


def vary_backdrops() -> None:
    """From now on the renderer of this process gives half of the scenes a plain backdrop."""
    floors = _Floors(shading.FLOORS)
    shading.FLOORS = floors
    shading.BACKGROUNDS = _Backgrounds(shading.BACKGROUNDS, floors)


def varied(images: UInt8[Tensor, "n h w 3"]) -> Pictures:
    """Pictures from 0 to 1: most moved, scaled and in other light, the others unchanged."""
    pictures = (images.float() / 255).permute(0, 3, 1, 2)
    changed = _in_other_light(_moved(pictures))
    unchanged = torch.rand(len(pictures), 1, 1, 1) < UNCHANGED
    return torch.where(unchanged, pictures, changed.clamp(0, 1))


class OtherLight(nn.Module):
    """`varied` for the images of a fit, as `data.augmentation`."""

    @override
    def forward(self, image: Image.Image) -> Image.Image:
        """Returns the image moved, scaled and in other light, or as it was."""
        pixels = torch.from_numpy(np.array(image.convert("RGB")))
        picture = varied(pixels[None])[0] * 255
        return to_pil_image(picture.round().to(torch.uint8))


def _moved(pictures: Pictures) -> Pictures:
    """Smaller or larger, narrower, and off the middle; the border fills what is missing."""
    count = len(pictures)
    zoom = torch.exp(_uniform(count, math.log(0.7), math.log(1.15)))
    aspect = _uniform(count, 0.72, 1.05)
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0] = 1 / (zoom * aspect)
    matrix[:, 1, 1] = 1 / zoom
    matrix[:, 0, 2] = _uniform(count, -0.15, 0.15)
    matrix[:, 1, 2] = _uniform(count, -0.15, 0.15)
    grid = affine_grid(matrix, list(pictures.shape), align_corners=False)
    return grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def _in_other_light(pictures: Pictures) -> Pictures:
    """Darker or brighter, from one side, of another colour, paler, blurred and noisy."""
    count, _, height, width = pictures.shape
    gain = torch.exp(_uniform((count, 1, 1, 1), math.log(0.12), math.log(1.2)))
    across = torch.linspace(-1, 1, width).view(1, 1, 1, -1)
    down = torch.linspace(-1, 1, height).view(1, 1, -1, 1)
    slope = _uniform((count, 1, 1, 1), -0.4, 0.4) * across
    slope = slope + _uniform((count, 1, 1, 1), -0.4, 0.4) * down
    tint = _uniform((count, 3, 1, 1), 0.88, 1.12)
    light = pictures.clamp(0, 1) ** GAMMA * gain * (1 + slope).clamp(0.3, 2) * tint
    # The gradient of a root is infinite at 0.
    lit = (light.clamp(0, 1) + 1e-8) ** (1 / GAMMA)
    gray = lit.mean(dim=1, keepdim=True)
    paler = gray + (lit - gray) * _uniform((count, 1, 1, 1), 0.4, 1.4)
    blurred = avg_pool2d(pad(paler, (1, 1, 1, 1), mode="replicate"), 3, 1)
    amount = _uniform((count, 1, 1, 1), 0, 1) * (torch.rand(count, 1, 1, 1) < 0.5)
    soft = torch.lerp(paler, blurred, amount)
    return soft + torch.randn_like(soft) * _uniform((count, 1, 1, 1), 0, 0.04)


def _uniform(shape: int | tuple[int, ...], low: float, high: float) -> Tensor:
    return torch.empty(shape).uniform_(low, high)
