"""Scores of a dual adapter made from a matrix alone, and ranks that share them."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import ShardedObjective
from vlmtune.types import Embedded, PhraseScores, Scores, ScoreShard, Targets, Tokens


def embedded(values: torch.Tensor) -> Embedded:
    """Embeddings whose cosines times their scale are `values`, differentiable in it.

    Image i is (values[i], e_i, a_i, 0) and text j (e_j, values[:, j], 0, b_j), divided by r, with
    a and b so that all have length 1; the scale is r^2 / 2. Reordering rows or columns of `values`
    reorders images or texts and rotates the space, which no objective may notice. There are three
    tokens an image and two a text, of which a text may lack one.
    """
    n, m = values.shape
    square = float(4 * (1 + values.detach().square().sum().clamp_min(100)))
    image, text = torch.eye(n).to(values), torch.eye(m).to(values)
    pads = [(square - 1 - values.square().sum(dim=d)).sqrt()[:, None] for d in (1, 0)]
    u = torch.cat([values, image, pads[0], torch.zeros_like(pads[0])], dim=1) / square**0.5
    v = torch.cat([text, values.T, torch.zeros_like(pads[1]), pads[1]], dim=1) / square**0.5
    inner = torch.ones_like(u[0])
    inner[-2:] = 0
    half = inner.clone()
    half[m:] = 0
    patches = torch.stack([u, u * inner, u * half], dim=1)
    words = torch.stack([v, v * inner], dim=1)
    mask = torch.ones(m, 2, dtype=torch.bool)
    mask[:, 1] = values.detach().sum(dim=0) > 0
    image_tokens = Tokens(patches, mask=torch.ones(n, 3, dtype=torch.bool))
    text_tokens = Tokens(words * mask[:, :, None], mask=mask)
    return Embedded(u, v, torch.tensor(square / 2).to(values), image_tokens, text_tokens)


def scored(values: torch.Tensor, computed: torch.Tensor | None = None) -> Scores:
    """Scores with all that an objective may need; those of the backbone and of teachers are near.

    The phrases are the texts once more, true of an image where its score is positive;
    the lowest are foils.
    """
    computed = torch.ones_like(values, dtype=torch.bool) if computed is None else computed
    near = values.detach().round()
    inside = embedded(values)
    known = values.detach()
    phrases = PhraseScores(values, known > 0, inside.text, known < -1)
    return Scores(values, computed, inside, near, Scores.full(near), phrases, embedded(near))


def cut_embeddings(inside: Embedded, rows: slice, columns: slice) -> Embedded:
    """The embeddings of some images and some texts."""
    tokens = inside.image_tokens[rows], inside.text_tokens[columns]
    return Embedded(inside.image[rows], inside.text[columns], inside.scale, *tokens)


def cut(scores: Scores, rows: slice, columns: slice) -> Scores:
    """The scores of some images against some texts."""
    part = cut_embeddings(scores.embedded, rows, columns)
    average = None if scores.average is None else cut_embeddings(scores.average, rows, columns)
    reference = None if scores.reference is None else scores.reference[rows, columns]
    teacher = scores.teacher
    if teacher is not None:
        teacher = Scores(teacher.values[rows, columns], teacher.computed[rows, columns])
    values, computed = scores.values[rows, columns], scores.computed[rows, columns]
    return Scores(values, computed, part, reference, teacher, average=average)


def share_of(scores: Scores, targets: Targets, rows: slice, columns: slice) -> ScoreShard:
    """What a rank holds whose images are `rows` and whose texts are `columns`."""
    held = []
    for part in ((rows, slice(None)), (slice(None), columns)):
        flags = (targets.truth[part], targets.known[part], targets.same_group[part])
        held += [cut(scores, *part), Targets(*flags)]
    # Each rank has the phrases of all, for its own images.
    if (all_of := scores.phrases) is not None:
        mine = (all_of.values[rows], all_of.truth[rows], all_of.text, all_of.foils[rows])
        phrases = PhraseScores(*mine)
        held[0] = replace(held[0], phrases=phrases)
    return ScoreShard(*held, rows.start, columns.start)


def same(truth: Tensor) -> Targets:
    """Targets of groups in which every text is true of every image."""
    return Targets(truth, truth, truth)


def softmax(numbers: list[float]) -> list[float]:
    """Of plain numbers, one at a time."""
    total = sum(math.exp(x) for x in numbers)
    return [math.exp(x) / total for x in numbers]


def naive_contrast(values: Tensor, positives: Tensor, negatives: Tensor) -> float:
    """Mean over rows of the mean over positives of -log(p / (p + negatives)), by loops."""
    rows = []
    for score, true, false in zip(values.detach(), positives, negatives, strict=True):
        others = sum(math.exp(s) for s in score[false])
        own = [math.exp(s) for s in score[true]]
        if own:
            rows.append(sum(-math.log(x / (x + others)) for x in own) / len(own))
    return sum(rows) / len(rows) if rows else 0.0


def naive_divergence(wanted: Tensor, logits: Tensor, listed: Tensor, least: int = 1) -> float:
    """Mean over rows with `least` entries listed or more of their divergence, by loops."""
    rows = []
    for want, logit, there in zip(wanted, logits.detach(), listed, strict=True):
        if int(there.sum()) >= least:
            theirs, ours = softmax(want[there].tolist()), softmax(logit[there].tolist())
            rows.append(sum(q * math.log(q / p) for p, q in zip(ours, theirs, strict=True)))
    return sum(rows) / len(rows) if rows else 0.0


def assert_shares_add_up(objective, scores, targets, cuts, **tolerance) -> None:
    """The loss and its gradient are those of ranks that hold some images and texts each."""
    shares = [share_of(scores, targets, *cut) for cut in cuts]
    losses = objective(scores, targets), torch.stack(parts(objective, shares)).sum()
    torch.testing.assert_close(*losses, **tolerance)
    gradients = (torch.autograd.grad(x, scores.values, retain_graph=True)[0] for x in losses)
    torch.testing.assert_close(*gradients, **tolerance)


# Groups and truth cross these ranks, one of which has no text of its own.
CUTS = ((slice(0, 2), slice(0, 4)), (slice(2, 3), slice(4, 4)), (slice(3, 5), slice(4, 9)))


class Thread(ProcessGroup):
    """One rank of several that run as threads of this process and meet in `sum` and `gather`."""

    def __init__(self, number: int, barrier: threading.Barrier, slots: list):
        super().__init__(alone=True)
        self.number, self.barrier, self.slots = number, barrier, slots

    @property
    def size(self) -> int:
        return len(self.slots)

    def _all(self, value: torch.Tensor) -> list[torch.Tensor]:
        self.slots[self.number] = value
        self.barrier.wait(60)
        values = list(self.slots)
        self.barrier.wait(60)
        return values

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._all(value)).sum(dim=0)

    def gather(self, value: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._all(value))


def parts(objective: ShardedObjective, shares: list[ScoreShard]) -> list[torch.Tensor]:
    """The part of the loss of each rank, ranks being threads."""
    barrier, slots = threading.Barrier(len(shares)), [None] * len(shares)

    def run(number: int) -> torch.Tensor:
        try:
            return objective.shard_loss(shares[number], Thread(number, barrier, slots))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(shares)) as pool:
        return list(pool.map(run, range(len(shares))))


def random_targets(seed: int, shape: tuple[int, int] = (5, 9)) -> Targets:
    """Groups of any size: several captions, hard negatives, texts of no image, truth across."""
    generator = torch.Generator().manual_seed(seed)
    groups = (shape[0] + 1) // 2
    image = torch.randint(groups, (shape[0], 1), generator=generator)
    own = image == torch.randint(groups, (1, shape[1]), generator=generator)
    chance = torch.rand(shape, generator=generator)
    truth = (own & (chance > 0.4)) | (chance > 0.95)
    return Targets(truth, torch.ones_like(own), own)


def random_values(seed: int, shape: tuple[int, int] = (5, 9), scale: float = 1.0) -> torch.Tensor:
    """Double-precision noise."""
    generator = torch.Generator().manual_seed(100 + seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


def random_computed(seed: int, shape: tuple[int, int] = (5, 9)) -> torch.Tensor:
    """Which pairs were scored: two in three."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(200 + seed)) > 1 / 3
