"""Images of another size than a model was trained on."""

import torch
from open_clip import factory
from PIL import Image
from torch.nn.functional import interpolate

from tests.refusals import refused
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import FeatureSpec

QUICK = "Tiny-VL-quickgelu"
POOLED = FeatureSpec("pooled")
POSITIONS = "visual.positional_embedding"


def changed(one, other):
    return {name for name in one if not torch.equal(one[name], other[name])}


def test_positions_are_interpolated_and_nothing_else_changes(folder):
    path = str(folder())
    plain, large = (
        OpenClip(path).model.state_dict(),
        OpenClip(path, image_size=48).model.state_dict(),
    )
    assert changed(plain, large) == {POSITIONS}
    grid = plain[POSITIONS][1:].T.reshape(1, -1, 4, 4)
    larger = interpolate(grid, (6, 6), mode="bicubic", antialias=True, align_corners=False)
    expected = torch.cat([plain[POSITIONS][:1], larger.flatten(2)[0].T])
    torch.testing.assert_close(large[POSITIONS], expected)


def test_images_have_that_size_and_so_many_patches(folder, tmp_path):
    large = OpenClip(str(folder()), image_size=48)
    pixels = large.preprocess(Image.new("RGB", (100, 60), "red"))
    assert (pixels.shape, large.image_tokens) == ((3, 48, 48), 36)
    features = large.encode_image(pixels[None], POOLED)
    large.save(tmp_path / "saved")
    again = OpenClip(str(tmp_path / "saved"))
    assert again.fingerprint == large.fingerprint
    assert again.encode_image(pixels[None], POOLED).values.equal(features.values)
    path = str(folder("other"))
    assert OpenClip(path, image_size=32).fingerprint == OpenClip(path).fingerprint
    assert OpenClip(path).fingerprint != large.fingerprint


def test_a_wide_image_is_seen_whole(folder, tmp_path):
    """Squashed, no side of an image is cropped; its patches have two rows and six columns."""
    squash = {"resize_mode": "squash"}
    wide = OpenClip(str(folder()), preprocessing=squash, image_size=(16, 48))
    assert (wide.image_grid, wide.image_tokens) == ((2, 6), 12)
    picture = Image.new("RGB", (100, 60), "red")
    picture.paste("blue", (0, 0, 50, 60))
    pixels = wide.preprocess(picture)
    assert pixels.shape == (3, 16, 48)
    red = pixels[0] > pixels[2]
    assert (red[:, 26:].all(), red[:, :22].any()) == (True, False)
    wide.save(tmp_path / "saved")
    again = OpenClip(str(tmp_path / "saved"))
    assert (again.fingerprint, again.image_grid) == (wide.fingerprint, (2, 6))


def test_weights_from_a_file_are_interpolated_only_if_asked(file, tiny_vl):
    large = OpenClip(QUICK, file(), image_size=64)
    assert changed(tiny_vl, large.model.state_dict()) == {POSITIONS}
    assert len(large.model.state_dict()[POSITIONS]) == large.image_tokens + 1
    with refused("for visual.positional_embedding"):
        OpenClip(QUICK, file(**{POSITIONS: large.model.state_dict()[POSITIONS].clone()}))


def test_a_size_that_does_not_fit_and_other_towers_are_refused(folder, tiny_vl, monkeypatch):
    with refused(r"got 50 for .* with patches of \(8, 8\)"):
        OpenClip(str(folder()), image_size=50)
    tower = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64, "patch_size": None}
    resnet = {**factory._MODEL_CONFIGS["Tiny-VL"], "vision_cfg": tower}
    monkeypatch.setitem(factory._MODEL_CONFIGS, "Tiny-RN", resnet)
    with refused("open_clip's own vision transformer, got 96 for Tiny-RN"):
        OpenClip("Tiny-RN", "random", image_size=96)
