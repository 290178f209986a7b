import torch

from vlmtune.adapters.zero_shot import ZeroShot

TEXTS = ["a red cube", "the blue sphere left of the dog", "dog"]


def test_scores_are_those_of_open_clip(backbone):
    adapter = ZeroShot()
    adapter.attach(backbone)
    pixels = torch.randn(4, 3, 32, 32)
    image = backbone.encode_image(pixels, adapter.image_input)
    text = backbone.encode_text(TEXTS, adapter.text_input)
    with torch.no_grad():
        ids = backbone.text_tower.words(TEXTS).ids
        padded = torch.nn.functional.pad(ids, (0, 77 - ids.shape[1]))
        one, other, scale = backbone.model(pixels, padded)
    torch.testing.assert_close(adapter(image, text).values, scale * one @ other.T)
