"""LoRA layers beside weights, in the layout that FSC-CLIP's training saves."""

import pytest
import torch
from torch.nn.functional import conv2d, linear

from tests.refusals import refused
from vlmtune.backbones.open_clip.open_clip import OpenClip

QUICK = "Tiny-VL-quickgelu"
RANK = 4


def layers(state):
    """Random updates of every attention, linear layer and convolution of a tiny CLIP, by weight."""
    torch.manual_seed(0)
    made = {}
    for name, weight in state.items():
        packed = name.endswith("attn.in_proj_weight")
        plain = name.endswith((".c_fc.weight", ".c_proj.weight", "out_proj.weight"))
        if not (packed or plain or name == "visual.conv1.weight"):
            continue
        stem = f"{name}_" if packed else name.removesuffix("weight")
        k = weight.shape[-1] if weight.ndim == 4 else 1
        rows, width = weight.shape[0] * k, weight.shape[1] * k
        pair = torch.randn(RANK * k, width), torch.randn(rows, RANK * k)
        made[name] = (stem, 0.1 * pair[0], 0.1 * pair[1])
    return made


@pytest.fixture
def updates(tiny_vl):
    made = layers(tiny_vl)
    # Two towers: a convolution and four matrices a block.
    assert len(made) == 1 + 4 * len([k for k in tiny_vl if k.endswith("in_proj_weight")])
    return made


def saved(file, updates, name="lora.pt", **changed):
    pairs = {}
    for stem, down, up in updates.values():
        pairs |= {f"{stem}lora_A": down, f"{stem}lora_B": up}
    return file(name, **pairs | changed)


def test_what_each_layer_computes_is_that_of_weight_and_update(file, tiny_vl, updates):
    with pytest.warns(UserWarning, match=rf"{len(updates)} updates of rank {RANK} are merged"):
        state = OpenClip(QUICK, saved(file, updates)).model.state_dict()
    assert state.keys() == tiny_vl.keys()
    for name, merged in state.items():
        before = tiny_vl[name]
        if name not in updates:
            assert merged.equal(before)
            continue
        _, down, up = updates[name]
        if merged.ndim == 4:
            x = torch.randn(2, merged.shape[1], 16, 16)
            kernel = (up @ down).reshape(merged.shape)
            want = conv2d(x, before, stride=8) + conv2d(x, kernel, stride=8) / RANK
            got = conv2d(x, merged, stride=8)
        else:
            x = torch.randn(5, merged.shape[1])
            want = linear(x, before) + linear(linear(x, down), up) / RANK
            got = linear(x, merged)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(merged, before, atol=1e-3)


def test_an_update_without_its_weight_or_second_matrix_or_of_another_size(file, updates):
    first = "visual.transformer.resblocks.0.mlp.c_fc"
    for missing in (f"{first}.weight", f"{first}.lora_B"):
        path = saved(file, updates)
        content = torch.load(path)
        del content["state_dict"][missing]
        torch.save(content, path)
        with refused(rf"fit {first}.lora_A in .*{missing}.*: save the whole"):
            OpenClip(QUICK, path)
    wrong = {"visual.conv1.lora_A": torch.ones(RANK, 3)}
    with refused(r"visual.conv1.lora_B that fit visual.conv1.lora_A in .*: save the whole"):
        OpenClip(QUICK, saved(file, updates, **wrong))
