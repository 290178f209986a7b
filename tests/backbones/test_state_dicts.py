"""Files of weights: what they may hold, and what is refused."""

import argparse

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.refusals import refused
from vlmtune.backbones.state_dicts import read_state_dict

STATE = {"visual.proj": torch.ones(2, 3), "logit_scale": torch.tensor(4.6)}


def same(state):
    return state.keys() == STATE.keys() and all(state[k].equal(v) for k, v in STATE.items())


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("entry", [None, "state_dict", "model", "model_state_dict"])
def test_names_come_without_what_wraps_a_model(tmp_path, prefix, entry, recwarn):
    state = {f"{prefix}{name}": value for name, value in STATE.items()}
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    checkpoint = {
        "epoch": 3,
        "name": "ours",
        entry: state,
        "optimizer": optimizer.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
    }
    for number, zipped in enumerate((True, False)):
        file = tmp_path / f"epoch_{number}.pt"
        content = state if entry is None else checkpoint
        torch.save(content, file, _use_new_zipfile_serialization=zipped)
        assert same(read_state_dict(file))
    assert not recwarn.list


@pytest.mark.parametrize("number", [np.float64(0.3), np.float32(0.3), np.int64(3)])
def test_a_number_of_numpy_is_a_plain_value_and_an_array_of_objects_is_none(tmp_path, number):
    file = tmp_path / "epoch_1.pt"
    torch.save({"state_dict": STATE, "loss": number}, file)
    assert same(read_state_dict(file))
    torch.save({"state_dict": STATE, "loss": np.array([{}], dtype=object)}, file)
    with refused("needs code of the file"):
        read_state_dict(file)


def test_safetensors_prefixes_and_second_copies(tmp_path):
    save_file(STATE, tmp_path / "model.safetensors")
    assert same(read_state_dict(tmp_path / "model.safetensors"))
    torch.save({"module.a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "a.pt")
    assert read_state_dict(tmp_path / "a.pt").keys() == {"module.a", "b"}
    ema = {name: value + 1 for name, value in STATE.items()}
    torch.save({"state_dict": STATE, "state_dict_ema": ema}, tmp_path / "epoch_1.pt")
    with pytest.warns(UserWarning, match="as state_dict, which are used, and as state_dict_ema"):
        assert same(read_state_dict(tmp_path / "epoch_1.pt"))


class Bomb:
    def __reduce__(self):
        return print, ("unpickled",)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_no_code_runs(tmp_path, capsys):
    files = {name: tmp_path / f"{name}.pt" for name in ("namespace", "bomb")}
    torch.save({"state_dict": STATE, "args": argparse.Namespace(lr=1)}, files["namespace"])
    torch.save({"state_dict": STATE, "args": Bomb()}, files["bomb"])
    with refused(r"object of argparse.Namespace, which needs code .* save only its state_dict"):
        read_state_dict(files["namespace"])
    with refused("object of .*print, which needs code"):
        read_state_dict(files["bomb"])
    assert "unpickled" not in capsys.readouterr().out
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "a.pt")
    with refused(r"got TorchScript, which is code: .* tag openai .*torch.jit.load"):
        read_state_dict(tmp_path / "a.pt")


def test_what_holds_no_weights(tmp_path):
    file = tmp_path / "a.pt"
    for content, message in (
        ([1], "expected weights in .*, got another layout"),
        ({}, "got nothing"),
        ({"epoch": 1, "weights": STATE}, "got epoch, weights: save only the weights"),
        ({"state_dict": {"a": 1}}, "got a: save"),
    ):
        torch.save(content, file)
        with refused(message):
            read_state_dict(file)
    file.write_bytes(file.read_bytes()[:-100])
    with refused("expected weights in .*: check the path, or get the file again"):
        read_state_dict(file)
    (tmp_path / "a.safetensors").write_bytes(b"damaged!")
    with refused("expected weights in .*: check the path, or get the file again"):
        read_state_dict(tmp_path / "a.safetensors")
    for name in ("none.pt", "none.safetensors"):
        with refused("got no such file: check the path"):
            read_state_dict(tmp_path / name)
