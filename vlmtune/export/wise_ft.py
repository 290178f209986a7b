"""WiSE-FT: weights between those of the pre-trained model and those that training found."""

import torch
from torch import Tensor

from vlmtune.adapters.base import Adapter, trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.config import Spec, instantiate
from vlmtune.errors import UserError


class WiseFT:
    r"""The line $\theta_\alpha = (1 - \alpha) \theta_0 + \alpha \theta_1$ through a trained model.

    $\theta_1$ are the trained weights, $\theta_0$ those of the same backbone and adapter made anew:
    the pre-trained ones where training changes the backbone (full fine-tuning, last blocks), else
    the adapter's first ones, with which it scores as the pre-trained model does. So $\alpha = 0$ is
    the zero-shot model and $\alpha = 1$ the trained one; between them a model often keeps what it
    could before and still has most of what it learned.

    What starts at random (the $A$ of LoRA, the $W_1$ of a bottleneck) has no one $\theta_0$ and
    stays as it was trained: there the other factor, zero at the start, is what is interpolated, so
    that for LoRA $W_0 + \alpha \Delta W$ are the weights of the line itself.

    Source: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models", equation (1).

    Args:
        backbone: The backbone, as a checkpoint or an export made it.
        adapter: The adapter, attached to it and trained. It is changed in place by `at`.

    Raises:
        UserError: The adapter starts at random and not as the zero-shot model (MM-Adapter), so that
            weights between its first and its last ones mean nothing.
    """

    def __init__(self, backbone: Backbone, adapter: Adapter) -> None:
        specs = backbone.spec(), adapter.spec()
        one, other = (_made_anew(*specs, seed) for seed in (0, 1))
        self.initial = {name: value for name, value in one.items() if value.equal(other[name])}
        if len(self.initial) < len(one) and not adapter.identity_at_init:
            raise UserError(
                "expected an adapter that starts as the zero-shot model, to interpolate its "
                f"weights, got {type(adapter).__name__}, which starts at random: leave alpha out, "
                "or average its scores with those of the zero-shot model"
            )
        self.backbone, self.adapter = backbone, adapter
        self.trained = _copied(trained_state(backbone, adapter))

    def at(self, alpha: float) -> None:
        r"""Gives the model the weights of $\alpha$, those of 0 and 1 to the last bit.

        Raises:
            UserError: `alpha` is not in [0, 1].
        """
        check_alpha(alpha)
        with torch.no_grad():
            for name, value in trained_state(self.backbone, self.adapter).items():
                last = self.trained[name]
                if name in self.initial and last.is_floating_point():
                    last = torch.lerp(self.initial[name], last, alpha)
                value.copy_(last)


def check_alpha(alpha: float) -> None:
    """Raises a `UserError` where `alpha` is not in [0, 1]."""
    if not 0 <= alpha <= 1:
        raise UserError(
            f"expected alpha from 0 (pre-trained) to 1 (trained), got {alpha}: correct it"
        )


def _made_anew(backbone: Spec, adapter: Spec, seed: int) -> dict[str, Tensor]:
    """The trained state before training; what depends on `seed` was drawn."""
    with torch.random.fork_rng(devices=[]):
        made, fresh = instantiate(backbone, Backbone), instantiate(adapter, Adapter)
        torch.manual_seed(seed)
        fresh.attach(made)
    return _copied(trained_state(made, fresh))


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in state.items()}
