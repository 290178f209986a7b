"""SigLIP, and SigLIP 2 in NaFlex form."""

import pytest
import torch
from transformers import AutoImageProcessor, AutoTokenizer, Siglip2Model

from tests.backbones.hf_models import TEXTS, pictures, write_siglip, write_siglip2_naflex
from tests.refusals import refused
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.backbones import SigLIP, SigLIP2NaFlex
from vlmtune.types import FeatureSpec


def test_captions_are_read_in_lower_case_and_towers_need_a_pooling_head(tmp_path):
    backbone = SigLIP(str(write_siglip(tmp_path)))
    # The tiny tokenizer lowers too: what the library's tokenizer gets must be lower case already.
    asked = []
    tokenizer = backbone.text_tower.tokenizer
    inner = tokenizer._tokenizer
    tokenizer._tokenizer = lambda texts, **options: asked.append(texts) or inner(texts, **options)
    backbone.encode_text(["A Red Cube"], FeatureSpec("words"))
    assert asked == [["a red cube"]]
    with refused("weights, tokenizer and image processor of one SigLIP"):
        SigLIP(str(write_siglip(tmp_path / "headless", vision_use_head=False)))


SIZES = [(50, 36), (9, 70), (70, 9), (1, 1), (200, 200)]
POOLED = FeatureSpec("pooled")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_siglip2_naflex(tmp_path_factory.mktemp("models") / "naflex")


@pytest.fixture(scope="module")
def backbone(path):
    return SigLIP2NaFlex(str(path))


def pixels_of(backbone):
    return torch.stack([backbone.preprocess(picture) for picture in pictures(SIZES)])


def of_the_library(path, **options):
    """Logits and image outputs of the library, from pictures and captions on."""
    model = Siglip2Model.from_pretrained(path).eval()
    images = AutoImageProcessor.from_pretrained(path, backend="pil")(
        images=pictures(SIZES), return_tensors="pt", **options
    )
    texts = AutoTokenizer.from_pretrained(path)(
        TEXTS, padding="max_length", max_length=12, padding_side="right", return_tensors="pt"
    )
    with torch.no_grad():
        output = model(**images, input_ids=texts["input_ids"])
        vision = model.vision_model(**images, output_hidden_states=True)
    return output.logits_per_image, vision, images


@pytest.mark.parametrize("most", [None, 9, 40])
def test_scores_of_images_of_many_shapes_are_the_librarys(path, most):
    backbone = SigLIP2NaFlex(str(path), max_num_patches=most)
    want, _, images = of_the_library(path, **({} if most is None else {"max_num_patches": most}))
    image = backbone.encode_image(pixels_of(backbone), POOLED).values
    text = backbone.encode_text(TEXTS, POOLED).values
    unit = [torch.nn.functional.normalize(x, dim=-1) for x in (image, text)]
    got = backbone.logit_scale * unit[0] @ unit[1].T + backbone.logit_bias
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert backbone.image_tokens == (most or 16)
    counts = images["spatial_shapes"].prod(dim=1)
    assert counts.unique().numel() > 1
    assert (counts <= (most or 16)).all()


def test_tokens_are_the_librarys_and_padding_is_masked(path, backbone):
    _, vision, images = of_the_library(path)
    counts = images["spatial_shapes"].prod(dim=1)
    for layer in (-1, -2, -3):
        got = backbone.encode_image(pixels_of(backbone), FeatureSpec("tokens", layer))
        assert got.mask.sum(dim=1).tolist() == counts.tolist()
        assert not got.values[~got.mask].any()
        want = vision.last_hidden_state if layer == -1 else vision.hidden_states[layer]
        want = want[:, : got.mask.shape[1]]
        torch.testing.assert_close(got.values[got.mask], want[got.mask], rtol=1e-5, atol=1e-5)


def test_fewer_patches_give_another_model(path, backbone, tmp_path):
    few = SigLIP2NaFlex(str(path), max_num_patches=9)
    assert few.fingerprint != backbone.fingerprint
    few.save(tmp_path / "saved")
    again = SigLIP2NaFlex(str(tmp_path / "saved"))
    assert (again.image_tokens, again.fingerprint) == (9, few.fingerprint)


def test_patches_in_the_shared_space_leave_padding_out(backbone):
    adapter = FullFineTuning(tokens=True)
    adapter.attach(backbone)
    image = backbone.encode_image(pixels_of(backbone), adapter.image_input)
    patches = adapter.embed_patches(image)
    assert patches.mask.equal(image.mask)
    assert not image.mask.all()
    assert patches.values.isfinite().all()
    assert not patches.values[~patches.mask].any()
    for row in range(len(SIZES)):
        alone = adapter.embed_patches(image[row : row + 1].trimmed())
        real = patches.values[row][patches.mask[row]]
        torch.testing.assert_close(alone.values[0], real, rtol=1e-4, atol=1e-5)
