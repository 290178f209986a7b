"""Checks that backbone, adapter and data give what objectives and pairs read beside scores.

In: objectives or pairs, with an adapter, a backbone or targets. Out: what was checked, a warning or
a `UserError`.
Never: a change of any of them.
"""

import logging
from collections.abc import Collection
from typing import Any

from torch import Tensor

from vlmtune.adapters.base import Adapter, DualAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.objectives.base import Need, Objective
from vlmtune.pairs.base import Mask, PairPolicy
from vlmtune.types import FeatureSpec, Targets

POOLED = FeatureSpec("pooled")  # what a frozen backbone is compared by
log = logging.getLogger("vlmtune")


def check_needs(objectives: Collection[Objective], adapter: Adapter, backbone: Backbone) -> None:
    """Raises a `UserError` without an objective, or if one reads what is not given."""
    if not objectives:
        raise UserError("expected at least one objective, got none: list one under `objectives`")
    for objective in objectives:
        name = type(objective).__name__
        is_initialised = "_modules" in vars(objective) and hasattr(objective, "weight")
        if not is_initialised:
            reason = f"super().__init__(weight) in the __init__ of {name}, got none: call it,"
            _refuse(reason, "remove its __init__")
        for need in sorted(objective.needs):
            reason = _missing(need, adapter, backbone)
            _refuse(reason, f"remove the {name}")
    has_contrast = contrast_of(adapter) is not None
    is_read = any("contrast" in objective.needs for objective in objectives)
    if has_contrast and not is_read:
        name = type(adapter).__name__
        reason = f"an objective that reads the contrastive scores of {name}, got none:"
        _refuse(f"{reason} add an OnEmbeddings", "set contrast to false")


def contrast_of(adapter: Adapter) -> DualAdapter | None:
    """The contrastive side of a joint adapter, its attribute `contrast`, if it has one."""
    return getattr(adapter, "contrast", None)


def check_pairs(pairs: PairPolicy, backbone: Backbone) -> None:
    """Raises a `UserError` if the backbone lacks the scores that the pairs read."""
    _refuse(_no_reference(backbone), f"choose other pairs than {type(pairs).__name__}")


def _refuse(reason: str | None, alternative: str) -> None:
    if reason is not None:
        raise UserError(f"expected {reason} or {alternative}")


def warn_of_pairs(pairs: PairPolicy | None, adapter: Adapter) -> None:
    """Warns of pairs that an adapter would not use."""
    if pairs is not None and not adapter.joint:
        name = type(adapter).__name__
        log.warning("pairs have no effect: %s scores all pairs; set model.pairs to null", name)


def checked_mask(pairs: PairPolicy, targets: Targets, *given: Any) -> Mask:
    """Returns the mask that the pairs choose; anything else than such a mask is a `UserError`."""
    mask = pairs(targets, *given)
    shape = list(targets.truth.shape)
    got = type(mask).__name__
    if isinstance(mask, Tensor):
        got = f"{mask.dtype} {list(mask.shape)}"
    if got != f"torch.bool {shape}":
        reason = f"torch.bool {shape} from {type(pairs).__name__}, got {got}: return such a mask,"
        _refuse(reason, "choose other pairs")
    return mask


def check_mined(pairs: PairPolicy, targets: Targets) -> None:
    """Raises a `UserError` if the pairs take mined neighbours and the batch has none."""
    if pairs.needs_mined_negatives and targets.mined_negatives is None:
        raise UserError(
            f"expected batches with mined neighbours for {type(pairs).__name__}, got none: "
            "set data.mined, or mined of the pairs to 0"
        )


def check_teacher(objectives: Collection[Objective], has_teacher: bool) -> None:
    """Raises a `UserError` if a teacher is read and not given, or given and not read."""
    is_read = any("teacher" in objective.needs for objective in objectives)
    if is_read != has_teacher:
        given = "an objective that reads one" if is_read else "a teacher"
        raise UserError(
            f"expected a teacher and an objective that reads it, got only {given}: set "
            "model.teacher to an export or a checkpoint and add a RankKL, or leave out both"
        )


def check_precision(precision: str) -> None:
    """Raises a `UserError` if all numbers would be of another type than float32."""
    if precision.endswith("-true") and precision != "32-true":
        raise UserError(
            f"expected a precision of 32-true, bf16-mixed or 16-mixed, got {precision}: features "
            "are float32, choose one of these; `precision: bf16` of a backbone halves its weights"
        )


def _missing(need: Need, adapter: Adapter, backbone: Backbone) -> str | None:
    name = type(adapter).__name__
    is_dual = isinstance(adapter, DualAdapter)
    if need in ("embedded", "average", "phrases") and not is_dual:
        return (
            f"an adapter with one embedding per image and one per text, got {name}, which reads "
            "them together: choose a DualAdapter such as LinearProbe,"
        )
    if need == "tokens" and not (isinstance(adapter, DualAdapter) and adapter.gives_tokens):
        return (
            f"an adapter that gives tokens in the shared space, got {name}, which gives none: "
            "choose a DualAdapter with gives_tokens = True,"
        )
    if need == "contrast" and not is_dual and not contrast_of(adapter):
        return (
            f"an adapter with contrastive scores, got {name}, which has none: choose FusionTuning "
            "or Compressed with contrast set to true,"
        )
    if need == "reference":
        return _no_reference(backbone)
    return None


def _no_reference(backbone: Backbone) -> str | None:
    for modality in ("image", "text"):
        if reason := backbone.fits(POOLED, modality):
            return (
                f"a backbone with pooled {modality} embeddings to compare with, got "
                f"{type(backbone).__name__} ({reason}): choose a dual encoder such as OpenClip,"
            )
    return None
