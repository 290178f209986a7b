"""Pictures that vary more than the embedded world's."""

import torch

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


def test_half_of_the_backdrops_are_plain(monkeypatch):
    # `vary_backdrops` changes the module for good.
    monkeypatch.setattr(shading, "FLOORS", shading.FLOORS)
    monkeypatch.setattr(shading, "BACKGROUNDS", shading.BACKGROUNDS)
    varied_scenes.vary_backdrops()
    scenes, rendered = SceneSeries(varied_scenes.SPECS[1], 3).render(0, 40, Canvas(32))
    assert len(scenes) == 40
    # The highest row shows the background, the lowest the floor.
    difference = rendered.images[:, 0].double() - rendered.images[:, -1].double()
    plain = difference.abs().flatten(1).median(dim=1).values < 30
    assert 10 <= int(plain.sum()) <= 30
