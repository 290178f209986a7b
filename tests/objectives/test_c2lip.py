import math

import pytest
import torch
from torch.nn.functional import normalize

from tests.scored import random_targets
from vlmtune.objectives.c2lip import C2LIP, pooled_scores
from vlmtune.objectives.sigmoid import Sigmoid
from vlmtune.types import Embedded, PhraseScores, Scores, Tokens

SCALE, BIAS = 3.0, -1.5
N, M, K, D, PATCHES = 4, 6, 7, 5, 6


def given(seed: int) -> Scores:
    """Images with patches, the last image with two patches less, captions and phrases."""
    generator = torch.Generator().manual_seed(seed)
    kind = {"generator": generator, "dtype": torch.float64}
    image, text, phrase = (normalize(torch.randn(n, D, **kind), dim=1) for n in (N, M, K))
    mask = torch.ones(N, PATCHES, dtype=torch.bool)
    mask[-1, -2:] = False
    patches = Tokens((torch.randn(N, PATCHES, D, **kind) * mask[..., None]).requires_grad_(), mask)
    scale = torch.tensor(SCALE, dtype=torch.float64, requires_grad=True)
    embedded = Embedded(image, text, scale, patches)
    truth = torch.rand(N, K, generator=generator) > 0.6
    phrases = PhraseScores(scale * image @ phrase.T + BIAS, truth, phrase, ~truth)
    values = SCALE * image @ text.T + BIAS
    return Scores(values, torch.ones(N, M, dtype=torch.bool), embedded, phrases=phrases)


def log_sigmoid(value: float) -> float:
    return math.log(1 / (1 + math.exp(-value)))


def naive_phrases(score, truth) -> float:
    total = 0.0
    for k in range(K):
        for i in range(N):
            sign = 1 if truth[i, k] else -1
            total -= log_sigmoid(sign * score(i, k))
    return total / K


def naive_pooled(scores: Scores, i: int, k: int) -> float:
    """The score of an image that is its patches, weighted by their likeness to the phrase."""
    tokens, phrase = scores.embedded.image_tokens, scores.phrases.text[k]
    patches = [p for p, real in zip(tokens.values[i], tokens.mask[i], strict=True) if real]
    exponents = [math.exp((patch @ phrase).item()) for patch in patches]
    vector = torch.zeros(D, dtype=torch.float64)
    for exponent, patch in zip(exponents, patches, strict=True):
        vector = vector + exponent / sum(exponents) * patch.detach()
    return SCALE * (vector @ phrase / vector.norm()).item() + BIAS


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("phrase_weight", "pooling_weight"), [(1.0, 0.01), (0.0, 1.0), (2.0, 0.0)])
def test_equals_the_loops(seed, phrase_weight, pooling_weight):
    scores, targets = given(seed), random_targets(seed, (N, M))
    objective = C2LIP(phrase_weight=phrase_weight, pooling_weight=pooling_weight)
    truth = scores.phrases.truth
    want = Sigmoid()(scores, targets).item()
    want += phrase_weight * naive_phrases(lambda i, k: scores.phrases.values[i, k].item(), truth)
    want += pooling_weight * naive_phrases(lambda i, k: naive_pooled(scores, i, k), truth)
    loss = objective(scores, targets)
    assert loss.item() == pytest.approx(want, abs=1e-10)


def test_the_pooled_score_has_the_gradient_of_the_pooled_vector():
    scores = given(0)
    tokens, phrases = scores.embedded.image_tokens, scores.phrases.text
    patches = tokens.values
    likeness = (phrases @ patches.transpose(1, 2)).masked_fill(~tokens.mask[:, None], -torch.inf)
    vectors = normalize(likeness.softmax(dim=2) @ patches, dim=2)
    want = scores.embedded.scale * (vectors * phrases).sum(dim=2) + BIAS
    got = pooled_scores(scores)
    torch.testing.assert_close(got, want)
    leaves = (patches, scores.embedded.scale)
    ours, theirs = (torch.autograd.grad(x.sin().sum(), leaves) for x in (got, want))
    torch.testing.assert_close(ours, theirs)


def test_a_batch_without_a_phrase_has_the_loss_of_its_captions_and_what_it_needs():
    scores, targets = given(0), random_targets(0, (N, M))
    nothing = torch.zeros(N, 0)
    none = PhraseScores(nothing, nothing > 0, scores.phrases.text[:0], nothing > 0)
    empty = Scores(scores.values, scores.computed, scores.embedded, phrases=none)
    assert C2LIP()(empty, targets) == Sigmoid()(empty, targets)
    assert C2LIP().needs == {"embedded", "tokens", "phrases"}
    assert C2LIP(pooling_weight=0.0).needs == {"embedded", "phrases"}
