"""Captions of live text towers become tokens in the data workers, and training stays the same."""

import pytest

from tests.runs import QUIET, Watch, module, quiet_trainer, same_weights, weights
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.data import ShardDataModule, ShardSet
from vlmtune.objectives.info_nce import InfoNCE

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


def trained(model_folder, shards, monkeypatch, tokenize=True):
    """Losses, weights, and how often this process made tokens."""
    made = module(model_folder, FullFineTuning(), [InfoNCE()])
    tokenizer, calls = made.backbone.tokenizer, []
    encode = tokenizer.encode
    if not tokenize:
        made.backbone.tokenize = None

    class Counted(type(encode)):
        def __call__(self, texts, context_length=None):
            calls.append(len(texts))
            return super().__call__(texts, context_length)

    monkeypatch.setattr(encode, "__class__", Counted)
    watch = Watch()
    data = ShardDataModule([ShardSet(str(shards))], batch_size=4, num_workers=1)
    quiet_trainer(max_steps=4, callbacks=[watch], devices=1).fit(made, data)
    monkeypatch.undo()
    return watch.losses, weights(made), calls


def test_workers_make_the_tokens(model_folder, shards, monkeypatch):
    losses, state, calls = trained(model_folder, shards, monkeypatch)
    wanted_losses, wanted, slow_calls = trained(model_folder, shards, monkeypatch, tokenize=False)
    assert losses == wanted_losses
    assert same_weights(state, wanted)
    assert not calls
    assert len(slow_calls) == 4


def test_stored_captions_need_no_tokens(model_folder, tmp_path):
    assert module(model_folder, FullFineTuning(), [InfoNCE()]).tokenize is not None
    assert module(model_folder, store=str(tmp_path)).tokenize is None
