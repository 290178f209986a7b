import pytest
import torch

from tests.adapters.families import attached, backbone, fit
from tests.backbones.kinds import tiny
from tests.refusals import refused
from tests.tiny import Widths, write_model
from vlmtune.adapters.bottleneck import Bottleneck
from vlmtune.adapters.context_prompts import ContextPrompts
from vlmtune.adapters.deep_prompts import DeepPrompts
from vlmtune.adapters.full_finetuning import FullFineTuning
from vlmtune.adapters.last_blocks import LastBlocks
from vlmtune.adapters.lora import LoRA
from vlmtune.adapters.towers import embeds_patches, value_path
from vlmtune.adapters.word_prompts import WordPrompts
from vlmtune.backbones.open_clip.open_clip import OpenClip

MAKERS = {
    "last_blocks": lambda: LastBlocks(image=1, text=2, decay=0.5),
    "full_finetuning": lambda: FullFineTuning(),
    "full_finetuning_tokens": lambda: FullFineTuning(tokens=True),
    "text_only": lambda: FullFineTuning(image=False, tokens=True),
    "word_prompts": lambda: WordPrompts(),
    "context_prompts": lambda: ContextPrompts(length=2),
    "deep_prompts": lambda: DeepPrompts(),
    "lora": lambda: LoRA(rank=2),
    "bottleneck": lambda: Bottleneck(text=0.3),
}
ON_TOWERS = [name for name in MAKERS if name not in ("bottleneck", "full_finetuning")]


@pytest.mark.parametrize("name", ON_TOWERS)
def test_a_backbone_without_towers_is_refused(name):
    with refused(r"runs block by block, got Widths \(it has no such tower\): choose "):
        MAKERS[name]().attach(Widths())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DeepPrompts(depth=4), "at most 3 blocks for `depth`, which is all, got 4"),
        (lambda: DeepPrompts(length=10), "at most 9 prompt tokens"),
        (lambda: DeepPrompts(init="red", length=2), "'red' with 1"),
        (lambda: ContextPrompts(length=10), "at most 9 prompt tokens"),
        (lambda: ContextPrompts(init="a photo"), "'photo'"),
        (lambda: WordPrompts([]), "got none"),
        (lambda: WordPrompts(["zebra"]), "'zebra'"),
        (lambda: LastBlocks(image=4), "at most 3 blocks for `image`, which is all, got 4"),
        (lambda: LastBlocks(text=9), "at most 3 blocks for `text`"),
        (lambda: LoRA(targets=[]), "choose other targets"),
    ],
)
def test_what_a_tower_cannot_do_is_refused(make, said):
    with refused(said):
        attached(make())


@pytest.mark.parametrize("name", ["last_blocks", "full_finetuning"])
def test_weights_in_16_bits_are_not_fine_tuned(name, model_folder):
    with refused(r"got torch\.bfloat16, which loses small steps"):
        MAKERS[name]().attach(OpenClip(str(model_folder), precision="bf16"))


@pytest.mark.parametrize("name", MAKERS)
def test_the_fingerprint_stays_that_of_the_base(name):
    want = backbone().fingerprint
    adapter, model = attached(MAKERS[name]())
    fit(adapter, model)
    assert model.fingerprint == want


@pytest.mark.parametrize(
    ("family", "expected"),
    [("open_clip", False), ("hf_clip", False), ("siglip", True), ("flava", False)],
)
def test_images_are_embedded_by_patches_or_by_a_class_token(family, expected):
    assert embeds_patches(tiny(family).image_tower) == expected


def test_the_shipped_clip_embeds_images_by_patches():
    assert embeds_patches(OpenClip("checkpoints/scenes-clip").image_tower)


@torch.no_grad()
def test_the_value_of_a_patch_depends_on_no_other_patch_and_no_position(tmp_path):
    """Also where attention turns queries and keys by the position."""
    vision = {"timm_model_name": "eva02_tiny_patch14_224", "timm_pool": "token",
              "timm_proj": "linear", "image_size": 224}  # fmt: skip
    tower = OpenClip(str(write_model(tmp_path / "eva", vision=vision))).image_tower
    patches = torch.randn(6, tower.width)
    together = value_path(tower, patches)

    def refused(*_):
        raise AssertionError("compiled code shows no hook its values")

    tower.blocks[-1].compile(backend=refused)
    apart = torch.cat([value_path(tower, patch[None]) for patch in patches.flip(0)])
    torch.testing.assert_close(together, apart.flip(0))
    assert together.std(dim=0).gt(0).all()
