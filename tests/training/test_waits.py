"""A step on a GPU mixes no devices, and waits for it once."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from tests.adapters.families import FAMILIES, backbone
from tests.pretended_gpu import DEVICE, move, pretended_gpu
from tests.runs import QUIET, module, plugin_of, quiet_trainer
from vlmtune.adapters import Adapter, FullFineTuning, LinearProbe
from vlmtune.config import stems
from vlmtune.data import ShardDataModule, ShardSet
from vlmtune.data.noun_phrases import NounPhrases
from vlmtune.errors import UserError
from vlmtune.export import save_export
from vlmtune.objectives import InfoNCE, Objective, PairBCE
from vlmtune.pairs.base import PairPolicy
from vlmtune.training import AdaptationModule
from vlmtune.types import send

pytestmark = QUIET


class Grabbed(Exception):
    pass


@pytest.fixture(scope="module")
def corpus(shards):
    return ShardDataModule([ShardSet(str(shards))], batch_size=4, phrases=NounPhrases())


@pytest.fixture(scope="module")
def batch(model_folder, corpus):
    made, batches = module(model_folder), []

    def step(batch, batch_idx):  # Lightning knows arguments by their names
        batches.append(batch)
        raise Grabbed

    made.training_step = step
    with pytest.raises(Grabbed):
        quiet_trainer(devices=1, max_steps=1).fit(made, datamodule=corpus)
    return batches[0]


@pytest.fixture(scope="module")
def teacher(model_folder, tmp_path_factory):
    """The export of a dual adapter."""
    folder = tmp_path_factory.mktemp("teacher") / "export"
    made = module(model_folder, FullFineTuning(), [InfoNCE()])
    save_export(folder, made.backbone, made.adapter, provenance={})
    return str(folder)


def waits_of_a_step(made, batch, monkeypatch, **trainer):
    """Takes one step on the pretended GPU."""
    if next(made.parameters()).device != DEVICE:
        move(made.train())
    # All of a trainer that a step reads.
    made._trainer = SimpleNamespace(
        precision_plugin=None, accumulate_grad_batches=1, global_step=0, global_rank=0, **trainer
    )
    made.log = lambda *args, **options: None
    with monkeypatch.context() as patch, pretended_gpu(patch) as waits:
        trained = [parameter for parameter in made.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, foreach=False)
        loss = made.training_step(batch.to(DEVICE), 0)
        loss.backward()
        made.on_before_optimizer_step(optimizer)
        optimizer.step()
        assert all(parameter.device == DEVICE for parameter in trained)
        return list(waits)


# Each wait costs a GPU some of the time in which it could run ahead. A step waits once, where it is
# checked before the optimizer. Pairs are chosen on the CPU: these policies wait for scores, too.
RANKING = {"hard_pairs", "mutual_pairs"}
# The others train nothing, or read a fusion encoder.
ADAPTERS = sorted({*stems("adapters")} - {"zero_shot", "fusion_tuning", "matching"})


def with_objective(stem, model_folder, adapter, teacher):
    objectives = [plugin_of("objectives", stem, Objective)]
    needs_teacher = "teacher" in objectives[0].needs
    # What trains only some weights needs company: an adapter may train only the others.
    if objectives[0].regulariser:
        objectives.append(PairBCE() if adapter.joint else InfoNCE())
    teacher = teacher if needs_teacher else None
    return module(model_folder, adapter, objectives, teacher=teacher)


def small_adapter(stem):
    """What gives the objective all that it needs; the towers are run by the tests of adapters."""
    needs_tokens = "tokens" in plugin_of("objectives", stem, Objective).needs
    return FullFineTuning(tokens=True) if needs_tokens else LinearProbe()


def step(made, stem, batch, monkeypatch):
    waits = waits_of_a_step(made, batch, monkeypatch)
    scores = ["_to_copy"] if stem in RANKING else []
    assert waits == [*scores, "tolist"]  # the check


@pytest.mark.parametrize("stem", stems("objectives"))
def test_a_logged_step_of_each_objective(stem, model_folder, batch, teacher, monkeypatch):
    made = with_objective(stem, model_folder, small_adapter(stem), teacher)
    waits = waits_of_a_step(made, batch, monkeypatch, log_every_n_steps=1)
    # EqSim's diagnostics need to know which scores were computed, and are read all at once.
    diagnostics = ["_to_copy", "tolist"] if stem == "eqsim" else []
    assert waits == [*diagnostics, "tolist"]


@pytest.mark.parametrize("stem", ADAPTERS)
def test_adapters(stem, model_folder, batch, monkeypatch):
    adapter = plugin_of("adapters", stem, Adapter)
    made = module(model_folder, adapter, [PairBCE() if adapter.joint else InfoNCE()])
    step(made, stem, batch, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("stem", ADAPTERS)
def test_each_objective_with_each_adapter(stem, model_folder, batch, teacher, monkeypatch):
    waits = {}
    for name in stems("objectives"):
        adapter = plugin_of("adapters", stem, Adapter)
        try:
            made = with_objective(name, model_folder, adapter, teacher)
        except UserError:  # the objective does not fit the adapter
            continue
        waits[name] = waits_of_a_step(made, batch, monkeypatch)
    assert len(waits) > 3
    assert all(found == ["tolist"] for found in waits.values()), waits


@pytest.mark.parametrize("stem", ["linear_probe", "mm_adapter"])
def test_features_from_a_store(stem, model_folder, batch, corpus, tmp_path, monkeypatch):
    adapter = plugin_of("adapters", stem, Adapter)
    made = module(model_folder, adapter, [PairBCE() if adapter.joint else InfoNCE()])
    made.scores.open(tmp_path, corpus, made.fingerprint, "float32")
    step(made, stem, replace(batch, pixels=None), monkeypatch)


@pytest.mark.parametrize("stem", ["linear_probe", "mm_adapter"])
def test_a_store_on_the_device(stem, model_folder, batch, corpus, tmp_path, monkeypatch):
    made = module(model_folder, plugin_of("adapters", stem, Adapter), [PairBCE()])
    made.scores.open(tmp_path, corpus, made.fingerprint, "float16")
    move(made)
    features = made.scores.features
    texts = features.texts
    bytes_of_stores = features.images.store.value_bytes + texts.value_bytes
    with pretended_gpu(monkeypatch) as waits:
        on_cpu = features.encode_both(batch, None, {})
        # Nine tenths of the free memory are left to the step.
        features.move_stores(free=10 * bytes_of_stores - 1)
        assert texts.features(batch.texts).device.type == "cpu"
        features.move_stores(free=10 * bytes_of_stores)
        assert texts.features(batch.texts).device == DEVICE
        waits.clear()
        on_device = features.encode_both(batch, None, {})
        assert not waits
        for here, there in zip(on_cpu, on_device, strict=True):
            assert here.each.held.equal(there.each.held)
            assert here.lengths.equal(there.lengths)


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_other_families(family, batch, monkeypatch):
    model = backbone(family)
    pixels = torch.stack([model.preprocess(Image.new("RGB", (40, 40)))] * len(batch.image_ids))
    made = AdaptationModule(model, plugin_of("adapters", "mm_adapter", Adapter), [PairBCE()])
    step(made, "mm_adapter", replace(batch, pixels=pixels), monkeypatch)


@pytest.mark.parametrize("stem", stems("pairs"))
def test_pairs(stem, model_folder, batch, monkeypatch):
    pairs = plugin_of("pairs", stem, PairPolicy)
    made = module(model_folder, plugin_of("adapters", "mm_adapter", Adapter), pairs=pairs)
    step(made, stem, batch, monkeypatch)


def test_devices_that_mix_and_copies_that_are_waited_for_are_found(monkeypatch):
    with pretended_gpu(monkeypatch) as waits:
        there = torch.ones(2, device=DEVICE)
        with pytest.raises(RuntimeError, match="two devices in add"):
            there.add(torch.ones(2))
        assert (there * 2).tolist() == [2, 2]
        assert waits == ["tolist"]
    with pretended_gpu(monkeypatch) as waits:
        there = send(torch.arange(3), DEVICE)
        assert not waits
        torch.ones(2).to(DEVICE)
        there[torch.tensor([0, 2])]  # copies the positions
        assert waits == ["_to_copy", "index"]
