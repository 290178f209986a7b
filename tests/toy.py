"""A backbone of two small layers in double precision, adapters that train it, and groups for it."""

import random
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vlmtune.adapters.base import DualAdapter, JointAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.data.collate import collate
from vlmtune.data.noun_phrases import NounPhrases
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.training.scores import TrainingScores
from vlmtune.types import Batch, FeatureSpec, Group, Pooled, ScoreShard, Tokens

LETTERS = "abcdefgh"


class Toy(Backbone):
    """Reads 2 x 2 pixels and letters; notes how many rows each call encodes."""

    embed_dim, image_width, text_width, image_tokens = 6, 5, 5, 4
    text_special, logit_scale, logit_bias, fingerprint = (0, 0), 4.0, 0.5, "toy"
    preprocess = None  # batches have pixels

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(3, 5), nn.Embedding(128, 5)
        self.project = nn.Linear(5, 6)
        self.drop = nn.Dropout(dropout)
        self.double().requires_grad_(False)
        self.images, self.texts = [], []

    def encode_image(self, pixels, reads):
        self.images.append(len(pixels))
        return self._give(self.image(pixels.flatten(2).transpose(1, 2)), None, reads)

    def encode_text(self, texts, reads):
        self.texts.append(list(texts))
        longest = max(map(len, texts), default=0)
        codes = [ord(c) % 128 for text in texts for c in text.ljust(longest, "\0")]
        ids = torch.tensor(codes).view(len(texts), longest)
        return self._give(self.text(ids), ids > 0, reads, ids)

    def _give(self, tokens, mask, reads, ids=None):
        if mask is None:
            mask = torch.ones(tokens.shape[:2], dtype=torch.bool)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reads.frozen):
            tokens = self.drop(tokens).tanh() * mask[:, :, None]
            if reads.kind != "pooled":
                return Tokens(tokens, mask, ids if reads.kind == "words" else None)
            mean = tokens.sum(dim=1) / mask.sum(dim=1, keepdim=True)
            return Pooled(self.project(mean))


class Tune(DualAdapter):
    """Trains temperature, offset, a matrix for each modality and the whole toy."""

    gives_tokens = True

    def __init__(self, frozen=False, kind="pooled", dropout=0.0):
        super().__init__()
        self.frozen = frozen
        self.drop = nn.Dropout(dropout)
        self.image_input = self.text_input = FeatureSpec(kind, -1, frozen)

    def attach(self, backbone):
        super().attach(backbone)
        width = backbone.embed_dim if self.image_input.kind == "pooled" else backbone.text_width
        self.image, self.text = nn.Linear(width, 6), nn.Linear(width, 6)
        self.double().requires_grad_()
        backbone.requires_grad_(not self.frozen)

    def embed_image(self, image):
        return self.image(self.drop(self._mean(image)))

    def embed_text(self, text):
        return self.text(self.drop(self._mean(text)))

    def embed_patches(self, image):
        return Tokens(self.image(image.values) * image.mask[:, :, None], image.mask)

    def embed_words(self, text):
        return Tokens(self.text(text.values) * text.mask[:, :, None], text.mask)

    def _mean(self, features):
        if isinstance(features, Pooled):
            return features.values
        return features.values.sum(dim=1) / features.mask.sum(dim=1, keepdim=True)


class Together(JointAdapter):
    """Scores a pair from the product of its pooled features."""

    def __init__(self):
        super().__init__()
        self.image_input = self.text_input = FeatureSpec("pooled", -1, False)

    def attach(self, backbone):
        super().attach(backbone)
        self.head = nn.Linear(backbone.embed_dim, 1).double()
        backbone.requires_grad_()

    def prepare_image(self, features):
        return features

    prepare_text = prepare_image

    def score_pairs(self, image, text):
        return self.head(image.values * text.values).squeeze(-1)


def groups(sizes=(2, 3, 1, 2), seed=0, distinct=False) -> list[list[Group]]:
    """Groups of each rank: several captions, hard negatives, captions that ranks share.

    With `distinct` no two groups share a caption.
    """
    dice = random.Random(seed)
    out, number = [], 0
    for size in sizes:
        out.append([])
        for _ in range(size):
            k, m = dice.randint(1, 2), dice.randint(2, 3)
            names = [f"{letter}{number}" if distinct else letter for letter in LETTERS]
            texts = tuple(dice.sample(names, m))
            true = [frozenset(dice.sample(names, 2)) | {texts[i]} for i in range(k)]
            truth = torch.tensor([[text in ids for text in texts] for ids in true])
            images = tuple(f"{number}-{i}" for i in range(k))
            exhaustive = dice.random() < 0.5
            captions = tuple(f"the {text} {text}" for text in texts)
            group = Group(f"r{number}", images, texts, captions, truth, tuple(true), exhaustive)
            out[-1].append(group)
            number += 1
    return out


def batch(some: list[Group]) -> Batch:
    """The groups as a batch, with phrases; an image's pixels follow from its id."""
    made = collate(some)
    seeds = (int.from_bytes(name.encode(), "big") for name in made.image_ids)
    chances = (torch.Generator().manual_seed(seed) for seed in seeds)
    pixels = [torch.randn(3, 2, 2, generator=g, dtype=torch.float64) for g in chances]
    phrases = collate(NounPhrases().groups(some))
    return replace(made, pixels=torch.stack(pixels), phrases=phrases)


def share(scores: TrainingScores, made: Batch) -> ScoreShard:
    """The scores of a batch that one process has alone."""
    ranks = ProcessGroup()
    return scores.shard(made, ranks, torch.Generator())


@torch.no_grad()
def own_scores(backbone: Toy, made: Batch) -> Tensor:
    """The scores of the toy as it is."""
    image = backbone.encode_image(made.pixels, FeatureSpec("pooled")).values
    text = backbone.encode_text(made.texts, FeatureSpec("pooled")).values
    cosines = normalize(image, dim=1) @ normalize(text, dim=1).T
    return backbone.logit_scale * cosines + backbone.logit_bias
