"""Rendered scenes go in, PUG:AR4T's csv (Bordes et al. 2023, appendix B.5) comes out."""

from collections.abc import Sequence
from typing import Any

from data_builders.scenes.ar4t_scenes import AR4TPairs, AR4TSingles
from data_builders.scenes.captions import FLOOR_PHRASES, INVERSE, PHRASES, clear_relation
from data_builders.scenes.formats.files import csv_table
from data_builders.scenes.image_files import SceneImage, pairs_of
from data_builders.scenes.scene import CAMERA_AZIMUTH, CAMERA_PITCH, Scene
from data_builders.scenes.statements import describe

COLUMNS: tuple[str, ...] = (
    "Relation", "Actor1Category", "Actor2Category", "Actor1Name", "Actor2Name",
    "Actor1Location", "Actor2Location", "Actor1Rotation", "Actor2Rotation",
    "Actor1Scale", "Actor2Scale", "Actor1Texture", "Actor2Texture",
    "Actor1Attribute", "Actor2Attribute", "Camera_roll", "Camera_pitch", "Camera_yaw",
    "caption", "alt_caption", "Level", "World.Name", "filename", "filename_neg", "filepath",
)  # fmt: skip


def captions(scene: Scene, attribute: str | None) -> tuple[str, str, str]:
    """Returns the relation, the caption, and the caption that names the objects in reverse order.

    A scene of one object has no second caption; its relation is that to the floor.
    """
    floor = FLOOR_PHRASES[scene.floor]
    if len(scene.objects) == 1:
        noun = describe(scene.objects[0], [attribute] if attribute else [])
        return floor.split()[0], f"{noun} {floor}", ""
    if attribute is not None:
        first, second = (f"{getattr(o, attribute)} {o.shape}" for o in scene.objects)
        return "and", f"{first} and {second} {floor}", f"{second} and {first} {floor}"
    first, second = (o.shape for o in scene.objects)
    relation = clear_relation(scene, 0, 1) or ""
    phrase, inverse = PHRASES[relation], PHRASES[INVERSE[relation]]
    return phrase, f"{first} {phrase} {second} {floor}", f"{second} {inverse} {first} {floor}"


def _row(image: SceneImage, negative: SceneImage | None, attribute: str | None) -> dict[str, Any]:
    scene = image.scene
    relation, caption, alternative = captions(scene, attribute)
    row = {"Relation": relation, "Camera_roll": "0", "Camera_pitch": f"{-CAMERA_PITCH:g}",
           "Camera_yaw": f"{CAMERA_AZIMUTH:g}", "caption": caption, "alt_caption": alternative,
           "Level": scene.floor, "World.Name": scene.background, "filename": image.name,
           "filename_neg": negative.name if negative else "", "filepath": image.file}  # fmt: skip
    for k, obj in enumerate(scene.objects, 1):
        row |= {
            f"Actor{k}Category": obj.shape,
            f"Actor{k}Name": obj.shape,
            f"Actor{k}Location": " ".join(f"{x:.4f}" for x in obj.center),
            f"Actor{k}Rotation": f"{obj.rotation:.2f}",
            f"Actor{k}Scale": obj.size,
            f"Actor{k}Texture": obj.texture,
            f"Actor{k}Attribute": getattr(obj, attribute) if attribute else "",
        }
    return row


def table(
    images: Sequence[SceneImage],
    pairs: AR4TPairs,
    single_images: Sequence[SceneImage] = (),
    singles: AR4TSingles | None = None,
) -> str:
    """Returns the csv: two rows a pair, each the other's hard negative, then scenes without one."""
    rows = [
        _row(image, negative, pairs.attribute(k))
        for k, (first, second) in pairs_of(images)
        for image, negative in ((first, second), (second, first))
    ]
    if singles is not None:
        rows += [_row(image, None, singles.attribute(image.index)) for image in single_images]
    return csv_table(COLUMNS, rows)
