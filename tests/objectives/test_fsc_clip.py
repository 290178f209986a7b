import math

import pytest
import torch
from torch.nn.functional import normalize

from tests.scored import random_computed, random_targets
from vlmtune.objectives.fsc_clip import FSCClip, local_scores
from vlmtune.types import Embedded, Scores, Targets, Tokens

SCALE = 3.0


def tokens(generator, count, length, width):
    """Tokens of any number, with others than zeros behind them."""
    x = torch.randn(count, length, width, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, length + 1, (count, 1), generator=generator)
    return Tokens(x.requires_grad_(), mask=torch.arange(length) < lengths)


def scores(seed, shape=(5, 9), computed=None):
    generator = torch.Generator().manual_seed(seed)
    both = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in shape)
    image, text = (normalize(x, dim=1) for x in both)
    patches = tokens(generator, shape[0], 6, 4)
    words = tokens(generator, shape[1], 5, 4)
    values = (SCALE * image @ text.T).requires_grad_()
    scale = torch.tensor(SCALE, dtype=torch.float64)
    computed = torch.ones(shape, dtype=torch.bool) if computed is None else computed
    return Scores(values, computed, Embedded(image, text, scale, patches, words))


def naive_local(patches, words):
    """Of one image's patches and one text's real words."""
    total = 0.0
    for word in words:
        likeness = [(word @ patch).item() for patch in patches]
        low, high = min(likeness), max(likeness)
        shares = [(x - low) / (high - low) if high > low else 1.0 for x in likeness]
        shares = [x if x >= 1 / len(patches) else 0.0 for x in shares]
        gathered = sum(x / sum(shares) * patch for x, patch in zip(shares, patches, strict=True))
        cosine = (gathered @ word / (gathered.norm() * word.norm())).item()
        total += math.exp(SCALE * cosine)
    return math.log(total)


def naive(score, computed, targets, focus, smoothing):
    images = []
    for i in range(len(computed)):
        mine = [j for j in range(computed.shape[1]) if computed[i, j] and targets.same_group[i, j]]
        true = [j for j in mine if targets.truth[i, j]]
        hard = [j for j in mine if not targets.truth[i, j]]
        if not (true and hard):
            continue
        terms = []
        for j in true:
            choice = [j, *hard]
            exponents = [math.exp(score(i, c)) for c in choice]
            loss = 0.0
            for c, exponent in zip(choice, exponents, strict=True):
                p = exponent / sum(exponents)
                label = smoothing / len(choice) + (1 - smoothing if c == j else 0)
                loss -= label * (1 - p) ** focus * math.log(p)
            terms.append(loss)
        images.append(sum(terms) / len(terms))
    return sum(images) / len(images) if images else 0.0


def local_of(given):
    patches, words = given.embedded.image_tokens, given.embedded.text_tokens
    return lambda i, j: naive_local(
        patches.values[i][patches.mask[i]], words.values[j][words.mask[j]]
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("focus", "smoothing"), [(0.0, 0.0), (2.0, 0.02), (1.0, 0.5), (0.5, 0.1)])
def test_global_and_local_equal_the_loops(seed, focus, smoothing):
    given, targets = scores(seed, computed=random_computed(seed)), random_targets(seed)
    objective = FSCClip(1.0, 0.5, 0.3, focus, smoothing)
    options = given.computed, targets, focus, smoothing
    want = 0.5 * naive(lambda i, j: given.values[i, j].item(), *options)
    want += 0.3 * naive(local_of(given), *options)
    loss = objective(given, targets)
    assert loss.item() == pytest.approx(want, abs=1e-10)
    loss.backward()
    whole = given.embedded
    for leaf in (given.values, whole.image_tokens.values, whole.text_tokens.values):
        assert leaf.grad is None or leaf.grad.isfinite().all()


@pytest.mark.parametrize("patches", [1, 6])
def test_patches_that_are_all_alike_weigh_the_same(patches):
    given, everything = scores(5), torch.ones(5, 9, dtype=torch.bool)
    whole = given.embedded
    flat = Tokens.full(whole.image_tokens.values[:, :1].expand(-1, patches, -1))
    alike = Embedded(whole.image, whole.text, whole.scale, flat, whole.text_tokens)
    got = local_scores(Scores(given.values, everything, alike), everything)
    patch = normalize(whole.image_tokens.values[:, 0], dim=-1)
    cosines = torch.einsum("id,jtd->ijt", patch, normalize(whole.text_tokens.values, dim=-1))
    want = (SCALE * cosines).masked_fill(~whole.text_tokens.mask, -torch.inf).logsumexp(dim=2)
    torch.testing.assert_close(got, want)


def test_without_hard_negatives_there_is_no_term_and_without_local_scores_no_token():
    given, truth = scores(6), torch.eye(5, 9) > 0
    loss = FSCClip()(given, Targets(truth, truth, truth))
    loss.backward()
    assert loss == 0
    assert FSCClip().needs == {"embedded", "tokens"}
    assert FSCClip(local_factor=0.0).needs == frozenset()
    targets, given = random_targets(0), scores(0)
    bare = Scores(given.values, given.computed)
    assert FSCClip(local_factor=0.0)(bare, targets).isfinite()
