"""A probing task: classes of transformations, and which one each image gets of each class.

In: the digest of an image, a split and a seed. Out: a version of the image for each class.
Never: another version for the same digest, split and seed.
Source: Rashtchian et al. 2023, sections 2 and 2.2.
"""

import hashlib
import json
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
from PIL import Image

from vlmtune.probing.parameters import Transformation

VERSION = 3
"""Of the transformations; a change of their pixels raises it, so that nothing stored is reused."""
IDENTITY = "identity"
Split = Literal["train", "test"]


@dataclass(frozen=True)
class Member:
    """A transformation of a class, as training and as testing apply it.

    Attributes:
        name: Unique within the task.
        train: None if training never shows it.
        test: None if its weights are missing.
        held_out: Whether training never shows it, even with all weights.
        weights: The file under the folder of weights that it needs; "" for most.
    """

    name: str
    train: Transformation | None
    test: Transformation | None
    held_out: bool = False
    weights: str = ""


@dataclass(frozen=True)
class TransformationClass:
    """What the probe tells from other classes: one transformation or a category of them."""

    name: str
    members: tuple[Member, ...]

    def of(self, split: Split) -> tuple[Member, ...]:
        """The members that a split shows."""
        shown = [member for member in self.members if getattr(member, split) is not None]
        return tuple(shown)


@dataclass(frozen=True)
class Version:
    """An image transformed once.

    Attributes:
        member: Which transformation it is.
        transformation: The same, as the split applies it.
        parameters: The values sampled for this image.
    """

    member: Member
    transformation: Transformation
    parameters: dict[str, Any] = field(default_factory=dict)

    def apply(self, image: Image.Image) -> Image.Image:
        """Transforms the image."""
        return self.transformation.apply(image, self.parameters)

    def key(self, digest: str, side: int) -> str:
        """Names the pixels of an image with a digest, cut to a square: equal keys, equal pixels."""
        function = self.transformation.function
        name = f"{function.__module__}.{function.__qualname__}"
        facts = [VERSION, digest, side, name, self.parameters]
        text = json.dumps(facts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Task:
    """A classification of transformations.

    Attributes:
        name: "fine" or "categories".
        classes: What a probe tells apart; the first is the identity.
    """

    name: str
    classes: tuple[TransformationClass, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(one.name for one in self.classes)

    @property
    def members(self) -> tuple[Member, ...]:
        """The transformations of all classes."""
        return tuple(chain.from_iterable(one.members for one in self.classes))

    @property
    def not_run(self) -> tuple[Member, ...]:
        """The transformations whose weights are missing."""
        return tuple(x for x in self.members if x.test is None)

    def runnable(self) -> "Task":
        """Returns the task without what needs missing weights; an empty class is left out."""
        kept = []
        for one in self.classes:
            members = one.of("test")
            # A class that training cannot show cannot be learned.
            if any(member.train is not None for member in members):
                kept.append(TransformationClass(one.name, members))
        return Task(self.name, tuple(kept))

    def versions(self, digest: str, split: Split, seed: int = 0) -> list[Version]:
        """Returns a version of an image for each class, each member as probable as another.

        Example:
            >>> from vlmtune.probing.fine import fine
            >>> versions = fine().runnable().versions("f00d", "test")
            >>> versions[5].member.name, versions[5].parameters
            ('brighten', {'offset': 96})
        """
        versions = []
        for one in self.classes:
            # A generator a class: a class that is left out changes no other class's draws.
            facts = f"{seed} {self.name} {one.name} {digest}"
            state = hashlib.sha256(facts.encode()).digest()
            class_seed = int.from_bytes(state[:16], "little")
            generator = np.random.default_rng(class_seed)
            members = one.of(split)
            choice = int(generator.integers(len(members)))
            member = members[choice]
            transformation: Transformation = getattr(member, split)
            parameters = transformation.sample(generator)
            versions.append(Version(member, transformation, parameters))
        return versions
