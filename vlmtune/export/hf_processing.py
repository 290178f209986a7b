"""The tokenizer and the image preprocessing of a backbone, as objects of transformers.

In: a backbone of open_clip or transformers. Out: what `save_pretrained` writes, for programs
without vlmtune. Never: an approximation; what transformers cannot express is an error.
"""

from typing import Any

from open_clip import SimpleTokenizer
from open_clip.tokenizer import get_clean_fn
from tokenizers import Regex, decoders, normalizers
from transformers import CLIPImageProcessorPil, CLIPTokenizer, PreTrainedTokenizerFast

from vlmtune.backbones.base import Backbone
from vlmtune.backbones.hf.backbone import HFBackbone
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.backbones.word_tokenizer import WordTokenizer
from vlmtune.errors import UserError

RESAMPLE = {"bilinear": 2, "bicubic": 3}  # numbers of PIL
CURLED = {"[\u02bc\u2018-\u201b]": "'", "[\u201c-\u201f]": '"'}


def hf_tokenizer(backbone: Backbone) -> Any:
    """Returns the tokenizer of a backbone; raises `UserError` if transformers cannot express it.

    It gives the ids that the backbone computes, except for captions with HTML entities, broken
    Unicode, ligatures or full-width letters, which open_clip replaces first.
    """
    if isinstance(backbone, HFBackbone):
        return backbone.portable_tokenizer()
    backbone = _of_open_clip(backbone)
    encode = backbone.tokenizer.encode
    if isinstance(encode, WordTokenizer):
        return encode.portable()
    if (
        not isinstance(encode, SimpleTokenizer)
        or encode.clean_fn is not get_clean_fn("lower")
        or encode.reduction_fn is not None
        # Tokens that were added to the vocabulary have no place in the file of merges.
        or len(encode.all_special_ids) != 2
    ):
        raise UserError(
            f"expected CLIP's tokenizer or a vocabulary.txt, got {type(encode).__name__} of "
            f"{backbone.title}, which has no file of transformers: use --merged without --format"
        )
    # In the order of their ranks, as the file of merges has them.
    merges: Any = list(encode.bpe_ranks)
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {names.get(token, token): number for token, number in encode.encoder.items()}
    length = encode.context_length
    clip = CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=length)
    # open_clip straightens quotation marks. A saved CLIPTokenizer forgets changes, this class not.
    backend = clip.backend_tokenizer
    straight = [normalizers.Replace(Regex(marks), mark) for marks, mark in CURLED.items()]
    backend.normalizer = normalizers.Sequence([*straight, backend.normalizer])
    spaces = decoders.Replace("</w>", " ")  # ends of words
    last_space = decoders.Strip(" ", 0, 1)
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), spaces, last_space])
    special = {name: str(token) for name, token in clip.special_tokens_map.items()}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=length, **special)


def hf_image_processor(backbone: Backbone) -> Any:
    """Returns the image processor of a backbone, or raises `UserError`.

    It gives the pixel values that the backbone computes, except for the crops of some images: where
    an odd number of pixels is cut, they may lie one pixel further left or up than open_clip's.
    """
    if isinstance(backbone, HFBackbone):
        return backbone.processing[1]
    settings: dict[str, Any] = _of_open_clip(backbone).preprocessing
    size = settings["size"]
    height, width = (size, size) if isinstance(size, int) else size
    mode = settings.get("resize_mode", "shortest")
    sampling = settings.get("interpolation", "bicubic")
    # CLIP's processor resizes the shorter side and crops, or resizes both sides.
    crops = mode == "shortest" and height == width
    if sampling not in RESAMPLE or not (crops or mode == "squash"):
        raise UserError(
            f"expected images resized by bicubic or bilinear sampling, squashed or cropped to a "
            f"square, got {sampling}, {mode} to {height} x {width}: use --merged without --format"
        )
    box = {"height": height, "width": width}
    size = {"shortest_edge": height} if crops else box
    return CLIPImageProcessorPil(
        size=size,
        do_center_crop=crops,
        crop_size=box,
        resample=RESAMPLE[sampling],
        image_mean=list(settings["mean"]),
        image_std=list(settings["std"]),
    )


def _of_open_clip(backbone: Backbone) -> OpenClip:
    if not isinstance(backbone, OpenClip):
        raise UserError(
            f"expected a backbone of open_clip or transformers, got {type(backbone).__name__}: "
            "use --out"
        )
    return backbone
