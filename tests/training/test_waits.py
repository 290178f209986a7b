"""A step on a GPU mixes no devices, and waits for it once."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from tests.adapters.families import FAMILIES, backbone
from tests.pretended_gpu import DEVICE, move, pretended_gpu
from tests.runs import QUIET, fit, module, plugin_of
from vlmtune.adapters import Adapter, FullFineTuning
from vlmtune.config import stems
from vlmtune.objectives import InfoNCE, Objective, PairBCE
from vlmtune.pairs.base import PairPolicy
from vlmtune.training import AdaptationModule
from vlmtune.types import send

pytestmark = QUIET


class Grabbed(Exception):
    pass


@pytest.fixture(scope="module")
def batch(model_folder, shards, tmp_path_factory):
    made, batches = module(model_folder), []

    def step(batch, batch_idx):  # Lightning knows arguments by their names
        batches.append(batch)
        raise Grabbed

    made.training_step = step
    with pytest.raises(Grabbed):
        fit(made, shards, tmp_path_factory.mktemp("run"), steps=1)
    return batches[0]


def waits_of_a_step(made, batch, monkeypatch):
    """Takes one step on the pretended GPU."""
    move(made.train())
    # All of a trainer that a step reads.
    made._trainer = SimpleNamespace(
        precision_plugin=None, accumulate_grad_batches=1, global_step=0, global_rank=0
    )
    monkeypatch.setattr(made, "log", lambda *args, **options: None)
    with pretended_gpu(monkeypatch) as waits:
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
# The others also read a teacher, or phrases.
OBJECTIVES = sorted({*stems("objectives")} - {"rank_kl", "c2lip", "unit_contrast"})


def step(made, stem, batch, monkeypatch):
    waits = waits_of_a_step(made, batch, monkeypatch)
    scores = ["_to_copy"] if stem in RANKING else []
    assert waits == [*scores, "tolist"]  # the check


@pytest.mark.parametrize("stem", OBJECTIVES)
def test_objectives(stem, model_folder, batch, monkeypatch):
    objective = plugin_of("objectives", stem, Objective)
    adapter = FullFineTuning(tokens="tokens" in objective.needs)
    made = module(model_folder, adapter, [objective])
    step(made, stem, batch, monkeypatch)


@pytest.mark.parametrize("stem", ADAPTERS)
def test_adapters(stem, model_folder, batch, monkeypatch):
    adapter = plugin_of("adapters", stem, Adapter)
    made = module(model_folder, adapter, [PairBCE() if adapter.joint else InfoNCE()])
    step(made, stem, batch, monkeypatch)


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
