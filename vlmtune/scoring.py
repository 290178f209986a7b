"""Images and texts to scores: what benchmarks, reports and exported models call."""

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, cast, get_args

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor, nn

from vlmtune.adapters.base import Adapter, DualAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.data.images import digest, read
from vlmtune.errors import UserError
from vlmtune.feature_files import Blocks, DType, progress
from vlmtune.features import FeatureStore, MemoryStore, StoreKey, open_or_build, source_digest
from vlmtune.types import Features, ImageRef, Reads, Scores

Picture = ImageRef | Image.Image


class Scorer:
    """Scores images against texts with a backbone and an adapter.

    However often an image or a caption occurs, it is encoded once: frozen representations stay in
    the feature store, or without one in memory from call to call; live ones are encoded anew in
    each call. Images are told apart by their content. Joint adapters score the pairs that are asked
    for, block by block; dual ones score all with one matrix product.

    Where `torch.distributed` is initialised the images are split over the ranks, every rank must
    make the same calls, and every rank returns all scores (or raises what one rank raised).

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
        self.backbone, self.adapter, self.store = backbone, adapter, store
        self.batch_size, self.dtype = batch_size, dtype
        self._kept: dict[tuple[str, Reads], MemoryStore] = {}
        self._opened: dict[str, FeatureStore] = {}
        self._digests: dict[tuple[Any, ...], str] = {}

    def __call__(
        self,
        images: Sequence[Picture],
        texts: Sequence[str],
        pairs: Bool[Tensor, "N M"] | None = None,
    ) -> Scores:
        """Scores N images against M texts, at least where `pairs` is True; on the CPU, float32.

        Raises:
            UserError: An image cannot be read or a caption cannot be encoded.
        """
        if pairs is not None and tuple(pairs.shape) != (len(images), len(texts)):
            raise ValueError(f"pairs {tuple(pairs.shape)} of {len(images)} x {len(texts)}")
        with _evaluating(self.backbone, self.adapter):
            return _on_all_ranks(lambda rank, ranks: self._score(images, texts, pairs, rank, ranks))

    def image_features(self, images: Sequence[Picture]) -> Features:
        """What the adapter reads of each image, in the given order; on the CPU, float32."""
        with _evaluating(self.backbone, self.adapter):
            ids = [self._digest(image) for image in images]
            return self._image_bank(dict(zip(ids, images, strict=True))).features(ids)

    def text_features(self, texts: Sequence[str]) -> Features:
        """What the adapter reads of each caption, in the given order; on the CPU, float32."""
        with _evaluating(self.backbone, self.adapter):
            return self._text_bank(list(dict.fromkeys(texts))).features(texts)

    def _score(
        self,
        images: Sequence[Picture],
        texts: Sequence[str],
        pairs: Bool[Tensor, "N M"] | None,
        rank: int,
        ranks: int,
    ) -> "_Part":
        """Scores this rank's share of the distinct images against the distinct texts."""
        ids = [self._digest(image) for image in images]
        rows, row_of = _distinct(ids)
        columns, column_of = _distinct(texts)
        needed = torch.ones(len(rows), len(columns), dtype=torch.bool)
        if pairs is not None:
            at = pairs.cpu().nonzero()
            needed = torch.zeros_like(needed)
            needed[row_of[at[:, 0]], column_of[at[:, 1]]] = True
        share = slice(len(rows) * rank // ranks, len(rows) * (rank + 1) // ranks)
        needed = needed[share]
        mine, by_id = rows[share], dict(zip(ids, images, strict=True))
        # A store is one for all ranks, so it is built for all images.
        encoded = rows if self._stores(self.adapter.image_reads) else mine
        if not (mine and columns and bool(needed.any())):
            return _Part(torch.zeros(needed.shape), torch.zeros_like(needed), row_of, column_of)
        image = self._image_bank({name: by_id[name] for name in encoded})
        dual = _is_dual(self.adapter)
        text = self._text_bank(
            columns
            if dual or self._stores(self.adapter.text_reads)
            else [columns[int(j)] for j in needed.any(dim=0).nonzero()]
        )
        score = self._dual if dual else self._blocks
        values, computed = score(image, mine, text, columns, needed)
        return _Part(values, computed, row_of, column_of)

    def _dual(
        self,
        image: "_Bank",
        rows: Sequence[str],
        text: "_Bank",
        columns: Sequence[str],
        needed: Bool[Tensor, "rows columns"],
    ) -> tuple[Float[Tensor, "rows columns"], Bool[Tensor, "rows columns"]]:
        """Embeds block by block and multiplies once."""
        adapter = cast(DualAdapter, self.adapter)
        images = [adapter.embed_image(self._get(image, names)) for names in self._chunks(rows)]
        texts = [adapter.embed_text(self._get(text, names)) for names in self._chunks(columns)]
        values = adapter.compare(torch.cat(images), torch.cat(texts))
        return values.float().cpu(), torch.ones_like(needed)

    def _blocks(
        self,
        image: "_Bank",
        rows: Sequence[str],
        text: "_Bank",
        columns: Sequence[str],
        needed: Bool[Tensor, "rows columns"],
    ) -> tuple[Float[Tensor, "rows columns"], Bool[Tensor, "rows columns"]]:
        """Scores the needed pairs; holds the tokens of one block of images and one of texts."""
        values, computed = torch.zeros(needed.shape), torch.zeros_like(needed)
        size = self.batch_size
        with progress("scoring", int(needed.sum())) as advance:
            for top in range(0, len(rows), size):
                for left in range(0, len(columns), size):
                    block = needed[top : top + size, left : left + size]
                    if not bool(block.any()):
                        continue
                    i, j = block.any(dim=1).nonzero()[:, 0], block.any(dim=0).nonzero()[:, 0]
                    scores = self.adapter(
                        self._get(image, [rows[int(k) + top] for k in i]),
                        self._get(text, [columns[int(k) + left] for k in j]),
                        block[i][:, j].to(self.backbone.device),
                    )
                    place = (i[:, None] + top, j + left)
                    values[place] = scores.values.float().cpu()
                    computed[place] = scores.computed.cpu()
                    advance(int(block.sum()))
        return values, computed

    def _get(self, bank: "_Bank", ids: Sequence[str]) -> Features:
        return bank.features(ids).to(self.backbone.device)

    def _image_bank(self, images: Mapping[str, Picture]) -> "_Bank":
        def encode(ids: Sequence[str]) -> Blocks:
            for chunk, loaded in self._loaded(ids, images):
                pixels = torch.stack(loaded).to(self.backbone.device)
                yield chunk, self.backbone.encode_image(pixels, self.adapter.image_reads)

        return self._bank("image", list(images), self.adapter.image_reads, encode)

    def _text_bank(self, texts: Sequence[str]) -> "_Bank":
        def encode(ids: Sequence[str]) -> Blocks:
            # Captions of one length together: little padding is computed.
            for chunk in self._chunks(sorted(ids, key=lambda text: (len(text), text))):
                yield chunk, self.backbone.encode_text(chunk, self.adapter.text_reads)

        return self._bank("text", texts, self.adapter.text_reads, encode)

    def _bank(
        self,
        modality: str,
        ids: Sequence[str],
        reads: Reads,
        encode: Callable[[Sequence[str]], Blocks],
    ) -> "_Bank":
        """Returns the features of `ids`, encoding those that are not there."""
        if self.store is not None and self._stores(reads) and ids:
            source = source_digest(ids)
            key = StoreKey(self.backbone.fingerprint, modality, reads, source, self.dtype)  # type: ignore[arg-type]
            if key.folder not in self._opened:
                opened = open_or_build(self.store, key, lambda: encode(ids), len(ids))
                self._opened[key.folder] = opened
            return self._opened[key.folder]
        memory = (
            self._kept.setdefault((modality, reads), MemoryStore())
            if reads.frozen
            else MemoryStore()
        )
        missing = [name for name in ids if name not in memory]
        if missing:
            with progress(f"encoding {modality}s", len(missing)) as advance:
                for names, features in encode(missing):
                    memory.add(names, features.to("cpu", torch.float32))
                    advance(len(names))
        return memory

    def _stores(self, reads: Reads) -> bool:
        return self.store is not None and reads.frozen

    def _chunks(self, ids: Sequence[str]) -> Iterator[Sequence[str]]:
        for start in range(0, len(ids), self.batch_size):
            yield ids[start : start + self.batch_size]

    def _loaded(
        self, ids: Sequence[str], images: Mapping[str, Picture]
    ) -> Iterator[tuple[Sequence[str], list[Tensor]]]:
        """Gives preprocessed images, the next batch being read while one is encoded."""

        def load(name: str) -> Tensor:
            image = images[name]
            image = read(image) if isinstance(image, ImageRef) else image.convert("RGB")
            return self.backbone.preprocess(image)

        waiting: deque[tuple[Sequence[str], list[Future[Tensor]]]] = deque()
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for chunk in self._chunks(ids):
                waiting.append((chunk, [pool.submit(load, name) for name in chunk]))
                if len(waiting) > 1:
                    names, futures = waiting.popleft()
                    yield names, [future.result() for future in futures]
            for names, futures in waiting:
                yield names, [future.result() for future in futures]

    def _digest(self, image: Picture) -> str:
        """Content digest; that of a file is kept while its size and time stay the same."""
        if not isinstance(image, ImageRef):
            image = image.convert("RGB")
            return hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()
        try:
            status = image.path.stat()
        except OSError:
            return digest(image)  # which says what is wrong
        known = (image.path, image.box, status.st_size, status.st_mtime_ns)
        if known not in self._digests:
            self._digests[known] = digest(image)
        return self._digests[known]


class _Bank(Protocol):
    """Features by id: a store or memory."""

    def features(self, ids: Sequence[str]) -> Features: ...


class _Part:
    """One rank's rows of the scores of distinct images and texts, and where each belongs."""

    def __init__(
        self,
        values: Float[Tensor, "rows columns"],
        computed: Bool[Tensor, "rows columns"],
        row_of: Int[Tensor, "N"],
        column_of: Int[Tensor, "M"],
    ) -> None:
        self.values, self.computed = values, computed
        self.row_of, self.column_of = row_of, column_of


def _on_all_ranks(compute: Callable[[int, int], _Part]) -> Scores:
    """Runs each rank's part and puts all parts together on every rank."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        part = compute(0, 1)
        return _placed(part.values, part.computed, part)
    part, failure = None, None
    try:
        part = compute(dist.get_rank(), dist.get_world_size())
        mine: Any = (part.values, part.computed)
    except Exception as error:  # told to the others: they would wait for this rank for ever
        mine, failure = " ".join(f"{type(error).__name__}: {error}".split()), error
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    if failure is not None:
        raise failure
    for rank, other in enumerate(parts):
        if isinstance(other, str):
            raise UserError(f"expected scores of rank {rank}, got {other}: see its own message")
    assert part is not None
    return _placed(torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]), part)


def _placed(
    values: Float[Tensor, "rows columns"], computed: Bool[Tensor, "rows columns"], part: _Part
) -> Scores:
    """Repeats rows and columns for images and texts that occur more than once."""
    rows, columns = part.row_of, part.column_of
    once = len(rows) == values.shape[0] and len(columns) == values.shape[1]
    if once:  # in order of first occurrence, so already in place
        return Scores(values, computed)
    return Scores(values[rows][:, columns], computed[rows][:, columns])


def _distinct(ids: Sequence[str]) -> tuple[list[str], Int[Tensor, "n"]]:
    """Returns each id once, in order of first occurrence, and the position of every id there."""
    position: dict[str, int] = {}
    where = [position.setdefault(name, len(position)) for name in ids]
    return list(position), torch.tensor(where, dtype=torch.int64)


def _is_dual(adapter: Adapter) -> bool:
    """True where scores are `compare` of embeddings, not some forward of the adapter's own."""
    return isinstance(adapter, DualAdapter) and type(adapter).forward is DualAdapter.forward


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
