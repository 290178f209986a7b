"""EqBen's files (Wang et al. 2023, section 4, appendix B), and those of GEB+ (Wang et al. 2022).

In: rendered pairs and videos. Out: the contents of the files.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from data_builders.phrases import INVERSE, PHRASES, with_article
from data_builders.text_files import csv_table
from data_builders.worlds.scenes.captions import clear_relation
from data_builders.worlds.scenes.image_files import SceneImage, pairs_of
from data_builders.worlds.scenes.pairs import PairSeries, first_two
from data_builders.worlds.scenes.series import Series
from data_builders.worlds.scenes.statements import Noun
from data_builders.worlds.scenes.videos import FPS, Videos

FOLDER = "eqben"  # holds the folders of the parts; names of images in the files leave it out
GEBC = "eqbengebc"
TRAINING = ("image", "caption", "negative", "negative_image")  # columns of a table to train on
Item = dict[str, str]


def items(images: Sequence[SceneImage], series: Series) -> list[Item]:
    """Returns `{"image0", "image1", "caption0", "caption1"}` of each item of a series of pairs."""
    assert isinstance(series, PairSeries)
    rows = []
    for k, pair in pairs_of(images):
        scenes = [image.scene for image in pair]
        texts = [series.caption(k, scene, scenes) for scene in scenes]
        rows.append(_images(pair) | {f"caption{i}": text for i, text in enumerate(texts)})
    return rows


def training_table(parts: Iterable[tuple[Sequence[SceneImage], Series]]) -> str:
    """Returns the csv that `vlmtune build table` reads: a row an item, with both its images."""
    rows = []
    for images, series in parts:
        for (_, pair), item in zip(pairs_of(images), items(images, series), strict=True):
            first, second = pair
            rows.append((first.file, item["caption0"], item["caption1"], second.file))
    return csv_table(TRAINING, rows)


def _images(pair: Sequence[SceneImage]) -> Item:
    return {f"image{i}": image.file.removeprefix(f"{FOLDER}/") for i, image in enumerate(pair)}


def action_genome(images: Sequence[SceneImage]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Returns `{video: {subject: [item]}}` of a series of `ActedPairs`; captions are lists.

    "a red cube is behind a blue cone", and the reverse; EqBen uses only the first caption.
    """
    content = {}
    for _, pair in pairs_of(images):
        row: dict[str, Any] = {**_images(pair)}
        for i, image in enumerate(pair):
            name = clear_relation(image.scene, 0, 1) or ""
            first, second = map(with_article, first_two(image.scene))
            row[f"caption{i}"] = [
                f"{first} is {PHRASES[name]} {second}",
                f"{second} is {PHRASES[INVERSE[name]]} {first}",
            ]
        content[_video(pair[0])] = {str(Noun.of(pair[0].scene.objects[0])): [row]}
    return content


def youcook2(images: Sequence[SceneImage], series: Series) -> dict[str, list[Item]]:
    """Returns `{video: [item]}` of a series of `StepPairs`: "a red cube and a blue cone"."""
    content = {}
    for (_, pair), item in zip(pairs_of(images), items(images, series), strict=True):
        content[_video(pair[0])] = [item]
    return content


def gebc(images: Sequence[SceneImage], series: Videos) -> dict[str, list[Item]]:
    """Returns `{video: [item]}`: the frames on both sides of each boundary, "the cube is red"."""
    content = {}
    for _, frames in series.boundaries(images):
        row = {f"image{i}": gebc_image(frame) for i, frame in enumerate(frames)}
        for i, frame in enumerate(frames):
            subject = frame.scene.objects[0]
            row[f"caption{i}"] = f"the {subject.shape} is {subject.color}"
        content[_video(frames[0])] = [row]
    return content


def _video(frame: SceneImage) -> str:
    """The name of the video, which is the name of its folder."""
    return frame.file.split("/")[-2]


def gebc_image(frame: SceneImage) -> str:
    """Returns the name of a frame of GEB+ among EqBen's images."""
    return f"{GEBC}/{frame.file.partition('/')[2]}"


def boundaries(images: Sequence[SceneImage], series: Videos) -> dict[str, list[dict[str, Any]]]:
    """Returns GEB+'s boundary of each video, midway between the frames around it."""
    content: dict[str, list[dict[str, Any]]] = {}
    for boundary, frames in series.boundaries(images):
        video = _video(frames[0])
        before, after = (frame.scene.objects[0] for frame in frames)
        row = {"boundary_id": f"{video}_0", "timestamp": (boundary - 0.5) / FPS,
               "subject": f"the {before.shape}", "status_before": f"is {before.color}",
               "status_after": f"is {after.color}", "label": "Change of Color"}  # fmt: skip
        content[video] = [row]
    return content
