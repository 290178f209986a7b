"""Each transformation has a known effect on known pixels."""

import colorsys

import numpy as np
import pytest
from PIL import Image

from vlmtune.probing import categories, colours, filters, fine, fusing, noise, overlays, warping
from vlmtune.probing.distractions import DISTRACTIONS, draw_distraction
from vlmtune.probing.halftone import WAVEFORMS, line_halftone, wave
from vlmtune.probing.icons import ICONS, draw_icon

GENERATOR = np.random.default_rng(3)


def noisy(width=12, height=10):
    return Image.fromarray(GENERATOR.integers(0, 256, (height, width, 3), dtype=np.uint8))


def plain(colour, width=12, height=10):
    return Image.new("RGB", (width, height), colour)


def values(image):
    return np.asarray(image, dtype=np.float64)


def by_colorsys(image, change):
    """The image whose pixels `change` makes from hue (degrees), saturation, lightness (of 255)."""
    out = np.empty(values(image).shape)
    for index in np.ndindex(out.shape[:2]):
        h, s, v = colorsys.rgb_to_hls(*(values(image)[index] / 255))
        hue, saturation, lightness = change(360 * h, 255 * v, 255 * s)
        out[index] = colorsys.hls_to_rgb(hue / 360, lightness / 255, saturation / 255)
    return 255 * out


def clipped(x):
    return min(255.0, max(0.0, x))


@pytest.mark.parametrize(
    ("ours", "change"),
    [
        (lambda x: colours.hue(x, 1, 64), lambda h, s, v: ((h + 64) % 360, s, v)),
        (lambda x: colours.hue(x, -32, -4), lambda h, s, v: ((-32 * h - 4) % 360, s, v)),
        (lambda x: colours.saturation(x, 5, -4), lambda h, s, v: (h, clipped(5 * s - 4), v)),
        (lambda x: colours.saturation(x, 0.25, 32), lambda h, s, v: (h, s / 4 + 32, v)),
        (lambda x: colours.lightness(x, 96), lambda h, s, v: (h, s, clipped(v + 96))),
        (lambda x: colours.lightness(x, -100), lambda h, s, v: (h, s, clipped(v - 100))),
    ],
)
def test_hue_saturation_and_lightness_change_as_stated(ours, change):
    image = noisy()
    assert np.abs(values(ours(image)) - by_colorsys(image, change)).max() <= 1.01


def test_values_are_mapped_one_by_one():
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, axis=2))
    row = np.arange(256)
    inverted = np.where(row > 192, 255 - row, row)
    assert (values(colours.solarize(ramp, 192))[0, :, 0] == inverted).all()
    assert (values(colours.invert(ramp))[0, :, 1] == 255 - row).all()
    assert (values(colours.posterize(ramp, 2))[0, :, 2] == row // 64 * 64).all()
    assert (values(colours.identity(ramp)) == values(ramp)).all()
    pixels = {"white": (0, 0, 255), "black": (0, 0, 0), "blue": (170, 255, 128)}
    for colour, expected in pixels.items():
        assert colours.hsl_as_rgb(plain(colour)).getpixel((0, 0)) == expected
    grey = values(colours.grayscale(plain((200, 100, 50))))
    assert (grey == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)).all()


@pytest.mark.parametrize("count", [8, 64])
def test_as_many_colours_are_left(count):
    image = noisy(40, 40)
    quantized = colours.quantize(image, count)
    assert len(quantized.getcolors()) == count
    for _, colour in quantized.getcolors():
        members = values(image)[(values(quantized) == colour).all(axis=2)]
        assert np.abs(members.mean(axis=0) - colour).max() <= 0.6  # a centroid, rounded


def test_a_gaussian_blur_has_its_standard_deviation():
    image = plain("black", 101, 101)
    image.paste("white", (41, 41, 60, 60))
    for radius in (3, 8):
        column = values(filters.gaussian_blur(image, radius))[:, :, 0].sum(axis=1)
        y = np.arange(101)
        mean = (column * y).sum() / column.sum()
        variance = (column * (y - mean) ** 2).sum() / column.sum()
        assert variance - (19**2 - 1) / 12 == pytest.approx(radius**2, rel=0.1)


def test_a_motion_leaves_a_line_of_its_length_and_direction():
    image = plain("black", 41, 41)
    image.putpixel((20, 20), (250, 250, 250))
    across = values(filters.motion_blur(image, 5, 0))[:, :, 0]
    assert across[20, 18:23].tolist() == [50] * 5
    assert across.sum() == 250
    upward = values(filters.motion_blur(image, 5, 90))[:, :, 0]
    assert (upward == across.T).all()
    diagonal = np.argwhere(values(filters.motion_blur(image, 20, 45))[:, :, 0] > 0)
    assert (diagonal.sum(axis=1) == 40).all()  # up to the right
    assert np.ptp(diagonal[:, 0]) == pytest.approx(20 / 2**0.5, abs=1)
    assert (values(filters.motion_blur(plain("teal"), 27, 33)) == values(plain("teal"))).all()


def test_pixels_become_blocks():
    image = noisy(40, 40)
    blocks = values(filters.pixelate(image, 0.25))
    expected = values(image).reshape(10, 4, 10, 4, 3).mean(axis=(1, 3))
    assert np.abs(blocks[::4, ::4] - expected).max() <= 1
    assert (blocks.reshape(10, 4, 10, 4, 3) == blocks.reshape(10, 4, 10, 4, 3)[:, :1, :, :1]).all()
    assert len(filters.pixelate(noisy(40, 40), 0.15).getcolors()) == 36


def test_the_background_is_a_blurred_copy():
    image = noisy(40, 40)
    wide = filters.blurry_background(image, 2.0, 1.0, 20)
    assert wide.size == image.size  # whatever a model cuts off, it sees what others see
    small = image.resize((20, 40), Image.Resampling.BILINEAR)
    assert np.abs(values(wide)[:, 12:28] - values(small)[:, 2:18]).max() <= 2
    assert values(wide)[:, :9].std() < 0.2 * values(image).std()
    cut = filters.blurry_background(image, 0.5, 1.0, 20)
    middle = image.crop((10, 0, 30, 40)).resize((40, 40), Image.Resampling.BILINEAR)
    assert (values(cut) == values(middle)).all()


def test_a_square_stays_square():
    """A model that scales and one that cuts out the middle see the same transformation."""
    image, generator = noisy(40, 40), np.random.default_rng(0)
    for task in (fine(), categories()):
        for member in task.runnable().members:
            for row in (member.train, member.test):
                if row is not None:
                    shown = row.apply(image, row.sample(generator))
                    assert shown.width == shown.height, member.name


def test_quality_is_that_of_jpeg():
    image = draw_distraction("hills")
    low, high = (np.abs(values(filters.jpeg(image, q)) - values(image)).mean() for q in (10, 90))
    assert 0 < high < low / 2


@pytest.mark.parametrize("axis", ["columns", "rows"])
def test_lines_go_both_ways(axis):
    image = noisy(12, 10)
    shifted, before = values(filters.line_shift(image, 3, axis)), values(image)
    if axis == "rows":
        shifted, before = shifted.swapaxes(0, 1), before.swapaxes(0, 1)
    for line in range(before.shape[1]):
        way = 3 if line % 2 == 0 else -3
        assert (shifted[:, line] == np.roll(before[:, line], way, axis=0)).all()


def test_noise_has_its_standard_deviation_or_its_shares():
    image = plain((128, 128, 128), 200, 200)
    for sigma in (0.05, 0.1):
        change = values(noise.gaussian_noise(image, sigma, 1)) - 128
        assert change.std() / 255 == pytest.approx(sigma, rel=0.02)
        assert abs(change.mean()) < 0.5
    one, same, other = (noise.gaussian_noise(image, 0.1, seed).tobytes() for seed in (1, 1, 2))
    assert one == same != other
    image = plain((9, 99, 199), 50, 40)
    counts = {c: n for n, c in noise.impulse_noise(image, 0.3, 5).getcolors()}
    assert counts == {(9, 99, 199): 1400, (255, 255, 255): 300, (0, 0, 0): 300}


def test_random_thresholds_keep_the_mean():
    image = plain((64, 128, 255), 200, 200)
    dithered = values(noise.random_dithering(image, 2))
    assert set(np.unique(dithered)) == {0, 255}
    assert dithered.mean(axis=(0, 1)) == pytest.approx([64, 128, 255], abs=3)
    # One threshold for a pixel: where a value is above it, so is every higher one.
    assert (dithered[..., 0] <= dithered[..., 1]).all()


def test_ordered_thresholds_are_bayers():
    patterns = ([0, 0], [0, 0]), ([1, 0], [0, 0]), ([1, 0], [0, 1]), ([1, 1], [0, 1]), ([1, 1],) * 2
    for value, pattern in zip((30, 60, 120, 190, 250), patterns, strict=True):
        expected = list(pattern)
        dithered = values(noise.ordered_dithering(plain((value,) * 3, 5, 3)))[:, :, 0] / 255
        assert dithered[:2, :2].tolist() == expected
        assert (dithered[2, 4], dithered[0, 4]) == (expected[0][0], expected[0][0])


@pytest.mark.parametrize(("bits", "levels"), [(1, {0, 255}), (2, {0, 85, 170, 255})])
def test_errors_are_spread_to_the_pixels_around(bits, levels):
    ramp = np.linspace(0, 255, 128).astype(np.uint8)[None, :, None].repeat(64, 0).repeat(3, 2)
    dithered = values(noise.floyd_steinberg(Image.fromarray(ramp), bits))
    assert set(np.unique(dithered)) == levels
    blocks = dithered.reshape(8, 8, 16, 8, 3).mean(axis=(1, 3))
    assert np.abs(blocks - ramp.reshape(8, 8, 16, 8, 3).mean(axis=(1, 3))).max() < 26


def test_rows_and_lines_are_painted():
    image, colour = noisy(), (204, 255, 127)
    painted = values(overlays.grid_overlay(image, colour))
    assert (painted[1::2, 1::2] == values(image)[1::2, 1::2]).all()
    painted[1::2, 1::2] = colour
    assert (painted == colour).all()
    image, colour = plain("white", 60, 60), (101, 0, 0)
    lines = values(overlays.line_overlay(image, 4, 20, colour))
    rows = [y for y in range(60) if (lines[y] == colour).all()]
    assert rows == [0, 1, 2, 3, 20, 21, 22, 23, 40, 41, 42, 43]
    assert (lines[[y for y in range(60) if y not in rows]] == 255).all()
    upright = values(overlays.line_overlay(image, 4, 20, colour, 90))
    assert (upright == lines.swapaxes(0, 1)).all()


@pytest.mark.parametrize("icon", ICONS)
def test_a_wall_of_icons_repeats_one_icon(icon):
    image = plain((90, 90, 90), 80, 80)
    wall = values(overlays.icon_overlay(image, icon, 128, 4))
    assert (wall[:20, :20] == wall[20:40, 60:]).all()
    assert (wall != 90).any()
    drawn = values(draw_icon(icon).resize((20, 20), Image.Resampling.LANCZOS))
    alpha = np.floor(drawn[..., 3:] * 128 / 255) / 255
    assert np.abs(wall[:20, :20] - (90 + alpha * (drawn[..., :3] - 90))).max() <= 1.5
    faint = values(overlays.icon_overlay(image, icon, 32, 4))
    assert np.abs(faint - 90).max() < np.abs(wall - 90).max()


def test_icons_and_distractions_differ():
    for names, draw in ((ICONS, draw_icon), (DISTRACTIONS, draw_distraction)):
        pictures = [values(draw(name)) for name in names]
        for i, one in enumerate(pictures):
            assert all(np.abs(one - other).mean() > 10 for other in pictures[:i])


def test_a_wall_of_text_covers_every_line():
    image, ink = plain("white", 224, 224), (25, 25, 25)
    walls = [values(overlays.text_overlay(image, text, ink)) for text in range(10)]
    for wall in walls:
        letters = (wall < 200).all(axis=-1).reshape(14, 16, 224).any(axis=1)
        assert letters.sum(axis=1).min() > 112  # of 224 columns
        assert (wall.min(), wall.max()) == (25, 255)
    assert len({wall.tobytes() for wall in walls}) == 10


@pytest.mark.parametrize(
    ("waveform", "points"),
    [
        ("sine", [0, 2**-0.5, 1, 0, -1]),
        ("triangle", [0, 0.5, 1, 0, -1]),
        ("square", [1, 1, 1, -1, -1]),
        ("sawtooth", [-1, -0.75, -0.5, 0, 0.5]),
    ],
)
def test_waves_have_their_form(waveform, points):
    phases = np.array([0, 0.125, 0.25, 0.5, 0.75])
    assert wave(phases, waveform) == pytest.approx(points, abs=1e-12)
    assert wave(phases + 3, waveform) == pytest.approx(points, abs=1e-12)


@pytest.mark.parametrize("waveform", WAVEFORMS)
def test_waves_are_as_high_as_the_image_is_dark(waveform):
    heights = {}
    for grey in (0, 128, 255):
        image = line_halftone(plain((grey,) * 3, 110, 110), 5, 1, waveform)
        assert {colour for _, colour in image.getcolors()} == {(0, 0, 0), (255, 255, 255)}
        first = np.argwhere(values(image)[:11, :, 0] == 0)[:, 0]  # bands are 11 pixels high
        heights[grey] = np.ptp(first) + 1
    assert heights[255] == 1
    assert heights[0] == pytest.approx(11, abs=1)
    assert heights[128] == pytest.approx(6, abs=1)


def test_lines_of_waves_have_their_width():
    for width in (1, 3):
        straight = values(line_halftone(plain("white", 20, 33), 5, width))[:, :, 0] == 0
        assert (straight.sum(axis=0) == 3 * width).all()  # three waves, one above the other
    thin, thick = (
        (values(line_halftone(plain("gray", 99, 99), 5, width)) == 0).sum() for width in (1, 2)
    )
    assert 1.3 < thick / thin < 2.2


def test_a_distraction_lies_on_the_image_or_below_it():
    image = plain("black", 100, 100)
    fused = values(fusing.image_overlay(image, "clouds", 0.5, 128, 1.0, 0.0))
    small = draw_distraction("clouds").resize((100, 100), Image.Resampling.BILINEAR)
    small = values(small.resize((50, 50), Image.Resampling.BILINEAR))
    assert np.abs(fused[:50, 50:] - small * 128 / 255).max() <= 1
    fused[:50, 50:] = 0
    assert (fused == 0).all()
    image = plain("white", 100, 100)
    fused = values(fusing.fuse(image, "rings", 0.6, 196, 0.0, 1.0))
    back = values(draw_distraction("rings").resize((100, 100), Image.Resampling.BILINEAR))
    mixed = back[40:, :60] + 196 / 255 * (255 - back[40:, :60])
    assert np.abs(fused[40:, :60] - mixed).max() <= 1
    assert (fused[:40] == back[:40]).all()


def test_warping_moves_corners():
    image = noisy(8, 8)
    before = values(image)
    assert (values(warping.rotate(image, 90)) == np.rot90(before)).all()  # counter-clockwise
    assert (values(warping.rotate(image, 270)) == np.rot90(before, 3)).all()
    assert (values(warping.vertical_flip(image)) == before[::-1]).all()
    assert (values(warping.transpose(image, "major")) == before.swapaxes(0, 1)).all()
    minor = before[::-1, ::-1].swapaxes(0, 1)
    assert (values(warping.transpose(image, "minor")) == minor).all()
    assert (values(warping.corner_crop(image)) == before[4:, 4:]).all()
    turned = values(warping.rotate(plain("white", 9, 9), 135))
    assert turned.shape == (9, 9, 3)
    assert (turned[0, 0] == 0).all()
    assert (turned[4, 4] == 255).all()
