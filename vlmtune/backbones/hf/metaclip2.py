"""MetaCLIP 2 of Hugging Face: CLIP trained on captions of the whole world's languages.

In: images and captions. Out: embeddings, tokens and states.
"""

from transformers import MetaClip2Model

from vlmtune.backbones.hf.hf_clip import HFCLIP


class MetaCLIP2(HFCLIP):
    """MetaCLIP 2 (Chuang et al. 2025, arXiv 2507.22062) as `transformers.MetaClip2Model` has it.

    It is a CLIP with a multilingual tokenizer (XLM-V, or mT5 for its small models), whose end token
    has a low id. It takes the arguments of `HFBackbone`. open_clip has the same weights:
    `OpenClip("ViT-H-14-worldwide-quickgelu", "metaclip2_worldwide")`.
    """

    kind = MetaClip2Model
    pools_highest = None
