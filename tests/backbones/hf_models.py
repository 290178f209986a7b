"""Tiny random Hugging Face models, saved as the hub holds them."""

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    FlavaConfig,
    FlavaImageProcessor,
    FlavaModel,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
)

from tests.tiny import WORDS

SIZE = {"height": 32, "width": 32}


def tokenizer(first: list[str], last: list[str], template: str, **named: str):
    """A word-level tokenizer whose special tokens stand first or last in the vocabulary."""
    vocabulary = {word: i for i, word in enumerate([*first, *WORDS, *last])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(token, vocabulary[token]) for token in template.split() if token != "$A"]
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", **named)


def _transformer(width: int, **more):
    return {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        **more,
    }


def _randomised(model, seed: int):
    """Random norms, biases and positions too, or errors could hide."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim < 2 or not parameter.any():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def write_clip(path, seed=0, act="quick_gelu", **text):
    """CLIP, padded with its end token as OpenAI's tokenizer pads."""
    words = tokenizer(
        ["<unk>"], ["<start>", "<end>"], "<start> $A <end>",
        bos_token="<start>", eos_token="<end>", pad_token="<end>",
    )  # fmt: skip
    config = CLIPConfig(
        text_config=_transformer(
            16, hidden_act=act, vocab_size=len(words), max_position_embeddings=12,
            bos_token_id=13, eos_token_id=14, pad_token_id=14,
        ) | text,
        vision_config=_transformer(24, hidden_act=act, image_size=32, patch_size=8),
        projection_dim=16,
    )  # fmt: skip
    torch.manual_seed(seed)
    _randomised(CLIPModel(config), seed).save_pretrained(path)
    words.save_pretrained(path)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=SIZE).save_pretrained(path)
    return path


def write_siglip(path, seed=0, **vision):
    """SigLIP, padded with its end token as the first SigLIP's tokenizer pads."""
    words = tokenizer(
        ["<unk>", "</s>"], [], "$A </s>", eos_token="</s>", pad_token="</s>"
    )  # fmt: skip
    config = SiglipConfig(
        text_config=_transformer(
            16, vocab_size=len(words), max_position_embeddings=12, projection_size=24,
            bos_token_id=None, eos_token_id=1, pad_token_id=1,
        ),
        vision_config=_transformer(24, image_size=32, patch_size=8) | vision,
    )  # fmt: skip
    torch.manual_seed(seed)
    _randomised(SiglipModel(config), seed).save_pretrained(path)
    words.save_pretrained(path)
    SiglipImageProcessor(size=SIZE).save_pretrained(path)
    return path


def write_flava(path, seed=0, kind=FlavaModel, image_width=24):
    """FLAVA with BERT's special tokens."""
    words = tokenizer(
        ["<pad>", "<unk>", "<cls>", "<sep>"], [], "<cls> $A <sep>",
        cls_token="<cls>", sep_token="<sep>", pad_token="<pad>",
    )  # fmt: skip
    config = FlavaConfig(
        text_config=_transformer(16, vocab_size=len(words), max_position_embeddings=12),
        image_config=_transformer(image_width, image_size=32, patch_size=8, vocab_size=32),
        multimodal_config=_transformer(16),
        image_codebook_config={"hidden_size": 4, "num_blocks_per_group": 1, "vocab_size": 32},
        projection_dim=16,
        hidden_size=16,
        init_codebook=False,
    )
    torch.manual_seed(seed)
    _randomised(kind(config), seed).save_pretrained(path)
    words.save_pretrained(path)
    FlavaImageProcessor(size=SIZE, crop_size=SIZE).save_pretrained(path)
    return path
