"""Pictures that vary more than the embedded world's."""

import numpy as np
import torch
from PIL import Image

from data_builders.worlds.scenes import shading
from data_builders.worlds.scenes.series import Canvas, SceneSeries
from scripts import varied_scenes


def test_a_third_of_the_pictures_stay_as_they_are():
    torch.manual_seed(0)
    images = torch.randint(0, 256, (400, 16, 16, 3), dtype=torch.uint8)
    pictures = varied_scenes.varied(images)
    assert pictures.min() >= 0
    assert pictures.max() <= 1
    plain = (images.float() / 255).permute(0, 3, 1, 2)
    kept = (pictures == plain).flatten(1).all(dim=1)
    assert 0.25 < kept.double().mean() < 0.45
    # The others are darker than they are brighter, by their gain.
    assert pictures[~kept].mean() < plain[~kept].mean()


def test_images_of_a_fit_keep_their_size_and_a_third_of_them_all():
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    torch.manual_seed(0)
    changed = [varied_scenes.OtherLight()(image) for _ in range(60)]
    assert {one.size for one in changed} == {(16, 12)}
    assert 12 <= sum(np.array_equal(one, pixels) for one in changed) <= 30


def test_half_of_the_backdrops_are_plain(monkeypatch):
    # `vary_backdrops` changes the module for good.
    monkeypatch.setattr(shading, "FLOORS", shading.FLOORS)
    monkeypatch.setattr(shading, "BACKGROUNDS", shading.BACKGROUNDS)
    varied_scenes.vary_backdrops()
    rendered = SceneSeries(varied_scenes.SPECS[1], 3).render(0, 40, Canvas(32))
    images = torch.stack([shown.image for shown in rendered]).double()
    assert len(images) == 40
    # The highest row shows the background, the lowest the floor.
    difference = images[:, 0] - images[:, -1]
    plain = difference.abs().flatten(1).median(dim=1).values < 30
    assert 10 <= int(plain.sum()) <= 30
