"""The generalization task: 10 categories, with transformations that training never shows.

In: the transformations that weights of the user make. Out: the task. Never: a downloaded weight.
Source: Rashtchian et al. 2023, appendix C.3, with its parameters; those of testing are wider. Where
it leaves one open, the function of the transformation says what is done.
"""

from collections.abc import Callable, Mapping

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


def categories(styles: Mapping[str, Transformation] | None = None) -> Task:
    """Returns the task; `styles` are transformations that need weights, by name.

    Example:
        >>> members = [x for one in categories().classes[1:] for x in one.members]
        >>> sum(not x.held_out for x in members), sum(x.held_out for x in members)
        (28, 15)
    """
    given = styles or {}
    classes = {
        "identity": (_both("identity", transformation(colours.identity)),),
        "icon_overlay": (
            Member("icon_overlay", _icons(5, 128, (8, 12)), _icons(10, 144, (5, 15))),
        ),
        "line_halftone": (Member("line_halftone", _waves(2, 5), _waves(4, 4)),),
        "filtering": _filtering(),
        "noise": _noise(),
        "image_fusing": (
            Member(
                "image_overlay",
                _mixed(fusing.image_overlay, 5, (0.5, 0.7), (64, 128)),
                _mixed(fusing.image_overlay, 11, (0.4, 0.8), (64, 128)),
            ),
            Member(
                "fusing",
                _mixed(fusing.fuse, 5, (0.6, 0.8), (128, 196)),
                _mixed(fusing.fuse, 11, (0.4, 0.9), (128, 196)),
            ),
        ),
        "quantizing": _quantizing(),
        "static_overlay": _static(),
        "style_transfer": tuple(
            _style(name, held_out, given.get(name)) for name, held_out in STYLES.items()
        ),
        "warping": _warping(),
    }
    return Task("categories", tuple(TransformationClass(*item) for item in classes.items()))


def _both(name: str, row: Transformation) -> Member:
    return Member(name, row, row)


def _held_out(name: str, row: Transformation) -> Member:
    return Member(name, None, row, held_out=True)


def _style(name: str, held_out: bool, row: Transformation | None) -> Member:
    train = None if held_out else row
    return Member(name, train, row, held_out, weights=name)


def _icons(count: int, alpha: int, ratio: tuple[float | int, float | int]) -> Transformation:
    return transformation(
        overlays.icon_overlay,
        icon=OneOf(ICONS[:count]),
        alpha=Integers(64, alpha),
        ratio=Uniform(*ratio),
    )


def _waves(count: int, amplitude: float | int) -> Transformation:
    return transformation(
        line_halftone,
        amplitude=Uniform(amplitude, 7),
        width=Uniform(1, 2),
        waveform=OneOf(WAVEFORMS[:count]),
    )


def _mixed(
    function: Callable[..., Image.Image],
    count: int,
    size: tuple[float | int, float | int],
    opacity: tuple[int, int],
) -> Transformation:
    return transformation(
        function,
        distraction=OneOf(DISTRACTIONS[:count]),
        size=Uniform(*size),
        opacity=Integers(*opacity),
        x=FRACTION,
        y=FRACTION,
    )


def _filtering() -> tuple[Member, ...]:
    def gaussian(low: float | int, high: float | int) -> Transformation:
        return transformation(filters.gaussian_blur, radius=Uniform(low, high))

    def motion(low: float | int, high: float | int) -> Transformation:
        return transformation(filters.motion_blur, length=Uniform(low, high), angle=ANGLE)

    def pixelate(low: float | int, high: float | int) -> Transformation:
        return transformation(filters.pixelate, factor=Uniform(low, high))

    def background(low: float | int, high: float | int, radius: float | int) -> Transformation:
        side = Uniform(low, high)
        return transformation(
            filters.blurry_background, width=side, height=side, radius=Uniform(20, radius)
        )

    shift = transformation(
        filters.line_shift, distance=Integers(2, 8), axis=OneOf(("rows", "columns"))
    )
    return (
        Member("gaussian_blur", gaussian(3, 6), gaussian(2, 9)),
        Member("motion_blur", motion(18, 27), motion(15, 35)),
        Member("pixelate", pixelate(0.25, 0.5), pixelate(0.125, 0.5)),
        Member("blurry_background", background(1.0, 1.8, 40), background(0.7, 2.0, 50)),
        _held_out("line_shift", shift),
    )


def _noise() -> tuple[Member, ...]:
    def gaussian(high: float | int) -> Transformation:
        return transformation(noise.gaussian_noise, sigma=Uniform(0.1, high), seed=SEED)

    def impulse(low: float | int, high: float | int) -> Transformation:
        return transformation(noise.impulse_noise, fraction=Uniform(low, high), seed=SEED)

    return (
        Member("gaussian_noise", gaussian(0.5), gaussian(0.7)),
        Member("impulse_noise", impulse(0.1, 0.3), impulse(0.05, 0.4)),
        _both("random_dithering", transformation(noise.random_dithering, seed=SEED)),
        _both("ordered_dithering", transformation(noise.ordered_dithering)),
        _held_out("floyd_steinberg", transformation(noise.floyd_steinberg, bits=Integers(1, 2))),
    )


def _quantizing() -> tuple[Member, ...]:
    def quantize(low: int, high: int) -> Transformation:
        return transformation(colours.quantize, colours=Integers(low, high))

    def solarize(low: int, high: int) -> Transformation:
        return transformation(colours.solarize, threshold=Integers(low, high))

    shift = transformation(colours.hue, scale=1, offset=Uniform(60, 300))
    scale = transformation(colours.hue, scale=EitherSign(8, 32), offset=Uniform(0, 360))
    return (
        Member("quantize_colours", quantize(16, 64), quantize(8, 128)),
        _both("invert", transformation(colours.invert)),
        Member("solarize", solarize(96, 192), solarize(64, 224)),
        _both("hsl_as_rgb", transformation(colours.hsl_as_rgb)),
        _held_out("grayscale", transformation(colours.grayscale)),
        _held_out("hue_shift", shift),
        _held_out("hue_scale", scale),
    )


def _static() -> tuple[Member, ...]:
    def lines(
        width: tuple[float | int, float | int], distance: tuple[float | int, float | int]
    ) -> Transformation:
        return transformation(
            overlays.line_overlay,
            width=Uniform(*width),
            distance=Uniform(*distance),
            colour=Colour(),
            angle=ANGLE,
        )

    def text(count: int) -> Transformation:
        return transformation(overlays.text_overlay, text=Integers(0, count - 1), colour=Colour())

    return (
        Member("line_overlay", lines((5, 7), (18, 24)), lines((3, 10), (15, 30))),
        Member("text_overlay", text(5), text(10)),
        _both("grid_overlay", transformation(overlays.grid_overlay, colour=Colour())),
    )


def _warping() -> tuple[Member, ...]:
    return (
        _both("rotate_90", transformation(warping.rotate, degrees=90)),
        _both("vertical_flip", transformation(warping.vertical_flip)),
        _both("transpose_minor", transformation(warping.transpose, diagonal="minor")),
        _held_out("rotate_180", transformation(warping.rotate, degrees=180)),
        _held_out("rotate_270", transformation(warping.rotate, degrees=270)),
        _held_out("transpose_major", transformation(warping.transpose, diagonal="major")),
    )
