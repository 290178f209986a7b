"""EqBen's synthetic parts (Wang et al. 2023): pairs of images that differ in one thing.

Kubric's location, count and attribute, and Stable Diffusion's edits, each a list of items.
"""

from collections.abc import Sequence

from data_builders.scenes.captions import FLOOR_PHRASES, NUMBERS, PLURALS, clear_relation
from data_builders.scenes.drawing import Drawn
from data_builders.scenes.edits import EditedTwins
from data_builders.scenes.grammar import Scene
from data_builders.scenes.minimal import ChangedTwins, CountedTwins, MovedTwins
from data_builders.scenes.statements import article, counted, noun, worded

FOLDER = "eqben"  # of the parts' folders of images; their names in the files leave it out
Item = dict[str, str]
Kubric = MovedTwins | CountedTwins | ChangedTwins


def items(drawn: Sequence[Drawn], series: Kubric | EditedTwins) -> list[Item]:
    """Returns `{"image0", "image1", "caption0", "caption1"}` of each item of a drawn series.

    Args:
        drawn: The images, in a folder with the name of the part.
        series: What they were drawn from.
    """
    rows = []
    for k in range(0, len(drawn), 2):
        pair = drawn[k : k + 2]
        scenes = pair[0].scene, pair[1].scene
        texts = [caption(scene, scenes, series, k // 2) for scene in scenes]
        rows.append(images(pair) | {f"caption{i}": text for i, text in enumerate(texts)})
    return rows


def images(pair: Sequence[Drawn]) -> Item:
    """Returns the names of an item's two images."""
    return {f"image{i}": d.file.removeprefix(f"{FOLDER}/") for i, d in enumerate(pair)}


def caption(
    scene: Scene, pair: tuple[Scene, Scene], series: Kubric | EditedTwins, index: int
) -> str:
    """Returns what tells one scene of an item from the other.

    Location: "a red cube to the left of a blue cone". Count: "there are two cubes", or two
    objects. Attribute: "a photo of a red cube". Stable Diffusion: "a photo of a red cube on grass".
    """
    if isinstance(series, EditedTwins):
        return f"a photo of {article(noun(scene.objects[0]))} {FLOOR_PHRASES[scene.floor]}"
    if isinstance(series, MovedTwins):
        name = clear_relation(scene, 0, 1)
        assert name is not None, "MovedTwins draws scenes of clear relation only"
        return worded(noun(scene.objects[0]), name, noun(scene.objects[1]))
    if isinstance(series, CountedTwins):
        return counting(scene, series.shape(index, pair[0], pair[1]))
    return f"a photo of {article(noun(scene.objects[0], [series.attribute(index)]))}"


def counting(scene: Scene, shape: str | None) -> str:
    """Returns "there are two cubes", or how many objects there are."""
    return counting_of(counted(scene, shape), shape)


def counting_of(number: int, shape: str | None) -> str:
    """Returns the sentence that states a number.

    Example:
        >>> counting_of(1, "cube"), counting_of(0, "torus"), counting_of(3, None)
        ('there is one cube', 'there are zero tori', 'there are three objects')
    """
    singular, plural = (shape, PLURALS[shape]) if shape else ("object", "objects")
    noun = singular if number == 1 else plural
    return f"there {'is' if number == 1 else 'are'} {NUMBERS[number]} {noun}"
