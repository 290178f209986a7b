"""A dual encoder as two ONNX graphs, for programs without torch.

In: a model whose adapter embeds images and texts. Out: the folder. Never: graphs that compute
something else; they are compared with the model before the folder is kept.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from vlmtune.adapters.base import DualAdapter
from vlmtune.backbones.base import TextTower
from vlmtune.backbones.open_clip.loading import quiet
from vlmtune.backbones.staging import embed_words, encode_words
from vlmtune.errors import UserError, imported, one_line
from vlmtune.export.hf_processing import hf_image_processor, hf_tokenizer
from vlmtune.model.model import Model

IMAGE, TEXT, SCORES = "image.onnx", "text.onnx", "scores.json"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # export, its translation, the comparison
ONE_FILE = 2**31 - 2**24  # bytes of weights; protobuf ends at 2 GiB
CLOSE = 1e-4  # largest difference of embeddings of length 1, in float32


class ImageGraph(nn.Module):
    """Pixel values to embeddings of length 1."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.adapter = model.adapter.scoring

    def forward(self, pixel_values: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n d"]:
        """Returns normalised embeddings of preprocessed images."""
        features = self.backbone.encode_image(pixel_values, self.adapter.image_input)
        return normalize(self.adapter.embed_image(features), dim=-1)  # type: ignore[operator]


class TextGraph(nn.Module):
    """Ids and mask of captions, padded to the full length, to embeddings of length 1."""

    def __init__(self, model: Model, tower: TextTower) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.adapter = model.adapter.scoring
        self._tower = tower

    def forward(
        self, input_ids: Int[Tensor, "n t"], attention_mask: Int[Tensor, "n t"]
    ) -> Float[Tensor, "n d"]:
        """Returns normalised embeddings of captions."""
        words = embed_words(self._tower.embedding, input_ids, attention_mask.bool())
        features = encode_words(self._tower, words, self.adapter.text_input)
        return normalize(self.adapter.embed_text(features), dim=-1)  # type: ignore[operator]


def save_onnx(folder: Path, model: Model) -> str:
    """Writes two graphs with their tokenizer and preprocessing; says what is left out, or "".

    - `image.onnx`: `pixel_values` (n, 3, height, width) to `image_embeds` (n, d)
    - `text.onnx`: `input_ids` and `attention_mask` (n, t), int64, to `text_embeds` (n, d), where t
      is the longest caption that the text tower takes
    - `tokenizer.json` of the library tokenizers, which pads to t
    - `preprocessor_config.json` of an image processor of transformers
    - `scores.json`: a score is `scale` times the product of two embeddings plus `bias`

    The number n of rows is free. Embeddings have length 1.

    Raises:
        UserError: The adapter has no embeddings, the text tower does not run block by block, torch
            cannot export the model, or a package is missing.
    """
    # A fusion encoder may score by embeddings, too.
    adapter = model.adapter.scoring
    tower = model.backbone.text_tower
    if not isinstance(adapter, DualAdapter):
        raise UserError(
            f"expected an adapter with embeddings, got {type(adapter).__name__}, which scores "
            "image and text jointly: use --out"
        )
    if tower is None:
        raise UserError(
            "expected a backbone whose text tower runs block by block, got "
            f"{model.backbone.title}: use --out"
        )
    for package in PACKAGES:  # now, as the graphs take minutes
        _package(package)
    folder.mkdir()
    model.to(torch.device("cpu"))
    images, texts = _examples(model, tower)
    _save(ImageGraph(model), images, ("pixel_values",), "image_embeds", folder / IMAGE)
    given = ("input_ids", "attention_mask")
    _save(TextGraph(model, tower), texts, given, "text_embeds", folder / TEXT)
    # Embeddings alone do not give the scores of the trained model, which differ in training.
    scale = float(adapter.eval().scale.detach())
    bias = float(adapter.bias.detach())
    text = json.dumps({"scale": scale, "bias": bias})
    (folder / SCORES).write_text(f"{text}\n", encoding="utf-8")
    return _save_processing(folder, model, tower)


def _examples(model: Model, tower: TextTower) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Inputs of both graphs for two rows: noise, and a caption of full length with a short one."""
    generator = torch.Generator().manual_seed(0)
    _, *image_shape = model.backbone.blank().shape
    pixels = torch.randn(2, *image_shape, generator=generator)
    last_id = tower.embedding.num_embeddings - 1
    ids = torch.randint(1, last_id, (2, tower.positions), generator=generator)

    # A short caption beside a full one shows a graph that ignores the mask.
    mask = torch.ones_like(ids)
    one_word = sum(model.backbone.text_special) + 1
    mask[1, one_word:] = 0
    return (pixels,), (ids, mask)


def _save(
    network: nn.Module, inputs: tuple[Tensor, ...], names: Sequence[str], output: str, file: Path
) -> None:
    """Exports a graph and compares it with the network, for another number of rows too."""
    # A free dimension, which would else be fixed at the number of example rows.
    batch = torch.export.Dim("batch")
    size = sum(weight.nbytes for weight in network.state_dict().values())
    with torch.no_grad(), quiet():
        try:
            # Strict: only then the number of rows stays free where code takes its `len`.
            program = torch.export.export(
                network.eval(),
                inputs,
                dynamic_shapes=tuple({0: batch} for _ in inputs),
                strict=True,
            )
            graph: Any = torch.onnx.export(
                program, input_names=names, output_names=[output], dynamo=True, verbose=False
            )
            graph.save(file, external_data=size > ONE_FILE)
        except Exception as error:  # the exporter raises anything
            adapter = type(network.adapter).__name__
            raise UserError(
                f"expected a model that torch exports to ONNX, got {adapter} on "
                f"{type(network.backbone).__name__} ({one_line(error)}): use --out"
            ) from error
        _check(network, inputs, names, file)


def _check(
    network: nn.Module, inputs: tuple[Tensor, ...], names: Sequence[str], file: Path
) -> None:
    session = _package("onnxruntime").InferenceSession(str(file))
    last_row = tuple(values[1:] for values in inputs)
    for rows in (inputs, last_row):
        # onnxruntime takes arrays by the names of the inputs.
        arrays = [values.numpy() for values in rows]
        (given,) = session.run(None, dict(zip(names, arrays, strict=True)))
        differences = torch.from_numpy(given) - network(*rows)
        difference = float(differences.abs().max())
        if not difference < CLOSE:
            raise UserError(
                f"expected a graph that computes what the model does, got embeddings in {file.name}"
                f" that differ by {difference:.2g}: use --out"
            )


def _save_processing(folder: Path, model: Model, tower: TextTower) -> str:
    """Writes tokenizer and preprocessing; says which of them transformers does not have."""
    left_out = []
    try:
        # A graph without its tokenizer is still of use, so a missing one is only named.
        tokenizer = hf_tokenizer(model.backbone)
        inner = tokenizer.backend_tokenizer
        pad = {"pad_id": tokenizer.pad_token_id, "pad_token": tokenizer.pad_token}
        # The graph takes captions of one length only.
        inner.enable_truncation(tower.positions)
        inner.enable_padding(length=tower.positions, **pad)
        inner.save(str(folder / "tokenizer.json"))
    except UserError:
        left_out.append("the tokenizer")
    try:
        hf_image_processor(model.backbone).save_pretrained(folder)
    except UserError:
        left_out.append("the preprocessing")
    return f"left out, as transformers has none: {', '.join(left_out)}" if left_out else ""


def _package(name: str) -> Any:
    return imported(name, "to export to ONNX", "pip install 'vlmtune[onnx]'")
