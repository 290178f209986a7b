"""BLIP-2 with its matching head, and with its contrastive heads.

In: images and captions. Out: log-odds or cosines of pairs.
"""

from functools import partial
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import Blip2ForImageTextRetrieval
from typing_extensions import override

from vlmtune.backbones.base import Abilities, Fusion
from vlmtune.backbones.hf.backbone import HFDualEncoder
from vlmtune.backbones.hf.blip import BlipImageTower, embed_pixels
from vlmtune.backbones.hf.loading import Loaded
from vlmtune.backbones.hf.towers import (
    BertTextTower,
    HFImageTower,
    HFTextTower,
    HFTokenizer,
    hide_padding,
    log_odds,
    vision_tower,
)
from vlmtune.backbones.staging import States, parameters_of, repeated, side_by_side, unmasked
from vlmtune.types import FeatureSpec, Tokens

TEMPERATURE = 0.07  # at the start of pre-training; the library's checkpoints lack what it became


class Blip2(HFDualEncoder):
    r"""BLIP-2 (Li et al. 2023, arXiv 2301.12597) as `transformers.Blip2ForImageTextRetrieval`.

    A vision transformer and, on top of it, the Q-Former: a BERT whose learned queries attend to the
    image. The vision transformer runs once per image and a caption is tokenized and embedded once.

    ITM: the Q-Former reads the queries and the caption together, once per pair; the score is the
    mean over the queries of the matching head's log-odds.

    ITC: the Q-Former reads the queries once per image and the caption once. The score is
    $\frac{1}{0.07} \max_q \cos(v_q, t)$ over the queries q. An image has no single embedding, so
    adapters that need one refuse it.

    Tokens of texts are those of the Q-Former on the caption alone; it stays in float32 whatever the
    precision. It also takes the arguments of `HFBackbone`.

    Args:
        score: Which of the two is the `fusion`: "itm", which the adapter `Matching` also trains,
            or "itc", which has nothing to train there.
    """

    kind = Blip2ForImageTextRetrieval
    abilities = Abilities(tokens=True, matching=True)

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        precision: Literal["fp32", "bf16"] = "fp32",
        score: Literal["itm", "itc"] = "itm",
        image_size: int | None = None,
        peft: str | None = None,
    ) -> None:
        self.score = score
        super().__init__(model, revision, precision, image_size, peft)

    @override
    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        vision = self.model.vision_model
        model = self.model
        queries = model.config.num_query_tokens
        self.no_pooled = f"it embeds each of {queries} queries of an image, not the image"
        embed = partial(embed_pixels, vision)
        head = nn.Identity()  # an image has no embedding
        image_tower = vision_tower(vision, head, self._dtype, embed, kind=BlipImageTower)
        table = model.embeddings.position_embeddings
        text_tower = QFormerTextTower(
            tokenizer=HFTokenizer(loaded.tokenizer, table.num_embeddings),
            embedding=model.embeddings.word_embeddings,
            table=table,
            block_list=model.qformer.encoder.layer,
            final_norm=nn.Identity(),
            projection=model.text_projection,
            # The Q-Former stays in float32 whatever the precision of the vision transformer.
            dtype=model.qformer.layernorm.weight.dtype,
            embeddings=model.qformer,
        )
        return image_tower, text_tower

    @override
    def assemble(self, loaded: Loaded) -> None:
        super().assemble(loaded)
        self.image_tower = self.text_tower = None  # a tower ends in embeddings
        kind = {"itm": QFormerITM, "itc": QFormerITC}[self.score]
        self.fusion = kind(self.model, self._image, self._text)

    @override
    def temperature(self) -> tuple[float, float]:
        return 1 / TEMPERATURE, 0.0


class QFormerTextTower(BertTextTower):
    """The Q-Former on captions, without queries and so without cross-attention."""

    @override
    def embed(self, tokens: States) -> States:
        positions = self.table.weight[: tokens.shape[1]]
        return read_in(self.embeddings, tokens + positions)


class QFormerFusion(Fusion):
    """The Q-Former on an image and a caption, after the vision transformer."""

    image_input = FeatureSpec("state", -1)
    text_input = FeatureSpec("words")

    def __init__(self, model: Any, image: HFImageTower, text: HFTextTower) -> None:
        self._model = model
        self._image = image
        self._text = text
        self._layers = list(model.qformer.encoder.layer)
        self._dtype = model.qformer.layernorm.weight.dtype
        self.blocks = []
        self.tail = []

    def queries(self) -> Tokens:
        """The learned queries as the first layer takes them: one row, for every image."""
        tokens = read_in(self._model.qformer, self._model.query_tokens)
        return unmasked(tokens)

    def read(self, image: Tokens, tokens: Tokens) -> Float[Tensor, "P t w"]:
        """Runs the Q-Former on tokens that begin with the queries, and returns the queries."""
        count = self._model.query_tokens.shape[1]
        patches = image.values.to(self._dtype)
        states = tokens.values.to(self._dtype)
        mask = hide_padding(tokens.mask, self._dtype)
        for layer in self._layers:
            states = layer(states, mask, patches, query_length=count)
        return states[:, :count]


class QFormerITM(QFormerFusion):
    """Queries and caption together, with the matching head."""

    reuses_image = True  # its keys and values of cross-attention

    def __init__(self, model: Any, image: HFImageTower, text: HFTextTower) -> None:
        super().__init__(model, image, text)
        *early, last = self._layers
        self.blocks = [_parts(layer, with_words=True) for layer in early]
        # After the last layer no word is read.
        self.blocks.append(_parts(last, with_words=False))
        self.tail = parameters_of(model.itm_head)

    @override
    def prepare_image(self, image: Tokens) -> Tokens:
        return self._image.norm(image)

    @override
    def prepare_text(self, text: Tokens) -> Tokens:
        return self._text.start(text)

    @override
    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        head = self._model.itm_head
        joined = side_by_side(self.queries(), text)
        read = self.read(image, joined)
        logits = head(read.to(head.weight.dtype))
        # Each query gives its own logits; the library takes their mean.
        return log_odds(logits.mean(dim=1))

    @override
    def cls_outputs(self, image: Tokens, text: Tokens) -> Float[Tensor, "P w"]:
        """The mean of the queries, as the head's logits are means over them."""
        joined = side_by_side(self.queries(), text)
        return self.read(image, joined).mean(dim=1)


class QFormerITC(QFormerFusion):
    """Queries and caption apart: the largest cosine of a query with the caption."""

    @override
    def prepare_image(self, image: Tokens) -> Tokens:
        image = self._image.norm(image)
        # Every image is read by the same queries.
        queries = repeated(self.queries(), len(image))
        read = self.read(image, queries)
        return self._projected(self._model.vision_projection, read)

    @override
    def prepare_text(self, text: Tokens) -> Tokens:
        start = self._text.start(text)
        state = self._text.run(start, 0, self._text.layers)
        return self._projected(self._model.text_projection, state.values[:, :1])

    @override
    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        cosines = image.values @ text.values.mT
        return cosines[:, :, 0].amax(dim=1) / TEMPERATURE

    def _projected(self, projection: nn.Linear, tokens: States) -> Tokens:
        projected = projection(tokens.to(projection.weight.dtype))
        return unmasked(normalize(projected, dim=-1))


def read_in(qformer: Any, tokens: States) -> States:
    """The Q-Former's norm before its first layer."""
    norm = qformer.layernorm
    normed = norm(tokens.to(norm.weight.dtype))
    return qformer.dropout(normed)


def _parts(layer: Any, with_words: bool) -> nn.Module:
    """The parts of a layer that a score depends on, `with_words` if words are read after it.

    Training a parameter that no score depends on would stop DDP, which waits for its gradient.
    """
    parts = [layer.attention]
    if layer.has_cross_attention:
        parts.append(layer.crossattention)
    parts += [layer.intermediate_query, layer.output_query]
    if with_words:
        parts += [layer.intermediate, layer.output]
    return nn.ModuleList(parts)
