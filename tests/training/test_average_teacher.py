import pytest
import torch

from tests.runs import QUIET, fit, module, quiet_trainer
from vlmtune.adapters import GroundedVectors, GroundedWords, LinearProbe, LoRA
from vlmtune.adapters.trained_state import trained_state
from vlmtune.data import ShardDataModule, ShardSet
from vlmtune.objectives import DeGLA, InfoNCE

pytestmark = QUIET
DECAY = 0.75


def trained(model_folder, adapter=None):
    objectives = [InfoNCE(), DeGLA()]
    return module(model_folder, adapter or LinearProbe(), objectives, average_decay=DECAY)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_average_follows_each_step_and_a_resumed_run_has_the_same(
    accumulated, model_folder, shards, tmp_path
):
    made, states = trained(model_folder), {}
    options = {"accumulate_grad_batches": accumulated}
    follow = made.average_teacher.follow

    def noted(backbone, adapter, step):
        state = trained_state(backbone, adapter)
        states[step] = {name: value.clone() for name, value in state.items()}
        follow(backbone, adapter, step)

    made.average_teacher.follow = noted
    fit(made, shards, tmp_path, steps=4, save=True, **options)
    # The average before a step has the weights of all steps before it.
    want = states[0]
    assert list(states) == [0, 1, 2, 3]
    for step in (1, 2, 3):
        state = states[step]
        want = {name: value.lerp(state[name], 1 - DECAY) for name, value in want.items()}
    average = made.average_teacher.weights()
    torch.testing.assert_close(average, want)
    assert any(not value.equal(states[0][name]) for name, value in average.items())

    again = trained(model_folder)
    fit(again, shards, tmp_path / "again", steps=4, resume=tmp_path / "stepstep=2.ckpt", **options)
    torch.testing.assert_close(again.average_teacher.weights(), average, rtol=0, atol=0)
    torch.testing.assert_close(again.state_dict(), made.state_dict(), rtol=0, atol=0)


def test_it_shares_what_is_frozen_and_is_neither_trained_nor_saved(model_folder):
    made = trained(model_folder, LoRA())
    teacher = made.average_teacher
    ours = dict(made.backbone.named_parameters())
    for name, parameter in teacher.backbone.named_parameters():
        assert not parameter.requires_grad
        assert (parameter is ours[name]) == (not ours[name].requires_grad)
    assert not any("average" in name for name in made.state_dict())
    assert module(model_folder, LinearProbe(), [InfoNCE()]).average_teacher is None


@pytest.mark.parametrize("chunk", [None, 3])
def test_before_training_it_embeds_as_the_model_does(chunk, model_folder, shards, tmp_path):
    made, distances = trained(model_folder), []
    made.scores.chunk = chunk
    degla = made.objectives[1]
    shard_loss = degla.shard_loss

    def noted(shard, group):
        distances.append(degla._distance(shard, group).item())
        return shard_loss(shard, group)

    degla.shard_loss = noted
    fit(made, shards, tmp_path, steps=2)
    assert distances[0] == pytest.approx(0, abs=1e-10)
    assert distances[1] > 1e-6


def test_a_checkpoint_without_it_starts_it_and_a_validation_has_that_of_the_checkpoint(
    model_folder, shards, tmp_path
):
    plain = module(model_folder, LinearProbe(), [InfoNCE()])
    fit(plain, shards, tmp_path, steps=2, save=True)
    later = trained(model_folder)
    fit(later, shards, tmp_path / "later", steps=2, resume=tmp_path / "stepstep=2.ckpt")
    torch.testing.assert_close(later.average_teacher.weights(), dict(plain.state_dict()))

    made = trained(model_folder)
    fit(made, shards, tmp_path / "own", steps=3, save=True)
    again = trained(model_folder)
    path = tmp_path / "own/stepstep=3.ckpt"
    data = ShardDataModule([ShardSet(str(shards))], batch_size=4, val=[ShardSet(str(shards))])
    quiet_trainer().validate(again, datamodule=data, ckpt_path=path, weights_only=True)
    average = made.average_teacher.weights()
    torch.testing.assert_close(again.average_teacher.weights(), average, rtol=0, atol=0)


def test_vectors_that_differ_between_training_and_evaluation(model_folder, shards, tmp_path):
    made = trained(model_folder, GroundedVectors(GroundedWords()))
    fit(made, shards, tmp_path, steps=2, val=True)
    assert made.average_teacher.adapter.training == made.adapter.training
