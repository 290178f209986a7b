"""Every strategy reads from the feature store what it keeps frozen, and learns the same by it.

What it has learnt leaves as an export.
"""

from pathlib import Path

import pytest
import torch
import yaml
from transformers.utils import logging

from tests.backbones.hf_models import write_flava
from tests.runs import QUIET, fit
from tests.tiny import halves
from vlmtune.adapters.base import Adapter
from vlmtune.backbones.hf.flava import Flava
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.config import instantiate
from vlmtune.evaluation.scorer import Scorer
from vlmtune.export import save_export
from vlmtune.model import load
from vlmtune.objectives.pair_bce import PairBCE
from vlmtune.training.module import AdaptationModule
from vlmtune.types import ImageRef

pytestmark = QUIET

FOLDER = Path(__file__).parents[2] / "configs/plugins/adapters"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
CHANGES = {"matching": {"blocks": 1}}  # where the default trains nothing
ON = {"matching": Flava, "fusion_tuning": Flava}  # where the smallest backbone cannot have it
IMAGES, CAPTIONS = 24, 24  # of the tiny shards
TEXTS = ["a red cube left of the green sphere", "a green cube left of the red sphere"]


@pytest.fixture(scope="module")
def flava(tmp_path_factory):
    logging.disable_progress_bar()
    return write_flava(tmp_path_factory.mktemp("flava") / "tiny")


@pytest.fixture
def calls(monkeypatch):
    """How many images and captions each family's backbones have encoded, by side."""
    counted = {"image": 0, "text": 0}
    for family in (OpenClip, Flava):
        for side in counted:
            encode = getattr(family, f"encode_{side}")

            def counting(self, rows, reads, encode=encode, side=side):
                counted[side] += len(rows)
                return encode(self, rows, reads)

            monkeypatch.setattr(family, f"encode_{side}", counting)
    return counted


@pytest.fixture
def pictures(tmp_path):
    """Two of the training images, as files."""
    files = [ImageRef(tmp_path / f"{seed}.png") for seed in (0, 1)]
    for seed, file in enumerate(files):
        colours = ("red", "green")[:: -1 if seed else 1]
        halves(*colours, seed).save(file.path)
    return files


CASES = [(path.stem, CHANGES.get(path.stem, {})) for path in CONFIGS if path.stem != "zero_shot"]
CASES += [(stem, {"image": False}) for stem in ("full_finetuning", "lora", "deep_prompts")]
CASES += [("last_blocks", {"text": 0}), ("full_finetuning", {"tokens": True})]


def marked(stem, changes):
    """Features of every kind and side by default, all strategies in `make slow`."""
    fast = stem in ("linear_probe", "mm_adapter", "word_prompts", "last_blocks") and not changes
    return pytest.param(stem, changes, marks=[] if fast else [pytest.mark.slow])


@pytest.mark.parametrize(("stem", "changes"), [marked(*case) for case in CASES])
def test_training_from_the_store_is_training(
    stem, changes, model_folder, flava, shards, tmp_path, calls, pictures
):
    spec = yaml.safe_load((FOLDER / f"{stem}.yaml").read_text())
    spec["init_args"] |= changes | ({"coupled": False} if stem == "deep_prompts" else {})
    family = ON.get(stem, OpenClip)

    def trained(store=None):
        backbone = family(str(flava if family is Flava else model_folder))
        adapter = instantiate(spec, Adapter)
        module = AdaptationModule(backbone, adapter, [PairBCE(balanced=True)], store=store)
        calls.update(image=0, text=0)
        _, watch = fit(module, shards, tmp_path, steps=4)
        return module, watch, dict(calls)

    module, plain, _ = trained()
    reads = {"image": module.adapter.image_input, "text": module.adapter.text_input}
    kept = {side for side, one in reads.items() if one.frozen and one.kind != "words"}
    store = tmp_path / "store"
    _, first, encoded = trained(str(store))
    assert first.losses == pytest.approx(plain.losses, rel=1e-4)
    assert first.decoded == ["image" not in kept] * 4
    for side, count in (("image", IMAGES), ("text", CAPTIONS)):
        if side in kept:
            assert encoded[side] == count  # each once, and never again
    again, second, encoded = trained(str(store))
    assert second.losses == first.losses
    for side in kept:
        assert encoded[side] == 0
    stores = sorted(folder.name.rpartition("-")[0] for folder in store.glob("*/"))
    kinds = {side: f"{side}-{reads[side].kind}" for side in kept}
    assert len(stores) == len(kept)
    assert all(name.startswith(kinds[name.partition("-")[0]]) for name in stores)

    # What was stored for training serves an evaluation, too.
    scorer = Scorer(again.backbone, again.adapter, store)
    calls.update(image=0, text=0)
    scores = scorer(pictures, TEXTS)
    assert scores.isfinite().all()
    for side in kept:
        assert calls[side] == 0

    save_export(tmp_path / "export", again.backbone, again.adapter, provenance={})
    wanted = Scorer(again.backbone, again.adapter)(pictures, TEXTS)
    assert load(tmp_path / "export").scorer()(pictures, TEXTS).equal(wanted)
    torch.testing.assert_close(scores, wanted, rtol=1e-4, atol=1e-4)
