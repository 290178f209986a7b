"""Negatives chosen in both directions at once, so that EqSim needs no further pair.

In: targets, and reference scores where `hard`. Out: a symmetric choice, as a mask.
Never: a pair of images where either text is true of the other image.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from typing_extensions import override

from vlmtune.pairs.base import Mask, NegativePairs, Reference, gumbel, sample_rows
from vlmtune.types import Targets


class MutualPairs(NegativePairs):
    r"""One true text per image, and mutual false ones: a is scored with b's text and b with a's.

    With $t_a$ the true text of image a, a chosen pair of images (a, b) gives $s(a, t_b)$ and
    $s(b, t_a)$. The true pairs $s(a, t_a)$ and $s(b, t_b)$ are scored anyway: every negative has
    EqSim's four scores, with no more pairs than `RankingPairs` without `mirrored`. If negatives are
    sampled one by one, as METER does, $s(b, t_a)$ is a further pair for nearly every negative (31
    pairs instead of 16).

    Pairs of images are taken in three rounds. First come pairs of which either text is mined for
    the other image (`Targets.mined_negatives`), in random order, while both images have fewer than
    `mined` of them. Then come hard pairs, in descending order of $(s_{a t_b} + s_{b t_a}) / 2$ plus
    Gumbel noise, while both images have fewer than `hard` of them. The rest is uniform, until each
    image has `negatives`, or fewer if no partner is left. A pair of images is never taken if either
    text is true of the other image.

    Source: EqSim (Wang et al. 2023), section 3 and appendix C, for the scores compared; the mutual
    choice is ours.

    Example:
        >>> eye = torch.eye(4, dtype=torch.bool)
        >>> chosen = MutualPairs(negatives=1)(Targets(eye, eye, eye), torch.Generator())
        >>> bool((chosen == chosen.T).all()), int(chosen.sum())
        (True, 8)
    """

    @override
    def __call__(self, targets: Targets, generator: Generator, reference: Reference = None) -> Mask:
        truth = targets.truth
        zeros = torch.zeros(truth.shape, device=truth.device)
        one_text = truth.any(dim=1).long()
        true = sample_rows(zeros, truth, one_text, generator)
        # From here on matrices are square, over the images with a true text: b stands for its text.
        images, texts = true.nonzero(as_tuple=True)

        def square(matrix: Tensor) -> Tensor:
            rows = matrix[images]
            return rows[:, texts].cpu()

        false = ~square(truth)
        allowed = false & false.T  # the diagonal is true
        uniform = torch.zeros(allowed.shape, dtype=torch.float64)
        each = torch.ones(len(images), dtype=torch.long)

        # Round 1: pairs that mining found near in either direction.
        taken = torch.zeros_like(allowed)
        if self.mined and targets.mined_negatives is not None:
            mined = square(targets.mined_negatives)
            near = allowed & (mined | mined.T)
            taken = _greedy_matching(uniform, near, self.mined * each, generator)
        # Round 2: hard pairs by the reference, of which both directions count alike.
        logits = uniform
        if self.hard:
            assert reference is not None
            scores = square(reference.detach().double())
            logits = (scores + scores.T) / 2
        unused = allowed & ~taken
        taken |= _greedy_matching(logits, unused, self.hard * each, generator)
        # Round 3: any pairs, for images that have not enough yet.
        unused = allowed & ~taken
        rest = self.negatives - taken.sum(dim=1)
        taken |= _greedy_matching(uniform, unused, rest, generator)

        # Back to the rows and columns of the batch.
        a, b = taken.to(truth.device).nonzero(as_tuple=True)
        mask = true.clone()
        mask[images[a], texts[b]] = True
        return mask


def _greedy_matching(
    logits: Float[Tensor, "n n"],
    allowed: Bool[Tensor, "n n"],
    wanted: Int[Tensor, "n"],
    generator: Generator,
) -> Bool[Tensor, "n n"]:
    """Pairs rows up to `wanted` times each; the allowed pairs with the largest noisy logits win."""
    rows, columns = allowed.triu(1).nonzero(as_tuple=True)
    noise = gumbel(torch.Size([len(rows)]), generator)
    # Largest noisy logit first: a sample without replacement, in proportion to the softmax.
    noisy = logits[rows, columns] + noise
    order = noisy.argsort(descending=True)
    candidates = torch.stack([rows, columns], dim=1)[order]
    left = wanted.tolist()
    open_rows = sum(count > 0 for count in left)
    taken = torch.zeros_like(allowed)
    for a, b in candidates.tolist():
        if left[a] <= 0 or left[b] <= 0:
            continue
        taken[a, b] = True
        taken[b, a] = True
        for row in (a, b):
            left[row] -= 1
            open_rows -= left[row] == 0
        # A single open row has no partner, so the rest of the candidates cannot be taken.
        if open_rows < 2:
            break
    return taken
