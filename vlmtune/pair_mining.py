"""Pairs for image-text matching: negatives that a model or a similarity cache finds hard."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.pairs import PairPolicy
from vlmtune.types import Targets


class HardPairs(PairPolicy):
    r"""All true pairs, and for each a hard text for its image and a hard image for its text.

    A false text j of image i is drawn with probability in proportion to $e^{s_{ij} / \tau}$, where
    s are the scores of the frozen backbone's embeddings (ITC); images are drawn likewise within the
    column of a text. An image with several true texts gets as many texts, without replacement, and
    a text as many images. A pair that is drawn from both sides is scored once.

    Source: Li et al. 2021 (ALBEF), section 3.2; FIBER's `*_hardneg` fine-tuning does the same. Both
    take any other caption of the batch for false; here captions known to be true never are.

    Args:
        texts: Hard texts for each true pair.
        images: Hard images for each true pair.
        temperature: $\tau$; the scores already have the backbone's own.

    Raises:
        UserError: A count is negative, both are 0, or the temperature is not positive.

    Example:
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> targets, generator = Targets(eye, eye, eye), torch.Generator()
        >>> HardPairs()(targets, generator, torch.zeros(2, 2)).all()
        tensor(True)
    """

    needs_reference = True

    def __init__(self, texts: int = 1, images: int = 1, temperature: float = 1.0) -> None:
        if min(texts, images) < 0 or texts + images == 0:
            raise UserError(
                f"expected counts of hard pairs >= 0 with one above 0, got {texts=}, {images=}: "
                "raise one"
            )
        check_temperature(temperature)
        self.texts, self.images, self.temperature = texts, images, temperature

    def __call__(
        self,
        targets: Targets,
        generator: torch.Generator,
        reference: Float[Tensor, "N M"] | None = None,
    ) -> Bool[Tensor, "N M"]:
        """Returns True at the chosen pairs, shape (N, M)."""
        assert reference is not None
        truth, logits = targets.truth, reference / self.temperature
        texts = drawn(logits, ~truth, self.texts * truth.sum(dim=1), generator)
        images = drawn(logits.T, ~truth.T, self.images * truth.sum(dim=0), generator)
        return truth | texts | images.T


class RankingPairs(PairPolicy):
    r"""For each image one of its true texts and `negatives` false ones, some of them hard.

    First `mined` texts are drawn uniformly from those that a similarity cache finds hard for the
    image (`Targets.mined`); then `hard` others with probability in proportion to
    $e^{s_{ij} / \tau}$, without replacement; then uniformly from the false texts that are left,
    also in the place of mined ones where the batch has too few. Without `hard` ones no scores of
    the backbone are read, so that it need not have embeddings.

    Source: METER's released retrieval code (Dou et al. 2022) scores one true caption against 15
    random ones, of the corpus rather than of the batch, and without excluding the image's own.
    EqSim (Wang et al. 2023), appendix C, makes 8 of the 15 hard ones by cached matching scores
    (`mined=8`), and adds the images of the 15; how it draws them is not said.

    Args:
        negatives: False texts per image.
        hard: How many of them are hard by the scores of the backbone.
        mirrored: Also score the images that the false texts are true of: with the false text, and
            with the true text they were drawn against. EqSim compares these four scores.
        temperature: $\tau$; the scores already have the backbone's own.
        mined: How many of them are texts of mined neighbours, which `MinedNeighbours` adds.

    Raises:
        UserError: Counts are out of range, or the temperature is not positive.

    Example:
        >>> truth = torch.tensor([[True, False, False, False]])
        >>> RankingPairs(negatives=2)(Targets(truth, truth, truth), torch.Generator()).sum()
        tensor(3)
    """

    def __init__(
        self,
        negatives: int = 15,
        hard: int = 0,
        mirrored: bool = False,
        temperature: float = 1.0,
        mined: int = 0,
    ) -> None:
        check_counts(negatives, hard, mined)
        check_temperature(temperature)
        self.negatives, self.hard, self.mirrored = negatives, hard, mirrored
        self.temperature, self.mined = temperature, mined
        self.needs_reference, self.needs_mined = hard > 0, mined > 0

    def __call__(
        self,
        targets: Targets,
        generator: torch.Generator,
        reference: Float[Tensor, "N M"] | None = None,
    ) -> Bool[Tensor, "N M"]:
        """Returns True at the chosen pairs, shape (N, M)."""
        truth = targets.truth
        uniform, each = torch.zeros(truth.shape, device=truth.device), truth.any(dim=1).long()
        true = drawn(uniform, truth, each, generator)
        false = torch.zeros_like(truth)
        if self.mined and targets.mined is not None:
            false = drawn(uniform, targets.mined & ~truth, self.mined * each, generator)
        if self.hard:
            assert reference is not None
            logits = reference / self.temperature
            false |= drawn(logits, ~truth & ~false, self.hard * each, generator)
        left = self.negatives * each - false.sum(dim=1)
        false |= drawn(uniform, ~truth & ~false, left, generator)
        return true | false | (_mirrored(truth, true, false) if self.mirrored else false)


class MutualPairs(PairPolicy):
    r"""One true text per image and false ones drawn mutually: a meets b's text where b meets a's.

    With $t_a$ the true text of image a, a pair of images (a, b) that is drawn gives $s(a, t_b)$ and
    $s(b, t_a)$, and the true pairs $s(a, t_a)$, $s(b, t_b)$ are there anyway: EqSim's four scores
    for every negative, and not one pair more than `RankingPairs` without `mirrored` scores. Drawn
    one by one as METER's are, s(b, t_a) is new for nearly every negative (31 pairs instead of 16).

    First pairs of images of which either text is mined for the other image (`Targets.mined`) are
    taken in random order, each where both images still want mined negatives; then others in the
    order of $(s_{a t_b} + s_{b t_a}) / 2\tau$ plus Gumbel noise, where both still want hard ones;
    then uniformly until each image has `negatives`, or one less where no partner is left. A pair of
    which either text is true of the other image is never taken.

    Source: EqSim (Wang et al. 2023), section 3 and appendix C, for what is compared; the mutual
    draw is ours.

    Args:
        negatives: False texts per image.
        hard: How many of them are hard by the scores of the backbone.
        temperature: $\tau$; the scores already have the backbone's own.
        mined: How many of them are texts of mined neighbours, which `MinedNeighbours` adds; where
            partners run out others take their place.

    Raises:
        UserError: Counts are out of range, or the temperature is not positive.

    Example:
        >>> eye = torch.eye(4, dtype=torch.bool)
        >>> chosen = MutualPairs(negatives=1)(Targets(eye, eye, eye), torch.Generator())
        >>> bool((chosen == chosen.T).all()), int(chosen.sum())
        (True, 8)
    """

    def __init__(
        self, negatives: int = 15, hard: int = 0, temperature: float = 1.0, mined: int = 0
    ) -> None:
        check_counts(negatives, hard, mined)
        check_temperature(temperature)
        self.negatives, self.hard, self.mined = negatives, hard, mined
        self.temperature = temperature
        self.needs_reference, self.needs_mined = hard > 0, mined > 0

    def __call__(
        self,
        targets: Targets,
        generator: torch.Generator,
        reference: Float[Tensor, "N M"] | None = None,
    ) -> Bool[Tensor, "N M"]:
        """Returns True at the chosen pairs, shape (N, M)."""
        truth = targets.truth
        uniform = torch.zeros(truth.shape, device=truth.device)
        true = drawn(uniform, truth, truth.any(dim=1).long(), generator)
        images, texts = true.nonzero(as_tuple=True)
        false = ~truth[images][:, texts].cpu()
        allowed = false & false.T  # the diagonal is true
        taken, wanted = torch.zeros_like(allowed), torch.ones(len(images), dtype=torch.long)
        logits = flat = torch.zeros(allowed.shape, dtype=torch.float64)
        if self.mined and targets.mined is not None:
            near = targets.mined[images][:, texts].cpu()
            taken = matched(flat, allowed & (near | near.T), self.mined * wanted, generator)
        if self.hard:
            assert reference is not None
            square = reference.detach()[images][:, texts].double().cpu() / self.temperature
            logits = (square + square.T) / 2
        taken |= matched(logits, allowed & ~taken, self.hard * wanted, generator)
        rest = self.negatives - taken.sum(dim=1)
        taken |= matched(flat, allowed & ~taken, rest, generator)
        a, b = taken.to(truth.device).nonzero(as_tuple=True)
        chosen = true.clone()
        chosen[images[a], texts[b]] = True
        return chosen


def matched(
    logits: Float[Tensor, "n n"],
    allowed: Bool[Tensor, "n n"],
    wanted: Int[Tensor, "n"],
    generator: torch.Generator,
) -> Bool[Tensor, "n n"]:
    """Partners that want each other: greedily by logits plus noise, at most `wanted` of each row.

    Args:
        logits: Symmetric log-probabilities up to a constant.
        allowed: Which pairs may be taken, symmetric, never with oneself.
        wanted: How many partners each row may have.
        generator: The source of chance.
    """
    rows, columns = allowed.triu(1).nonzero(as_tuple=True)
    keys = logits[rows, columns] + gumbel(torch.Size([len(rows)]), generator)
    order = keys.argsort(descending=True)
    left, taken = wanted.tolist(), torch.zeros_like(allowed)
    open_rows = sum(count > 0 for count in left)
    for a, b in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if left[a] > 0 and left[b] > 0:
            taken[a, b] = taken[b, a] = True
            for row in (a, b):
                left[row] -= 1
                open_rows -= left[row] == 0
            if open_rows < 2:
                break
    return taken


def drawn(
    logits: Float[Tensor, "rows columns"],
    candidates: Bool[Tensor, "rows columns"],
    counts: Int[Tensor, "rows"],
    generator: torch.Generator,
) -> Bool[Tensor, "rows columns"]:
    """Draws candidates of each row, one after the other in proportion to the softmax of `logits`.

    Adding Gumbel noise and taking the largest draws without replacement (Kool et al. 2019,
    arXiv 1903.06059).

    Args:
        logits: Log-probabilities up to a constant.
        candidates: What may be drawn.
        counts: How many at most.
        generator: The source of chance.
    """
    keys = logits.detach().double() + gumbel(logits.shape, generator).to(logits.device)
    keys = keys.masked_fill(~candidates, -torch.inf)
    place = keys.argsort(dim=1, descending=True).argsort(dim=1)
    return candidates & (place < counts[:, None])


def gumbel(shape: torch.Size, generator: torch.Generator) -> Float[Tensor, "..."]:
    """Noise under which the largest of logits are draws in proportion to their softmax."""
    # Drawn on the CPU so that one seed gives one choice on every device.
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return -(-uniform.clamp(1e-300, 1 - 1e-16).log()).log()


def _mirrored(
    truth: Bool[Tensor, "N M"], true: Bool[Tensor, "N M"], false: Bool[Tensor, "N M"]
) -> Bool[Tensor, "N M"]:
    """Images of the false texts, with those texts and with the true texts they stood against."""
    partners = (false.float() @ truth.float().T) > 0  # (i, a): a text of image a is false of i
    across = (partners.float().T @ true.float()) > 0
    return across | (truth & false.any(dim=0))


def check_counts(negatives: int, hard: int, mined: int) -> None:
    """Raises a `UserError` where there are no negatives, or more hard and mined ones than those."""
    if negatives < 1 or min(hard, mined) < 0 or hard + mined > negatives:
        raise UserError(
            "expected at least 1 negative and from 0 to all of them hard or mined, got "
            f"{negatives=}, {hard=}, {mined=}: correct them"
        )


def check_temperature(temperature: float) -> None:
    """Raises a `UserError` where a temperature is not positive."""
    if not temperature > 0:
        raise UserError(f"expected a temperature above 0, got {temperature}: raise it")
