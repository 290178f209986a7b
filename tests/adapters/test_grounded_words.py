"""Grounded words against their formula: pair by pair, word by word, head by head."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch.nn.functional import cosine_similarity, gelu, layer_norm, logsigmoid, normalize

from tests.adapters import families
from vlmtune.adapters.grounded_words import GroundedWords
from vlmtune.adapters.patch_grid import coordinates
from vlmtune.adapters.words import with_preceding
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.types import FeatureSpec, Tokens

TEXTS = ["a red cube", "blue sphere", "a cube left of a red sphere"]
UNREAD = ("red", "left")


def attached(backbone, **options):
    torch.manual_seed(0)
    adapter = GroundedWords(heads=2, **{"hidden_words": 0.3, **options})
    adapter.attach(backbone)
    return adapter.eval()


def states(backbone, adapter, images=2):
    torch.manual_seed(1)
    tower = backbone.image_tower
    state = torch.randn(images, tower.special + backbone.image_tokens, backbone.image_width)
    return Tokens.full(state), backbone.encode_text(TEXTS, adapter.text_input)


def awaken(adapter):
    """Gives the weights that start at 0 other values, as if training had read every word."""
    unread = adapter.unread
    torch.nn.init.uniform_(unread.read, 0.1, 0.3)
    torch.nn.init.normal_(unread.hidden_word)
    torch.nn.init.normal_(unread.mean)
    if adapter.locations:
        torch.nn.init.normal_(adapter.location.weight)
        torch.nn.init.normal_(adapter.location.bias)


def leaked(adapter, evidence):
    """What evidence adds to the frozen score."""
    return (1 - adapter.leak) * logsigmoid(evidence) + adapter.leak * evidence


def embedding(tower, state, first):
    return tower.finish(tower.run(state, first, tower.layers))


def convolved(patches, layer, grid):
    """The convolution of 3 x 3 patches, sum by sum."""
    height, width = grid
    rows = []
    for p in range(len(patches)):
        y, x = divmod(p, width)
        row = layer.bias.clone()
        for i in range(3):
            for j in range(3):
                near, beside = y + i - 1, x + j - 1
                if 0 <= near < height and 0 <= beside < width:
                    row += layer.weight[:, :, i, j] @ patches[near * width + beside]
        rows.append(row)
    return torch.stack(rows)


def after_preceding(words, layer):
    """Words with the convolution of each and the three before it, sum by sum."""
    rows = []
    for word in range(len(words)):
        row = layer.bias.clone()
        for offset in range(4):
            before = word + offset - 3
            if before >= 0:
                row += layer.weight[:, :, offset] @ words[before]
        rows.append(words[word] + gelu(row))
    return torch.stack(rows)


def whitened(words, vocabulary):
    """Words times the inverse root of the vocabulary's covariance, shrunk by a twentieth."""
    centred = vocabulary.double().numpy()
    centred = centred - centred.mean(axis=0)
    covariance = centred.T @ centred / len(centred)
    width = len(covariance)
    shrunk = covariance + 0.05 * np.trace(covariance) / width * np.eye(width)
    matrix = np.linalg.inv(sqrtm(shrunk).real)
    factor = np.linalg.norm(centred) / np.linalg.norm(centred @ matrix)
    moved = words.double().numpy() - vocabulary.double().numpy().mean(axis=0)
    return torch.from_numpy(factor * moved @ matrix).float()


def meaning(backbone, word):
    """What a word adds to the embedding of a text without words."""
    alone = backbone.tokenize([word])
    # Without the word between the special tokens; the text's end counts, wherever it stands.
    without = torch.cat([alone[:, :1], alone[:, 2:], torch.zeros_like(alone[:, :1])], dim=1)
    embedded = normalize(backbone.model.encode_text(torch.cat([alone, without])), dim=1)
    return embedded[0] - embedded[1]


def patch_embeddings(backbone, state, layer):
    """The embeddings of patches: the value path of the last block, final norm and projection."""
    tower, visual = backbone.image_tower, backbone.model.visual
    before = tower.run(state, tower.layers + layer + 1, tower.layers - 1)
    block = tower.blocks[-1]
    patches = block.ln_1(before.values[0, tower.special :])
    width = patches.shape[1]
    values = patches @ block.attn.in_proj_weight[2 * width :].T
    values = block.attn.out_proj(values + block.attn.in_proj_bias[2 * width :])
    return normalize(visual.ln_post(values) @ visual.proj, dim=1)


def naive(backbone, adapter, state, caption, scale):
    """The score of one image with one caption, from the formula."""
    patches = state.values[:, backbone.image_tower.special :]
    x = layer_norm(adapter.project(patches), [adapter.width])
    grid = coordinates(*backbone.image_grid)
    if adapter.locations:
        x = x + adapter.position(torch.cat([grid, grid**2], dim=1))
    x = x + gelu(convolved(x[0], adapter.local, backbone.image_grid))
    full = torch.ones(x.shape[:2], dtype=torch.bool)
    keys, values = adapter.keys_values(adapter.image.all(x, full))[0].chunk(2, dim=1)
    text = backbone.text_tower.words([caption])
    ids = text.word_ids[0]
    embeddings = text.values[0] * (1 + adapter.unread.read[ids])
    spoken = ["", *caption.split(), ""]
    hidden = [position for position, word in enumerate(spoken) if word in UNREAD]
    embeddings[hidden] = adapter.unread.hidden_word.detach()
    if adapter.whiten:
        embeddings = whitened(embeddings, backbone.text_tower.embedding.weight)
    words = backbone.text_tower.start(replace(text, values=embeddings[None]))
    near = after_preceding(layer_norm(words.values, [adapter.width])[0], adapter.preceding)
    tokens = adapter.text.all(near[None], words.mask)[0]
    queries, content = adapter.queries(tokens), adapter.content(tokens)
    embedded = patch_embeddings(backbone, state, adapter.image_input.layer) - adapter.unread.mean
    size = adapter.width // adapter.heads
    score, unread = float(adapter.bias), 0.0
    for word in range(len(tokens)):
        for head in range(adapter.heads):
            part = slice(head * size, (head + 1) * size)
            logits = keys[:, part] @ queries[word, part] / math.sqrt(size)
            read = logits.softmax(dim=0)
            if word in hidden:
                added = meaning(backbone, spoken[word])
                found = 0.7 * backbone.logit_scale * float(read @ embedded @ added) / adapter.heads
                unread += (2 * float(added.norm())) ** 3 * found
                continue
            content_read = read @ values[:, part] / math.sqrt(size)
            score += float(content_read @ content[word, part]) / 2
            if adapter.locations:
                location = adapter.location(tokens)[word, 2 * head : 2 * head + 2]
                score += float((read @ grid) @ location) / 2
    score = (score + unread) * 0.5 ** len(hidden)
    score = (1 - adapter.leak) * math.log(1 / (1 + math.exp(-score))) + adapter.leak * score
    score += unread
    if scale:
        tower = backbone.image_tower
        image = embedding(tower, state, tower.layers + adapter.image_input.layer + 1)
        frozen = backbone.encode_text([caption], FeatureSpec("pooled")).values
        score += scale * float(cosine_similarity(image, frozen))
    return score


@pytest.mark.parametrize("locations", [True, False])
@pytest.mark.parametrize(
    ("weight", "leak", "whiten", "size"),
    [(1.0, 0.2, True, 32), (0.0, 0.0, False, 32), (0.3, 1.0, True, (16, 48))],
)
@torch.no_grad()
def test_scores_are_those_of_the_formula(model_folder, locations, weight, leak, whiten, size):
    backbone = OpenClip(str(model_folder), image_size=size)
    options = {"frozen_weight": weight, "leak": leak, "meaning_weight": 0.7, "whiten": whiten}
    adapter = attached(backbone, locations=locations, **options)
    awaken(adapter)
    for word in UNREAD:
        adapter.unread.read.data[backbone.text_tower.words([word]).word_ids[0, 1]] = 0
    image, text = states(backbone, adapter)
    scores = adapter(image, text).values
    parts, factor = (backbone, adapter), weight * backbone.logit_scale
    for i in range(2):
        for j, caption in enumerate(TEXTS):
            expected = naive(*parts, image[[i]], caption, factor)
            assert scores[i, j].item() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    # A text may stand for all images, as in a search.
    images, prepared = adapter.prepare_image(image), adapter.prepare_text(text)
    for j in range(len(TEXTS)):
        alone = adapter.score_pairs(images, prepared[j : j + 1])
        torch.testing.assert_close(alone, scores[:, j], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("memory", [1, 2**29])
def test_training_reads_an_image_once_for_all_its_texts(backbone, memory):
    adapter = attached(backbone, frozen_weight=0.0, memory=memory)
    awaken(adapter)
    adapter.unread.rate = 0.0
    image, text = states(backbone, adapter, images=3)
    pairs = torch.tensor([[True, False, True], [False] * 3, [True] * 3])
    parameters = [p for name, p in adapter.named_parameters() if name != "unread.mean"]
    scores, gradients = [], []
    for training in (False, True):
        one = adapter.train(training)(image, text, pairs).values[pairs]
        one = leaked(adapter, one) if training else one
        scores.append(one)
        gradients.append(torch.autograd.grad((one * torch.arange(5)).sum(), parameters))
    # Training scores the evidence alone.
    torch.testing.assert_close(*scores)
    torch.testing.assert_close(*gradients)


@torch.no_grad()
def test_training_counts_what_hidden_words_mean_as_evaluation_does(backbone):
    adapter = attached(backbone, meaning_weight=0.7).train()
    awaken(adapter)
    adapter.unread.rate = 1e3
    image, text = states(backbone, adapter, images=3)
    images, texts = adapter.prepare_image(image), adapter.prepare_text(text)
    evidence, by_word = adapter._read_pairs(images.tokens, texts.tokens.values)
    assert by_word.any()
    want = evidence + by_word.sum(dim=1) + adapter.bias
    torch.testing.assert_close(adapter.score_pairs(images, texts), want)


@torch.no_grad()
@pytest.mark.parametrize("locations", [True, False])
def test_recall_vectors_are_the_score_to_first_order_in_the_queries(backbone, locations):
    """Frozen score and evidence give the score where queries are 0, and its derivative there."""
    adapter = attached(backbone, locations=locations)
    awaken(adapter)
    image, words = states(backbone, adapter, images=3)
    with torch.no_grad():
        prepared, text = adapter.prepare_image(image), adapter.prepare_text(words)
        recalled = adapter.recall_image(prepared)
    pooled = prepared.pooled.shape[1]

    def scaled(size):
        values = text.tokens.values
        queries = values[:, :, : adapter.width] * size
        return replace(
            text,
            tokens=Tokens(torch.cat([queries, values[:, :, adapter.width :]], 2), text.tokens.mask),
        )

    def exact(size):
        rows, columns = torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")
        values = adapter.score_pairs(prepared[rows.flatten()], scaled(size)[columns.flatten()])
        return values.view(3, 3)

    def approximate(size):
        texts = adapter.recall_text(scaled(size))
        frozen = recalled[:, :pooled] @ texts[:, :pooled].T
        evidence = recalled[:, pooled:] @ texts[:, pooled:].T
        return frozen + leaked(adapter, evidence + adapter.bias)

    zero = torch.zeros(())
    torch.testing.assert_close(approximate(zero), exact(zero), rtol=1e-4, atol=1e-5)
    slope, wanted = (torch.autograd.functional.jacobian(f, zero) for f in (approximate, exact))
    torch.testing.assert_close(slope, wanted, rtol=1e-4, atol=1e-5)
    assert float(wanted.abs().max()) > 1e-3


def test_reading_is_the_mean_softmax_of_the_heads(backbone):
    adapter = attached(backbone)
    state, text = states(backbone, adapter)
    image, words = adapter.prepare_image(state), adapter.prepare_text(text[[0, 2]])
    reading = adapter.reading(image, words)
    assert reading.shape == (2, words.tokens.mask.shape[1], backbone.image_tokens)
    torch.testing.assert_close(reading.sum(dim=2), torch.ones(reading.shape[:2]))
    size = adapter.width // adapter.heads
    for i in range(2):
        for word in range(int(words.lengths[i])):
            parts = [slice(head * size, (head + 1) * size) for head in range(adapter.heads)]
            expected = sum(
                (
                    image.tokens.values[i, :, part]
                    @ words.tokens.values[i, word, part]
                    / math.sqrt(size)
                ).softmax(dim=0)
                for part in parts
            )
            torch.testing.assert_close(reading[i, word], expected / adapter.heads)
    hidden = image.tokens.mask.clone()
    hidden[:, 0] = False
    masked = replace(image, tokens=Tokens(image.tokens.values, hidden))
    assert adapter.reading(masked, words)[:, :, 0].eq(0).all()


def test_training_hides_a_word_in_all_texts_by_what_the_frozen_model_knows_of_it(backbone):
    adapter = attached(backbone).train()
    captions = TEXTS * 5  # more than four for each word
    texts = backbone.encode_text(captions, adapter.text_input)
    steps = 400
    hidden = torch.stack([adapter.unread(texts)[0] for _ in range(steps)])
    words = {}
    for row, caption in enumerate(captions):
        for position, word in enumerate(caption.split(), start=1):
            same = words.setdefault(word, hidden[:, row, position])
            assert torch.equal(hidden[:, row, position], same)
        assert not hidden[:, row, 0].any()
        assert not hidden[:, row, len(caption.split()) + 1 :].any()
    for word, times in words.items():
        chance = 0.3 * float(meaning(backbone, word).norm())
        margin = 4 * math.sqrt(chance * (1 - chance) / steps)
        assert float(times.float().mean()) == pytest.approx(chance, abs=margin)


def test_only_words_with_a_gradient_count_as_read(backbone):
    """Before training none is hidden, afterwards all that no step had."""
    adapter = attached(backbone)
    image, text = states(backbone, adapter)
    assert not adapter.unread(text)[0].any()
    optimizer = torch.optim.AdamW(adapter.parameters(), weight_decay=0.1)
    for _ in range(2):
        adapter(image, text[[0]]).values.sum().backward()  # "a red cube"
        optimizer.step()
        optimizer.zero_grad()
    hidden = adapter.unread(text)[0]
    assert hidden[0].sum() == 0
    assert hidden[1].tolist()[1:3] == [True, True]  # "blue sphere"
    assert hidden[2].sum() == 3  # "left", "of" and "sphere"


@pytest.mark.parametrize("family", ["open_clip", "hf_clip", "siglip", "flava", "blip"])
def test_words_are_hidden_and_read_on_every_family_of_towers(family):
    """Towers differ in special tokens, padding and pooling."""
    backbone = families.backbone(family)
    torch.manual_seed(0)
    # The meanings of random towers hardly differ, so they get a large weight.
    adapter = GroundedWords(heads=2, hidden_words=0.5, meaning_weight=40.0)
    adapter.attach(backbone)
    adapter.train()
    image = backbone.encode_image(torch.randn(2, 3, 32, 32), adapter.image_input)
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=0.01)
    for _ in range(8):
        adapter(
            image, backbone.encode_text(["red cube"], adapter.text_input)
        ).values.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    adapter.eval()
    captions = ["red cube", "red sphere", "a blue sphere left of the red cube"]
    text = backbone.encode_text(captions, adapter.text_input)
    hidden = adapter.unread(text)[0]
    assert not hidden[0].any()
    assert hidden[1].any()
    assert hidden[2].sum() > hidden[1].sum()
    with torch.no_grad():
        together = adapter(image, text).values
        # A hidden word counts by its meaning.
        adapter.unread.scale = 1e-9
        without = adapter(image, text).values
    torch.testing.assert_close(without[:, 0], together[:, 0])
    assert (without[:, 1:] - together[:, 1:]).abs().min() > 1e-4


@torch.no_grad()
def test_padding_that_a_tower_reads_is_no_word():
    backbone = families.backbone("siglip")
    adapter = attached(backbone, text_layer=-2, hidden_words=0.0)
    text = backbone.encode_text(TEXTS, adapter.text_input)
    prepared = adapter.prepare_text(text).tokens.values
    # Its queries come from the states that the tower has with its padding.
    state = backbone.encode_text(TEXTS, FeatureSpec("state", -2)).values
    near = with_preceding(layer_norm(state, [adapter.width]), adapter.preceding)
    words = adapter.text.all(near, None)
    torch.testing.assert_close(prepared[:, :, : adapter.width], adapter.queries(words))
    has_weight = prepared[:, :, adapter.width :].any(dim=2)
    assert has_weight.sum(dim=1).tolist() == [4, 3, 8]  # words and the end token
