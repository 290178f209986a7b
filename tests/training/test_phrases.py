"""Phrases on their way from the data module to an objective, past all others."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from tests.adapters.families import FAMILIES, backbone
from tests.refusals import refused
from tests.runs import QUIET, module, quiet_trainer
from tests.toy import Toy, Tune, batch, groups, share
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.data import NounPhrases, ShardDataModule, ShardSet
from vlmtune.data.collate import collate
from vlmtune.objectives import C2LIP, InfoNCE
from vlmtune.pairs.all_pairs import AllPairs
from vlmtune.training.scores import TrainingScores
from vlmtune.types import FeatureSpec

pytestmark = QUIET
BATCH = batch([group for part in groups((2, 2)) for group in part])


@pytest.mark.parametrize("chunk", [None, 2])
def test_phrases_are_scored_as_texts_are(chunk):
    backbone, adapter = Toy(), Tune()
    rows = share(TrainingScores(backbone, adapter, AllPairs(), {"phrases"}, chunk), BATCH).rows
    made = BATCH.phrases
    with torch.no_grad():
        image = adapter.embed_image(backbone.encode_image(BATCH.pixels, FeatureSpec("pooled")))
        text = adapter.embed_text(backbone.encode_text(made.texts, FeatureSpec("pooled")))
    unit = normalize(text, dim=1)
    cosines = normalize(image, dim=1) @ unit.T
    torch.testing.assert_close(rows.phrases.values, adapter.log_scale.exp() * cosines)
    torch.testing.assert_close(rows.phrases.text, unit)
    truth = made.targets.truth
    assert rows.phrases.truth.equal(truth)
    # Phrases of other groups are no foils.
    assert rows.phrases.foils.equal(made.targets.same_group & ~truth)
    assert not rows.phrases.foils.equal(~truth)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_without_a_phrase_scores_none(family):
    model = backbone(family)
    (group,) = groups((1,))[0]
    nothing = (frozenset(),) * len(group.image_ids)
    texts = ("red cube", "blue sphere", "dog")[: len(group.texts)]
    untrue = replace(group, texts=texts, truth=torch.zeros_like(group.truth), true_ids=nothing)
    made = collate([untrue])
    no_phrases = collate(NounPhrases().groups([untrue]))
    assert no_phrases.texts == ()
    pixels = torch.zeros(len(made.image_ids), 3, 32, 32)
    made = replace(made, pixels=pixels, phrases=no_phrases)
    rows = share(TrainingScores(model, FullFineTuning(), AllPairs(), {"phrases"}), made).rows
    assert rows.phrases.values.shape == (len(made.image_ids), 0)


def data(shards, phrases):
    sets = [ShardSet(str(shards))]
    return ShardDataModule(sets, 4, val=sets, phrases=phrases)


def losses(folder, shards, tmp_path, objectives, phrases, **more):
    made = module(folder, FullFineTuning(tokens=True, initial_scale=10.0), objectives)
    trainer = quiet_trainer(max_steps=3, default_root_dir=tmp_path, **more)
    trainer.fit(made, datamodule=data(shards, phrases))
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


def test_a_fit_trains_and_validates_on_phrases_and_asks_for_them(model_folder, shards, tmp_path):
    for precision in ("32-true", "bf16-mixed"):
        logged = losses(
            model_folder, shards, tmp_path, [C2LIP()], NounPhrases(), precision=precision
        )
        assert logged["train/C2LIP"] > 0
        assert logged["val/C2LIP"] > 0
    with refused("expected scores of phrases for C2LIP, got none: set data.phrases to NounPhrases"):
        losses(model_folder, shards, tmp_path, [C2LIP()], None)


def test_other_objectives_are_what_they_were_and_other_phrases_another_order(
    model_folder, shards, tmp_path
):
    runs = [
        losses(model_folder, shards, tmp_path, [InfoNCE()], phrases)
        for phrases in (None, NounPhrases())
    ]
    assert runs[0] == runs[1]
    trained, plain = (data(shards, phrases).changes.state() for phrases in (NounPhrases(), None))
    assert trained["phrases"]["class_path"] == "vlmtune.data.noun_phrases.NounPhrases"
    assert plain["phrases"] is None
