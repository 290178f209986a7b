import open_clip
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel, CLIPTokenizer

from tests.backbones.hf_models import TEXTS, edit, write_clip
from tests.refusals import refused
from vlmtune.backbones.hf.hf_clip import HFCLIP
from vlmtune.types import FeatureSpec


@pytest.fixture
def path(tmp_path):
    return write_clip(tmp_path / "clip")


def test_old_configs_of_the_end_id_and_names_of_openai(path, tmp_path):
    # Their eos_token_id is 2, and the library then pools the highest id.
    want = HFCLIP(str(path)).encode_text(TEXTS, FeatureSpec("pooled")).values
    got = HFCLIP(str(edit(path, text_config__eos_token_id=2)))
    assert got.model.text_model.eos_token_id == 2
    assert got.encode_text(TEXTS, FeatureSpec("pooled")).values.equal(want)
    with refused(r"expected hidden_act quick_gelu .* got gelu"):
        HFCLIP(str(write_clip(tmp_path / "openai-clip", act="gelu")))
    HFCLIP(str(write_clip(tmp_path / "openai-right")))
    HFCLIP(str(write_clip(tmp_path / "other", act="gelu")))


def test_a_caption_that_spells_out_the_end_token_ends_there(path):
    backbone = HFCLIP(str(path))
    texts = ["a red cube <end> left of the dog", "dog"]
    inputs = AutoTokenizer.from_pretrained(path)(texts, padding=True, return_tensors="pt")
    want = CLIPModel.from_pretrained(path).get_text_features(**inputs)
    got = backbone.encode_text(texts, FeatureSpec("pooled")).values
    torch.testing.assert_close(got, want.pooler_output)


def test_the_librarys_own_byte_pair_tokenizer(path):
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{x}</w>" for x in letters), "do", "dog</w>"]
    words += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[("d", "o"), ("do", "g</w>")])
    config = CLIPModel.from_pretrained(path).config
    config.text_config.vocab_size = len(words)
    config.text_config.eos_token_id = len(words) - 1
    torch.manual_seed(0)
    CLIPModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    backbone = HFCLIP(str(path))
    got = backbone.encode_text(["Dog", "a cat"], FeatureSpec("words"))
    assert got.ids[0, :3].tolist() == [len(words) - 2, vocabulary["dog</w>"], len(words) - 1]
    assert got.mask.sum(dim=1).tolist() == [3, 6]
    assert backbone.text_special == (1, 1)


def test_preprocessing_is_the_processors_and_open_clips(path):
    backbone = HFCLIP(str(path))
    image = Image.effect_noise((50, 40), 80).convert("RGB")
    own = AutoImageProcessor.from_pretrained(path, backend="pil")
    want = own(images=image, return_tensors="pt")["pixel_values"][0]
    assert backbone.preprocess(image).equal(want)
    transform = open_clip.image_transform(32, is_train=False)
    torch.testing.assert_close(backbone.preprocess(image), transform(image))
