"""Images of the embedded world: geometry, colours and independence of the batch."""

import colorsys
import itertools
import math
import random

import pytest
import torch

from data_builders.worlds.scenes.render import Rendered, render
from data_builders.worlds.scenes.sampling import WorldSpec, sample_scene
from data_builders.worlds.scenes.scene import (
    COLORS,
    FOCAL,
    SHAPES,
    SIZES,
    Scene,
    SceneObject,
    camera,
    subtract,
)
from data_builders.worlds.scenes.series import Canvas, SceneSeries

MEASURES = ("image", "visible", "unoccluded", "boxes", "pixel_coords")


def _object(
    shape: str,
    color: str = "red",
    size: str = "large",
    material: str = "rubber",
    texture: str = "plain",
) -> SceneObject:
    looks = (shape, color, material, texture, size)
    return SceneObject(*looks, (0.0, 0.0, 0.0), SIZES[size], 25.0).at(0.0, 0.0)


def _pixels(rendered: Rendered) -> torch.Tensor:
    """Return the middle of object 0's box, flat, as float (n, 3)."""
    x, y, w, h = rendered.boxes[0].tolist()
    image = rendered.image[y : y + h, x : x + w].float()
    return image.reshape(-1, 3)


def test_sphere_covers_its_analytic_area() -> None:
    scene = Scene((_object("sphere"),))
    got = render([scene], 128)[0].visible.item()
    center, radius = scene.objects[0].center, scene.objects[0].radius
    u, v, depth = camera().project(center)
    distance2 = depth * depth * (1.0 + (u * u + v * v) / FOCAL**2)
    # A cone of half angle a around an axis at angle b to the optical one cuts the image plane in
    # an ellipse of this area.
    sin2, cos2 = radius**2 / distance2, depth * depth / distance2
    area = math.pi * FOCAL**2 * sin2 * math.sqrt((1.0 - sin2) * cos2) / (cos2 - sin2) ** 1.5
    assert got == pytest.approx(area, rel=0.02)


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_where_it_projects(shape: str, size: str) -> None:
    (rendered,) = render([Scene((_object(shape, size=size),))], 64)
    x, y, w, h = rendered.boxes[0].tolist()
    u, v, _ = rendered.pixel_coords[0].tolist()
    assert abs(x + w / 2 - u) < 1.5
    assert abs(y + h / 2 - v) < 2.5
    low, high = (14, 22) if size == "large" else (8, 13)
    assert low <= w <= high
    assert 0.25 < rendered.visible.item() * 64 * 64 / (w * h) < 1.0
    assert torch.equal(rendered.visible, rendered.unoccluded)


@pytest.mark.parametrize("texture", ["plain", "striped", "checkered"])
@pytest.mark.parametrize("color", [c for c in COLORS if c != "gray"])
def test_objects_have_the_hue_of_their_colour(color: str, texture: str) -> None:
    want = colorsys.rgb_to_hsv(*(c / 255 for c in COLORS[color]))[0]
    scenes = [
        Scene((_object(shape, color, "large", material, texture),))
        for shape in SHAPES
        for material in ("rubber", "metal")
    ]
    for rendered in render(scenes, 64):
        hues = []
        for r, g, b in _pixels(rendered).tolist():
            hue, saturation, _ = colorsys.rgb_to_hsv(r / 255, g / 255, b / 255)
            if saturation > 0.3:
                hues.append((hue - want + 0.5) % 1.0 - 0.5)
        assert len(hues) > 40
        assert abs(sorted(hues)[len(hues) // 2]) < 0.025


def test_gray_is_gray_and_textures_change_the_surface() -> None:
    pixels = _pixels(*render([Scene((_object("cube", "gray"),))], 64))
    assert (pixels.amax(1) - pixels.amin(1)).median() < 12
    kinds = ("plain", "striped", "checkered")
    scenes = [Scene((_object("cube", "blue", "small", "rubber", kind),)) for kind in kinds]
    spread = [_pixels(rendered)[:, 2].std().item() for rendered in render(scenes, 64)]
    assert spread[1] > 1.2 * spread[0]
    assert spread[2] > 1.2 * spread[0]


def test_nearer_objects_hide_farther_ones() -> None:
    front = _object("cube", "red")
    axis = camera().forward
    x, y = 1.6 * axis[0], 1.6 * axis[1]
    back = _object("sphere", "blue", "small").at(x, y)
    for objects, hidden in (((front, back), 1), ((back, front), 0)):
        (rendered,) = render([Scene(objects)], 64)
        assert rendered.visible[hidden] < 0.7 * rendered.unoccluded[hidden]
        assert rendered.visible[1 - hidden] == rendered.unoccluded[1 - hidden]


def test_shadow_darkens_the_floor_away_from_the_light() -> None:
    obj = _object("sphere")
    scenes = [Scene((obj,), light_azimuth=-45.0 + turn) for turn in (-90.0, 90.0)]
    lit, flipped = (rendered.image.float().mean(2) for rendered in render(scenes, 64))
    change = (lit - flipped)[30:44]
    # Azimuth -135 degrees is the image's left: the shadow falls to the right.
    assert change[:, 42:52].mean() < -3.0
    assert change[:, 12:22].mean() > 3.0


def test_scenes_do_not_depend_on_their_batch() -> None:
    spec = WorldSpec(max_objects=5, stack_probability=0.3)
    scenes = [sample_scene(spec, random.Random(k)) for k in range(40)]
    whole = render(scenes, 32)
    for start, stop in ((0, 1), (7, 10), (39, 40)):
        for alone, beside in zip(render(scenes[start:stop], 32), whole[start:stop], strict=True):
            for name in MEASURES:
                assert torch.equal(getattr(alone, name), getattr(beside, name))


def test_series_show_every_object() -> None:
    spec = WorldSpec(min_objects=4, max_objects=6, min_visible=0.008)
    rendered = SceneSeries(spec, 1).render(0, 16, Canvas(64))
    assert len(rendered) == 16
    for shown in rendered:
        assert (shown.visible >= 0.008).all()
        assert len(shown.visible) == len(shown.scene.objects)
        assert shown.image.shape == (64, 64, 3)


def test_a_box_holds_exactly_the_pixels_whose_rays_meet_the_sphere() -> None:
    size = 40
    sphere = _object("sphere").at(0.7, -0.4)
    view = camera()
    columns, rows = set(), set()
    for y, x in itertools.product(range(size), repeat=2):
        u = ((x + 0.5) / size - 0.5) / FOCAL
        v = (0.5 - (y + 0.5) / size) / FOCAL
        axes = zip(view.forward, view.right, view.up, strict=True)
        ray = [forward + u * right + v * up for forward, right, up in axes]
        start = subtract(view.position, sphere.center)
        along = sum(a * b for a, b in zip(start, ray, strict=True))
        behind = sum(a * a for a in start) - sphere.radius**2
        if along**2 > sum(a * a for a in ray) * behind:
            columns.add(x)
            rows.add(y)
    expected = [min(columns), min(rows), len(columns), len(rows)]
    (rendered,) = render([Scene((sphere,))], size, samples=1)
    assert rendered.boxes[0].tolist() == expected
