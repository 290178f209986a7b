"""What objectives read beside scores, and whether backbone and adapter can give it."""

from collections.abc import Iterable

from vlmtune.adapters.base import Adapter, DualAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.objectives.base import Need, Objective
from vlmtune.pairs.base import PairPolicy
from vlmtune.types import FeatureSpec, Targets

POOLED = FeatureSpec("pooled")


def check_needs(objectives: Iterable[Objective], adapter: Adapter, backbone: Backbone) -> None:
    """Refuses an objective that reads what is not there.

    Raises:
        UserError: An objective needs something; says what can give it.
    """
    for objective in objectives:
        for need in sorted(objective.needs):
            if reason := _missing(need, adapter, backbone):
                raise UserError(f"expected {reason} or remove the {type(objective).__name__}")


def check_pairs(pairs: PairPolicy, backbone: Backbone) -> None:
    """Refuses a choice of pairs that reads scores the backbone does not have.

    Raises:
        UserError: It reads them and there are none; says what has them.
    """
    if pairs.needs_reference and (reason := _no_reference(backbone)):
        raise UserError(f"expected {reason} or other pairs than {type(pairs).__name__}")


def check_mined(pairs: PairPolicy, targets: Targets) -> None:
    """Refuses training batches without the mined neighbours that a choice of pairs takes.

    Raises:
        UserError: There are none; says what adds them.
    """
    if pairs.needs_mined_negatives and targets.mined_negatives is None:
        raise UserError(
            f"expected batches with mined neighbours for {type(pairs).__name__}, got none: "
            "set data.mined, or mined of the pairs to 0"
        )


def _missing(need: Need, adapter: Adapter, backbone: Backbone) -> str | None:
    name = type(adapter).__name__
    if need == "embedded" and not isinstance(adapter, DualAdapter):
        return (
            f"an adapter with one embedding per image and one per text, got {name}, which reads "
            "them together: choose a DualAdapter such as LinearProbe,"
        )
    if need == "tokens" and not (isinstance(adapter, DualAdapter) and adapter.gives_tokens):
        return (
            f"an adapter that gives tokens in the shared space, got {name}, which gives none: "
            "choose a DualAdapter with gives_tokens = True,"
        )
    return _no_reference(backbone) if need == "reference" else None


def _no_reference(backbone: Backbone) -> str | None:
    for modality in ("image", "text"):
        if why := backbone.fits(POOLED, modality):
            return (
                f"a backbone with pooled {modality} embeddings to compare with, got "
                f"{type(backbone).__name__} ({why}): choose a dual encoder such as OpenClip,"
            )
    return None
