"""Folders that ranks write together, and that one process reads."""

import os

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor, empty

from tests.ranks import run_ranks
from tests.refusals import refused
from vlmtune.cli.run_folder import AtomicCheckpoints
from vlmtune.errors import UserError
from vlmtune.model.loading import REST, check_checkpoint, is_checkpoint, on_cpu
from vlmtune.training.sharded_checkpoint import write_folder

SPEC = {"class_path": "vlmtune.X", "init_args": {}}
SAID = {"version": 1, "backbone": SPEC, "fingerprint": "f", "adapter": SPEC}


def content():
    """Tensors with rows for all ranks, for some, and for one."""
    torch.manual_seed(0)
    weights = {"five": torch.randn(5, 3), "half": torch.randn(4).bfloat16(), "one": torch.ones(1)}
    moments = [{"state": {0: {"step": torch.tensor(2.0), "exp_avg": torch.randn(2, 2)}}}]
    return {"vlmtune": SAID, "state_dict": weights, "optimizer_states": moments, "global_step": 2}


def write(rank, path, save=torch.save, spoil=None):
    mesh = init_device_mesh("cpu", (3,))

    def part(whole):
        return distribute_tensor(whole, mesh, [Shard(0)])

    given = content()
    for name, value in given["state_dict"].items():
        given["state_dict"][name] = part(value)
    moments = given["optimizer_states"][0]["state"][0]
    moments["exp_avg"] = part(moments["exp_avg"])
    if spoil is not None:
        spoil(given)
    try:
        write_folder(given, path, save)
    except SystemExit:
        return "stopped"
    return None


def read(rank, path):
    """The weights that two ranks read in parts, gathered."""
    mesh = init_device_mesh("cpu", (2,))

    def part(hollow):
        return empty(hollow.shape, dtype=hollow.dtype, device_mesh=mesh, placements=[Shard(0)])

    try:
        got = check_checkpoint(path, part, slice(rank, None, 2))
    except UserError as error:
        return str(error)
    return {name: value.full_tensor() for name, value in got["state_dict"].items()}


def killed(checkpoint, path):
    torch.save(checkpoint, path)
    raise SystemExit


def not_finite(checkpoint):
    checkpoint["state_dict"]["five"].to_local().fill_(torch.nan)


def test_a_folder_is_written_whole_read_whole_and_replaced(tmp_path):
    path = tmp_path / "run" / "last.ckpt"
    for number, save in enumerate((torch.save, killed)):
        run_ranks(3, tmp_path / f"{number}", write, path, save)
        assert os.listdir(path.parent) == [path.name]
        got, want = check_checkpoint(path, on_cpu), content()
        assert got.pop("vlmtune") == want.pop("vlmtune")
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    for got in run_ranks(2, tmp_path / "two", read, path):
        torch.testing.assert_close(got, content()["state_dict"], rtol=0, atol=0)
    facts = check_checkpoint(path)
    assert facts["global_step"] == 2
    assert facts["state_dict"]["five"].is_meta

    AtomicCheckpoints().save_checkpoint(content(), path)
    assert os.listdir(path.parent) == [path.name]
    run_ranks(3, tmp_path / "again", write, path)
    assert (path / REST).is_file()
    AtomicCheckpoints().remove_checkpoint(path)
    assert not path.exists()


def test_a_damaged_folder_is_refused(tmp_path):
    path = tmp_path / "last.ckpt"
    run_ranks(3, tmp_path / "ranks", write, path)
    part = path / "shard-00001-model-00001-of-00001.safetensors"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with refused(f"got another or no {part.name}"):
        check_checkpoint(path, on_cpu)
    part.unlink()
    with refused(f"got another or no {part.name}"):
        check_checkpoint(path, on_cpu)
    part.write_bytes(whole)
    check_checkpoint(path, on_cpu)
    rest = torch.load(path / REST, weights_only=True)
    rest["state_dict"]["six"] = torch.empty(2, device="meta")
    torch.save(rest, path / REST)
    with refused("expected a vlmtune checkpoint"):
        check_checkpoint(path, on_cpu)
    (path / REST).unlink()
    assert not is_checkpoint(path)


@pytest.mark.parametrize("read", [check_checkpoint, AtomicCheckpoints().load_checkpoint])
def test_weights_elsewhere_are_refused(read, tmp_path):
    saved = content()
    saved["state_dict"]["five"] = torch.empty(5, 3, device="meta")
    torch.save(saved, tmp_path / "last.ckpt")
    options = {} if read != check_checkpoint else {"make": on_cpu}
    with refused("expected a vlmtune checkpoint"):
        read(tmp_path / "last.ckpt", **options)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    run_ranks(3, tmp_path / "ranks", write, tmp_path / "last.ckpt", torch.save, not_finite)
    said = "expected finite weights, got NaN or infinity in 'five'"
    with refused(said):
        check_checkpoint(tmp_path / "last.ckpt", on_cpu)
    one, other = run_ranks(2, tmp_path / "two", read, tmp_path / "last.ckpt")
    assert one == other
    assert said in one
