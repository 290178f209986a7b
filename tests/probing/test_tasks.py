"""The two tasks have the classes, members and parameters of the paper (appendices C.2 and C.3)."""

import json

import numpy as np
import pytest
from PIL import Image

from vlmtune.probing import categories, fine
from vlmtune.probing.colours import invert
from vlmtune.probing.distractions import draw_distraction
from vlmtune.probing.parameters import (
    SEED,
    Colour,
    EitherSign,
    Integers,
    OneOf,
    Uniform,
    transformation,
)
from vlmtune.probing.sheet import square, write_sheet
from vlmtune.probing.tasks import IDENTITY

# Parameters of the paper, appendices C.2 and C.3.
FINE = """\
identity
hue_scale: scale -32, offset -4
hue_shift: scale 1, offset 64
saturate: scale 5, offset -4
desaturate: scale 0.25, offset 32
brighten: offset 96
darken: offset -128..-64
gaussian_noise_low: sigma 0.05, seed any
gaussian_noise_medium: sigma 0.15, seed any
gaussian_blur_low: radius 3..5
gaussian_blur_high: radius 7..9
motion_blur_low: length 5, angle 0..360
motion_blur_medium: length 10, angle 0..360
corner_crop
rotation: degrees 90..270
jpeg: quality 10-15
floyd_steinberg: bits 1
posterize: bits 2
pixelate: factor 0.15
solarize: threshold 192
grayscale
line_shift: distance 3, axis columns
grid_overlay: colour (204, 255, 127)
line_overlay: width 4, distance 20, colour (101, 0, 0)
icon_overlay: icon grinning_face, alpha 32, ratio 10
text_overlay: text 0, colour (25, 25, 25)
line_halftone: amplitude 5, width 1
starry_night, by weights
taligas, by weights
bonfire, by weights
pasta, by weights
"""
CATEGORIES = """\
identity
  identity, both
icon_overlay
  icon_overlay, train: icon grinning_face..tree/5, alpha 64-128, ratio 8..12
  icon_overlay, test: icon grinning_face..umbrella/10, alpha 64-144, ratio 5..15
line_halftone
  line_halftone, train: amplitude 5..7, width 1..2, waveform sine..triangle/2
  line_halftone, test: amplitude 4..7, width 1..2, waveform sine..sawtooth/4
filtering
  gaussian_blur, train: radius 3..6
  gaussian_blur, test: radius 2..9
  motion_blur, train: length 18..27, angle 0..360
  motion_blur, test: length 15..35, angle 0..360
  pixelate, train: factor 0.25..0.5
  pixelate, test: factor 0.125..0.5
  blurry_background, train: width 1..1.8, height 1..1.8, radius 20..40
  blurry_background, test: width 0.7..2, height 0.7..2, radius 20..50
  line_shift, test: distance 2-8, axis rows..columns/2
noise
  gaussian_noise, train: sigma 0.1..0.5, seed any
  gaussian_noise, test: sigma 0.1..0.7, seed any
  impulse_noise, train: fraction 0.1..0.3, seed any
  impulse_noise, test: fraction 0.05..0.4, seed any
  random_dithering, both: seed any
  ordered_dithering, both
  floyd_steinberg, test: bits 1-2
image_fusing
  image_overlay, train: distraction rings..bricks/5, size 0.5..0.7, opacity 64-128, x 0..1, y 0..1
  image_overlay, test: distraction rings..ripples/11, size 0.4..0.8, opacity 64-128, x 0..1, y 0..1
  fusing, train: distraction rings..bricks/5, size 0.6..0.8, opacity 128-196, x 0..1, y 0..1
  fusing, test: distraction rings..ripples/11, size 0.4..0.9, opacity 128-196, x 0..1, y 0..1
quantizing
  quantize_colours, train: colours 16-64
  quantize_colours, test: colours 8-128
  invert, both
  solarize, train: threshold 96-192
  solarize, test: threshold 64-224
  hsl_as_rgb, both
  grayscale, test
  hue_shift, test: scale 1, offset 60..300
  hue_scale, test: scale ±8..32, offset 0..360
static_overlay
  line_overlay, train: width 5..7, distance 18..24, colour any, angle 0..360
  line_overlay, test: width 3..10, distance 15..30, colour any, angle 0..360
  text_overlay, train: text 0-4, colour any
  text_overlay, test: text 0-9, colour any
  grid_overlay, both: colour any
style_transfer
  starry_night, by weights
  taligas, by weights
  the_scream, by weights
  great_wave, by weights
  landscape_black_figure, by weights, held out
  violon, by weights, held out
  bonfire, by weights, held out
  pasta, by weights, held out
  artistic_mosaic, by weights
  artistic_udnie, by weights
  artistic_starry_night, by weights, held out
  artistic_candy, by weights, held out
  deep_dream, by weights, held out
warping
  rotate_90, both: degrees 90
  vertical_flip, both
  transpose_minor, both: diagonal minor
  rotate_180, test: degrees 180
  rotate_270, test: degrees 270
  transpose_major, test: diagonal major
"""


def form(value) -> str:
    """A parameter in words: `..` of real numbers, `-` of whole ones, the ends of a choice."""
    if isinstance(value, Uniform | EitherSign):
        return f"{'±' * isinstance(value, EitherSign)}{value.low:g}..{value.high:g}"
    if isinstance(value, Integers):
        return "any" if value == SEED else f"{value.low}-{value.high}"
    if isinstance(value, OneOf):
        return f"{value.values[0]}..{value.values[-1]}/{len(value.values)}"
    return "any" if isinstance(value, Colour) else str(value)


def written(row) -> str:
    return ", ".join(f"{name} {form(value)}" for name, value in row.parameters.items())


def as_text(task) -> str:
    """The classes of a task, its members and their parameters in training and testing."""
    lines = []
    for one in task.classes:
        lines.append(one.name)
        for x in one.members:
            rows = {"train": x.train, "test": x.test}
            if x.train == x.test and not x.weights:
                rows = {"both": x.test}
            shown = {split: written(row) for split, row in rows.items() if row is not None}
            lines += [f"  {x.name}, {split}: {row}".rstrip(" :") for split, row in shown.items()]
            if x.weights:
                lines.append(f"  {x.name}, by weights{', held out' * x.held_out}")
    return "\n".join(lines) + "\n"


def test_parameters_are_those_of_the_paper():
    names = fine().names
    assert names == tuple(x.name for x in fine().members)  # a class is one transformation
    lines = as_text(fine()).splitlines()
    assert [line.strip().replace(", both", "") for line in lines[1::2]] == FINE.splitlines()
    assert as_text(categories()) == CATEGORIES


@pytest.mark.parametrize(
    ("distribution", "low", "high"),
    [(Uniform(2, 9), 2, 9), (Integers(2, 9), 2, 9), (EitherSign(8, 32), -32, 32)],
)
def test_a_distribution_covers_its_range_and_nothing_else(distribution, low, high):
    generator = np.random.default_rng(0)
    seen = [distribution.sample(generator) for _ in range(1500)]
    assert low <= min(seen) < low + 0.02 * (high - low)
    assert high - 0.02 * (high - low) < max(seen) <= high
    if isinstance(distribution, Integers):
        assert set(seen) == set(range(low, high + 1))
    if isinstance(distribution, EitherSign):
        assert min(map(abs, seen)) == pytest.approx(8, abs=0.5)
        assert 0.45 < np.mean([x < 0 for x in seen]) < 0.55


def test_choices_and_colours_are_all_drawn():
    generator = np.random.default_rng(0)
    assert {OneOf(("a", "b", "c")).sample(generator) for _ in range(99)} == {"a", "b", "c"}
    channels = np.array([Colour().sample(generator) for _ in range(1500)])
    assert channels.min(axis=0).max() < 5
    assert channels.max(axis=0).min() > 250


def test_style_is_run_with_the_weights_there_are():
    assert len(fine().runnable().classes) == 27
    assert [x.name for x in fine().not_run] == ["starry_night", "taligas", "bonfire", "pasta"]
    task = categories().runnable()
    assert len(task.classes) == 9
    assert "style_transfer" not in task.names
    assert len(categories().not_run) == 13
    painted = transformation(invert)
    only_held_out = categories({"pasta": painted}).runnable()
    assert "style_transfer" not in only_held_out.names  # nothing to learn it from
    task = categories({"the_scream": painted, "pasta": painted}).runnable()
    (style,) = [one for one in task.classes if one.name == "style_transfer"]
    assert [x.name for x in style.of("train")] == ["the_scream"]
    assert [x.name for x in style.of("test")] == ["the_scream", "pasta"]
    assert len(fine({"pasta": painted}).runnable().classes) == 28


def test_training_never_shows_what_is_held_out():
    task, shown = categories().runnable(), {"train": set(), "test": set()}
    for split, names in shown.items():
        for image in range(200):
            versions = task.versions(f"image {image}", split)
            assert [one.name for one in task.classes] == list(task.names)
            assert len(versions) == len(task.classes)
            names |= {version.member.name for version in versions}
    held_out = {x.name for one in task.classes for x in one.members if x.held_out}
    assert shown["test"] - shown["train"] == held_out
    assert len(held_out) == 8


def test_the_same_seed_gives_the_same_pixels_which_keys_name():
    image = square(Image.effect_noise((50, 40), 90), 32)
    task = fine().runnable()

    def pixels(digest, seed):
        return [version.apply(image).tobytes() for version in task.versions(digest, "train", seed)]

    assert pixels("a", 0) == pixels("a", 0)
    for other in (pixels("a", 1), pixels("b", 0)):
        differ = [x for x, p, q in zip(task.names, pixels("a", 0), other, strict=True) if p != q]
        assert {"rotation", "darken", "gaussian_noise_low", "gaussian_blur_low"} <= set(differ)
        assert not {"identity", "invert", "line_halftone", "hue_shift"} & set(differ)
    one = {v.member.name: v for v in fine().runnable().versions("a", "train")}
    other = {v.member.name: v for v in categories().runnable().versions("a", "test")}
    assert one[IDENTITY].key("a", 224) == other[IDENTITY].key("a", 224)
    assert one[IDENTITY].key("a", 224) != one[IDENTITY].key("b", 224)
    assert one[IDENTITY].key("a", 224) != one[IDENTITY].key("a", 64)
    keys = [version.key("a", 224) for version in one.values()]
    assert len(set(keys)) == len(keys)
    again = {v.member.name: v for v in fine().runnable().versions("a", "train", seed=1)}
    assert again["rotation"].key("a", 224) != one["rotation"].key("a", 224)
    json.dumps([version.parameters for version in one.values()])


def test_an_image_becomes_a_square():
    wide = Image.new("RGB", (80, 40), "red")
    wide.paste("blue", (20, 0, 60, 40))
    middle = square(wide, 20)
    assert middle.size == (20, 20)
    assert middle.getpixel((10, 10)) == (0, 0, 255)
    assert middle.getpixel((1, 1)) == (0, 0, 255)


def tiles(path, count):
    """The pictures of a sheet, and the strips with their names."""
    with Image.open(path) as sheet:
        values = np.asarray(sheet.convert("RGB"), dtype=float)
    assert values.shape == (-(-count // 8) * 132 + 4, 8 * 116 + 4, 3)  # rows of 8
    corners = [(4 + i // 8 * 132, 4 + i % 8 * 116) for i in range(count)]
    names = [values[top + 112 : top + 128, left : left + 112] for top, left in corners]
    return [values[top : top + 112, left : left + 112] for top, left in corners], names


@pytest.mark.parametrize(("task", "count"), [(fine(), 27), (categories(), 31)])
def test_a_sheet_shows_every_transformation(task, count, tmp_path):
    write_sheet(tmp_path / "sheet.jpg", draw_distraction("hills"), task, side=112)
    (original, *others), names = tiles(tmp_path / "sheet.jpg", count)
    shown = [x.name for one in task.runnable().classes for x in one.members][1:]
    for name, tile in zip(shown, others, strict=True):
        assert np.abs(tile - original).mean() > 1, name
        alike = sum(np.abs(tile - other).mean() < 1 for other in others)
        assert alike == 1, name  # itself
    assert all((name < 128).any() for name in names)
