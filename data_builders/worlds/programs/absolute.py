"""Whether absolute positions answer a question: "left of the cube" read as the left half.

In: a program and a scene. Out: whether the answer stays the same. Never: another question.

`relate` ignores its object and gives all objects in that half of the image: left, right, at the
bottom for "front", at the top for "behind".
Source: Johnson et al. 2017, section 4.6 (spatial reasoning).
"""

from collections.abc import Sequence
from dataclasses import replace

from data_builders.worlds.programs.functions import IllPosedError
from data_builders.worlds.programs.program import Step, execute
from data_builders.worlds.programs.scene_graph import SceneGraph


def answered_by_halves(program: Sequence[Step], scene: SceneGraph) -> bool:
    """Tells whether the program has the same answer if relations are halves of the image.

    False, too, where a reference then fits no object or several.

    Example:
        >>> cubes = tuple({"size": "small", "color": color, "material": "metal", "shape": "cube"}
        ...          for color in ("red", "blue"))
        >>> none, red, both = frozenset(), frozenset([0]), frozenset([0, 1])
        >>> how_many_left_of_the_blue_one = (
        ...     Step("scene"), Step("filter_color", (0,), "blue"), Step("unique", (1,)),
        ...     Step("relate", (2,), "left"), Step("count", (3,)))
        >>> for left_half in (red, both):
        ...     halves = {"left": left_half, "right": both - left_half}
        ...     scene = SceneGraph("a.png", 0, "val", cubes, {"left": (none, red)}, halves)
        ...     answered_by_halves(how_many_left_of_the_blue_one, scene)
        True
        False
    """
    count = len(scene.objects)
    related = {name: (half,) * count for name, half in scene.halves.items()}
    try:
        return execute(program, replace(scene, related=related)) == execute(program, scene)
    except IllPosedError:
        return False
