"""What an adapter is: the trained part, from the features of both modalities to scores.

Laws (tests/contracts/test_adapters.py holds every adapter to them): scores equal the backbone's own
at initialisation unless `identity_at_init` is False; only `requires_grad` parameters move; the
order of a batch does not matter; export and load change nothing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint
from typing_extensions import TypeVar

from vlmtune.backbones.base import Backbone
from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.types import Embedded, Features, FeatureSpec, Rows, Scores, Tokens

ImageT = TypeVar("ImageT", bound=Features, default=Any)
TextT = TypeVar("TextT", bound=Features, default=Any)
PreparedT = TypeVar("PreparedT", bound=Rows, default=Any)

CACHED = 64 * 2**20  # bytes; larger chunks are slower on a CPU
TOWERS = (
    "OpenClip with a plain vision transformer and open_clip's own text transformer, HFCLIP, "
    "SigLIP, Flava, Blip or BridgeTower"
)
"""Backbones with tokens of many layers, whose towers run block by block."""
EMBEDDING = "OpenClip, HFCLIP, SigLIP, Flava, Blip, or BridgeTower with its contrastive heads"
"""Backbones with an embedding of each image and of each text."""


class Adapter(Configured, nn.Module, ABC, Generic[ImageT, TextT]):
    """Scores images against texts from what it reads of the backbone.

    Attributes:
        image_input: The representation of images it reads.
        text_input: The representation of texts it reads.
        identity_at_init: True where the untrained adapter gives the backbone's own scores.
        joint: True where a score needs image and text together, so that pairs are chosen.
    """

    image_input: FeatureSpec
    text_input: FeatureSpec
    identity_at_init: ClassVar[bool] = True
    joint: ClassVar[bool] = False

    def attach(self, backbone: Backbone) -> None:
        """Makes the layers to fit the backbone's widths. Called once, before training or loading.

        Raises:
            UserError: The backbone cannot give what the adapter reads.
        """
        for modality, reads in (("image", self.image_input), ("text", self.text_input)):
            if reason := backbone.fits(reads, modality):
                pooled = reads.kind == "pooled"
                what = "embeddings" if pooled else f"{reads.kind} of layer {reads.layer}"
                raise UserError(
                    f"expected a backbone with {what} for {modality}s, got "
                    f"{type(backbone).__name__} ({reason}): choose "
                    f"{EMBEDDING if pooled else TOWERS}"
                    + ("" if backbone.fusion is None else "; or the adapter Matching")
                )

    def lr_scales(self) -> list[tuple[nn.Parameter, float]]:
        """Factors on the learning rate, once attached; parameters not named have 1."""
        return []

    @abstractmethod
    def forward(
        self, image: ImageT, text: TextT, pairs: Bool[Tensor, "N M"] | None = None
    ) -> Scores:
        """Scores N images against M texts; with `pairs`, at least those pairs."""


class DualAdapter(Adapter[ImageT, TextT]):
    r"""An adapter with one embedding per image and one per text.

    $s_{ij} = e^{\tau} \cos(f(v_i), g(t_j)) + b$ with $f$, $g$ from the subclass, $\tau$ starting at
    the backbone's temperature, and $b = 0$ unless the subclass learns it.

    Attributes:
        gives_tokens: True where `embed_patches` and `embed_words` are given, for objectives that
            compare tokens.
    """

    gives_tokens: ClassVar[bool] = False

    def attach(self, backbone: Backbone) -> None:
        """Takes over the temperature of the backbone."""
        super().attach(backbone)
        scale = torch.tensor(math.log(backbone.logit_scale))
        self.log_scale = nn.Parameter(scale, requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(()), requires_grad=False)

    def set_scale(self, learned: bool, initial: float | None = None) -> None:
        r"""Says whether $\tau$ and $b$ are trained and, unless None, what $e^{\tau}$ is at first.

        Raises:
            UserError: `initial` is not above 0.
        """
        if initial is not None:
            self.log_scale.data.fill_(log_of_scale(initial))
        self.log_scale.requires_grad_(learned)
        self.bias.requires_grad_(learned)

    @abstractmethod
    def embed_image(self, image: ImageT) -> Float[Tensor, "n d"]:
        """Embeds images; need not be normalised."""

    @abstractmethod
    def embed_text(self, text: TextT) -> Float[Tensor, "n d"]:
        """Embeds texts; need not be normalised."""

    def embed_patches(self, image: Tokens) -> Tokens:
        """Embeds patch tokens in the shared space (n, t, d), where `gives_tokens` is True."""
        raise NotImplementedError

    def embed_words(self, text: Tokens) -> Tokens:
        """Embeds word tokens in the shared space (n, t, d), where `gives_tokens` is True."""
        raise NotImplementedError

    def forward(
        self, image: ImageT, text: TextT, pairs: Bool[Tensor, "N M"] | None = None
    ) -> Scores:
        """Scores every pair with one matrix product."""
        del pairs
        return self.scores(self.embed_image(image), self.embed_text(text))

    def scores(self, image: Float[Tensor, "N d"], text: Float[Tensor, "M d"]) -> Scores:
        """Scores embedded images against embedded texts, with what the scores are made of."""
        values = self.compare(image, text)
        embedded = Embedded(normalize(image, dim=-1), normalize(text, dim=-1), self.log_scale.exp())
        return Scores(values, torch.ones_like(values, dtype=torch.bool), embedded)

    def compare(
        self, image: Float[Tensor, "N d"], text: Float[Tensor, "M d"]
    ) -> Float[Tensor, "N M"]:
        """Scores embedded images against embedded texts."""
        cosines = normalize(image, dim=-1) @ normalize(text, dim=-1).transpose(0, 1)
        return self.log_scale.exp() * cosines + self.bias

    def compare_pairs(
        self, image: Float[Tensor, "P d"], text: Float[Tensor, "P d"]
    ) -> Float[Tensor, "P"]:
        """Scores embedded image i against embedded text i: the diagonal of `compare`."""
        cosines = (normalize(image, dim=-1) * normalize(text, dim=-1)).sum(dim=-1)
        return self.log_scale.exp() * cosines + self.bias


class JointAdapter(Adapter[ImageT, TextT], Generic[ImageT, TextT, PreparedT]):
    """An adapter that reads image and text together: chosen pairs are scored in chunks.

    What depends on one modality alone goes into `prepare_image` and `prepare_text`, which run once
    per image and once per text; `score_pairs` runs once per pair. Chunks bound memory and never
    change a score. In training, activations of the first chunks are kept until `training_memory`
    is full; those of later ones are computed again in the backward pass, dropout included.

    Attributes:
        chunk: How many pairs `score_pairs` gets at a time; None for what `memory` has room for, or
            1,024 where `pair_bytes` is not known.
        memory: Bytes that scoring a chunk may take. Outside training a CPU takes no more than
            64 MiB of it, which its caches serve faster.
        training_memory: Bytes of activations that may be kept for the backward pass.
    """

    joint: ClassVar[bool] = True
    identity_at_init: ClassVar[bool] = False
    chunk: int | None = None
    memory: int = 512 * 2**20
    training_memory: int = 3 * 2**30

    @abstractmethod
    def prepare_image(self, image: ImageT) -> PreparedT:
        """The part of the computation that needs images only."""

    @abstractmethod
    def prepare_text(self, text: TextT) -> PreparedT:
        """The part of the computation that needs texts only."""

    @abstractmethod
    def score_pairs(self, image: PreparedT, text: PreparedT) -> Float[Tensor, "P"]:
        """Scores image i against text i for each of the P rows."""

    def pair_bytes(self, image: PreparedT, text: PreparedT, training: bool) -> int:
        """Estimates the bytes that `score_pairs` takes for one pair; 0 where that is not known.

        Args:
            image: Prepared images.
            text: Prepared texts; the pair is as long as the longest of them.
            training: Bytes kept for the backward pass, rather than needed at one time without one.
        """
        del image, text, training
        return 0

    def forward(
        self, image: ImageT, text: TextT, pairs: Bool[Tensor, "N M"] | None = None
    ) -> Scores:
        """Scores the chosen pairs (all without `pairs`)."""
        if pairs is None:
            pairs = torch.ones(len(image), len(text), dtype=torch.bool, device=image.device)
        images, texts = self.prepare_image(image), self.prepare_text(text)
        rows, columns = pairs.nonzero(as_tuple=True)
        # Captions of one length together, so that a chunk of short captions stays short.
        order = texts.lengths[columns].argsort(stable=True)
        rows, columns = rows[order], columns[order]
        scores = self._scores(images, texts, rows, columns)
        flat = torch.cat(scores) if scores else torch.zeros(0, device=pairs.device)
        values = torch.zeros(pairs.shape, dtype=flat.dtype, device=pairs.device)
        return Scores(values.index_put((rows, columns), flat), pairs)

    def _scores(
        self, image: PreparedT, text: PreparedT, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> list[Tensor]:
        """Scores the pairs (row of `image`, row of `text`), chunk by chunk."""
        training = torch.is_grad_enabled()
        needed = self.pair_bytes(image, text, training)
        cached = rows.device.type == "cpu" and not training
        memory = min(self.memory, CACHED) if cached else self.memory
        size = self.chunk or (max(1, memory // needed) if needed else 1024)
        kept = size * needed if training else 0
        scores, held = [], 0
        for i in range(0, len(rows), size):
            held += kept
            chunk = (image, text, rows[i : i + size], columns[i : i + size])
            if held > self.training_memory:
                scores.append(checkpoint(self._score_chunk, *chunk, use_reentrant=False))
            else:
                scores.append(self._score_chunk(*chunk))
        return scores

    def _score_chunk(
        self, image: PreparedT, text: PreparedT, rows: Int[Tensor, "P"], columns: Int[Tensor, "P"]
    ) -> Float[Tensor, "P"]:
        return self.score_pairs(_gather(image, rows), _gather(text, columns))


def _gather(prepared: PreparedT, rows: Int[Tensor, "P"]) -> PreparedT:
    """The chosen rows, cut to the longest of them before they are copied."""
    prepared = prepared.cut(int(prepared.lengths[rows].max()))
    # Not by [rows], whose gradient is added up in one thread.
    return prepared.map(lambda tensor: tensor.index_select(0, rows))


def log_of_scale(initial: float) -> float:
    r"""Returns $\tau$ of an initial scale $e^{\tau}$.

    Raises:
        UserError: It is not above 0.
    """
    if not 0 < initial < math.inf:
        raise UserError(f"expected an initial scale above 0, got {initial}: correct it")
    return math.log(initial)


def trained_state(backbone: Backbone, adapter: Adapter) -> dict[str, Tensor]:
    """Everything training changes and nothing else: the adapter, and unfrozen backbone weights.

    Keys are `adapter.<name>` and `backbone.<name>`; frozen backbone weights are never among them.
    """
    state = {f"adapter.{name}": value for name, value in adapter.state_dict().items()}
    for name, parameter in backbone.named_parameters():
        if parameter.requires_grad:
            state[f"backbone.{name}"] = parameter.data
    return state


def load_trained_state(
    backbone: Backbone, adapter: Adapter, state: Mapping[str, Tensor], source: str
) -> None:
    """Puts a `trained_state` back, strict both ways: no name and no shape may differ.

    Args:
        backbone: The backbone the adapter is attached to.
        adapter: The adapter, attached.
        state: What `trained_state` gave.
        source: Where it came from, for the error.

    Raises:
        UserError: A name is missing or unknown, or a shape differs.
    """
    own = trained_state(backbone, adapter)
    wrong = sorted(own.keys() ^ state.keys()) or sorted(
        name for name in own if own[name].shape != state[name].shape
    )
    if wrong:
        raise UserError(
            f"expected weights of {type(adapter).__name__} on {type(backbone).__name__} in "
            f"{source}, got other names or shapes at {len(wrong)} places, first {wrong[0]!r}: "
            "use the config the checkpoint was trained with"
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(state[name])
