"""A trained model as one checkpoint of another library, without vlmtune.

In: a model whose training changed weights of the backbone, or mapped embeddings of texts. Out: a
folder. Never: an adapter that the library could not compute; it is an error.
"""

import math
import shutil
from pathlib import Path

import torch
from torch.nn.utils import parametrize

from vlmtune.adapters.base import Adapter, DualAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.hf.backbone import HFBackbone
from vlmtune.errors import UserError
from vlmtune.export.files import check_target
from vlmtune.export.folding import fold
from vlmtune.export.to_onnx import IMAGE, TEXT, save_onnx
from vlmtune.export.to_sentence_transformers import save_sentence_transformers
from vlmtune.model.model import Model
from vlmtune.storage.files import write_atomically

MERGES = "FullFineTuning, LastBlocks, LoRA, TextMap, Matching or FusionTuning"
SENTENCE_TRANSFORMERS, ONNX = "sentence-transformers", "onnx"
SCALES = {"log_scale", "bias"}


def save_merged(folder: Path, model: Model, form: str | None = None) -> str:
    r"""Writes the merged checkpoint and returns a line on what it leaves out, or "".

    Low-rank updates are added to their weights, $W + \frac{\alpha}{r} B A$; the learned scale
    becomes the model's `logit_scale`. A linear map of text embeddings is multiplied into the
    projection before it. This changes the model itself: train another one further.

    `form` is None for the backbone's own library, "sentence-transformers", or "onnx", which takes
    adapters with weights of their own too if they have embeddings.

    Raises:
        UserError: The form cannot hold the adapter or the backbone, or there is something in
            `folder`.
    """
    check_target(folder, overwrite=False)
    backbone = model.backbone
    adapter = model.adapter
    # The other forms are float32 throughout.
    dtypes = [weight.dtype for weight in backbone.parameters()]
    dtype = min(dtypes, key=lambda dtype: dtype.itemsize)
    if form is not None and dtype.itemsize < 4:
        raise UserError(f"expected float32 weights for {form}, got {dtype}: use --out")
    _add_low_rank_updates(backbone)
    if form != ONNX:
        _fold_adapter(backbone, adapter)
    left_out = ""
    with write_atomically(folder) as new:
        if form == ONNX:
            left_out = save_onnx(new, model)
        elif form == SENTENCE_TRANSFORMERS:
            save_sentence_transformers(new, backbone)
        else:
            # A joint adapter may have a dual one inside, whose scale is the model's.
            duals = [part for part in adapter.modules() if isinstance(part, DualAdapter)]
            if duals:
                left_out = _set_scale(backbone, duals[0])
            backbone.save(new)
        # safetensors lets only the owner read its files: they get the rights of the others.
        readable = next(path for path in new.iterdir() if path.suffix == ".json")
        for weights in new.glob("*.safetensors"):
            shutil.copymode(readable, weights)
    return left_out


def _add_low_rank_updates(backbone: Backbone) -> None:
    """Makes each LoRA weight the sum that it computes."""
    for module in backbone.modules():
        if parametrize.is_parametrized(module):
            # A list, as removing a parametrization changes the mapping.
            for name in list(module.parametrizations):  # type: ignore[union-attr, arg-type]
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)


def _fold_adapter(backbone: Backbone, adapter: Adapter) -> None:
    """Multiplies the weights of an adapter, if it has any, into those of the backbone."""
    # An adapter with nothing but a scale has nothing to fold.
    added = {name.rpartition(".")[2] for name in adapter.state_dict()} - SCALES
    why_not = fold(backbone, adapter) if added else None
    if why_not is not None:
        onnx = "--format onnx, or " if isinstance(adapter, DualAdapter) else ""
        raise UserError(
            f"expected an adapter that changes weights of the backbone alone ({MERGES}), got "
            f"{type(adapter).__name__}, which {why_not}: use {onnx}--out instead of --merged"
        )


def loading_line(folder: Path, backbone: Backbone, form: str | None) -> str:
    """Returns the call that loads what `save_merged` wrote, without vlmtune."""
    if form == ONNX:
        return f"onnxruntime.InferenceSession({str(folder / IMAGE)!r}) and {TEXT}"
    if form == SENTENCE_TRANSFORMERS:
        return f"sentence_transformers.SentenceTransformer({str(folder)!r})"
    if isinstance(backbone, HFBackbone):
        network = type(backbone.model)
        name = network.__name__
        if not network.__module__.startswith("transformers."):
            name = "AutoModel"  # for FLAVA and BridgeTower with all their heads
        return f"transformers.{name}.from_pretrained({str(folder)!r})"
    return f"open_clip.create_model_and_transforms({f'local-dir:{folder}'!r})"


def _set_scale(backbone: Backbone, adapter: DualAdapter) -> str:
    """Gives the network the scale and bias of the adapter; says what has no counterpart."""
    log_scale = float(adapter.log_scale.detach())
    bias = float(adapter.bias.detach())
    wanted = {"logit_scale": log_scale, "logit_bias": bias}
    # ALIGN divides by a temperature.
    values = {**wanted, "temperature": math.exp(-log_scale)}
    if not bias and not adapter.learn_scale:
        del values["logit_bias"]  # nobody chose it, so SigLIP keeps that of its pre-training
    changed = set()
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            last = name.rpartition(".")[2]
            if last in values:
                parameter.fill_(values[last])
                changed.add(last.replace("temperature", "logit_scale"))
    # A model without a bias adds 0.
    missing = [name for name, value in wanted.items() if value and name not in changed]
    if not missing:
        return ""
    return f"left out, as the model has none: {', '.join(missing)}"
