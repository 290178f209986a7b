"""What an adapter is: the trained part, from the features of both modalities to scores.

In: features, as `image_input` and `text_input` describe them. Out: `Scores` of all or chosen pairs.
Never: encoding; features come from a backbone or from a store.

Laws (tests/contracts/test_adapters.py): scores equal the backbone's own at initialisation unless
`identity_at_init` is False; only parameters that require a gradient change; the order of a batch
does not matter; export and load change nothing.
"""

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, ClassVar, Generic, cast

import torch
from annotated_types import Ge, Gt, Le, Lt
from jaxtyping import Bool, Float, Int
from pydantic import AllowInfNan
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint
from typing_extensions import TypeVar, override

from vlmtune.backbones.advice import backbones_with
from vlmtune.backbones.base import Ability, Backbone
from vlmtune.config import Configured
from vlmtune.errors import UserError, expect
from vlmtune.types import (
    Embedded,
    Features,
    FeatureSpec,
    Pooled,
    Rows,
    Scores,
    Tokens,
    concatenate,
    positions,
    send,
)

ImageT = TypeVar("ImageT", bound=Features, default=Any)
TextT = TypeVar("TextT", bound=Features, default=Any)
PreparedT = TypeVar("PreparedT", bound=Rows, default=Any)

PairMask = Bool[Tensor, "N M"]
PairScores = Float[Tensor, "P"]  # one for each pair of rows
Numbers = Int[Tensor, "P"]
"""The row of the image, or of the text, of each of P pairs, on the CPU."""
Vectors = Float[Tensor, "n d"]
"""An embedding of each of n images or texts."""
Dropout = Annotated[float, Ge(0), Lt(1)]
"""The probability with which a number is left out in training."""
Decay = Annotated[float, Gt(0), Le(1)]
"""The factor on the learning rate from a block of a tower to the block below."""
Scale = Annotated[float, Gt(0), AllowInfNan(False)]
"""A factor on cosines."""
EarlyLayer = Annotated[int, Le(-2)]
"""A layer whose tower has blocks left to run, counted from the end."""
TEXT_GROUPS = 4  # groups of texts of similar length
TEXT_GROUP = 32  # texts in each group at least
REUSE_FROM = 4  # texts an image from which scoring image by image pays
IMAGE_FEATURES = "backbone.encode_image(pixels, adapter.image_input)"  # what errors advise
TEXT_FEATURES = "backbone.encode_text(texts, adapter.text_input)"
CPU_CHUNK = 64 * 2**20  # bytes; outside training, larger chunks are slower on a CPU
# Bytes of a chunk and of kept activations: on a CPU, and as fractions of a GPU's memory.
CHUNK, GPU_CHUNK = 512 * 2**20, 1 / 16
KEPT, GPU_KEPT = 3 * 2**30, 1 / 2
UNKNOWN_SIZE = 1024  # pairs in a chunk, if the bytes of a pair are unknown


class Adapter(Configured, nn.Module, ABC, Generic[ImageT, TextT]):
    """Scores images against texts from features of a backbone.

    Attributes:
        image_input: The image features it takes.
        text_input: The text features it takes.
        identity_at_init: True if the untrained adapter gives the backbone's own scores.
        joint: True if a score needs image and text together, so that pairs are chosen.
    """

    image_input: FeatureSpec
    text_input: FeatureSpec
    identity_at_init: ClassVar[bool] = True
    joint: ClassVar[bool] = False

    def attach(self, backbone: Backbone) -> None:
        """Makes the layers, in the backbone's widths. Called once, before training or loading."""
        inputs = {"image": self.image_input, "text": self.text_input}
        for modality, spec in inputs.items():
            reason = backbone.fits(spec, modality)
            if not reason:
                continue
            # A state is read by a tower, which runs the blocks after it.
            ability = {"pooled": "embeddings", "tokens": "tokens"}.get(spec.kind)
            wanted = f"{spec.kind} of layer {spec.layer}"
            if spec.kind == "pooled":
                wanted = "embeddings"
            choice = backbones_with(cast(Ability, ability or f"{modality}_tower"))
            if backbone.fusion is not None:
                choice += "; or the adapter Matching"
            raise UserError(
                f"expected a backbone with {wanted} for {modality}s, got "
                f"{type(backbone).__name__} ({reason}): choose {choice}"
            )

    @property
    def scoring(self) -> "Adapter":
        """The adapter that evaluation scores with: this one, unless it has another inside."""
        return self

    def lr_scales(self) -> list[tuple[nn.Parameter, float]]:
        """Factors on the learning rate, once attached; parameters not named have 1."""
        return []

    @override
    def __call__(self, image: Any, text: Any, pairs: PairMask | None = None) -> Scores:
        expect(_kind(self.image_input), image, IMAGE_FEATURES)
        expect(_kind(self.text_input), text, TEXT_FEATURES)
        return super().__call__(image, text, pairs)

    @abstractmethod
    def forward(self, image: ImageT, text: TextT, pairs: PairMask | None = None) -> Scores:
        """Scores N images against M texts; with `pairs`, at least those pairs."""


class DualAdapter(Adapter[ImageT, TextT]):
    r"""An adapter with one embedding per image and one per text.

    $s_{ij} = e^{\tau} \cos(f(v_i), g(t_j)) + b$ with $f$, $g$ from the subclass.

    Args:
        learn_scale: Whether $\tau$ and $b$ are trained, which a sigmoid loss needs.
        initial_scale: $e^{\tau}$ at the start, or None for the backbone's.
        initial_bias: $b$ at the start, or None for the backbone's. A sigmoid loss needs a value
            below 0 if the learning rate is too small to move $b$ far.

    Attributes:
        gives_tokens: True if it also has `embed_patches` and `embed_words`, from `Tokens` to tokens
            in the shared space (n, t, d), for objectives that compare tokens.
    """

    gives_tokens: ClassVar[bool] = False

    def __init__(
        self,
        learn_scale: bool = False,
        initial_scale: Scale | None = None,
        initial_bias: float | None = 0.0,
    ) -> None:
        super().__init__()
        self.learn_scale = learn_scale
        self.initial_scale = initial_scale
        self.initial_bias = initial_bias

    @override
    def attach(self, backbone: Backbone) -> None:
        super().attach(backbone)
        scale = backbone.logit_scale if self.initial_scale is None else self.initial_scale
        bias = backbone.logit_bias if self.initial_bias is None else self.initial_bias
        # The logarithm is trained, so that the scale stays positive.
        log_scale = torch.tensor(math.log(scale))
        self.log_scale = nn.Parameter(log_scale, self.learn_scale)
        self.bias = nn.Parameter(torch.tensor(float(bias)), self.learn_scale)

    @property
    def scale(self) -> Float[Tensor, ""]:
        r"""The factor on cosines, $e^{\tau}$."""
        return self.log_scale.exp()

    def embed_image(self, image: ImageT) -> Vectors:
        """Embeds images, by default with the backbone's embeddings; need not be normalised."""
        return expect(Pooled, image, IMAGE_FEATURES).values

    def embed_text(self, text: TextT) -> Vectors:
        """Embeds texts, by default with the backbone's embeddings; need not be normalised."""
        return expect(Pooled, text, TEXT_FEATURES).values

    @override
    def forward(self, image: ImageT, text: TextT, pairs: PairMask | None = None) -> Scores:
        images = self.embed_image(image)
        texts = self.embed_text(text)
        return self.scores(images, texts)

    def scores(self, image: Float[Tensor, "N d"], text: Float[Tensor, "M d"]) -> Scores:
        """Scores embedded images against embedded texts; the result holds the embeddings."""
        values = self.compare(image, text)
        return Scores.full(values, Embedded(unit(image), unit(text), self.scale))

    def compare(
        self, image: Float[Tensor, "N d"], text: Float[Tensor, "M d"]
    ) -> Float[Tensor, "N M"]:
        """Scores embedded images against embedded texts."""
        cosines = inner_products(unit(image), unit(text))
        return self.scale * cosines + self.bias

    def compare_pairs(self, image: Float[Tensor, "P d"], text: Float[Tensor, "P d"]) -> PairScores:
        """Scores embedded image i against embedded text i: the diagonal of `compare`."""
        cosines = (unit(image) * unit(text)).sum(dim=-1)
        return self.scale * cosines + self.bias


def inner_products(image: Float[Tensor, "N d"], text: Float[Tensor, "M d"]) -> Float[Tensor, "N M"]:
    """The products of all rows, in mixed precision too in 32 bits: bf16 has steps of 1/8 at 30."""
    with without_autocast(image.device):
        return full_precision(image) @ full_precision(text).mT


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Computes in the types of the values, in mixed precision too."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def unit(vectors: Vectors) -> Vectors:
    """The vectors at length 1, in 32 bits: objectives multiply them, too."""
    return normalize(full_precision(vectors), dim=-1)


def full_precision(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The values in 32 bits, or in 64 if they have them."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


class JointAdapter(Adapter[ImageT, TextT], Generic[ImageT, TextT, PreparedT]):
    """An adapter that reads image and text together: chosen pairs are scored in chunks.

    Computation on one modality alone goes into `prepare_image` and `prepare_text`, which run once
    per image and once per text; `score_pairs` runs once per pair. Chunks bound memory and never
    change a score. In training, activations beyond `training_memory` are recomputed in the backward
    pass, dropout included, which takes a third more time.

    Attributes:
        memory: Bytes that scoring a chunk may take; None for 512 MiB, on a GPU a sixteenth of its
            memory. Outside training a CPU takes at most 64 MiB, to make use of its caches. A chunk
            has 1,024 pairs if the bytes of a pair are unknown.
        training_memory: Bytes of activations kept for the backward pass; None for 3 GiB, on a GPU
            half of its memory.
        broadcasts_image: True if `score_pairs` takes a single prepared image for all P texts.
        broadcasts_text: True if it takes a single prepared text for all P images.
        gives_reading: True if it has `reading`, for pictures of what each word reads.
    """

    joint: ClassVar[bool] = True
    identity_at_init: ClassVar[bool] = False
    memory: int | None = None
    training_memory: int | None = None
    broadcasts_image: bool = False
    broadcasts_text: bool = False
    gives_reading: bool = False

    @abstractmethod
    def prepare_image(self, image: ImageT) -> PreparedT:
        """Computes what needs images only."""

    @abstractmethod
    def prepare_text(self, text: TextT) -> PreparedT:
        """Computes what needs texts only."""

    @abstractmethod
    def score_pairs(self, image: PreparedT, text: PreparedT) -> PairScores:
        """Scores image i against text i for each of the P rows."""

    def recall_image(self, image: PreparedT) -> Vectors | None:
        """Vectors whose product with those of `recall_text` approximates the score, if any."""

    def recall_text(self, text: PreparedT) -> Float[Tensor, "m d"] | None:
        """The same of texts, up to a constant of each text."""

    def reading(self, image: PreparedT, text: PreparedT) -> Float[Tensor, "P words patches"]:
        """How much each token of text i reads each patch of image i, where `gives_reading` is True.

        Weights from 0, which sum to 1 over the patches: row by row from the top, without class
        tokens. The tokens are the text's, special tokens included.
        """
        raise NotImplementedError

    def pair_bytes(self, image: PreparedT, text: PreparedT, training: bool) -> int:
        """Estimates the bytes that `score_pairs` takes for the longest prepared pair; 0: unknown.

        With `training` these are the bytes kept for the backward pass, else the peak without one.
        """
        return 0

    @override
    def forward(self, image: ImageT, text: TextT, pairs: PairMask | None = None) -> Scores:
        if pairs is None:
            pairs = torch.ones(len(image), len(text), dtype=torch.bool)
        # Positions stay on the CPU, which needs their number; rows are taken by copies of them.
        device = image.device
        known = pairs.cpu()
        computed = send(pairs, device)
        rows, columns = positions(known, "cpu")
        if not len(rows):
            values = torch.zeros(pairs.shape, device=device)
            if torch.is_grad_enabled() and pairs.numel():
                # DDP waits for a gradient of each weight from each rank, so one pair gives zeros.
                one_pair = torch.zeros_like(known)
                one_pair[0, 0] = True
                scores = self(image, text, one_pair)
                values = 0 * scores.values
            return Scores(values, computed, noted_computed=known)
        # Captions of one length together, so that a chunk of short captions stays short: `used` are
        # the chosen texts by length, and pair p reads text `which[p]` of them.
        used, position = columns.unique(return_inverse=True)
        by_length = text.lengths[used].argsort(stable=True)
        used = used[by_length]
        which = by_length.argsort()[position]
        order = which.argsort(stable=True)
        rows = rows[order]
        columns = columns[order]
        images = self.prepare_image(image)
        texts = self._texts(text, used)
        chunks = self._scores(images, texts, rows, which[order])
        scores = torch.cat(chunks)
        values = torch.zeros(pairs.shape, dtype=scores.dtype, device=device)
        pair_rows, pair_columns = send(torch.stack([rows, columns]), device)
        values = values.index_put((pair_rows, pair_columns), scores)
        return Scores(values, computed, noted_computed=known)

    def _texts(self, text: TextT, used: Int[Tensor, "U"]) -> PreparedT:
        """Prepares the chosen texts, ordered by length, in a few groups without much padding."""
        # Few groups keep calls large, sorted lengths keep padding small.
        size = max(TEXT_GROUP, math.ceil(len(used) / TEXT_GROUPS))
        prepared = [self.prepare_text(text.take(rows)) for rows in used.split(size)]
        return concatenate(prepared)

    def _scores(
        self, image: PreparedT, text: PreparedT, rows: Numbers, columns: Numbers
    ) -> list[Tensor]:
        """Scores the pairs (row of `image`, row of `text`), chunk by chunk."""
        training = torch.is_grad_enabled()
        # Copying an image for each of its texts costs more than calling once an image.
        many = len(rows) >= REUSE_FROM * len(rows.unique())
        if self.broadcasts_image and many and not training:
            return self._scores_by_image(image, text, rows, columns)
        pair_bytes = self.pair_bytes(image, text, training)
        size = self.chunk_size(pair_bytes, image.device, training)
        kept = _memory(self.training_memory, image.device, KEPT, GPU_KEPT)
        scores = []
        # `checkpoint` keeps the random state of the devices whose tensors it is given.
        anchor = torch.empty(0, device=image.device)
        held = 0  # bytes of activations that the backward pass needs
        chunks = zip(rows.split(size), columns.split(size), strict=True)
        for chunk_rows, chunk_columns in chunks:
            chunk = (image, text, chunk_rows, chunk_columns)
            held += size * pair_bytes
            if training and held > kept:
                scores.append(checkpoint(self._score_anchored, anchor, *chunk, use_reentrant=False))
            else:
                scores.append(self._score_chunk(*chunk))
        return scores

    def _scores_by_image(
        self, image: PreparedT, text: PreparedT, rows: Numbers, columns: Numbers
    ) -> list[Tensor]:
        """Scores the pairs image by image, without a copy of the image for each text."""
        # By image, and captions of one image stay ordered by length. Scores are put back into the
        # order of the pairs at the end.
        order = rows.argsort(stable=True)
        # One group of pairs for each image, split by memory.
        _, counts = rows.unique(return_counts=True)
        scores = []
        for pairs in order.split(counts.tolist()):
            single = image.take(rows[pairs[:1]])
            pair_bytes = self.pair_bytes(single, text, False)
            size = self.chunk_size(pair_bytes, image.device, training=False)
            for chunk in columns[pairs].split(size):
                captions = text.take(chunk)
                scores.append(self.score_pairs(single, captions))
        back = order.argsort()
        return [torch.cat(scores)[back]]

    def chunk_size(self, pair_bytes: int, device: torch.device, training: bool) -> int:
        """How many pairs of `pair_bytes` are scored at a time on a device."""
        if not pair_bytes:
            return UNKNOWN_SIZE
        memory = _memory(self.memory, device, CHUNK, GPU_CHUNK)
        if device.type == "cpu" and not training:
            # A CPU is fastest where a chunk stays in its caches.
            memory = min(memory, CPU_CHUNK)
        return max(1, memory // pair_bytes)

    def _score_chunk(
        self, image: PreparedT, text: PreparedT, rows: Numbers, columns: Numbers
    ) -> PairScores:
        return self.score_pairs(image.take(rows), text.take(columns))

    def _score_anchored(self, anchor: Tensor, *chunk: Any) -> PairScores:
        del anchor
        return self._score_chunk(*chunk)


def _memory(given: int | None, device: torch.device, on_cpu: int, of_gpu: float) -> int:
    """The given bytes, or by default those on a CPU or a fraction of a GPU's memory."""
    if given is not None:
        return given
    if device.type != "cuda":
        return on_cpu
    return int(of_gpu * torch.cuda.get_device_properties(device).total_memory)


def _kind(spec: FeatureSpec) -> type[Features]:
    return Pooled if spec.kind == "pooled" else Tokens
