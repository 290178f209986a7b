"""The laws of a backbone, held by every plug-in that has a YAML in configs/plugins/backbones."""

import copy
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn.functional import cosine_similarity, normalize

from tests.backbones.kinds import KINDS, PLUGINS, Kind
from tests.refusals import refused
from vlmtune.backbones.base import Backbone
from vlmtune.config import instantiate
from vlmtune.types import FeatureSpec, Tokens

CONFIGS = sorted(PLUGINS.glob("*.yaml"))
TEXTS = ["a red cube left of the blue sphere", "dog", "a green metal cube"]
READS = [FeatureSpec("pooled"), *(FeatureSpec("tokens", layer) for layer in (-1, -2, -3))]
READS += [FeatureSpec("state", layer) for layer in (-1, -2, -3, -4)]
WORDS = FeatureSpec("words")


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda path: path.stem)
def config(request):
    return request.param


@pytest.fixture(scope="module")
def kind(config) -> Kind:
    return KINDS[config.stem]


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    """A tiny model, which no test may change."""
    return kind.write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def make(config):
    """Returns a function that makes the backbone of a YAML from a tiny model."""

    def made(path: Path, **arguments) -> Backbone:
        spec = yaml.safe_load(config.read_text())
        spec["init_args"] |= {"model": str(path), **arguments}
        return instantiate(spec, Backbone)

    return made


@pytest.fixture(scope="module")
def backbone(make, folder):
    """A backbone, which no test may change."""
    return make(folder)


@pytest.fixture(scope="module")
def low(make, folder):
    """The backbone in bfloat16, which no test may change."""
    return make(folder, precision="bf16")


@pytest.fixture
def own(backbone):
    """A copy of the backbone, which a test may change."""
    return copy.deepcopy(backbone)


def picture(seed: int = 0) -> Image.Image:
    torch.manual_seed(seed)
    size = [(36, 50, 3), (50, 36, 3), (20, 64, 3)][seed % 3]
    return Image.fromarray(torch.randint(0, 256, size, dtype=torch.uint8).numpy())


def pixels_for(backbone: Backbone, n: int = 3) -> torch.Tensor:
    return torch.stack([backbone.preprocess(picture(i)) for i in range(n)])


def readable(backbone: Backbone, modality: str) -> list[FeatureSpec]:
    reads = [*READS, WORDS] if modality == "text" else READS
    if modality == "text" and not backbone.encodes_texts:
        assert all(backbone.fits(r, modality) for r in reads)
    return [r for r in reads if backbone.fits(r, modality) is None]


def towers(backbone: Backbone) -> list[tuple[str, Any]]:
    """Its towers; a model of texts that has none has no embeddings, and scores by its fusion."""
    found = [("image", backbone.image_tower), ("text", backbone.text_tower)]
    found = [(modality, tower) for modality, tower in found if tower is not None]
    assert found or backbone.fusion is not None
    return found


def test_scores_are_those_of_the_library(kind, folder, backbone):
    if not backbone.encodes_texts:
        return  # its features are compared in tests/backbones
    if kind.scores is None:
        assert all(backbone.fits(FeatureSpec("pooled"), modality) for modality in ("image", "text"))
        return
    pixels = pixels_for(backbone)
    image = backbone.encode_image(pixels, FeatureSpec("pooled")).values
    text = backbone.encode_text(TEXTS, FeatureSpec("pooled")).values
    cosine = normalize(image) @ normalize(text).T
    got = backbone.logit_scale * cosine + backbone.logit_bias
    with torch.no_grad():
        want = kind.scores(folder, pixels, TEXTS)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert got.std() > 1e-3  # the tiny model tells its inputs apart


def test_sizes_are_as_told(backbone):
    pixels = pixels_for(backbone)
    for reads in readable(backbone, "image"):
        got = backbone.encode_image(pixels, reads)
        assert got.values.dtype == torch.float32
        if reads.kind == "pooled":
            assert got.values.shape == (3, backbone.embed_dim)
            continue
        assert got.values.shape[::2] == (3, backbone.image_width)
        assert not got.values[~got.mask].any()
        if backbone.images_differ:  # in patches
            assert (got.mask.sum(dim=1) <= 1 + backbone.image_tokens).all()
            continue
        leading = 1 if backbone.image_tower is None else backbone.image_tower.special
        extra = leading if reads.kind == "state" else 0
        assert got.values.shape[1] == extra + backbone.image_tokens
        assert got.mask.all()
    if not backbone.encodes_texts:
        return
    special = sum(backbone.text_special)
    for reads in readable(backbone, "text"):
        got = backbone.encode_text(TEXTS, reads)
        assert got.values.dtype == torch.float32
        if reads.kind == "pooled":
            assert got.values.shape == (3, backbone.embed_dim)
            continue
        assert got.values.shape[::2] == (3, backbone.text_width)
        assert not got.values[~got.mask].any()
        if reads.kind != "state":
            assert got.mask.sum(dim=1).tolist() == [8 + special, 1 + special, 4 + special]
    assert backbone.encode_text(TEXTS, WORDS).ids.shape == (3, 8 + special)


def test_the_usual_readings_can_be_had(backbone):
    for modality, _ in towers(backbone):
        assert {r.kind for r in readable(backbone, modality)} >= {"pooled", "tokens", "state"}
        assert backbone.fits(FeatureSpec("tokens", -4), modality)
        assert backbone.fits(FeatureSpec("state", -5), modality)
        assert backbone.fits(FeatureSpec("tokens", 0), modality)
    assert backbone.fits(WORDS, "image")
    assert (backbone.fits(WORDS, "text") is None) == backbone.encodes_texts
    if backbone.fits(FeatureSpec("tokens", -2), "image"):
        assert not towers(backbone)
        with refused("no layers of one modality"):
            backbone.encode_image(pixels_for(backbone), FeatureSpec("tokens", -2))
        return
    with refused("-3 to -1"):
        backbone.encode_image(pixels_for(backbone), FeatureSpec("tokens", -4))
    with refused("-4 to -1" if backbone.encodes_texts else "only reads images"):
        backbone.encode_text(TEXTS, FeatureSpec("state", 0))
    with refused("no words"):
        backbone.encode_image(pixels_for(backbone), WORDS)


def test_order_and_company_change_nothing(backbone):
    pixels, order = pixels_for(backbone), [2, 0, 1]
    for reads in readable(backbone, "image"):
        together = backbone.encode_image(pixels, reads).values
        moved = backbone.encode_image(pixels[order], reads).values
        torch.testing.assert_close(moved, together[order])
        torch.testing.assert_close(backbone.encode_image(pixels[:1], reads).values, together[:1])
    for reads in readable(backbone, "text"):
        together = backbone.encode_text(TEXTS, reads).values
        moved = backbone.encode_text([TEXTS[i] for i in order], reads).values
        torch.testing.assert_close(moved, together[order])
        for i, text in enumerate(TEXTS):  # alone it is cut shorter
            alone = backbone.encode_text([text], reads).values[0]
            if alone.ndim == 1:
                torch.testing.assert_close(alone, together[i])
            else:
                torch.testing.assert_close(alone, together[i, : len(alone)])
                assert not together[i, len(alone) :].any()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_towers_in_pieces_give_the_embedding(backbone, low, precision):
    """In bfloat16 nearly that of float32."""
    pixels, pieces = pixels_for(backbone), {"fp32": backbone, "bf16": low}[precision]
    exact = {"rtol": 1e-5, "atol": 1e-5} if precision == "fp32" else {"rtol": 0.1, "atol": 0.05}
    for modality, tower in towers(pieces):
        if modality == "image":
            given, encode, state = pixels, pieces.encode_image, tower.start(pixels)
            want = backbone.encode_image(pixels, FeatureSpec("pooled")).values
        else:
            given, encode, state = TEXTS, pieces.encode_text, tower.start(tower.words(TEXTS))
            want = backbone.encode_text(TEXTS, FeatureSpec("pooled")).values
        whole = encode(given, FeatureSpec("pooled")).values
        assert whole.dtype == torch.float32
        assert cosine_similarity(whole, want).min() > 0.95
        for i in range(tower.layers):
            state = tower.run(state, i, i + 1)
        torch.testing.assert_close(tower.finish(state), whole, **exact)
        for reads in readable(pieces, modality):
            if reads.kind == "state":
                rest = tower.run(encode(given, reads), tower.layers + 1 + reads.layer, tower.layers)
                torch.testing.assert_close(tower.finish(rest), whole, **exact)


def test_tokens_are_states_without_what_is_special(backbone):
    pixels, found = pixels_for(backbone), dict(towers(backbone))
    for layer in (-2, -3):
        if "image" in found:
            state = backbone.encode_image(pixels, FeatureSpec("state", layer)).values
            tokens = backbone.encode_image(pixels, FeatureSpec("tokens", layer)).values
            torch.testing.assert_close(tokens, state[:, backbone.image_tower.special :])
        if "text" not in found:
            continue
        got = backbone.encode_text(TEXTS, FeatureSpec("tokens", layer))
        state = backbone.encode_text(TEXTS, FeatureSpec("state", layer)).values
        length = got.values.shape[1]
        torch.testing.assert_close(got.values[got.mask], state[:, :length][got.mask])


def test_gradients_flow_exactly_when_asked(own):
    backbone, pixels = own, pixels_for(own)
    assert not backbone.training
    assert not any(p.requires_grad for p in backbone.parameters())
    backbone.requires_grad_(True)
    for modality in ("image", "text"):
        tower = dict(towers(backbone)).get(modality)
        for reads in readable(backbone, modality):
            live = FeatureSpec(reads.kind, reads.layer, frozen=False)
            encode = backbone.encode_image if modality == "image" else backbone.encode_text
            given = pixels if modality == "image" else TEXTS
            assert not encode(given, reads).values.requires_grad
            backbone.zero_grad()
            encode(given, live).values.square().sum().backward()
            if reads.kind == "pooled" and tower is not None:
                assert len(tower.blocks) == tower.layers == 3
                assert tower.tail
                reached = [p for block in tower.blocks for p in block.parameters()]
                assert all(p.grad is not None and p.grad.any() for p in (*reached, *tower.tail))
            assert any(p.grad is not None and p.grad.any() for p in backbone.parameters())


def test_every_weight_has_one_name_and_reading_changes_none(backbone):
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    for reads in readable(backbone, "image"):
        backbone.encode_image(pixels_for(backbone), reads)
    for reads in readable(backbone, "text"):
        backbone.encode_text(TEXTS, reads)
    after = backbone.state_dict()
    assert before.keys() == after.keys()
    assert all(after[name].equal(value) for name, value in before.items())
    assert len(before) == len(backbone.model.state_dict())


def test_the_fingerprint_is_of_weights_and_preprocessing(
    kind, make, folder, backbone, low, tmp_path
):
    assert low.fingerprint != backbone.fingerprint
    copied = shutil.copytree(folder, tmp_path / "copied")
    late = make(copied)
    for reads in readable(late, "text"):
        late.encode_text(TEXTS, reads)
        late.encode_text(["dog"], reads)
    assert late.fingerprint == backbone.fingerprint
    state = load_file(copied / kind.weights)
    state[sorted(state)[0]].view(-1)[0] += 1e-5
    save_file(state, copied / kind.weights, metadata={"format": "pt"})
    assert make(copied).fingerprint != backbone.fingerprint
    copied = shutil.copytree(folder, tmp_path / "again")
    name, mean = kind.preprocessing
    settings = json.loads((copied / name).read_text())
    inner = settings.keys() & {"preprocess_cfg", "pretrained_cfg"}
    place = settings[inner.pop()] if inner else settings
    place[mean] = [0.1, 0.1, 0.1]
    (copied / name).write_text(json.dumps(settings))
    assert make(copied).fingerprint != backbone.fingerprint


def test_a_spec_makes_the_same_backbone_again(backbone):
    spec = json.loads(json.dumps(backbone.spec()))
    again = instantiate(spec, Backbone)
    assert again.fingerprint == backbone.fingerprint
    assert again.spec() == spec
    pixels = pixels_for(backbone)
    for reads in readable(backbone, "image"):
        got, want = (one.encode_image(pixels, reads).values for one in (again, backbone))
        assert got.equal(want)


def test_preprocess_travels_without_the_weights(backbone):
    carried = pickle.dumps(backbone.preprocess)
    assert len(carried) < 10_000
    got = pickle.loads(carried)(picture())
    assert got.equal(backbone.preprocess(picture()))
    assert got.dtype == torch.float32
    grey = picture().convert("L").convert("RGB")
    assert backbone.preprocess(grey).shape == got.shape


@pytest.mark.parametrize("size", [(9, 70), (70, 9), (1, 1), (200, 200)])
def test_images_of_any_shape_become_one_shape(backbone, size):
    assert backbone.preprocess(Image.new("RGB", size)).shape == pixels_for(backbone, 1)[0].shape


@pytest.mark.parametrize("text", ["", "  ", " \t\n"])
def test_a_caption_without_words_is_an_error(backbone, text):
    for reads in readable(backbone, "text"):
        with refused(r"captions with words, got .* \(number 1 of 2\)"):
            backbone.encode_text(["dog", text], reads)


def test_a_long_caption_is_cut_and_keeps_its_end(kind, backbone):
    if not backbone.encodes_texts:
        return
    got = backbone.encode_text(["red cube " * 30], WORDS)
    assert got.ids.shape[1] == kind.context
    ends = backbone.encode_text(["dog"], WORDS).ids[0, -1]
    assert got.ids[0, -1] == ends


def test_captions_that_are_cut_are_known(backbone, kind):
    if not backbone.encodes_texts:
        return
    room = kind.context - sum(backbone.text_special)
    whole, cut = (" ".join(["cube"] * n) for n in (room, room + 1))
    assert backbone.too_long([whole, "dog", cut, whole, cut]) == [cut, cut]
    assert backbone.too_long([]) == []


def test_longer_prompts_take_the_place_of_padding(backbone):
    if backbone.text_tower is None:
        return
    tower, words = backbone.text_tower, backbone.encode_text(TEXTS[1:], WORDS)

    def prompted(count: int) -> Tokens:
        first = words.values[:, :1].expand(-1, count, -1)
        mask = torch.ones(first.shape[:2], dtype=torch.bool)
        both = ((first, words.values), (mask, words.mask))
        values, mask = (torch.cat(parts, dim=1) for parts in both)
        return Tokens(values, mask=mask)

    room = tower.positions - words.values.shape[1]
    longer = prompted(room)
    both = tower.finish(tower.run(tower.start(longer), 0, tower.layers))
    cut = int(longer.mask[0].sum())
    assert cut < tower.positions
    alone = Tokens(longer.values[:1, :cut], mask=longer.mask[:1, :cut])
    got = tower.finish(tower.run(tower.start(alone), 0, tower.layers))
    torch.testing.assert_close(got, both[:1])
    assert not torch.allclose(got, tower.finish(tower.run(tower.start(words), 0, 3))[:1])


def test_a_hub_id_loads_from_the_cache_without_a_network(config, make, folder, backbone, hub):
    hub("someone/tiny", folder)
    name = f"{'hf-hub:' if config.stem == 'open_clip' else ''}someone/tiny"
    got = make(name)
    assert got.fingerprint == backbone.fingerprint
    assert got.spec()["init_args"]["model"] == name
    with refused(r"someone/nothing.* network"):
        make(name.replace("tiny", "nothing"))


@pytest.mark.parametrize("name", ["nowhere at all", ""])
def test_what_cannot_be_found_is_told_in_one_line(make, name):
    with refused():
        make(name)


def test_a_copy_is_a_model_of_its_own(backbone, own):
    pixels = pixels_for(backbone)

    def everything(of: Backbone) -> list[torch.Tensor]:
        images = [of.encode_image(pixels, r).values for r in readable(of, "image")]
        texts = [of.encode_text(TEXTS, r).values for r in readable(of, "text")]
        return [*images, *texts] if of.fusion is None else [*images, *texts, matches(of, pixels)]

    before = everything(own)
    for parameter in own.parameters():
        parameter.data.zero_()
    for was, now in zip(before, everything(backbone), strict=True):
        # Where weights lie in memory may change the last bits of a product.
        torch.testing.assert_close(now, was, rtol=1e-4, atol=1e-5)


def prepared(
    backbone: Backbone, pixels: torch.Tensor, texts: list[str], extra: int = 0
) -> tuple[Tokens, Tokens]:
    """Images and captions as `match` takes them, captions with more padding."""
    fusion = backbone.fusion
    image = backbone.encode_image(pixels, fusion.image_input)
    text = backbone.encode_text(texts, fusion.text_input)
    text = text.padded(text.mask.shape[1] + extra)
    return fusion.prepare_image(image), fusion.prepare_text(text)


def matches(backbone: Backbone, pixels: torch.Tensor, texts=TEXTS, extra: int = 0) -> torch.Tensor:
    """Scores every image with every caption, in one call."""
    image, text = prepared(backbone, pixels, texts, extra)
    rows = torch.arange(len(pixels)).repeat_interleave(len(texts))
    columns = torch.arange(len(texts)).repeat(len(pixels))
    return backbone.fusion.match(image[rows], text[columns]).view(len(pixels), -1)


@pytest.fixture(scope="module")
def fused(kind, backbone):
    """A backbone with fusion; others say why they have none."""
    if backbone.fusion is None:
        assert kind.matches is None
        assert "\n" not in backbone.no_fusion
        pytest.skip(backbone.no_fusion)
    return backbone


def test_matches_are_those_of_the_library(kind, folder, fused):
    pixels = pixels_for(fused)
    with torch.no_grad():
        want = kind.matches(folder, pixels, TEXTS)
    got = matches(fused, pixels)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert got.dtype == torch.float32
    assert min(got.std(dim=0).min(), got.std(dim=1).min()) > 1e-3  # images and texts both count


def test_matches_in_bfloat16_are_close(low, fused):
    want = matches(fused, pixels_for(fused))
    got = matches(low, pixels_for(low))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0.2, atol=0.1)


def test_a_match_depends_on_its_pair_alone(fused):
    pixels = pixels_for(fused)
    whole = matches(fused, pixels)
    for i in range(3):
        for j, text in enumerate(TEXTS):
            alone = matches(fused, pixels[i : i + 1], [text])
            torch.testing.assert_close(alone[0, 0], whole[i, j], rtol=1e-4, atol=1e-5)
    order = [2, 0, 1]
    moved = matches(fused, pixels[order], [TEXTS[j] for j in order])
    torch.testing.assert_close(moved, whole[order][:, order], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(matches(fused, pixels, extra=2), whole, rtol=1e-4, atol=1e-5)


def test_one_image_stands_for_all_its_captions(fused):
    image, text = prepared(fused, pixels := pixels_for(fused), TEXTS)
    got = torch.stack([fused.fusion.match(image[i : i + 1], text) for i in range(3)])
    torch.testing.assert_close(got, matches(fused, pixels), rtol=1e-4, atol=1e-5)


def test_each_part_of_the_fusion_takes_part_in_a_match(fused):
    fused = copy.deepcopy(fused)
    fusion, pixels = fused.fusion, pixels_for(fused)
    of_blocks = [p for block in fusion.blocks for p in block.parameters()]
    trained = [*of_blocks, *fusion.tail]
    assert len({id(p) for p in trained}) == len(trained)
    assert {id(p) for p in trained} <= {id(p) for p in fused.parameters()}
    for parameter in trained:
        parameter.requires_grad_(True)
    matches(fused, pixels).square().sum().backward()
    assert len(fusion.blocks) > 1
    assert fusion.tail
    assert all(p.grad is not None and p.grad.any() for p in trained)
