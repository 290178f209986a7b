"""WiSE-FT: weights between the pre-trained and the trained model.

In: a trained model. Out: the same model with interpolated weights. Never: a new adapter.
"""

import torch
from torch import Tensor

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.trained_state import trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.config import Spec, instantiate
from vlmtune.errors import UserError


class WiseFT:
    r"""The line $\theta_\alpha = (1 - \alpha) \theta_0 + \alpha \theta_1$ through a trained model.

    $\theta_1$ are the trained weights and $\theta_0$ those of a new copy of the same backbone and
    adapter: the pre-trained weights if training changes the backbone (full fine-tuning, last
    layers), else the adapter's initial weights, with which it scores as the pre-trained model does.
    So $\alpha = 0$ is the zero-shot model and $\alpha = 1$ the trained one. Between them a model
    often keeps its earlier abilities and most of what it learned.

    Weights with a random initial value (the $A$ of LoRA, the $W_1$ of a bottleneck) have no unique
    $\theta_0$ and stay as trained. The other factor, zero at the start, is interpolated, so that
    for LoRA $W_0 + \alpha \Delta W$ are the weights of the line itself.

    Source: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models", equation (1).

    Args:
        backbone: The backbone of a checkpoint or an export.
        adapter: The adapter, attached to it and trained. `at` changes it in place.

    Raises:
        UserError: The adapter does not start as the zero-shot model but at random (MM-Adapter), so
            weights between its first and last ones mean nothing.
    """

    def __init__(self, backbone: Backbone, adapter: Adapter) -> None:
        first = _initial_state(backbone.spec(), adapter.spec(), seed=0)
        second = _initial_state(backbone.spec(), adapter.spec(), seed=1)
        # What two seeds agree on is not random, so it has a unique initial value.
        self.initial = {}
        for name, value in first.items():
            if value.equal(second[name]):
                self.initial[name] = value
        starts_random = len(self.initial) < len(first)
        if starts_random and not adapter.identity_at_init:
            raise UserError(
                "expected an adapter that starts as the zero-shot model, to interpolate its "
                f"weights, got {type(adapter).__name__}, which starts at random: leave --alpha "
                "out, or choose another action than 'anneal' for RetentionBudget"
            )
        self.backbone = backbone
        self.adapter = adapter
        self.trained = _copied(trained_state(backbone, adapter))

    def at(self, alpha: float) -> None:
        r"""Gives the model the weights of $\alpha$ in [0, 1]; 0 and 1 are exact."""
        check_alpha(alpha)
        with torch.no_grad():
            for name, value in trained_state(self.backbone, self.adapter).items():
                trained = self.trained[name]
                # Counters, as of batches seen, have no line between them.
                if name in self.initial and trained.is_floating_point():
                    trained = torch.lerp(self.initial[name], trained, alpha)
                value.copy_(trained)


def check_alpha(alpha: float) -> None:
    """Raises `UserError` if `alpha` is not in [0, 1]."""
    if not 0 <= alpha <= 1:
        raise UserError(
            f"expected alpha from 0 (pre-trained) to 1 (trained), got {alpha}: choose one"
        )


def _initial_state(backbone: Spec, adapter: Spec, seed: int) -> dict[str, Tensor]:
    """The trained state before training; random weights depend on `seed`."""
    # The caller's random numbers stay as they are.
    with torch.random.fork_rng(devices=[]):
        new_backbone = instantiate(backbone, Backbone)
        new_adapter = instantiate(adapter, Adapter)
        torch.manual_seed(seed)
        new_adapter.attach(new_backbone)
    return _copied(trained_state(new_backbone, new_adapter))


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    # Without `copy` a tensor that is there already would stay the same one.
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}
