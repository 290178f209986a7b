"""F1 of a ranking, cut where it would be perfect."""

from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.metrics.ranking import pessimistic_ranks


def f1_at_positives(scores: Float[Tensor, "n"], positives: Bool[Tensor, "n"]) -> float:
    """F1 where the first P images are predicted, P being the number of true ones.

    Cola reports an F1 (section 10) without saying where scores become predictions. A threshold on
    the scores would have to be tuned per model, and on the test set; this cut needs no tuning and
    is the same for cosines, logits and probabilities. An image is predicted where its pessimistic
    rank is at most P, so images tied across the cut are not predicted:
    `F1 = 2 hits / (predicted + P)`. Without ties it is R-precision; random scores reach P / n.

    Raises:
        UserError: There is no true image, or a score is NaN.

    Example:
        >>> import torch
        >>> f1_at_positives(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0]) > 0)
        0.5
    """
    count = int(positives.sum())
    if not count:
        raise UserError("expected at least one true image, got none: leave the class out")
    predicted = pessimistic_ranks(scores) <= count
    hits = int((predicted & positives).sum())
    return 2 * hits / (int(predicted.sum()) + count)
