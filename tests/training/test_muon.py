"""Muon takes the steps of torch's Muon on matrices, and of AdamW on everything else."""

from copy import deepcopy as copy_of

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW
from torch.optim import Muon as TorchMuon

from tests.ranks import run_ranks
from vlmtune.training.muon import Muon, orthogonalised


def parameters(*shape):
    """The same weights twice."""
    weight = torch.randn(shape)
    return nn.Parameter(weight.clone()), nn.Parameter(weight.clone())


@pytest.mark.parametrize("shape", [(6, 4), (3, 9)])
def test_a_matrix_takes_the_step_of_torch(shape):
    torch.manual_seed(0)
    ours, theirs = parameters(*shape)
    muon = Muon([ours], lr=0.01, weight_decay=0.2)
    reference = TorchMuon([theirs], lr=0.01, weight_decay=0.2, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        before = ours.detach().clone()
        ours.grad = theirs.grad = torch.randn(shape)
        muon.step()
        reference.step()
        # torch orthogonalises in bfloat16.
        assert (ours - theirs).norm() < 0.05 * (ours - before).norm()
        theirs.data.copy_(ours.detach())


def test_a_kernel_is_a_matrix_for_each_offset():
    torch.manual_seed(0)
    kernel, _ = parameters(4, 6, 7, 3)  # an offset is no part of the size of a matrix
    matrices = [nn.Parameter(kernel.detach()[:, :, i, j].clone()) for i, j in ((0, 2), (1, 1))]
    kernel.grad = torch.randn(4, 6, 7, 3)
    for matrix, (i, j) in zip(matrices, ((0, 2), (1, 1)), strict=True):
        matrix.grad = kernel.grad[:, :, i, j].clone()
    Muon([kernel]).step()
    Muon(matrices).step()
    torch.testing.assert_close(kernel[:, :, 0, 2], matrices[0])
    torch.testing.assert_close(kernel[:, :, 1, 1], matrices[1])


@pytest.mark.parametrize("shape", [(5,), (7, 1), (1, 7), ()])
def test_other_weights_take_the_step_of_adamw(shape):
    torch.manual_seed(0)
    ours, theirs = parameters(*shape)
    muon, adamw = Muon([ours], weight_decay=0.2), AdamW([theirs], weight_decay=0.2)
    for _ in range(3):
        ours.grad = theirs.grad = torch.randn(shape)
        muon.step()
        adamw.step()
    assert torch.equal(ours, theirs)


def test_a_resumed_run_takes_the_same_step():
    torch.manual_seed(0)
    matrix, copy = parameters(4, 3)
    vector, same = parameters(3)
    gradients = torch.randn(2, 4, 3)
    muon, resumed = Muon([matrix, vector], momentum=0.8), Muon([copy, same])
    matrix.grad, vector.grad = gradients[0], gradients[0, 0]
    muon.step()
    with torch.no_grad():
        copy.copy_(matrix)
        same.copy_(vector)
    resumed.load_state_dict(copy_of(muon.state_dict()))
    resumed = copy_of(resumed)
    copy, same = resumed.param_groups[0]["params"]
    for weights, optimizer in (((matrix, vector), muon), ((copy, same), resumed)):
        weights[0].grad, weights[1].grad = gradients[1], gradients[1, 0]
        optimizer.step()
        assert weights[0].grad is not None  # what clips or logs gradients later finds them
    assert torch.equal(matrix, copy)
    assert torch.equal(vector, same)


def test_weights_without_a_gradient_stay():
    frozen, _ = parameters(3, 3)
    before = frozen.detach().clone()
    Muon([frozen]).step()
    assert torch.equal(frozen, before)


def test_singular_values_become_about_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(5, 8, 4)))
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert torch.equal(orthogonalised(torch.zeros(2, 3)), torch.zeros(2, 3))


def steps(model, batches):
    """The weights after a step of Muon on each batch."""
    muon = Muon(model.parameters(), lr=0.01)
    for batch in batches:
        muon.zero_grad()
        model(batch).square().mean().backward()
        muon.step()
    return model.state_dict()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 3))


def sharded(rank, batches):
    """Weights in two parts, of which a rank has one; each rank has half of a batch."""
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    halves = [batch.chunk(2)[rank] for batch in batches]
    state = steps(model, halves)
    return {name: value.full_tensor() for name, value in state.items()}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_sharded_weights_take_the_steps_of_whole_ones(tmp_path):
    batches = torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(0)).unbind()
    want = steps(network(), batches)
    for got in run_ranks(2, tmp_path, sharded, batches):
        torch.testing.assert_close(got, dict(want))
