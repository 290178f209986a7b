"""FSC-CLIP's calibrated losses on hard negative captions, for whole embeddings and for tokens."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.objectives.base import Need, ShardedObjective
from vlmtune.objectives.functional import embedded_of, hard_negatives, mean_over_ranks
from vlmtune.types import Features, Scores, ScoreShard


class FSCClip(ShardedObjective):
    r"""$L = a L_{global} + b L_{local}$ for images that come with hard negative captions.

    Both tell the true caption j of an image i from the hard negatives k of its group, a choice
    among 1 + K texts with probabilities p (softmax of the scores S). The choice is calibrated so
    that a negative that is nearly a true caption is not pushed away at all costs:
    $-\sum_c y_c (1 - p_c)^\gamma \log p_c$ with smoothed labels
    $y_j = 1 - \beta + \frac{\beta}{1 + K}$ and $y_k = \frac{\beta}{1 + K}$. It is averaged over the
    true pairs of an image, then over images; images without a true or without a hard negative text
    have no term.

    Global: S are the scores. Local: each word token t of the text gathers the patches of the image
    that look like it. Its similarities to the patches are brought to [0, 1] by their least and
    greatest, those below one over the number of patches are dropped, the rest sum to 1 and carry no
    gradient; $z_t$ is the normalised sum of patches so weighted, and
    $S = \log \sum_t e^{\lambda \cos(z_t, t)}$ over the real tokens, $\lambda$ the scale of the
    scores. Only pairs within a group are compared.

    Add it to `InfoNCE`. There the hard negatives are further negatives of their image as well (as
    in NegCLIP), which the paper's contrastive loss leaves out.

    Source: Oh et al. 2024 (FSC-CLIP), the local hard negative loss and selective calibrated
    regularisation; factors and constants as in the released COCO run. The released code gives
    negatives that a caption lacks the score 0 and keeps them in the softmax; here they are absent.

    Args:
        weight: Factor in the sum of objectives.
        global_factor: Factor a.
        local_factor: Factor b; with 0 the adapter need not give tokens.
        focus: Focal exponent gamma; 0 for plain cross-entropy.
        smoothing: Label smoothing beta, in [0, 1).

    Raises:
        UserError: A factor or `focus` is negative, both factors are 0, or `smoothing` is out of
            range.

    Example:
        >>> from vlmtune.types import Targets
        >>> truth, own = torch.tensor([[True, False]]), torch.tensor([[True, True]])
        >>> objective = FSCClip(global_factor=1.0, local_factor=0.0, focus=0.0, smoothing=0.0)
        >>> objective(Scores.full(torch.zeros(1, 2)), Targets(truth, own, own))
        tensor(0.6931)
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"embedded", "tokens"})

    def __init__(
        self,
        weight: float = 1.0,
        global_factor: float = 0.5,
        local_factor: float = 0.2,
        focus: float = 2.0,
        smoothing: float = 0.02,
    ) -> None:
        super().__init__(weight)
        if min(global_factor, local_factor, focus) < 0 or global_factor + local_factor == 0:
            raise UserError(
                f"expected factors and focus >= 0 with one factor above 0, got {global_factor=}, "
                f"{local_factor=}, {focus=}: correct them"
            )
        if not 0 <= smoothing < 1:
            raise UserError(f"expected smoothing in [0, 1), got {smoothing}: correct it")
        self.global_factor, self.local_factor = global_factor, local_factor
        self.focus, self.smoothing = focus, smoothing
        if local_factor == 0:
            self.needs = frozenset()  # type: ignore[misc]

    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Float[Tensor, ""]:
        """Returns the part of this rank's images.

        Raises:
            UserError: The scores come without tokens and `local_factor` is above 0.
        """
        scores, targets = shard.rows, shard.row_targets
        true, hard = targets.truth & scores.computed, hard_negatives(scores, targets)
        # Texts of other groups may be true too, but have no hard negatives in common.
        true = true & targets.same_group & hard.any(dim=1, keepdim=True)
        loss = self.global_factor * self._calibrated(scores.values, true, hard, group)
        if self.local_factor == 0:
            return loss
        hard = hard & true.any(dim=1, keepdim=True)
        local = local_scores(scores, true | hard)
        return loss + self.local_factor * self._calibrated(local, true, hard, group)

    def _calibrated(
        self,
        values: Float[Tensor, "N M"],
        true: Bool[Tensor, "N M"],
        hard: Bool[Tensor, "N M"],
        group: ProcessGroup,
    ) -> Float[Tensor, ""]:
        row, column = true.nonzero(as_tuple=True)
        chosen = hard[row].scatter(1, column[:, None], True)
        logits = values[row].masked_fill(~chosen, torch.finfo(values.dtype).min)
        logs = log_softmax(logits, dim=1).masked_fill(~chosen, 0)
        smooth = self.smoothing / chosen.sum(dim=1, keepdim=True).to(logs.dtype)
        labels = smooth.expand_as(logs)
        labels = labels.scatter_add(1, column[:, None], torch.full_like(labels, 1 - self.smoothing))
        # 1 - p without cancellation; the clamp keeps the power's slope finite where p is 1.
        rest = (-logs.expm1()).clamp_min(torch.finfo(logs.dtype).tiny)
        losses = -(labels * rest**self.focus * logs).sum(dim=1)
        total = losses.new_zeros(len(values)).index_add(0, row, losses)
        return mean_over_ranks(total / true.sum(dim=1).clamp_min(1), true.any(dim=1), group)


def local_scores(scores: Scores, pairs: Bool[Tensor, "N M"]) -> Float[Tensor, "N M"]:
    """Token-to-patch scores of the chosen pairs, 0 elsewhere.

    Raises:
        UserError: The scores come without tokens.
    """
    embedded = embedded_of(scores, "FSCClip")
    if embedded.image_tokens is None or embedded.text_tokens is None:
        raise UserError(
            "expected scores with tokens for FSCClip, got embeddings alone: "
            "choose an adapter that gives tokens, or set local_factor to 0"
        )
    row, column = pairs.nonzero(as_tuple=True)
    patches, seen = _part(embedded.image_tokens, row)
    words, read = _part(embedded.text_tokens, column)
    gathered = _gathered(patches, seen, words)
    cosines = (gathered * normalize(words, dim=-1)).sum(dim=-1)
    lowest = torch.finfo(cosines.dtype).min
    flat = (embedded.scale * cosines).masked_fill(~read, lowest).logsumexp(dim=1)
    return torch.zeros_like(scores.values).index_put((row, column), flat.to(scores.values.dtype))


def _part(
    features: Features, chosen: Int[Tensor, "P"]
) -> tuple[Float[Tensor, "P t d"], Bool[Tensor, "P t"]]:
    tokens = features.tokens
    assert tokens is not None
    mask = features.mask
    if mask is None:
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    return tokens[chosen], mask[chosen]


def _gathered(
    patches: Float[Tensor, "P t_image d"],
    seen: Bool[Tensor, "P t_image"],
    words: Float[Tensor, "P t_text d"],
) -> Float[Tensor, "P t_text d"]:
    """For each word the normalised mean of the patches, weighted by how like it they are."""
    with torch.no_grad():
        likeness = torch.einsum("nad,nbd->nab", words, patches)
        unseen = ~seen[:, None, :]
        least = likeness.masked_fill(unseen, float("inf")).amin(dim=2, keepdim=True)
        most = likeness.masked_fill(unseen, float("-inf")).amax(dim=2, keepdim=True)
        span = most - least
        # A word that is equally like all patches weighs them equally.
        shares = torch.where(span > 0, (likeness - least) / span.clamp_min(1e-12), 1.0)
        kept = (shares >= 1 / seen.sum(dim=1)[:, None, None]) & ~unseen
        shares = shares * kept
        shares = shares / shares.sum(dim=2, keepdim=True)
    return normalize(torch.einsum("nab,nbd->nad", shares, patches), dim=-1)
