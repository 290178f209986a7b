"""Images and texts to scores: what benchmarks, reports and exported models call."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlmtune.adapters.base import Adapter, DualAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.evaluation.encoding import Bank, Encoder, Modality, Picture
from vlmtune.evaluation.request import Request, requested
from vlmtune.features.files import DType, progress
from vlmtune.features.store import MemoryStore
from vlmtune.types import Features, FeatureSpec, Pooled

__all__ = ["Picture", "Scorer"]

NUMBERS = 2**24
"""How many scores, or numbers of embeddings laid out by pair, are on the device at a time."""


class Scorer:
    """Scores images against texts with a backbone and an adapter.

    However often an image, a caption or a pair occurs, it is encoded and scored once: frozen
    representations stay in the feature store, or without one in memory from call to call; live ones
    are encoded anew in each call, or once within a `session`. Images are told apart by their
    content. A dual adapter embeds each image and each text, then compares the pairs that are asked
    for; a joint one scores those pairs block by block.

    Where `torch.distributed` is initialised the work is split over the ranks, every rank must make
    the same calls, and every rank returns all scores (or raises what one rank raised).

    Args:
        backbone: The backbone.
        adapter: The adapter, attached to the backbone.
        store: Folder of feature stores, or None to keep features in memory.
        batch_size: Images, or texts, encoded at a time.
        dtype: The type features are stored as on disk.

    Raises:
        UserError: `batch_size` is below 1 or `dtype` is none a store has.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: Adapter,
        store: Path | None = None,
        batch_size: int = 256,
        dtype: DType = "float32",
    ) -> None:
        if batch_size < 1:
            raise UserError(f"expected a batch_size of at least 1, got {batch_size}: raise it")
        if dtype not in get_args(DType):
            raise UserError(f"expected dtype {get_args(DType)}, got {dtype!r}: choose one")
        self.backbone, self.adapter, self.batch_size = backbone, adapter, batch_size
        self._encoder = Encoder(backbone, store, batch_size, dtype)
        self._embedded: dict[Modality, MemoryStore] | None = None

    def __call__(
        self,
        images: Sequence[Picture],
        texts: Sequence[str],
        pairs: Int[Tensor, "P 2"] | None = None,
    ) -> Float[Tensor, "P"] | Float[Tensor, "N M"]:
        """Scores the P pairs (row of `images`, row of `texts`), or all N x M without `pairs`.

        The scores are on the CPU, in float32.

        Raises:
            UserError: An image cannot be read or a caption cannot be encoded.
            ValueError: A pair names no image or no text.
        """
        with _evaluating(self.backbone, self.adapter):
            asked = requested(images, texts, pairs, self._ids)
            if asked.images and asked.texts:
                score = self._dual if _is_dual(self.adapter) else self._joint
                return asked.place(score(asked))
        return torch.zeros(len(images), len(texts)) if pairs is None else torch.zeros(0)

    @property
    def embeds(self) -> bool:
        """Whether it has embeddings: a joint adapter only scores pairs."""
        return isinstance(self.adapter, DualAdapter)

    @contextlib.contextmanager
    def session(self, images: Sequence[Picture], texts: Sequence[str]) -> Iterator[None]:
        """Serves several calls on parts of `images` and `texts`; no weight may change meanwhile.

        The calls read from one feature store, where there is one, and embeddings and live
        representations are kept until the end. What cannot be read or encoded is left out, and
        raises in the call that asks for it.
        """
        self._embedded = {"image": MemoryStore(), "text": MemoryStore()}
        try:
            with self._encoder.keeping():
                self._prepare(images, texts)
                yield
        finally:
            self._embedded = None

    def embed_images(self, images: Sequence[Picture]) -> Float[Tensor, "N d"]:
        """Embeds N images with a dual adapter; not normalised, on the CPU, in float32.

        Raises:
            UserError: The adapter is joint, or an image cannot be read.
        """
        self._check_dual()
        with _evaluating(self.backbone, self.adapter):
            ids = self._ids(images)
            return self._embedded_rows("image", dict(zip(ids, images, strict=True)), ids)

    def embed_texts(self, texts: Sequence[str]) -> Float[Tensor, "M d"]:
        """Embeds M captions with a dual adapter; not normalised, on the CPU, in float32.

        Raises:
            UserError: The adapter is joint, or a caption cannot be encoded.
        """
        self._check_dual()
        with _evaluating(self.backbone, self.adapter):
            return self._embedded_rows("text", dict(zip(texts, texts, strict=True)), texts)

    def _prepare(self, images: Sequence[Picture], texts: Sequence[str]) -> None:
        """Stores, and embeds, what the calls of a session will ask for."""
        with _evaluating(self.backbone, self.adapter):
            named = dict(zip(self._ids(images, passing_over=True), images, strict=True))
            named.pop("", None)
            things: dict[Modality, Mapping[str, Any]] = {
                "image": named,
                "text": dict(zip(texts, texts, strict=True)),
            }

            def fill() -> None:  # a store is one for all: the first rank makes it, others wait
                for modality, some in things.items():
                    if self._encoder.stores(self._reads(modality)):
                        self._encoder.bank(modality, some, self._reads(modality), True)

            ProcessGroup().run(fill)
            if _is_dual(self.adapter):
                self._embed(things, passing_over=True)

    def _ids(self, images: Sequence[Picture], passing_over: bool = False) -> list[str]:
        """Digests of the images; each rank reads its share of the files."""
        group = ProcessGroup()
        mine = images[group.slice(len(images))]
        parts = group.run(lambda: self._encoder.digests(mine, passing_over))
        names = [name for part in parts for name in part]
        if len(parts) > 1:
            self._encoder.note(images, names)
        return names

    # -- dual adapters ------------------------------------------------------------------------

    def _dual(self, asked: Request) -> Float[Tensor, "P"] | Float[Tensor, "N M"]:
        """Compares embeddings: row by row for chosen pairs, by matrix products for all."""
        adapter, device = cast(DualAdapter, self.adapter), self.backbone.device
        things: dict[Modality, Mapping[str, Any]] = {
            "image": asked.images,
            "text": dict(zip(asked.texts, asked.texts, strict=True)),
        }
        kept = self._embed(things)
        image = self._rows(kept["image"], asked.images).to(device)
        text = self._rows(kept["text"], asked.texts).to(device)
        if asked.pairs is None:
            scores = torch.empty(len(image), len(text))
            step = max(1, NUMBERS // len(text))
            for top in range(0, len(image), step):
                scores[top : top + step] = adapter.compare(image[top : top + step], text).cpu()
            return scores
        step = max(1, NUMBERS // image.shape[1])
        parts = asked.pairs.to(device).split(step)
        return torch.cat(
            [adapter.compare_pairs(image[p[:, 0]], text[p[:, 1]]).float().cpu() for p in parts]
        )

    def _embed(
        self, things: Mapping[Modality, Mapping[str, Any]], passing_over: bool = False
    ) -> dict[Modality, MemoryStore]:
        """Embeddings of images and texts by id; each rank makes its share of those not there."""
        kept = self._embedded or {"image": MemoryStore(), "text": MemoryStore()}
        missing: dict[Modality, dict[str, Any]] = {
            modality: {name: some[name] for name in some if name not in kept[modality]}
            for modality, some in things.items()
        }
        if not any(missing.values()):
            return kept

        def mine() -> list[tuple[Modality, Sequence[str], Tensor]]:
            return [
                (modality, *block)
                for modality, some in missing.items()
                for block in self._embeddings(modality, some, passing_over)
            ]

        for part in ProcessGroup().run(mine):
            for modality, names, values in part:
                kept[modality].add(names, Pooled(values))
        return kept

    def _embeddings(
        self,
        modality: Modality,
        things: Mapping[str, Any],
        passing_over: bool,
    ) -> Iterator[tuple[Sequence[str], Float[Tensor, "n d"]]]:
        """Embeds one rank's share of `things`, block by block."""
        adapter, reads = cast(DualAdapter, self.adapter), self._reads(modality)
        embed = adapter.embed_image if modality == "image" else adapter.embed_text
        mine = list(things)[ProcessGroup().slice(len(things))]
        if not mine:
            return
        if reads.frozen and reads.kind != "words":
            bank = self._bank(modality, things, mine, passing_over)
            mine = [name for name in mine if name in bank]
            starts = range(0, len(mine), self.batch_size)
            chunks = (mine[start : start + self.batch_size] for start in starts)
            blocks = ((names, self._get(bank, names)) for names in chunks)
        else:  # nothing but the embedding is kept
            blocks = self._encoder.blocks(modality, things, reads, mine, passing_over)
        with progress(f"embedding {modality}s", len(mine)) as advance:
            for names, features in blocks:
                yield names, embed(features).float().cpu()
                advance(len(names))

    def _embedded_rows(
        self, modality: Modality, things: Mapping[str, Any], ids: Sequence[str]
    ) -> Float[Tensor, "n d"]:
        return self._rows(self._embed({modality: things})[modality], ids)

    def _rows(self, embedded: MemoryStore, ids: Iterable[str]) -> Float[Tensor, "n d"]:
        names = list(ids)
        if not names:
            return torch.zeros(0, self.backbone.embed_dim)
        rows = embedded.features(names)
        assert isinstance(rows, Pooled)
        return rows.values

    def _check_dual(self) -> None:
        if not self.embeds:
            raise UserError(
                f"expected an adapter with embeddings, got {type(self.adapter).__name__}, a joint "
                "one that reads image and text together: score pairs with it"
            )

    # -- joint adapters -----------------------------------------------------------------------

    def _joint(self, asked: Request) -> Float[Tensor, "P"] | Float[Tensor, "N M"]:
        """Scores the pairs; each rank has the images that hold its share of them."""
        group = ProcessGroup()
        rows = asked.rows(group.rank, group.size)
        return torch.cat(group.run(lambda: self._blocks(asked, rows)))

    def _blocks(self, asked: Request, rows: range) -> Float[Tensor, "P"] | Float[Tensor, "rows M"]:
        """Scores the pairs of `rows`; holds one block of images and one of texts at a time."""
        if not rows:
            return torch.zeros(0) if asked.pairs is not None else torch.zeros(0, len(asked.texts))
        names, size = list(asked.images), self.batch_size
        texts = dict(zip(asked.texts, asked.texts, strict=True))
        needed = [asked.texts[j] for j in asked.columns(rows).tolist()]
        image = self._bank("image", asked.images, names[rows.start : rows.stop])
        text = self._bank("text", texts, needed)
        parts = []
        with progress("scoring", asked.count(rows)) as advance:
            for top in range(rows.start, rows.stop, size):
                block = asked.block(range(top, min(top + size, rows.stop)))
                values = torch.zeros(block.needed.shape)
                for left in range(0, len(block.columns), size):
                    needed = block.needed[:, left : left + size]
                    i = needed.any(dim=1).nonzero()[:, 0]
                    columns = block.columns[left : left + size].tolist()
                    scores = self.adapter(
                        self._get(image, [names[top + k] for k in i.tolist()]),
                        self._get(text, [asked.texts[j] for j in columns]),
                        needed[i].to(self.backbone.device),
                    )
                    # A pair that was left out must not pass for one that scored 0.
                    found = scores.values.float().masked_fill(~scores.computed, torch.nan)
                    values[i, left : left + size] = found.cpu()
                    advance(int(needed.sum()))
                parts.append(block.of(values))
        return torch.cat(parts)

    # -- features -----------------------------------------------------------------------------

    def _reads(self, modality: Modality) -> FeatureSpec:
        return self.adapter.image_input if modality == "image" else self.adapter.text_input

    def _bank(
        self,
        modality: Modality,
        things: Mapping[str, Any],
        mine: Sequence[str],
        passing_over: bool = False,
    ) -> Bank:
        """Features of this rank's things; of all where they are stored, as a store is one."""
        reads = self._reads(modality)
        some = things if self._encoder.stores(reads) else {name: things[name] for name in mine}
        return self._encoder.bank(modality, some, reads, passing_over)

    def _get(self, bank: Bank, ids: Sequence[str]) -> Features:
        return bank.features(ids).to(self.backbone.device)


def _is_dual(adapter: Adapter) -> bool:
    """True where scores are comparisons of embeddings, not some forward of the adapter's own."""
    if not isinstance(adapter, DualAdapter) or type(adapter).forward is not DualAdapter.forward:
        return False
    own, base = type(adapter), DualAdapter
    return own.compare is base.compare or own.compare_pairs is not base.compare_pairs


@contextlib.contextmanager
def _evaluating(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards each submodule is in its own mode again."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        # Not inference_mode: features that are kept may be read by a training step later.
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
