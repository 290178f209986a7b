"""Tiny random Hugging Face models, saved as the hub holds them."""

import json
from string import ascii_lowercase

import timm
import torch
import transformers
from PIL import Image
from timm.models import save_for_hf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.tiny import WORDS

SIZE = {"height": 32, "width": 32}
TEXTS = ["a red cube left of the blue sphere", "dog", "a green metal cube"]


def pixels():
    torch.manual_seed(1)
    return torch.randn(3, 3, 32, 32)


def pictures(sizes):
    """Pictures of noise, of each width and height."""
    torch.manual_seed(0)
    noise = [torch.randint(0, 256, (h, w, 3), dtype=torch.uint8) for w, h in sizes]
    return [Image.fromarray(x.numpy()) for x in noise]


def edit(path, name="config.json", **values):
    """Changes entries of a JSON file; `text_config__x` is `x` in `text_config`."""
    settings = json.loads((path / name).read_text())
    for key, value in values.items():
        place, _, inner = key.partition("__")
        if inner:
            settings[place][inner] = value
        else:
            settings[key] = value
    (path / name).write_text(json.dumps(settings))
    return path


def tokenizer(first: list[str], last: list[str], template: str, **named: str):
    """A word-level tokenizer whose special tokens stand first or last in the vocabulary."""
    vocabulary = {word: i for i, word in enumerate([*first, *WORDS, *last])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(token, vocabulary[token]) for token in template.split() if token != "$A"]
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", **named)


def _transformer(width: int, **more):
    return {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        **more,
    }


def _randomised(model, seed: int, sharper: float = 1.0):
    """Random norms, biases and positions too, or errors could hide.

    Fusion encoders that are fresh hardly tell pairs apart: they are given larger matrices.
    """
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(sharper if "embedding" not in name or parameter.ndim == 4 else 1)
        if parameter.ndim < 2 or not parameter.any():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def _text(words, width=16, positions=12, **more):
    sizes = {"vocab_size": len(words), "max_position_embeddings": positions}
    return _transformer(width, **sizes, **more)


def _vision(width=24, **more):
    return _transformer(width, image_size=32, patch_size=8, **more)


def _saved(path, seed, kind, config, words, processor, sharper=1.0):
    torch.manual_seed(seed)
    _randomised(kind(config), seed, sharper).save_pretrained(path)
    words.save_pretrained(path)
    processor.save_pretrained(path)
    return path


def _clip_processor():
    return transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=SIZE)


def _bert():
    """A tokenizer with BERT's special tokens."""
    named = {"cls_token": "<cls>", "sep_token": "<sep>", "pad_token": "<pad>"}
    return tokenizer(["<pad>", "<unk>", "<cls>", "<sep>"], [], "<cls> $A <sep>", **named)


def _roberta(**named):
    """A tokenizer with the special tokens of RoBERTa and XLM-V, whose end token has a low id."""
    named |= {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return tokenizer(["<s>", "<pad>", "</s>", "<unk>"], [], "<s> $A </s>", **named)


def write_clip(path, seed=0, act="quick_gelu", **text):
    """CLIP, padded with its end token as OpenAI's tokenizer pads."""
    named = {"bos_token": "<start>", "eos_token": "<end>", "pad_token": "<end>"}
    words = tokenizer(["<unk>"], ["<start>", "<end>"], "<start> $A <end>", **named)
    ids = {"bos_token_id": 13, "eos_token_id": 14, "pad_token_id": 14}
    config = transformers.CLIPConfig(
        text_config=_text(words, hidden_act=act, **ids) | text,
        vision_config=_vision(hidden_act=act),
        projection_dim=16,
    )
    return _saved(path, seed, transformers.CLIPModel, config, words, _clip_processor())


def write_metaclip2(path, seed=0, **text):
    """MetaCLIP 2 with the special tokens of XLM-V."""
    words = _roberta()
    ids = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    config = transformers.MetaClip2Config(
        text_config=_text(words, **ids) | text, vision_config=_vision(), projection_dim=16
    )
    return _saved(path, seed, transformers.MetaClip2Model, config, words, _clip_processor())


def write_siglip(path, seed=0, **vision):
    """SigLIP, padded with its end token as the first SigLIP's tokenizer pads."""
    words = tokenizer(["<unk>", "</s>"], [], "$A </s>", eos_token="</s>", pad_token="</s>")
    ids = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1}
    config = transformers.SiglipConfig(
        text_config=_text(words, projection_size=24, **ids), vision_config=_vision() | vision
    )
    processor = transformers.SiglipImageProcessor(size=SIZE)
    return _saved(path, seed, transformers.SiglipModel, config, words, processor)


def _gemma():
    """The one tokenizer that the library loads for SigLIP 2, with a piece for each word."""
    pieces = [f"▁{word}" for word in WORDS] + WORDS  # merges inside a sentence come first
    merges = [(piece[:i], piece[i]) for piece in pieces for i in range(1, len(piece))]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    known = [*special, "▁", *ascii_lowercase, *(left + right for left, right in merges)]
    made = transformers.Siglip2Tokenizer(
        {piece: i for i, piece in enumerate(dict.fromkeys(known))}, list(dict.fromkeys(merges))
    )
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    return made


def write_siglip2_naflex(path, seed=0, patches=16, **vision):
    """SigLIP 2 in NaFlex form: at most 16 patches of 8 x 8 pixels, and Gemma's special tokens."""
    words = _gemma()
    ids = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    config = transformers.Siglip2Config(
        text_config=_text(words, projection_size=24, **ids),
        vision_config=_transformer(24, num_patches=16, patch_size=8) | vision,
    )
    processor = transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=patches)
    return _saved(path, seed, transformers.Siglip2Model, config, words, processor)


def write_flava(path, seed=0, kind=transformers.FlavaForPreTraining, image_width=24, blocks=2):
    """FLAVA with BERT's special tokens; as `FlavaModel` without its matching head."""
    words = _bert()
    config = transformers.FlavaConfig(
        text_config=_text(words),
        image_config=_vision(image_width, vocab_size=32),
        multimodal_config=_transformer(16, num_hidden_layers=blocks),
        image_codebook_config={"hidden_size": 4, "num_blocks_per_group": 1, "vocab_size": 32},
        projection_dim=16,
        hidden_size=16,
        init_codebook=False,
    )
    processor = transformers.FlavaImageProcessor(size=SIZE, crop_size=SIZE)
    return _saved(path, seed, kind, config, words, processor, 5.0)


def write_align(path, seed=0):
    """ALIGN with BERT's special tokens; its last three blocks are as wide as the embedding."""
    words = _bert()
    vision = {
        "image_size": 32,
        "width_coefficient": 1.0,
        "depth_coefficient": 1.0,
        "kernel_sizes": [3, 3],
        "in_channels": [32, 8],
        "out_channels": [8, 16],
        "strides": [2, 2],
        "num_block_repeats": [1, 3],
        "expand_ratios": [1, 2],
        "hidden_dim": 16,
        "num_hidden_layers": 4,
        "initializer_range": 0.3,
    }
    config = transformers.AlignConfig(
        text_config=_text(words),
        vision_config=vision,
        projection_dim=16,
        temperature_init_value=0.2,
    )
    torch.manual_seed(seed)
    model = _randomised(transformers.AlignModel(config), seed)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # statistics that training would have left
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    model.temperature.data.fill_(0.2)
    model.save_pretrained(path)
    words.save_pretrained(path)
    transformers.EfficientNetImageProcessor(size=SIZE, crop_size=SIZE).save_pretrained(path)
    return path


def write_timm(path, seed=0, **more):
    """A plain vision transformer of timm, as the hub holds it."""
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3}
    options |= {"num_heads": 2, "num_classes": 5, **more}
    torch.manual_seed(seed)
    model = _randomised(timm.create_model("vit_tiny_patch16_224", **options), seed)
    model.pretrained_cfg |= {"input_size": (3, 32, 32), "mean": (0.5, 0.4, 0.3)}
    save_for_hf(model, path, model_args=options, safe_serialization=True)
    return path


# The range that BLIP's config has by default, 1e-10, would leave every image the same.
SEEN = {"initializer_range": 0.02}


def write_blip(path, seed=0, **text):
    words = _bert()
    ids = {"bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0}
    config = transformers.BlipConfig(
        text_config=_text(words, encoder_hidden_size=24, **ids) | text,
        vision_config=_vision(**SEEN),
        image_text_hidden_size=16,
    )
    kind = transformers.BlipForImageTextRetrieval
    # Published files name a divisor that this processor does not use.
    processor = transformers.BlipImageProcessor(size=SIZE, size_divisor=32)
    return _saved(path, seed, kind, config, words, processor, 8.0)


def write_blip2(path, seed=0, **qformer):
    """BLIP-2 with BERT's special tokens, four queries, and cross-attention in two of its layers."""
    words = _bert()
    config = transformers.Blip2Config(
        qformer_config=_text(words, pad_token_id=0, use_qformer_text_input=True) | qformer,
        vision_config=_vision(**SEEN),
        text_config={"model_type": "opt"},
        num_query_tokens=4,
        image_text_hidden_size=12,
    )
    kind = transformers.Blip2ForImageTextRetrieval
    processor = transformers.BlipImageProcessor(size=SIZE)
    return _saved(path, seed, kind, config, words, processor, 8.0)


class BridgeTowerWithAll(transformers.BridgeTowerForContrastiveLearning):
    """Contrastive and matching heads, as in `bridgetower-large-itm-mlm-itc`."""

    def __init__(self, config):
        super().__init__(config)
        self.itm_score = transformers.BridgeTowerForImageAndTextRetrieval(config).itm_score
        self.post_init()


def write_bridgetower(path, seed=0, kind=BridgeTowerWithAll, width=64, **options):
    """BridgeTower with RoBERTa's special tokens: three blocks a tower, two of which are bridged."""
    words = _roberta(cls_token="<s>", sep_token="</s>")
    vision = {"hidden_size": 64, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8}
    fusion = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": width}
    itc = {"contrastive_hidden_size": 12, "logit_scale_init_value": 2.0}
    config = transformers.BridgeTowerConfig(
        text_config=_text(words, width, 14), vision_config=vision, **fusion | itc | options
    )
    edge = {"shortest_edge": 32}
    processor = transformers.BridgeTowerImageProcessor(size=edge, crop_size=edge, size_divisor=8)
    return _saved(path, seed, kind, config, words, processor, 4.0)


def write_vilt(path, seed=0, **options):
    """ViLT with BERT's special tokens, for images with a shorter side of 32 pixels."""
    words = _bert()
    config = transformers.ViltConfig(**_text(words), image_size=32, patch_size=8, **options)
    processor = transformers.ViltImageProcessor(size={"shortest_edge": 32}, size_divisor=8)
    kind = transformers.ViltForImageAndTextRetrieval
    return _saved(path, seed, kind, config, words, processor, 8.0)


ASKED = 'user : does this figure show " "? please answer yes or no . assistant there are two images'
ASKED += (
    " ( left and right ). now you have captions caption 1 2 ; indicate which corresponds to image"
)


def write_llava(path, seed=0, room=48, **language):
    """LLaVA with a language model that has room for 48 tokens of a question, with their image's."""
    asked = [word for word in dict.fromkeys(ASKED.split()) if word not in WORDS]
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    words = tokenizer(["<unk>", "<s>", "</s>", "<pad>", "<image>"], asked, "<s> $A", **named)
    words.add_tokens(["<image>"], special_tokens=True)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**_vision()),
        text_config=transformers.LlamaConfig(**_text(words, positions=room + 15) | language),
        image_token_index=4,
        image_seq_length=16,
    )
    kind = transformers.LlavaForConditionalGeneration
    return _saved(path, seed, kind, config, words, _clip_processor(), 5.0)
