"""The fine-grained task: 31 classes, the same in training and testing.

In: the transformations that weights of the user make. Out: the task. Never: a downloaded weight.
Source: Rashtchian et al. 2023, appendix C.2, with its parameters. Where it leaves one open, the
function of the transformation says what is done.
"""

from collections.abc import Mapping

from vlmtune.probing import colours, filters, noise, overlays, warping
from vlmtune.probing.halftone import line_halftone
from vlmtune.probing.parameters import SEED, Integers, Transformation, Uniform, transformation
from vlmtune.probing.tasks import Member, Task, TransformationClass

ANGLE = Uniform(0, 360)
STYLES = ("starry_night", "taligas", "bonfire", "pasta")


def fine(styles: Mapping[str, Transformation] | None = None) -> Task:
    """Returns the task; `styles` are transformations that need weights, by name.

    Example:
        >>> len(fine().classes), len(fine().runnable().classes)
        (31, 27)
    """
    classes = []
    for name, row in _rows().items():
        member = Member(name, row, row)
        classes.append(_alone(member))
    for name in STYLES:
        row = (styles or {}).get(name)
        member = Member(name, row, row, weights=name)
        classes.append(_alone(member))
    return Task("fine", tuple(classes))


def _alone(member: Member) -> TransformationClass:
    """The class of a single transformation, which has the name of the transformation."""
    return TransformationClass(member.name, (member,))


def _rows() -> dict[str, Transformation]:
    """The transformations that need no weights, in the order of the appendix."""
    return {
        "identity": transformation(colours.identity),
        "hue_scale": transformation(colours.hue, scale=-32, offset=-4),
        "hue_shift": transformation(colours.hue, scale=1, offset=64),
        "saturate": transformation(colours.saturation, scale=5, offset=-4),
        "desaturate": transformation(colours.saturation, scale=0.25, offset=32),
        "brighten": transformation(colours.lightness, offset=96),
        "darken": transformation(colours.lightness, offset=Uniform(-128, -64)),
        "gaussian_noise_low": transformation(noise.gaussian_noise, sigma=0.05, seed=SEED),
        "gaussian_noise_medium": transformation(noise.gaussian_noise, sigma=0.15, seed=SEED),
        "gaussian_blur_low": transformation(filters.gaussian_blur, radius=Uniform(3, 5)),
        "gaussian_blur_high": transformation(filters.gaussian_blur, radius=Uniform(7, 9)),
        "motion_blur_low": transformation(filters.motion_blur, length=5, angle=ANGLE),
        "motion_blur_medium": transformation(filters.motion_blur, length=10, angle=ANGLE),
        "corner_crop": transformation(warping.corner_crop),
        "rotation": transformation(warping.rotate, degrees=Uniform(90, 270)),
        "jpeg": transformation(filters.jpeg, quality=Integers(10, 15)),
        "floyd_steinberg": transformation(noise.floyd_steinberg, bits=1),
        "posterize": transformation(colours.posterize, bits=2),
        "pixelate": transformation(filters.pixelate, factor=0.15),
        "solarize": transformation(colours.solarize, threshold=192),
        "grayscale": transformation(colours.grayscale),
        "line_shift": transformation(filters.line_shift, distance=3, axis="columns"),
        "grid_overlay": transformation(overlays.grid_overlay, colour=(204, 255, 127)),
        "line_overlay": transformation(
            overlays.line_overlay,
            width=4,
            distance=20,
            colour=(101, 0, 0),
        ),
        "icon_overlay": transformation(
            overlays.icon_overlay,
            icon="grinning_face",
            alpha=32,
            ratio=10,
        ),
        "text_overlay": transformation(overlays.text_overlay, text=0, colour=(25, 25, 25)),
        "line_halftone": transformation(line_halftone, amplitude=5, width=1),
    }
