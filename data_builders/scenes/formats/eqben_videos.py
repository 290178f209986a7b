"""EqBen's parts from videos (Wang et al. 2023, appendix B): frames before and after a change.

Items stand under their video; Action Genome's also under the subject of the relations, with several
captions each. Names of images leave out the folder of all parts, as in `eqben`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from data_builders.scenes.captions import INVERSE, PHRASES, clear_relation
from data_builders.scenes.drawing import Drawn
from data_builders.scenes.edits import hands
from data_builders.scenes.formats import eqben
from data_builders.scenes.statements import article, noun
from data_builders.scenes.videos import FRAMES, Videos, subject

GEBC = "eqbengebc"


def action_genome(drawn: Sequence[Drawn]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Returns `{video: {subject: [item]}}` of a series of `ActedTwins`; captions are lists.

    "a red cube is behind a blue cone", and the same from the other end: EqBen words a scene graph
    with a template, and reads the first caption only.
    """
    content = {}
    for video, pair in _videos(drawn):
        row: dict[str, Any] = {**eqben.images(pair)}
        for i, d in enumerate(pair):
            name = clear_relation(d.scene, 0, 1)
            assert name is not None, "ActedTwins draws scenes of clear relation only"
            first, second = (article(noun(thing)) for thing in d.scene.objects[:2])
            row[f"caption{i}"] = [
                f"{first} is {PHRASES[name]} {second}",
                f"{second} is {PHRASES[INVERSE[name]]} {first}",
            ]
        content[video] = {str(noun(pair[0].scene.objects[0])): [row]}
    return content


def youcook2(drawn: Sequence[Drawn]) -> dict[str, list[eqben.Item]]:
    """Returns `{video: [item]}` of a series of `StepTwins`: "a red cube and a blue cone"."""
    content = {}
    for video, pair in _videos(drawn):
        texts = [" and ".join(map(article, hands(d.scene))) for d in pair]
        content[video] = [
            eqben.images(pair) | {f"caption{i}": text for i, text in enumerate(texts)}
        ]
    return content


def gebc(drawn: Sequence[Drawn], series: Videos) -> dict[str, list[eqben.Item]]:
    """Returns `{video: [item]}`: the frames on both sides of each boundary, "the cube is red"."""
    content = {}
    for pair in boundaries(drawn, series):
        row = {f"image{i}": gebc_image(d) for i, d in enumerate(pair)}
        for i, d in enumerate(pair):
            row[f"caption{i}"] = f"the {subject(d.scene)} is {d.scene.objects[0].color}"
        content[_video(pair[0])] = [row]
    return content


def boundaries(drawn: Sequence[Drawn], series: Videos) -> Iterator[Sequence[Drawn]]:
    """Yields the last frame before and the first after the boundary of each video."""
    for k in range(0, len(drawn), FRAMES):
        at = k + series.boundary(k // FRAMES)
        yield drawn[at - 1 : at + 1]


def gebc_image(frame: Drawn) -> str:
    """Returns the name of a frame, which GEB+ has in a folder of its own, among EqBen's images."""
    return f"{GEBC}/{frame.file.partition('/')[2]}"


def _videos(drawn: Sequence[Drawn]) -> Iterator[tuple[str, Sequence[Drawn]]]:
    """Yields each video of two frames with its name."""
    for k in range(0, len(drawn), 2):
        yield _video(drawn[k]), drawn[k : k + 2]


def _video(frame: Drawn) -> str:
    return frame.file.split("/")[-2]
