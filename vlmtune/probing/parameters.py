"""A transformation and the distribution of its parameters.

In: a random generator. Out: parameters, and an image that they transform.
Never: randomness inside a transformation: its parameters determine every pixel.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

SEEDS = 2**31  # of the noise in an image
Real = float | int
"""A number of pixels, degrees or the like: a whole one may come without a point."""


@dataclass(frozen=True)
class Uniform:
    """A real number between `low` and `high`."""

    low: Real
    high: Real

    def sample(self, generator: np.random.Generator) -> float:
        """Returns a number, six digits after the point."""
        number = generator.uniform(self.low, self.high)
        return round(float(number), 6)


@dataclass(frozen=True)
class EitherSign:
    """A real number between `low` and `high`, or its negative."""

    low: Real
    high: Real

    def sample(self, generator: np.random.Generator) -> float:
        """Returns a number of either sign."""
        size = Uniform(self.low, self.high).sample(generator)
        return size if generator.random() < 0.5 else -size


@dataclass(frozen=True)
class Integers:
    """A whole number from `low` to `high`, both included."""

    low: int
    high: int

    def sample(self, generator: np.random.Generator) -> int:
        """Returns a whole number."""
        return int(generator.integers(self.low, self.high + 1))


@dataclass(frozen=True)
class OneOf:
    """One of some values, each as probable as another."""

    values: tuple[Any, ...]

    def sample(self, generator: np.random.Generator) -> Any:
        """Returns one of the values."""
        choice = generator.integers(len(self.values))
        return self.values[int(choice)]


@dataclass(frozen=True)
class Colour:
    """Any RGB colour."""

    def sample(self, generator: np.random.Generator) -> tuple[int, int, int]:
        """Returns red, green and blue."""
        red, green, blue = generator.integers(0, 256, 3).tolist()
        return red, green, blue


SEED = Integers(0, SEEDS - 1)
"""Of the noise in an image."""
FRACTION = Uniform(0, 1)


@dataclass(frozen=True)
class Transformation:
    """A function of an image, with the values or distributions of its other arguments.

    Attributes:
        function: Takes an RGB image and the parameters; returns an RGB image.
        parameters: A distribution (`Uniform`, `OneOf`, ...) or a fixed value, by name.

    Example:
        >>> from vlmtune.probing.colours import solarize
        >>> transform = Transformation(solarize, {"threshold": Integers(96, 192)})
        >>> parameters = transform.sample(np.random.default_rng(0))
        >>> parameters
        {'threshold': 178}
        >>> transform.apply(Image.new("RGB", (1, 1), (255, 0, 0)), parameters).getpixel((0, 0))
        (0, 0, 0)
    """

    function: Callable[..., Image.Image]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def sample(self, generator: np.random.Generator) -> dict[str, Any]:
        """Returns a value for each parameter."""
        values = {}
        # The order of the parameters is the order of the random draws.
        for name, value in self.parameters.items():
            values[name] = value.sample(generator) if hasattr(value, "sample") else value
        return values

    def apply(self, image: Image.Image, parameters: Mapping[str, Any]) -> Image.Image:
        """Transforms an RGB image."""
        return self.function(image, **parameters)


def transformation(function: Callable[..., Image.Image], **parameters: Any) -> Transformation:
    """Returns the transformation of a function; its parameters are keywords."""
    return Transformation(function, parameters)
