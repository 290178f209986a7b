import copy
import logging
import types
import warnings
import zipfile
from functools import cache, partial

import numpy as np
import open_clip
import pytest
import tokenizers
import torch
from open_clip.tokenizer import HFTokenizer
from PIL import Image
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from tests.refusals import refused
from tests.tiny import write_model
from vlmtune import config
from vlmtune.adapters import DeepPrompts, LoRA
from vlmtune.backbones.open_clip import loading as open_clip_loading
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.backbones.open_clip.text import Tokenizer
from vlmtune.config import instantiate
from vlmtune.types import FeatureSpec

TEXTS = ["a red cube left of the blue sphere", "dog", "a green metal cube"]
POOLED = FeatureSpec("pooled")
NO_IMAGE_TOWER, NO_TEXT_TOWER = {"convnext", "resnet"}, {"sees padding"}
MULTIMODAL = {"context_length": 12, "width": 16, "heads": 2, "layers": 1}


def timm(name, pool="token"):
    made = {"timm_model_name": f"test_{name}", "timm_pool": pool, "timm_proj": "linear"}
    return {"image_size": 160, **made}


VARIANTS = {
    "clip": {},
    "average-pooled": {"vision": {"pool_type": "avg"}},
    "average-pooled, norm after": {"vision": {"pool_type": "avg", "final_ln_after_pool": True}},
    "quick gelu": {"quick_gelu": True},
    "both outputs": {"vision": {"output_tokens": True}},
    "custom text": {"custom_text": True, "text": {"output_tokens": True}},
    "end id": {"custom_text": True, "text": {"pool_type": "eos", "eos_id": 14}},
    "siglip": {"custom_text": True, "text": {"no_causal_mask": True, "pool_type": "last"}},
    "timm": {"vision": timm("vit")},
    "siglip, timm": {
        "custom_text": True,
        "init_logit_bias": -10,
        "vision": timm("vit3", "map"),  # registers, layer scale, attentional pooling
        "text": {"no_causal_mask": True, "pool_type": "last", "proj_bias": True},
    },
    "convnext": {"vision": timm("convnext", "")},
    "first": {"custom_text": True, "text": {"no_causal_mask": True, "pool_type": "first"}},
    "causal, last": {"custom_text": True, "text": {"pool_type": "last"}},
    "sees padding": {"custom_text": True, "text": {"no_causal_mask": True}},
    "resnet": {
        "vision": {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64, "patch_size": None}
    },
}


def pixels_for(backbone, n=3):
    torch.manual_seed(1)
    return torch.randn(n, *backbone.preprocess(Image.new("RGB", (40, 30))).shape)


def padded_ids(backbone):
    return backbone.tokenizer.encode(TEXTS)


def reference_pooled(output):
    return output[0] if isinstance(output, tuple) else output


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns a function that gives the backbone of a variant, made once; no test may change it."""
    folder = tmp_path_factory.mktemp("variants")

    @cache
    def make(variant):
        return OpenClip(str(write_model(folder / variant, **VARIANTS[variant])))

    return make


@pytest.mark.parametrize("variant", VARIANTS)
def test_pooled_equals_open_clip(made, variant):
    backbone = made(variant)
    pixels = pixels_for(backbone)
    with torch.no_grad():
        image = reference_pooled(backbone.model.encode_image(pixels))
        text = reference_pooled(backbone.model.encode_text(padded_ids(backbone)))
    assert backbone.embed_dim == image.shape[1]
    torch.testing.assert_close(backbone.encode_image(pixels, POOLED).values, image)
    torch.testing.assert_close(backbone.encode_text(TEXTS, POOLED).values, text)
    assert backbone.logit_bias == VARIANTS[variant].get("init_logit_bias", 0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_text_tokens_equal_the_padded_forward_pass(made, variant):
    backbone = made(variant)
    ids = padded_ids(backbone)
    for layer in (-1, -2, -3):
        got = backbone.encode_text(TEXTS, FeatureSpec("tokens", layer))
        with torch.no_grad():
            want = _captured(backbone, ids, layer)
        assert got.values.shape == (3, 10, backbone.text_width)  # 8 words, start, end
        assert got.mask.sum(dim=1).tolist() == [10, 3, 6]
        for i, length in enumerate([10, 3, 6]):
            torch.testing.assert_close(got.values[i, :length], want[i, :length])
            assert got.mask[i, :length].all()
            assert not got.values[i, length:].any()


def _captured(backbone, ids, layer):
    """Output of a text block in open_clip's own pass over the padded captions, by a hook."""
    tower = getattr(backbone.model, "text", backbone.model)
    states = []
    block = tower.transformer.resblocks[layer]
    hook = block.register_forward_hook(lambda module, inputs, output: states.append(output))
    backbone.model.encode_text(ids)
    hook.remove()
    return tower.ln_final(states[0]) if layer == -1 else states[0]


@pytest.mark.parametrize("variant", ["clip", "average-pooled", "both outputs"])
def test_patch_tokens_equal_the_blocks_without_the_class_token(made, variant):
    backbone = copy.deepcopy(made(variant))
    visual, pixels = backbone.model.visual, pixels_for(backbone)
    states = []
    for block in visual.transformer.resblocks:
        block.register_forward_hook(lambda module, inputs, output: states.append(output))
    with torch.no_grad():
        backbone.model.encode_image(pixels)
        blocks = [s[:, 1:] for s in states]
        blocks[-1] = visual.ln_post(states[-1])[:, 1:]
    for layer in (-1, -2, -3):
        got = backbone.encode_image(pixels, FeatureSpec("tokens", layer))
        torch.testing.assert_close(got.values, blocks[layer])
        assert got.values.shape == (3, backbone.image_tokens, backbone.image_width)
        assert got.mask.all()


def test_timm_tokens_equal_the_trunk(made):
    backbone = made("timm")
    pixels = pixels_for(backbone)
    with torch.no_grad():
        want = backbone.model.visual.trunk.forward_features(pixels)[:, 1:]
    got = backbone.encode_image(pixels, FeatureSpec("tokens", -1)).values
    torch.testing.assert_close(got, want)
    assert (backbone.image_tokens, backbone.image_width) == (100, 64)
    assert backbone.fits(FeatureSpec("tokens", -6), "image") is None


@pytest.mark.parametrize("maker", [LoRA, partial(DeepPrompts, coupled=False)])
def test_a_resnet_gives_its_last_map_and_leaves_the_text_tower_to_train(made, maker):
    backbone = copy.deepcopy(made("resnet"))
    got = backbone.encode_image(pixels_for(backbone), FeatureSpec("tokens", -1))
    assert got.values.shape == (3, 4, 256) == (3, backbone.image_tokens, backbone.image_width)
    assert "1 layer" in backbone.fits(FeatureSpec("tokens", -2), "image")
    with refused("or train only the text tower with --model.adapter.init_args.image false"):
        maker().attach(backbone)
    adapter = maker(image=False)
    adapter.attach(backbone)
    text = adapter.embed_text(backbone.encode_text(TEXTS, adapter.text_input))
    text.sum().backward()
    trained = [p for x in (adapter, backbone) for p in x.parameters() if p.grad is not None]
    assert any(p.grad.any() for p in trained)


def test_coca(folder):
    path = folder(
        vision={"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
        text={"embed_cls": True, "output_tokens": True},
        multimodal_cfg=MULTIMODAL,
        custom_text=True,
    )
    backbone = OpenClip(str(path))
    pixels = pixels_for(backbone)
    with torch.no_grad():
        image = backbone.model.encode_image(pixels, normalize=False)
        text = backbone.model.encode_text(padded_ids(backbone), normalize=False)
    torch.testing.assert_close(backbone.encode_image(pixels, POOLED).values, image)
    torch.testing.assert_close(backbone.encode_text(TEXTS, POOLED).values, text)
    assert "attentional pooling" in backbone.fits(FeatureSpec("tokens", -1), "image")
    tower = backbone.image_tower
    state = backbone.encode_image(pixels, FeatureSpec("state", -2))
    torch.testing.assert_close(tower.finish(tower.run(state, 2, 3)), image)
    assert any(p is backbone.model.visual.attn_pool.query for p in tower.tail)
    assert backbone.text_tower is None
    assert "as in CoCa" in backbone.fits(FeatureSpec("state"), "text")
    assert backbone.encode_image(pixels, FeatureSpec("tokens", -2)).values.shape == (3, 16, 24)
    assert backbone.encode_text(TEXTS, FeatureSpec("tokens", -1)).values.shape == (3, 10, 16)


def test_hugging_face_text_towers_give_pooled_vectors_only(folder, tmp_path):
    from transformers import BertConfig

    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertConfig(vocab_size=20, intermediate_size=16, **config).save_pretrained(tmp_path / "bert")
    text = {"hf_model_name": str(tmp_path / "bert"), "hf_model_pretrained": False}
    path = str(folder(text=text))
    backbone = OpenClip(path)
    with torch.no_grad():
        want = backbone.model.encode_text(padded_ids(backbone))
    torch.testing.assert_close(backbone.encode_text(TEXTS, POOLED).values, want)
    half = OpenClip(path, precision="bf16").encode_text(TEXTS, POOLED).values
    torch.testing.assert_close(half, want, rtol=0.1, atol=0.05)
    assert backbone.text_width == 16
    assert "pooled vectors only" in backbone.fits(FeatureSpec("tokens"), "text")
    with refused("pooled vectors only"):
        backbone.encode_text(TEXTS, FeatureSpec("tokens"))


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in NO_IMAGE_TOWER])
def test_an_image_tower_run_in_pieces_gives_the_embedding(made, variant):
    backbone = made(variant)
    tower, pixels = backbone.image_tower, pixels_for(backbone)
    want = backbone.encode_image(pixels, POOLED).values
    start = tower.start(pixels)
    assert start.values.shape == (3, tower.special + backbone.image_tokens, tower.width)
    assert start.mask.all()
    with torch.no_grad():
        torch.testing.assert_close(tower.finish(tower.run(start, 0, tower.layers)), want)
    for layer in (-tower.layers - 1, -2, -1):
        state = backbone.encode_image(pixels, FeatureSpec("state", layer))
        rest = tower.run(state, tower.layers + 1 + layer, tower.layers)
        torch.testing.assert_close(tower.finish(rest), want)
    patches = backbone.encode_image(pixels, FeatureSpec("tokens", -2)).values
    state = backbone.encode_image(pixels, FeatureSpec("state", -2)).values
    torch.testing.assert_close(state[:, tower.special :], patches)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in NO_TEXT_TOWER])
def test_a_text_tower_run_in_pieces_gives_the_embedding(made, variant):
    backbone = made(variant)
    tower = backbone.text_tower
    with torch.no_grad():
        want = reference_pooled(backbone.model.encode_text(padded_ids(backbone)))
    words = backbone.encode_text(TEXTS, FeatureSpec("words"))
    assert words.values.shape == (3, 10, tower.width)
    assert words.ids.tolist() == padded_ids(backbone)[:, :10].tolist()
    assert words.mask.sum(dim=1).tolist() == [10, 3, 6]
    assert not words.values[~words.mask].any()
    with torch.no_grad():
        state = tower.run(tower.start(words), 0, tower.layers)
        torch.testing.assert_close(tower.finish(state), want)
    for layer in (-tower.layers - 1, -2, -1):
        state = backbone.encode_text(TEXTS, FeatureSpec("state", layer))
        assert not state.values[~state.mask].any()
        assert state.mask.sum(dim=1).tolist() in ([10, 3, 6], [12, 12, 12])
        rest = tower.run(state, tower.layers + 1 + layer, tower.layers)
        torch.testing.assert_close(tower.finish(rest), want)


def test_towers_that_cannot_be_had_are_told(made):
    backbone = made("convnext")
    assert backbone.image_tower is None
    why = backbone.fits(FeatureSpec("state"), "image")
    assert "ConvNeXt image tower is not a plain transformer" in why
    with refused(r"image state of layer -1 .*ConvNeXt"):
        backbone.encode_image(pixels_for(backbone), FeatureSpec("state"))
    assert "no words" in backbone.fits(FeatureSpec("words"), "image")
    backbone = made("sees padding")
    assert backbone.text_tower is None
    for kind in ("state", "words"):
        assert "sees the padding" in backbone.fits(FeatureSpec(kind), "text")
    backbone = made("clip")
    assert backbone.fits(FeatureSpec("state", -4), "text") is None
    assert "-4 to -1" in backbone.fits(FeatureSpec("state", -5), "text")


def test_unread_blocks_are_not_run(folder):
    backbone = OpenClip(str(folder()))
    ran = []
    for tower in (backbone.model.visual.transformer, backbone.model.transformer):
        for i, block in enumerate(tower.resblocks):
            block.register_forward_hook(lambda module, inputs, output, i=i: ran.append(i))
    backbone.encode_image(pixels_for(backbone), FeatureSpec("tokens", -2))
    backbone.encode_text(TEXTS, FeatureSpec("tokens", -3))
    assert ran == [0, 1, 0]


def test_open_clip_and_the_cutting_of_its_own_tokenizer(folder):
    backbone = OpenClip(str(folder(vocabulary=False)))
    got = backbone.encode_text(["a photo of a dog", "word " * 40], FeatureSpec("tokens", -1))
    assert got.mask.sum(dim=1).tolist() == [7, 12]
    assert backbone.text_special == (1, 1)


def test_preprocessing_is_open_clips_or_that_of_a_published_script(folder):
    # PUG: SPAR's: squashed, bilinear, ImageNet's mean and deviation, for every model.
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    changed = {"mean": mean, "std": std, "resize_mode": "squash", "interpolation": "bilinear"}
    path = folder()
    own, backbone = OpenClip(str(path)), OpenClip(str(path), preprocessing=changed)
    image = Image.effect_noise((50, 40), 80).convert("RGB")
    _, _, evaluate = open_clip.create_model_and_transforms(f"local-dir:{path}")
    assert own.preprocess(image).equal(evaluate(image))
    side = own.preprocess(image).shape[1:]
    small = image.resize((side[1], side[0]), Image.Resampling.BILINEAR)
    values = torch.from_numpy(np.array(small)).permute(2, 0, 1) / 255
    centre, spread = (torch.tensor(x)[:, None, None] for x in (mean, std))
    assert torch.allclose(backbone.preprocess(image), (values - centre) / spread, atol=1e-5)
    assert backbone.fingerprint != own.fingerprint
    assert backbone.spec()["init_args"]["preprocessing"] == changed


WRONG = {"men": [0, 0, 0], "mean": [0, 0], "std": [0, 1, 1], "resize_mode": "squish", "size": 7}


@pytest.mark.parametrize("given", [{name: value} for name, value in WRONG.items()])
def test_a_preprocessing_that_is_none_is_refused(folder, given):
    spec = OpenClip(str(folder())).spec()
    spec["init_args"]["preprocessing"] = given
    with refused("as preprocessing of .*OpenClip, got"):
        instantiate(spec, OpenClip)


def test_the_fingerprint_knows_the_vocabulary_and_a_relative_folder_is_found(
    folder, monkeypatch, tmp_path
):
    path = folder()
    own = OpenClip(str(path)).fingerprint
    words = (path / "vocabulary.txt").read_text().split()
    (path / "vocabulary.txt").write_text("\n".join(reversed(words)))
    assert OpenClip(str(path)).fingerprint != own
    path = folder("here")
    monkeypatch.chdir(path.parent)
    assert OpenClip("here").embed_dim == 16
    assert OpenClip("local-dir:here").embed_dim == 16
    monkeypatch.chdir("/")
    monkeypatch.setattr(config, "ROOT", tmp_path)
    (tmp_path / "checkpoints").symlink_to(path.parent)
    assert open_clip_loading.locate("local-dir:checkpoints/here") == f"local-dir:{path}"


def test_the_fingerprint_knows_a_tokenizer_of_hugging_face(folder):
    backbone = OpenClip(str(folder()))
    prints = set()
    for words in (["a", "b"], ["b", "a"]):
        vocabulary = {word: i for i, word in enumerate(["<unk>", *words])}
        inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
        encode = HFTokenizer.__new__(HFTokenizer)
        encode.tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
        backbone.tokenizer.encode = encode
        backbone.__dict__.pop("fingerprint", None)
        prints.add(backbone.fingerprint)
    assert len(prints) == 2


def test_random_weights_are_quiet(capfd, tiny_vl):
    handlers = list(logging.getLogger().handlers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = torch.get_rng_state()
        backbone = OpenClip("Tiny-VL", "random")
        assert torch.get_rng_state().equal(state)
    assert OpenClip("Tiny-VL", "random").fingerprint == backbone.fingerprint
    assert capfd.readouterr().err == ""
    assert logging.getLogger().handlers == handlers
    assert logging.root.manager.disable == 0
    assert backbone.title == "Tiny-VL (random weights)"


@pytest.mark.parametrize(
    ("model", "pretrained", "message"),
    [
        ("ViT-B-33", None, "did you mean .*ViT-B-32"),
        ("local-dir:nowhere", None, "open_clip_config.json .*: check the name or the folder"),
        ("", None, "expected an open_clip model"),
        ("ViT-B-32", None, "pretrained weights .* got none: .*--pretrained.*'random'.*openai"),
        ("ViT-B-32", "opanai", "one of openai, .*got 'opanai'"),
        ("ViT-B/32", "openai", "use model 'ViT-B-32-quickgelu'"),
        ("ViT-L-14", "metaclip_400m", "use model 'ViT-L-14-quickgelu'"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_one_line(model, pretrained, message, made):
    with refused(message):
        OpenClip(model, pretrained)
    with refused("has its own weights"):
        OpenClip(made("clip").spec()["init_args"]["model"], "openai")


def test_weights_known_as_openais_ask_for_quick_gelu(folder, tmp_path):
    path = folder("a")
    scripted = tmp_path / "mine.pt"
    with zipfile.ZipFile(scripted, "w") as archive:
        archive.writestr("ViT/code/__torch__.py", "")
    named = tmp_path / "vit_b_32.openai.safetensors"
    named.write_bytes(b"")
    for file in (scripted, named):
        with refused(r"QuickGELU for the weights .* 'ViT-B-32-quickgelu'"):
            OpenClip("ViT-B-32", str(file))
    renamed = path.rename(tmp_path / "clip.openai")
    with refused(r"set quick_gelu to true in its config"):
        OpenClip(str(renamed))
    OpenClip(str(folder("b.openai", quick_gelu=True)))


def test_damaged_folders_are_told_in_one_line(folder):
    path = folder()
    weights = (path / "open_clip_model.safetensors").read_bytes()

    def fails(message):
        with refused(message):
            OpenClip(str(path))

    (path / "vocabulary.txt").write_text("a\nred\n")
    fails("with 12 words next to .*, got 2 words")
    (path / "vocabulary.txt").unlink()
    (path / "open_clip_model.safetensors").write_bytes(weights[: len(weights) // 2])
    fails("expected weights")
    save_file({"something": torch.zeros(1)}, path / "open_clip_model.safetensors")
    fails("expected weights.*Missing key")
    for content in ("{", '{"model_cfg": {"embed_dim": 3}}', "{}"):
        (path / "open_clip_config.json").write_text(content)
        fails("expected weights and tokenizer")
    (path / "open_clip_config.json").unlink()
    fails("a folder with open_clip_config.json and weights")


class Stub:
    def __init__(self, row, eos=None, sep=None, pad=0, special=()):
        ids = {"eos_token_id": eos, "sep_token_id": sep, "pad_token_id": pad}
        self.tokenizer = types.SimpleNamespace(**ids, all_special_ids=list(special))
        self.row = torch.tensor([row])

    def __call__(self, *_):
        return self.row


@pytest.mark.parametrize(
    ("row", "inner", "length", "special"),
    [
        # SigLIP: no start, padded with its end token
        ([7, 8, 1, 1, 1], {"eos": 1, "pad": 1, "special": [1]}, 3, (0, 1)),
        ([7, 8, 1, 0, 0], {"eos": 1, "special": [0, 1]}, 3, (0, 1)),
        ([2, 7, 8, 3, 0], {"sep": 3, "special": [0, 2, 3]}, 4, (1, 1)),
        # end token stripped
        ([2, 7, 8, 0, 0], {"sep": 3, "special": [0, 2, 3]}, 3, (1, 0)),
    ],
)
def test_lengths_of_hub_tokenizers(row, inner, length, special):
    tokenizer = Tokenizer(Stub(row, **inner))
    _, mask = tokenizer(["any"])
    assert mask.sum().item() == length
    assert mask[0, :length].all()
    assert tokenizer.leading_and_trailing("any") == special


def test_captions_of_a_byte_a_token_may_be_too_long():
    tokenizer = Tokenizer(open_clip.SimpleTokenizer())
    fits, cut = "1" * 75, "1" * 76  # CLIP reads digits one by one, and adds start and end
    assert tokenizer.too_long([fits, cut]) == [cut]


class Stripped(Stub):
    """Takes the end token away, as the tokenizers of CLIPA do."""

    context_length = 5

    def __init__(self):
        super().__init__([], sep=3, special=[0, 2, 3])

    def __call__(self, texts, length=None):
        rows = torch.zeros(len(texts), length or self.context_length, dtype=torch.long)
        for row, text in zip(rows, texts, strict=True):
            words = len(text.split())
            ids = torch.tensor([2, *[7] * words])
            kept = ids[: len(row) - 1]  # the last place was that of the end token
            row[: len(kept)] = kept
        return rows


def test_captions_are_cut_without_an_end_token_too():
    fits, cut = "red cube left", "red cube left of"
    assert Tokenizer(Stripped()).too_long([fits, cut, "dog " * 9]) == [cut, "dog " * 9]
