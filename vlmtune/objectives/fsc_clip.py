"""FSC-CLIP's calibrated losses on hard negative captions, global and local.

In: scores with embeddings and tokens. Out: a loss. Never: the making of hard negatives.
"""

from typing import Annotated

import torch
from annotated_types import Ge, Lt
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import log_softmax, normalize
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.objectives.functional import Mask, Matrix, embedded_of, mean_over_images, only
from vlmtune.types import Scores, ScoreShard, positions, send


class FSCClip(ShardedObjective):
    r"""$L = a L_{global} + b L_{local}$ for images that come with hard negative captions.

    Both classify the true caption j of an image i against the K hard negatives k of its group, with
    probabilities p (softmax of the scores S). Focal weights and label smoothing keep a negative
    that is nearly true from being pushed away at all costs:
    $-\sum_c y_c (1 - p_c)^\gamma \log p_c$ with smoothed labels
    $y_j = 1 - \beta + \frac{\beta}{1 + K}$ and $y_k = \frac{\beta}{1 + K}$. It is averaged over the
    true pairs of an image, then over images with a true and a hard negative text.

    Global: S are the scores. Local: each word token t of the text attends to the patches of the
    image. Its similarities to the patches are scaled to [0, 1] by their minimum and maximum;
    weights below one over the number of patches become 0; the rest are divided by their sum and
    carry no gradient. $z_t$ is the normalised weighted sum of the patches, and
    $S = \log \sum_t e^{\lambda \cos(z_t, t)}$ over the real tokens, with $\lambda$ the scale of
    the scores. Only pairs within a group are compared.

    Add it to `InfoNCE`. Hard negatives are negatives of their image in `InfoNCE` too (as in
    NegCLIP); the paper's contrastive loss leaves them out.

    Choose it where hard negatives are nearly true: it pushes such negatives away less.

    - Requirements: hard negatives of the captions.
    - Inputs: patch and word tokens, `FullFineTuning(tokens=True)`, unless `local_factor` is 0.
    - Recommended: add it to `InfoNCE`, with the default factors.
    - Relations: `CEClip` pushes every hard negative away, by an adaptive margin.
    - Config: `--model.objectives '[info_nce, fsc_clip]'`.

    Source: Oh et al. 2024 (FSC-CLIP), the local hard negative loss and selective calibrated
    regularisation; factors come from the released COCO run. The local loss differs from the
    released runs (github.com/ytaek-oh/fsc-clip, commit 604015d) in two points: there weights below
    one over the number of patches stay (`--sim-sparsify` is off by default and in every documented
    command), and the start token is left out of the sum over t. The released code also scores
    missing negatives as 0 and keeps them in the softmax; here they are left out.

    Args:
        global_factor: Factor a.
        local_factor: Factor b; at 0 the adapter needs no tokens.
        focus: Focal exponent gamma; 0 for plain cross-entropy.
        smoothing: Label smoothing beta, in [0, 1).

    Example:
        >>> from vlmtune.types import Targets
        >>> truth, same_group = torch.tensor([[1, 0]]) > 0, torch.tensor([[1, 1]]) > 0
        >>> objective = FSCClip(global_factor=1.0, local_factor=0.0, focus=0.0, smoothing=0.0)
        >>> objective(Scores.full(torch.zeros(1, 2)), Targets(truth, same_group, same_group))
        tensor(0.6931)
    """

    needs = frozenset({"embedded", "tokens"})

    def __init__(
        self,
        weight: Factor = 1.0,
        global_factor: Factor = 0.5,
        local_factor: Factor = 0.2,
        focus: Factor = 2.0,
        smoothing: Annotated[float, Ge(0), Lt(1)] = 0.02,
    ) -> None:
        super().__init__(weight)
        self.global_factor = global_factor
        self.local_factor = local_factor
        self.focus = focus
        self.smoothing = smoothing
        if local_factor == 0:
            self.needs = frozenset()

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        scores = shard.rows
        # Pairs are found on the CPU: on a GPU their number would have to be waited for.
        targets = shard.row_targets.on_cpu()
        within = targets.same_group & scores.cpu_computed
        hard = within & ~targets.truth
        # A text of another group may be true too, but it has no hard negatives here.
        true = targets.truth & within
        true = true & hard.any(dim=1, keepdim=True)
        global_loss = self._calibrated(scores.values, true, hard, group)
        loss = self.global_factor * global_loss
        if self.local_factor == 0:
            return loss
        # Local scores are dear: only pairs of images with a term get one.
        hard = hard & true.any(dim=1, keepdim=True)
        local = local_scores(scores, true | hard)
        local_loss = self._calibrated(local, true, hard, group)
        return loss + self.local_factor * local_loss

    def _calibrated(self, values: Matrix, true: Mask, hard: Mask, group: ProcessGroup) -> Loss:
        # One row for each true pair: its text and the hard negatives of its image.
        row, column = positions(true, values.device)
        column = column[:, None]
        hard = send(hard, values.device)
        compared = hard[row].scatter(1, column, True)
        logits = only(values[row], compared)
        log_p = log_softmax(logits, dim=1)
        # Other texts of the row have no probability, and no term.
        log_p = log_p.masked_fill(~compared, 0)
        # Smoothing is shared by the true caption and its hard negatives.
        count = compared.sum(dim=1, keepdim=True)
        smooth = self.smoothing / count.to(log_p.dtype)
        labels = smooth.expand_as(log_p)
        certain = torch.full_like(labels, 1 - self.smoothing)
        labels = labels.scatter_add(1, column, certain)
        # 1 - p without cancellation; the clamp keeps the power's gradient finite where p is 1.
        tiny = torch.finfo(log_p.dtype).tiny
        error = -log_p.expm1()
        error = error.clamp_min(tiny)
        # A text that the model tells apart already counts less.
        focal = error**self.focus
        terms = labels * focal * log_p
        losses = -terms.sum(dim=1)
        return mean_over_images(losses, row, send(true, values.device), group)


def local_scores(scores: Scores, pairs: Mask) -> Matrix:
    """Token-to-patch scores of the pairs chosen by a mask on the CPU, 0 elsewhere."""
    embedded = embedded_of(scores, "FSCClip")
    assert embedded.image_tokens is not None, "an adapter that gives tokens"
    assert embedded.text_tokens is not None, "an adapter that gives tokens"
    row, column = positions(pairs, scores.values.device)
    patches = embedded.image_tokens[row]
    words = embedded.text_tokens[column]
    attended = _attend(patches.values, patches.mask, words.values)
    # (pairs, words), padding left out of the sum.
    unit_words = normalize(words.values, dim=-1)
    cosines = (attended * unit_words).sum(dim=-1)
    logits = only(embedded.scale * cosines, words.mask)
    local = logits.logsumexp(dim=1)
    # Back into a matrix, where the loss looks for them by image and text.
    matrix = torch.zeros_like(scores.values)
    local = local.to(matrix.dtype)
    return matrix.index_put((row, column), local)


def _attend(
    patches: Float[Tensor, "P t_image d"],
    mask: Bool[Tensor, "P t_image"],
    words: Float[Tensor, "P t_text d"],
) -> Float[Tensor, "P t_text d"]:
    """For each word the normalised mean of the patches, weighted by their similarity to it."""
    with torch.no_grad():
        # (pairs, words, patches); weights carry no gradient.
        similarity = torch.einsum("nad,nbd->nab", words, patches)
        real = mask[:, None, :]
        padding = ~real
        # Padding must be neither the least nor the most similar patch.
        without_low = similarity.masked_fill(padding, torch.inf)
        without_high = similarity.masked_fill(padding, -torch.inf)
        low = without_low.amin(dim=2, keepdim=True)
        high = without_high.amax(dim=2, keepdim=True)
        span = high - low
        # A word that is equally similar to all patches weighs them equally.
        scaled = (similarity - low) / span.clamp_min(1e-12)
        weights = torch.where(span > 0, scaled, 1.0)
        # Patches that weigh less than in a uniform mean are left out.
        uniform = 1 / mask.sum(dim=1)[:, None, None]
        kept = (weights >= uniform) & real
        weights = weights * kept
        weights = weights / weights.sum(dim=2, keepdim=True)
    attended = torch.einsum("nab,nbd->nad", weights, patches)
    return normalize(attended, dim=-1)
