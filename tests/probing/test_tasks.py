"""The two tasks have the classes, members and parameters of the paper (appendices C.2 and C.3)."""

import json

import numpy as np
import pytest
from PIL import Image

from vlmtune.probing.categories import categories
from vlmtune.probing.colours import invert
from vlmtune.probing.distractions import draw_distraction
from vlmtune.probing.fine import fine
from vlmtune.probing.parameters import SEEDS, transformation
from vlmtune.probing.sheet import square, write_sheet
from vlmtune.probing.tasks import IDENTITY

ANY_SEED, ANGLE = (0, SEEDS), (0, 360)
# Numbers of the paper. A pair is a range that is sampled whole, a list the values that occur.
FINE = {
    "identity": {},
    "hue_scale": {"scale": -32, "offset": -4},
    "hue_shift": {"scale": 1, "offset": 64},
    "saturate": {"scale": 5, "offset": -4},
    "desaturate": {"scale": 0.25, "offset": 32},
    "brighten": {"offset": 96},
    "darken": {"offset": (-128, -64)},
    "gaussian_noise_low": {"sigma": 0.05, "seed": ANY_SEED},
    "gaussian_noise_medium": {"sigma": 0.15, "seed": ANY_SEED},
    "gaussian_blur_low": {"radius": (3, 5)},
    "gaussian_blur_high": {"radius": (7, 9)},
    "motion_blur_low": {"length": 5, "angle": ANGLE},
    "motion_blur_medium": {"length": 10, "angle": ANGLE},
    "corner_crop": {},
    "rotation": {"degrees": (90, 270)},
    "jpeg": {"quality": [*range(10, 16)]},
    "floyd_steinberg": {"bits": 1},
    "posterize": {"bits": 2},
    "pixelate": {"factor": 0.15},
    "solarize": {"threshold": 192},
    "grayscale": {},
    "line_shift": {"distance": 3, "axis": "columns"},
    "grid_overlay": {"colour": (204.0, 255.0, 127.0)},
    "line_overlay": {"width": 4, "distance": 20, "colour": (101.0, 0.0, 0.0)},
    "icon_overlay": {"icon": "grinning_face", "alpha": 32, "ratio": 10},
    "text_overlay": {"text": 0, "colour": (25.0, 25.0, 25.0)},
    "line_halftone": {"amplitude": 5, "width": 1},
}
ICONS = ["grinning_face", "heart", "star", "sun", "tree"]
MORE_ICONS = [*ICONS, "house", "flower", "fish", "balloon", "umbrella"]
PICTURES = ["rings", "checkerboard", "hills", "clouds", "bricks"]
MORE = [*PICTURES, "mosaic", "plaid", "spiral", "dots", "skyline", "ripples"]
SPOT = {"x": (0, 1), "y": (0, 1)}
RGB = "any colour"
WAVES = ["sine", "triangle"]
# category -> member -> (training, testing); one mapping if both are the same, None if held out.
CATEGORIES = {
    "identity": {"identity": {}},
    "icon_overlay": {
        "icon_overlay": (
            {"icon": ICONS, "alpha": [*range(64, 129)], "ratio": (8, 12)},
            {"icon": MORE_ICONS, "alpha": [*range(64, 145)], "ratio": (5, 15)},
        )
    },
    "line_halftone": {
        "line_halftone": (
            {"amplitude": (5, 7), "width": (1, 2), "waveform": WAVES},
            {"amplitude": (4, 7), "width": (1, 2), "waveform": [*WAVES, "square", "sawtooth"]},
        )
    },
    "filtering": {
        "gaussian_blur": ({"radius": (3, 6)}, {"radius": (2, 9)}),
        "motion_blur": (
            {"length": (18, 27), "angle": ANGLE},
            {"length": (15, 35), "angle": ANGLE},
        ),
        "pixelate": ({"factor": (0.25, 0.5)}, {"factor": (0.125, 0.5)}),
        "blurry_background": (
            {"width": (1.0, 1.8), "height": (1.0, 1.8), "radius": (20, 40)},
            {"width": (0.7, 2.0), "height": (0.7, 2.0), "radius": (20, 50)},
        ),
        "line_shift": (None, {"distance": [*range(2, 9)], "axis": ["rows", "columns"]}),
    },
    "noise": {
        "gaussian_noise": (
            {"sigma": (0.1, 0.5), "seed": ANY_SEED},
            {"sigma": (0.1, 0.7), "seed": ANY_SEED},
        ),
        "impulse_noise": (
            {"fraction": (0.1, 0.3), "seed": ANY_SEED},
            {"fraction": (0.05, 0.4), "seed": ANY_SEED},
        ),
        "random_dithering": {"seed": ANY_SEED},
        "ordered_dithering": {},
        "floyd_steinberg": (None, {"bits": [1, 2]}),
    },
    "image_fusing": {
        "image_overlay": (
            {"distraction": PICTURES, "size": (0.5, 0.7), "opacity": [*range(64, 129)], **SPOT},
            {"distraction": MORE, "size": (0.4, 0.8), "opacity": [*range(64, 129)], **SPOT},
        ),
        "fusing": (
            {"distraction": PICTURES, "size": (0.6, 0.8), "opacity": [*range(128, 197)], **SPOT},
            {"distraction": MORE, "size": (0.4, 0.9), "opacity": [*range(128, 197)], **SPOT},
        ),
    },
    "quantizing": {
        "quantize_colours": ({"colours": [*range(16, 65)]}, {"colours": [*range(8, 129)]}),
        "invert": {},
        "solarize": ({"threshold": [*range(96, 193)]}, {"threshold": [*range(64, 225)]}),
        "hsl_as_rgb": {},
        "grayscale": (None, {}),
        "hue_shift": (None, {"scale": 1, "offset": (60, 300)}),
        "hue_scale": (None, {"scale": "8 to 32 of either sign", "offset": ANGLE}),
    },
    "static_overlay": {
        "line_overlay": (
            {"width": (5, 7), "distance": (18, 24), "colour": RGB, "angle": ANGLE},
            {"width": (3, 10), "distance": (15, 30), "colour": RGB, "angle": ANGLE},
        ),
        "text_overlay": (
            {"text": [*range(5)], "colour": RGB},
            {"text": [*range(10)], "colour": RGB},
        ),
        "grid_overlay": {"colour": RGB},
    },
    "warping": {
        "rotate_90": {"degrees": 90},
        "vertical_flip": {},
        "transpose_minor": {"diagonal": "minor"},
        "rotate_180": (None, {"degrees": 180}),
        "rotate_270": (None, {"degrees": 270}),
        "transpose_major": (None, {"diagonal": "major"}),
    },
}
PAPER_STYLES = {  # the paper's six in training, seven held out
    *("starry_night", "taligas", "the_scream", "great_wave"),
    *("artistic_mosaic", "artistic_udnie"),
}


def check(transformed, expected):
    """Fails unless samples cover the expected values and no others."""
    generator = np.random.default_rng(0)
    samples = [transformed.sample(generator) for _ in range(1500)]
    assert samples[0].keys() == expected.keys()
    for name, wanted in expected.items():
        seen = [sample[name] for sample in samples]
        if wanted == RGB:
            channels = np.array(seen)
            assert channels.shape == (1500, 3)
            assert channels.min(axis=0).max() < 5
            assert channels.max(axis=0).min() > 250
        elif wanted == "8 to 32 of either sign":
            assert (min(np.abs(seen)), max(np.abs(seen))) == pytest.approx((8, 32), abs=0.5)
            assert 0.45 < np.mean([x < 0 for x in seen]) < 0.55
        elif isinstance(wanted, list):
            assert set(seen) == set(wanted)
        elif isinstance(wanted, tuple) and len(wanted) == 2:
            low, high = wanted
            slack = 0.02 * (high - low)
            assert low <= min(seen) < low + slack
            assert high - slack < max(seen) <= high
        else:
            assert set(seen) == {wanted}


@pytest.mark.parametrize("name", FINE)
def test_fine_parameters_are_those_of_the_paper(name):
    (one,) = [one for one in fine().classes if one.name == name]
    (member,) = one.members
    assert member.train is member.test
    check(member.train, FINE[name])


@pytest.mark.parametrize(
    ("category", "member"), [(c, m) for c, members in CATEGORIES.items() for m in members]
)
def test_parameters_of_categories_are_those_of_the_paper(category, member):
    (one,) = [one for one in categories().classes if one.name == category]
    (member_,) = [x for x in one.members if x.name == member]
    expected = CATEGORIES[category][member]
    training, testing = expected if isinstance(expected, tuple) else (expected, expected)
    check(member_.test, testing)
    assert member_.held_out == (training is None) == (member_.train is None)
    if training is not None:
        check(member_.train, training)


def test_the_tables_are_complete():
    names = fine().names
    assert len(names) == len(set(names)) == 31
    assert set(names) - FINE.keys() == {"starry_night", "taligas", "bonfire", "pasta"}
    whole = {one.name: {x.name for x in one.members} for one in categories().classes}
    style = whole.pop("style_transfer")
    assert whole == {name: set(members) for name, members in CATEGORIES.items()}
    held_out = {x.name for one in categories().classes for x in one.members if x.held_out}
    assert len(style) == 13
    assert style - held_out == PAPER_STYLES
    assert len(held_out) == 15


def test_without_weights_style_is_not_run():
    assert len(fine().runnable().classes) == 27
    assert [x.name for x in fine().not_run] == ["starry_night", "taligas", "bonfire", "pasta"]
    task = categories().runnable()
    assert len(task.classes) == 9
    assert "style_transfer" not in task.names
    assert len(categories().not_run) == 13


def test_a_category_runs_with_the_weights_there_are():
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


def test_the_same_seed_gives_the_same_pixels():
    image = square(Image.effect_noise((50, 40), 90), 32)
    task = fine().runnable()

    def pixels(digest, seed):
        return [version.apply(image).tobytes() for version in task.versions(digest, "train", seed)]

    assert pixels("a", 0) == pixels("a", 0)
    for other in (pixels("a", 1), pixels("b", 0)):
        differ = [x for x, p, q in zip(task.names, pixels("a", 0), other, strict=True) if p != q]
        assert {"rotation", "darken", "gaussian_noise_low", "gaussian_blur_low"} <= set(differ)
        assert not {"identity", "invert", "line_halftone", "hue_shift"} & set(differ)


def test_keys_name_pixels():
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
