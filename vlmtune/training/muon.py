"""Muon: the momentum of a matrix is orthogonalised; all other weights take a step of AdamW.

In: parameters and their gradients. Out: changed parameters. Never: a learning rate of its own.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import AdamW
from typing_extensions import override

# Coefficients and steps of the published iteration.
_LINEAR, _CUBIC, _QUINTIC = 3.4445, -4.7750, 2.0315
_STEPS = 5


class Muon(AdamW):
    r"""Steps of one size in all directions of a matrix.

    $M \leftarrow \mu M + G$ and $W \leftarrow (1 - \eta \lambda) W - 0.2 \, \eta
    \sqrt{\max(m, n)} \; O(G + \mu M)$ for a matrix W of m x n numbers with gradient G, learning
    rate $\eta$ and weight decay $\lambda$. O(X) is approximately $U V^\top$ of the singular value
    decomposition $X = U S V^\top$. The factor $0.2 \sqrt{\max(m, n)}$ gives the step the size of a
    step of AdamW, so rates of AdamW are a start. The kernel of a convolution is a matrix for each
    of its offsets. Vectors, and matrices of one row or column, take a step of AdamW. Queries, keys
    and values that a layer keeps in one matrix count as one, where Jordan et al. split them.

    Directions that few records need have small gradients. AdamW scales each number by itself, so
    their steps stay small; here they are as large as those of all other directions.

    Choose it for an adapter that is trained from random weights, such as `GroundedWords`. Prompts
    and embeddings are matrices too, but no linear maps: use AdamW for these.

    Source: Jordan et al. 2024, Muon: an optimizer for hidden layers in neural networks; the factor
    is that of Liu et al. 2025, Muon is Scalable for LLM Training, equation 4.

    Args:
        params: Parameters, or groups of them.
        lr: $\eta$.
        weight_decay: $\lambda$.
        momentum: $\mu$.
        betas: Of AdamW.
        eps: Of AdamW.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
        >>> weight.grad = torch.tensor([[1.0, 0.0], [0.0, 1e-3]])
        >>> Muon([weight], lr=0.1).step()
        >>> bool((weight.diag() < -0.01).all())
        True
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        # In the groups, as every other option, so that copies and saved states have it.
        self.defaults["momentum"] = momentum
        for group in self.param_groups:
            group.setdefault("momentum", momentum)

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Changes the parameters; a closure computes the gradients first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # AdamW leaves out parameters without a gradient.
        done: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and _is_matrix(parameter):
                    self._step_of_matrix(parameter, gradient, group)
                    done.append((parameter, gradient))
                    parameter.grad = None
        super().step()
        for parameter, gradient in done:
            parameter.grad = gradient
        return loss

    def _step_of_matrix(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            # AdamW's names, by which it reads a saved state.
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(weight)
        state["step"] += 1
        momentum = group["momentum"]
        average = state["exp_avg"].mul_(momentum).add_(gradient)
        direction = gradient + momentum * average
        # A convolution's kernel (m, n, height, width) as matrices (height, width, m, n).
        matrices = direction.movedim((0, 1), (-2, -1))
        update = orthogonalised(matrices).movedim((-2, -1), (0, 1))
        factor = 0.2 * math.sqrt(max(weight.shape[:2]))
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(update, alpha=-group["lr"] * factor)


def orthogonalised(matrices: Float[Tensor, "*b m n"]) -> Float[Tensor, "*b m n"]:
    """Returns U V^T of matrices U S V^T, with singular values of about 0.7 to 1.2 in place of 1.

    Five steps of a Newton-Schulz iteration, x <- a x + b (x x^T) x + c (x x^T)^2 x. Directions
    whose singular value is below a thousandth of the matrix' norm stay smaller.
    """
    wide = matrices
    if matrices.shape[-2] > matrices.shape[-1]:
        wide = matrices.mT
    norm = wide.norm(dim=(-2, -1), keepdim=True)
    wide = wide / (norm + 1e-7)
    for _ in range(_STEPS):
        gram = wide @ wide.mT
        polynomial = _CUBIC * gram + _QUINTIC * gram @ gram
        wide = _LINEAR * wide + polynomial @ wide
    if matrices.shape[-2] > matrices.shape[-1]:
        return wide.mT
    return wide


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.ndim >= 2 and min(parameter.shape[:2]) > 1
