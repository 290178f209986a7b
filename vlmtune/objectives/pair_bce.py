"""Binary cross-entropy over scored pairs.

In: scores and targets. Out: a loss. Never: a comparison of one pair with another.
"""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.types import ScoreShard, positions, send


class PairBCE(ShardedObjective):
    r"""Mean over the scored pairs of $-y \log \sigma(s) - (1 - y) \log (1 - \sigma(s))$.

    Choose it with a joint adapter: each pair is judged true or false independently of other pairs.

    - Requirements: captions that are known to be false, such as hard negatives.
    - Recommended: scores that start near 0 (`initial_scale: 10`); `balanced` if few pairs are true.
    - Relations: `ITM` also ranks; `InfoNCE` only ranks.
    - Config: `--model.objectives '[pair_bce]'`.

    Source: Cola (Ray et al. 2023), section 11.1: "we compute the binary sigmoidal cross entropy and
    take the average in the batch [...] since for each image, there can be multiple text queries
    that are true and vice versa."

    Args:
        balanced: Give true and false pairs half of the loss each. Otherwise a batch with few true
            pairs mostly trains on the false ones.

    Example:
        >>> from vlmtune.types import Scores, Targets
        >>> truth = torch.ones(1, 1, dtype=torch.bool)
        >>> PairBCE()(Scores.full(torch.zeros(1, 1)), Targets(truth, truth, truth))
        tensor(0.6931)
    """

    def __init__(self, weight: Factor = 1.0, balanced: bool = False) -> None:
        super().__init__(weight)
        self.balanced = balanced

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        # Pairs are counted on the CPU: on a GPU their number would have to be waited for.
        device = shard.rows.values.device
        computed = shard.rows.cpu_computed
        targets = shard.row_targets.on_cpu()
        true = targets.truth[computed]
        values = shard.rows.values[positions(computed, device)]
        labels = send(true, device).to(values.dtype)
        losses = binary_cross_entropy_with_logits(values, labels, reduction="none")
        # The losses of true pairs and of false ones are added apart, as `balanced` weighs them.
        sums = []
        counts = []
        for kind in (true, ~true):
            of_kind = kind.nonzero()[:, 0]
            counts.append(len(of_kind))
            sums.append(losses[send(of_kind, device)].sum())
        sums = torch.stack(sums)
        # Every rank divides by the numbers of all ranks, so that its part adds up to the mean.
        counts = group.sum(send(torch.tensor(counts), device))
        if not self.balanced:
            return sums.sum() / counts.sum().clamp_min(1)
        means = sums / counts.clamp_min(1)
        # Without pairs of a kind the other kind has the whole loss.
        used = (counts > 0).sum()
        return means.sum() / used.clamp_min(1)
