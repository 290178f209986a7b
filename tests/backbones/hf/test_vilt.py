import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, ViltForImageAndTextRetrieval

from tests.backbones.hf_models import pictures, write_vilt
from vlmtune.backbones.hf.vilt import OUTSIDE, Vilt

TEXTS = ["a red cube left of the blue sphere", "dog", "a green metal cube", "the dog right"]
SIZES = [(32, 32), (50, 36), (36, 50), (90, 30)]
"""Width and height; of 4 x 4, 5 x 4, 4 x 5 and 6 x 2 patches."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_vilt(tmp_path_factory.mktemp("models") / "vilt")


@pytest.fixture(scope="module")
def backbone(path):
    return Vilt(str(path))


def prepared(backbone):
    image = torch.stack([backbone.preprocess(x) for x in pictures(SIZES)])
    fusion = backbone.fusion
    return (
        fusion.prepare_image(backbone.encode_image(image, fusion.image_input)),
        fusion.prepare_text(backbone.encode_text(TEXTS, fusion.text_input)),
    )


def test_each_image_has_its_own_patches_which_are_not_drawn_at_random(backbone, tmp_path):
    image, _ = prepared(backbone)
    assert image.mask.sum(dim=1).tolist() == [17, 21, 21, 13]
    assert backbone.image_tokens == 24  # 4 x 6
    assert not image.values[~image.mask].any()
    few = Vilt(str(write_vilt(tmp_path / "few", max_image_length=5)))
    torch.manual_seed(0)
    one = few.fusion.match(*prepared(few))
    torch.manual_seed(1)
    assert few.fusion.match(*prepared(few)).equal(one)
    torch.testing.assert_close(one, backbone.fusion.match(*prepared(backbone)))


def test_matches_are_those_of_the_librarys_own_processor(path, backbone):
    """Images of several shapes: alone, and padded to the largest of the batch."""
    model = ViltForImageAndTextRetrieval.from_pretrained(path).eval()
    processor = AutoImageProcessor.from_pretrained(path, backend="pil")
    words = AutoTokenizer.from_pretrained(path)
    image, text = prepared(backbone)
    got = backbone.fusion.match(image, text)
    tokens = words(TEXTS, padding=True, return_tensors="pt")
    tokens.pop("token_type_ids", None)
    with torch.no_grad():
        together = model(**tokens, **processor(pictures(SIZES), return_tensors="pt")).logits[:, 0]
        for i, one in enumerate(pictures(SIZES)):
            own = words([TEXTS[i]], return_tensors="pt")
            own.pop("token_type_ids", None)
            alone = model(**own, **processor([one], return_tensors="pt")).logits[0, 0]
            torch.testing.assert_close(got[i], alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got, together, rtol=1e-4, atol=1e-5)


def test_no_pixel_of_an_image_passes_for_outside(backbone):
    for colour in ("black", "white", (127, 128, 0)):
        pixels = backbone.preprocess(Image.new("RGB", (50, 36), colour))
        assert pixels.shape == (3, 48, 48)
        assert (pixels[:, :32, :40] > -10).all()
        assert (pixels[:, 32:] == OUTSIDE).all()
        assert (pixels[:, :, 40:] == OUTSIDE).all()
