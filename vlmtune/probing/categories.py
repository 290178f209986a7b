"""The generalization task: 10 categories, with transformations that training never shows.

In: the transformations that weights of the user make. Out: the task. Never: a downloaded weight.
Source: Rashtchian et al. 2023, appendix C.3, with its parameters, wider in testing. Where
it leaves one open, the function of the transformation says what is done.
"""

from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from vlmtune.probing import colours, filters, fusing, noise, overlays, warping
from vlmtune.probing.distractions import DISTRACTIONS
from vlmtune.probing.halftone import WAVEFORMS, line_halftone
from vlmtune.probing.icons import ICONS
from vlmtune.probing.parameters import (
    FRACTION,
    SEED,
    Colour,
    EitherSign,
    Integers,
    OneOf,
    Transformation,
    Uniform,
    transformation,
)
from vlmtune.probing.tasks import Member, Task, TransformationClass

ANGLE = Uniform(0, 360)
STYLES = {  # name -> whether training never shows it
    "starry_night": False,
    "taligas": False,
    "the_scream": False,
    "great_wave": False,
    "landscape_black_figure": True,
    "violon": True,
    "bonfire": True,
    "pasta": True,
    "artistic_mosaic": False,
    "artistic_udnie": False,
    "artistic_starry_night": True,
    "artistic_candy": True,
    "deep_dream": True,
}


def _member(name: str, function: Callable[..., Image.Image], **parameters: Any) -> Member:
    """A transformation; of a pair of distributions training has the first, testing the second."""
    # A value that is not a pair is the same in training and testing.
    train = dict(parameters)
    test = dict(parameters)
    for key, value in parameters.items():
        if isinstance(value, tuple):
            train[key], test[key] = value
    return Member(
        name,
        train=transformation(function, **train),
        test=transformation(function, **test),
    )


def _held_out(name: str, function: Callable[..., Image.Image], **parameters: Any) -> Member:
    return Member(name, None, transformation(function, **parameters), held_out=True)


ICON_OVERLAY = (
    _member(
        "icon_overlay",
        overlays.icon_overlay,
        icon=(OneOf(ICONS[:5]), OneOf(ICONS)),
        alpha=(Integers(64, 128), Integers(64, 144)),
        ratio=(Uniform(8, 12), Uniform(5, 15)),
    ),
)
LINE_HALFTONE = (
    _member(
        "line_halftone",
        line_halftone,
        amplitude=(Uniform(5, 7), Uniform(4, 7)),
        width=Uniform(1, 2),
        waveform=(OneOf(WAVEFORMS[:2]), OneOf(WAVEFORMS)),
    ),
)
# Of each pair, training samples from the first distribution and testing from the second.
BACKGROUND = (Uniform(1.0, 1.8), Uniform(0.7, 2.0))
FILTERING = (
    _member("gaussian_blur", filters.gaussian_blur, radius=(Uniform(3, 6), Uniform(2, 9))),
    _member(
        "motion_blur",
        filters.motion_blur,
        length=(Uniform(18, 27), Uniform(15, 35)),
        angle=ANGLE,
    ),
    _member("pixelate", filters.pixelate, factor=(Uniform(0.25, 0.5), Uniform(0.125, 0.5))),
    _member(
        "blurry_background",
        filters.blurry_background,
        width=BACKGROUND,
        height=BACKGROUND,
        radius=(Uniform(20, 40), Uniform(20, 50)),
    ),
    _held_out(
        "line_shift",
        filters.line_shift,
        distance=Integers(2, 8),
        axis=OneOf(("rows", "columns")),
    ),
)
GAUSSIAN = (Uniform(0.1, 0.5), Uniform(0.1, 0.7))
IMPULSE = (Uniform(0.1, 0.3), Uniform(0.05, 0.4))
NOISE = (
    _member("gaussian_noise", noise.gaussian_noise, sigma=GAUSSIAN, seed=SEED),
    _member("impulse_noise", noise.impulse_noise, fraction=IMPULSE, seed=SEED),
    _member("random_dithering", noise.random_dithering, seed=SEED),
    _member("ordered_dithering", noise.ordered_dithering),
    _held_out("floyd_steinberg", noise.floyd_steinberg, bits=Integers(1, 2)),
)
DISTRACTION = (OneOf(DISTRACTIONS[:5]), OneOf(DISTRACTIONS))
SPOT = {"x": FRACTION, "y": FRACTION}
IMAGE_FUSING = (
    _member(
        "image_overlay",
        fusing.image_overlay,
        distraction=DISTRACTION,
        size=(Uniform(0.5, 0.7), Uniform(0.4, 0.8)),
        opacity=Integers(64, 128),
        **SPOT,
    ),
    _member(
        "fusing",
        fusing.fuse,
        distraction=DISTRACTION,
        size=(Uniform(0.6, 0.8), Uniform(0.4, 0.9)),
        opacity=Integers(128, 196),
        **SPOT,
    ),
)
QUANTIZING = (
    _member("quantize_colours", colours.quantize, colours=(Integers(16, 64), Integers(8, 128))),
    _member("invert", colours.invert),
    _member("solarize", colours.solarize, threshold=(Integers(96, 192), Integers(64, 224))),
    _member("hsl_as_rgb", colours.hsl_as_rgb),
    _held_out("grayscale", colours.grayscale),
    _held_out("hue_shift", colours.hue, scale=1, offset=Uniform(60, 300)),
    _held_out("hue_scale", colours.hue, scale=EitherSign(8, 32), offset=Uniform(0, 360)),
)
STATIC_OVERLAY = (
    _member(
        "line_overlay",
        overlays.line_overlay,
        width=(Uniform(5, 7), Uniform(3, 10)),
        distance=(Uniform(18, 24), Uniform(15, 30)),
        colour=Colour(),
        angle=ANGLE,
    ),
    _member(
        "text_overlay",
        overlays.text_overlay,
        text=(Integers(0, 4), Integers(0, 9)),
        colour=Colour(),
    ),
    _member("grid_overlay", overlays.grid_overlay, colour=Colour()),
)
WARPING = (
    _member("rotate_90", warping.rotate, degrees=90),
    _member("vertical_flip", warping.vertical_flip),
    _member("transpose_minor", warping.transpose, diagonal="minor"),
    _held_out("rotate_180", warping.rotate, degrees=180),
    _held_out("rotate_270", warping.rotate, degrees=270),
    _held_out("transpose_major", warping.transpose, diagonal="major"),
)


def categories(styles: Mapping[str, Transformation] | None = None) -> Task:
    """Returns the task; `styles` are transformations that need weights, by name.

    Example:
        >>> members = [x for one in categories().classes[1:] for x in one.members]
        >>> sum(not x.held_out for x in members), sum(x.held_out for x in members)
        (28, 15)
    """
    transfers = []
    for name, held_out in STYLES.items():
        row = (styles or {}).get(name)
        train = None if held_out else row
        transfers.append(Member(name, train, row, held_out, weights=name))
    classes = {
        "identity": (_member("identity", colours.identity),),
        "icon_overlay": ICON_OVERLAY,
        "line_halftone": LINE_HALFTONE,
        "filtering": FILTERING,
        "noise": NOISE,
        "image_fusing": IMAGE_FUSING,
        "quantizing": QUANTIZING,
        "static_overlay": STATIC_OVERLAY,
        "style_transfer": tuple(transfers),
        "warping": WARPING,
    }
    named = [TransformationClass(name, members) for name, members in classes.items()]
    return Task("categories", tuple(named))
