"""A dual encoder as the folder that `sentence_transformers.SentenceTransformer` loads.

In: a backbone with its trained weights. Out: the folder. Never: a model that it would encode
differently; one is an error.
"""

from pathlib import Path
from typing import Any

from vlmtune.backbones.base import Backbone
from vlmtune.backbones.hf.hf_clip import HFCLIP
from vlmtune.backbones.hf.loading import quiet
from vlmtune.backbones.hf.siglip import SigLIP
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.errors import UserError, imported
from vlmtune.export.clip_twin import clip_twin
from vlmtune.export.hf_processing import hf_image_processor, hf_tokenizer


def save_sentence_transformers(folder: Path, backbone: Backbone) -> None:
    r"""Writes a `SentenceTransformer` of images and texts, whose embeddings have length 1.

    Its `encode` gives what `encode_image` and `encode_text` of vlmtune give, except for crops of
    open_clip (see `hf_image_processor`). The backbones are CLIP and SigLIP of transformers, and
    those of open_clip that `transformers.CLIPModel` computes too: a ViT with a class token and
    CLIP's text tower, with GELU or QuickGELU. Other backbones, and a missing package, raise
    `UserError`.
    """
    if not isinstance(backbone, HFCLIP | SigLIP | OpenClip):
        raise UserError(
            "expected HFCLIP, SigLIP or a CLIP of open_clip for sentence-transformers, got "
            f"{type(backbone).__name__}: use --merged without --format"
        )
    whole, module, normalize = _classes()
    tokenizer = hf_tokenizer(backbone)
    processor = hf_image_processor(backbone)
    network = clip_twin(backbone, tokenizer) if isinstance(backbone, OpenClip) else backbone.model
    options = {}
    if isinstance(backbone, SigLIP):
        # It was trained with all of the padding, and attends to it.
        text = {"padding": "max_length", "return_attention_mask": False}
        options = {"processing_kwargs": {"text": text}}
    with quiet():
        # Its module reads a folder of transformers.
        for part in (network, tokenizer, processor):
            part.save_pretrained(folder)
        transformer = module(str(folder), **options)
        model = whole(modules=[transformer, normalize()], device="cpu", similarity_fn_name="cosine")
        model.save_pretrained(str(folder), create_model_card=False)


def _classes() -> tuple[Any, Any, Any]:
    """The model of the library, and its modules that embed and that normalise."""
    fix = "pip install 'vlmtune[sentence-transformers]'"
    library = imported("sentence_transformers", "from 5.4 on", fix)
    # Earlier versions have their modules elsewhere.
    modules = imported("sentence_transformers.base.modules", "from 5.4 on", fix)
    return library.SentenceTransformer, modules.Transformer, modules.Normalize
