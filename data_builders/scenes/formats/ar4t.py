"""PUG:AR4T's csv (Bordes et al. 2023, appendix B.5): scenes, two captions each, and negatives."""

import csv
import io
from collections.abc import Sequence

from data_builders.scenes.captions import FLOOR_PHRASES, INVERSE, PHRASES, clear_relation
from data_builders.scenes.constants import CAMERA_AZIMUTH, CAMERA_PITCH
from data_builders.scenes.drawing import Drawn
from data_builders.scenes.grammar import Scene
from data_builders.scenes.twins import AR4TTwins

COLUMNS: tuple[str, ...] = (
    "Relation", "Actor1Category", "Actor2Category", "Actor1Name", "Actor2Name",
    "Actor1Location", "Actor2Location", "Actor1Rotation", "Actor2Rotation",
    "Actor1Scale", "Actor2Scale", "Actor1Texture", "Actor2Texture",
    "Actor1Attribute", "Actor2Attribute", "Camera_roll", "Camera_pitch", "Camera_yaw",
    "caption", "alt_caption", "Level", "World.Name", "filename", "filename_neg", "filepath",
)  # fmt: skip


def captions(scene: Scene, attribute: str | None) -> tuple[str, str]:
    """Returns the caption of a two-object scene and the one that names the objects in turn.

    With an attribute: "red cube and blue sphere on sand"; without: "cube to the left of sphere on
    sand" and, by the inverse relation, "sphere to the right of cube on sand".
    """
    a, b = scene.objects
    where = FLOOR_PHRASES[scene.floor]
    if attribute is not None:
        first, second = (f"{getattr(o, attribute)} {o.shape}" for o in (a, b))
        return f"{first} and {second} {where}", f"{second} and {first} {where}"
    relation = clear_relation(scene, 0, 1)
    assert relation is not None, "AR4TTwins draws scenes of clear relation only"
    return (
        f"{a.shape} {PHRASES[relation]} {b.shape} {where}",
        f"{b.shape} {PHRASES[INVERSE[relation]]} {a.shape} {where}",
    )


def _row(drawn: Drawn, negative: Drawn, attribute: str | None) -> dict[str, str]:
    scene = drawn.scene
    caption, alternative = captions(scene, attribute)
    relation = "and" if attribute else PHRASES[clear_relation(scene, 0, 1) or ""]
    row = {
        "Relation": relation,
        "Camera_roll": "0",
        "Camera_pitch": f"{-CAMERA_PITCH:g}",
        "Camera_yaw": f"{CAMERA_AZIMUTH:g}",
        "caption": caption,
        "alt_caption": alternative,
        "Level": scene.floor,
        "World.Name": scene.background,
        "filename": drawn.file.rpartition("/")[2],
        "filename_neg": negative.file.rpartition("/")[2],
        "filepath": drawn.file,
    }
    for k, thing in enumerate(scene.objects, 1):
        row |= {
            f"Actor{k}Category": thing.shape,
            f"Actor{k}Name": thing.shape,
            f"Actor{k}Location": " ".join(f"{x:.4f}" for x in thing.center),
            f"Actor{k}Rotation": f"{thing.rotation:.2f}",
            f"Actor{k}Scale": thing.size,
            f"Actor{k}Texture": thing.texture,
            f"Actor{k}Attribute": getattr(thing, attribute) if attribute else "",
        }
    return row


def table(drawn: Sequence[Drawn], series: AR4TTwins) -> str:
    """Returns the csv of a drawn series: two rows an item, each the other's hard negative."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for k in range(0, len(drawn), 2):
        attribute = series.attribute(k // 2) if (k // 2) % 2 else None
        writer.writerow(_row(drawn[k], drawn[k + 1], attribute))
        writer.writerow(_row(drawn[k + 1], drawn[k], attribute))
    return text.getvalue()
