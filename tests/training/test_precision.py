"""Mixed precision with every adapter, and precisions that are refused."""

from functools import partial

import pytest
import torch
import yaml

from tests.adapters.families import attached, pixels
from tests.contracts.test_adapters import CONFIGS
from tests.refusals import refused
from tests.runs import QUIET, fit, module, quiet_trainer, weights
from tests.scored import random_targets, random_values, scored
from vlmtune.adapters import Adapter, FullFineTuning
from vlmtune.adapters.base import inner_products
from vlmtune.config import instantiate
from vlmtune.data import ShardDataModule, ShardSet
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives import CEClip, CyClip, DeGLA, FSCClip, ReadAlignment
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.types import ScoreShard

pytestmark = QUIET

TEXTS = ["red cube", "a blue sphere left of the red cube", "dog", "a green metal cube"]
FAMILY = {"matching": "flava", "fusion_tuning": "flava"}


(PLAIN,) = (path for path in CONFIGS if path.stem == "zero_shot")


def made(path):
    return instantiate(yaml.safe_load(path.read_text()), Adapter)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_scores_keep_their_order_in_bf16(path):
    adapter, model = attached(made(path), FAMILY.get(path.stem, "open_clip"))

    @torch.no_grad()
    def scores():
        image = model.encode_image(pixels(), adapter.image_input)
        return adapter(image, model.encode_text(TEXTS, adapter.text_input)).values.float().flatten()

    want = scores()
    with torch.autocast("cpu", torch.bfloat16):
        got = scores()
    assert got.isfinite().all()
    assert not got.equal(want)  # it did compute in another precision
    spread = float(want.max() - want.min())
    apart = want[:, None] - want[None, :] > 0.1 * spread
    assert apart.sum() > 20
    assert (got[:, None] > got[None, :])[apart].all()


def test_products_are_not_rounded_to_bf16():
    # Two models that differ by a hundredth of a score, which bf16 would round away.
    image, text = torch.tensor([[30.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0003, 0.0]])
    with torch.autocast("cpu", torch.bfloat16):
        first, second = inner_products(image, text)[0].tolist()
    assert second - first == pytest.approx(0.009, rel=0.01)
    adapter, model = attached(made(PLAIN))
    image = model.encode_image(pixels(), adapter.image_input).values.bfloat16()
    matrix = adapter.compare(image, image.flip(0))
    torch.testing.assert_close(adapter.compare_pairs(image, image.flip(0)), matrix.diagonal())
    # Nor is their length: embeddings in bf16 give the scores of the same numbers in 32 bits.
    assert matrix.equal(adapter.compare(image.float(), image.float().flip(0)))


def marked(path):
    fast = path.stem in ("linear_probe", "mm_adapter", "full_finetuning")
    return pytest.param(path, id=path.stem, marks=[] if fast else [pytest.mark.slow])


TRAINED = [marked(path) for path in CONFIGS if path.stem not in ("zero_shot", *FAMILY)]


@pytest.mark.parametrize("path", TRAINED)
def test_it_trains_in_bf16(path, model_folder, shards, tmp_path):
    losses = []
    for precision in ("32-true", "bf16-mixed"):
        trained = module(model_folder, made(path), [InfoNCE()])
        _, watch = fit(trained, shards, tmp_path, steps=2, precision=precision)
        losses.append(watch.losses)
    assert torch.tensor(losses).isfinite().all()
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    # The loss itself is not rounded to bf16.
    in_bf16 = torch.tensor(losses[1])
    assert not in_bf16.equal(in_bf16.bfloat16().float())


@pytest.mark.parametrize("kind", [CEClip, CyClip, DeGLA, FSCClip, ReadAlignment])
def test_losses_of_embeddings_are_not_rounded_to_bf16(kind, model_folder, shards, tmp_path):
    objective = kind()
    trained = module(model_folder, FullFineTuning(tokens=True), [objective])
    targets = random_targets(0)
    given = scored(10 * random_values(0).float())
    shard = ScoreShard(given, targets, given, targets)
    want = trained._part(objective.eval(), shard, ProcessGroup())
    with torch.autocast("cpu", torch.bfloat16):
        assert trained._part(objective, shard, ProcessGroup()).equal(want)
    _, watch = fit(trained, shards, tmp_path, steps=1, precision="bf16-mixed")
    assert torch.tensor(watch.losses).isfinite().all()


@pytest.mark.parametrize("algorithm", [None, "value"])
def test_a_fused_optimizer_clips_in_bf16(algorithm, model_folder, shards, tmp_path):
    after = []
    for fused in (True, False):
        optimizer = partial(torch.optim.SGD, lr=0.1, fused=fused)
        made = module(model_folder, FullFineTuning(), [InfoNCE()], optimizer=optimizer)
        clip = {"gradient_clip_val": 1e-4, "gradient_clip_algorithm": algorithm}
        before = weights(made)
        fit(made, shards, tmp_path, steps=1, precision="bf16-mixed", **clip)
        after.append(weights(made))
    largest = max((after[0][name] - value).abs().max() for name, value in before.items())
    assert 0 < largest < 1.1e-5
    torch.testing.assert_close(after[0], after[1])


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "64-true"])
def test_other_types_for_all_numbers_are_refused(precision, model_folder, shards, tmp_path):
    said = f"expected a precision of 32-true, bf16-mixed or 16-mixed, got {precision}"
    made = module(model_folder, FullFineTuning(), [InfoNCE()])
    with refused(said):
        fit(made, shards, tmp_path, precision=precision)
    sets = [ShardSet(str(shards))]
    data = ShardDataModule(sets, batch_size=4, val=sets)
    for measure in ("validate", "test"):
        with refused(said):
            getattr(quiet_trainer(precision=precision, devices=1), measure)(made, datamodule=data)
