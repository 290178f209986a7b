"""PUG:AR4T's csv (Bordes et al. 2023, appendix B.5).

In: rendered scenes. Out: the text of the csv.
"""

from collections.abc import Sequence

from data_builders.text_files import csv_table
from data_builders.worlds.scenes.ar4t_scenes import AR4TPairs, AR4TSingles, SceneCaptions
from data_builders.worlds.scenes.image_files import SceneImage, pairs_of
from data_builders.worlds.scenes.scene import CAMERA_AZIMUTH, CAMERA_PITCH

COLUMNS: tuple[str, ...] = (
    "Relation", "Actor1Category", "Actor2Category", "Actor1Name", "Actor2Name",
    "Actor1Location", "Actor2Location", "Actor1Rotation", "Actor2Rotation",
    "Actor1Scale", "Actor2Scale", "Actor1Texture", "Actor2Texture",
    "Actor1Attribute", "Actor2Attribute", "Camera_roll", "Camera_pitch", "Camera_yaw",
    "caption", "alt_caption", "Level", "World.Name", "filename", "filename_neg", "filepath",
)  # fmt: skip


def _row(image: SceneImage, negative: SceneImage | None, captions: SceneCaptions) -> list[str]:
    scene = image.scene
    row = {"Relation": captions.relation, "Camera_roll": "0", "Camera_pitch": f"{-CAMERA_PITCH:g}",
           "Camera_yaw": f"{CAMERA_AZIMUTH:g}", "caption": captions.caption,
           "alt_caption": captions.alternative, "Level": scene.floor,
           "World.Name": scene.background, "filename": image.name,
           "filename_neg": negative.name if negative else "", "filepath": image.file}  # fmt: skip
    stated = dict(enumerate(captions.kinds, 1))
    for k, obj in enumerate(scene.objects, 1):
        row |= {
            f"Actor{k}Category": obj.shape,
            f"Actor{k}Name": obj.shape,
            f"Actor{k}Location": " ".join(f"{x:.4f}" for x in obj.center),
            f"Actor{k}Rotation": f"{obj.rotation:.2f}",
            f"Actor{k}Scale": obj.size,
            f"Actor{k}Texture": obj.texture,
            f"Actor{k}Attribute": getattr(obj, stated[k]) if k in stated else "",
        }
    return [row.get(column, "") for column in COLUMNS]


def table(
    images: Sequence[SceneImage],
    pairs: AR4TPairs,
    single_images: Sequence[SceneImage] = (),
    singles: AR4TSingles | None = None,
) -> str:
    """Returns the csv: two rows a pair, each the other's hard negative, then scenes without one."""
    rows = []
    for index, pair in pairs_of(images):
        first, second = pair
        captions = pairs.captions(index, [image.scene for image in pair])
        rows.append(_row(first, second, captions[0]))
        rows.append(_row(second, first, captions[1]))
    if singles is not None:
        for image in single_images:
            rows.append(_row(image, None, singles.captions(image.index, image.scene)))
    return csv_table(COLUMNS, rows)
