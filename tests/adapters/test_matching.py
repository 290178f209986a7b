import pytest
import torch
from transformers import FlavaModel
from transformers.utils import logging

from tests.adapters import families
from tests.backbones import hf_models
from tests.refusals import refused
from vlmtune.adapters.matching import Matching
from vlmtune.adapters.trained_state import trained_state
from vlmtune.backbones import Blip, BridgeTower, Flava, Vilt
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.objectives.itm import ITM
from vlmtune.pairs import HardPairs, RankingPairs
from vlmtune.training.module import AdaptationModule

KINDS = {
    "blip": (Blip, hf_models.write_blip),
    "bridgetower": (BridgeTower, hf_models.write_bridgetower),
    "flava": (Flava, hf_models.write_flava),
    "vilt": (Vilt, hf_models.write_vilt),
}
TEXTS = ["a red cube left of the blue sphere", "dog", "a green metal cube", "the dog right"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Tiny models, which no test may change."""
    folder = tmp_path_factory.mktemp("models")
    logging.disable_progress_bar()
    return {name: write(folder / name) for name, (_, write) in KINDS.items()}


@pytest.fixture(params=KINDS)
def make(request):
    """Returns a function that makes the backbone and a `Matching` on it."""

    def made(blocks=0):
        backbone = families.backbone(request.param)
        adapter = Matching(blocks)
        adapter.attach(backbone)
        return backbone, adapter

    return made


def pictures():
    return hf_models.pictures([(50, 36), (36, 50), (40, 40)])


def features(backbone, adapter):
    pixels = torch.stack([backbone.preprocess(image) for image in pictures()])
    image = backbone.encode_image(pixels, adapter.image_input)
    return image, backbone.encode_text(TEXTS, adapter.text_input)


def expected(backbone):
    fusion, adapter = backbone.fusion, Matching()
    adapter.attach(backbone)
    image, text = features(backbone, adapter)
    with torch.no_grad():
        rows = [
            fusion.match(
                fusion.prepare_image(image[i : i + 1]),
                fusion.prepare_text(text[j : j + 1].trimmed()),
            )
            for i in range(3)
            for j in range(4)
        ]
    return torch.cat(rows).view(3, 4)


@pytest.mark.parametrize("blocks", [0, 2])
def test_scores_are_those_of_the_matching_head(make, blocks):
    backbone, adapter = make(blocks)
    want, given = expected(backbone), features(backbone, adapter)
    pairs = torch.ones(3, 4, dtype=torch.bool)
    pairs[1] = pairs[0, 2] = False
    for adapter.memory in (None, 1):
        with torch.no_grad():
            scored = adapter(*given)
            some = adapter(*given, pairs)
        torch.testing.assert_close(scored.values, want, rtol=1e-4, atol=1e-5)
        assert scored.computed.all()
        torch.testing.assert_close(some.values, want * pairs, rtol=1e-4, atol=1e-5)
        assert some.computed.equal(pairs)
    with_gradient = adapter(*given).values
    torch.testing.assert_close(with_gradient, want, rtol=1e-4, atol=1e-5)


def test_an_image_with_many_captions_is_taken_once(monkeypatch):
    backbone = families.backbone("blip")
    adapter = Matching()
    adapter.attach(backbone)
    taken, match = [], adapter.fusion.match
    monkeypatch.setattr(
        adapter.fusion, "match", lambda i, t: taken.append((len(i), len(t))) or match(i, t)
    )
    with torch.no_grad():
        adapter(*features(backbone, adapter))
    assert taken == [(1, 4)] * 3
    taken.clear()
    with torch.no_grad():
        adapter(*features(backbone, adapter), torch.eye(3, 4, dtype=torch.bool))
    assert taken == [(3, 3)]


def test_the_last_blocks_and_the_head_are_trained(make):
    backbone, adapter = make(1)
    fusion = backbone.fusion
    wanted = {id(p) for p in (*fusion.blocks[-1].parameters(), *fusion.tail)}
    trained = [p for p in backbone.parameters() if p.requires_grad]
    assert {id(p) for p in trained} == wanted
    assert len(trained_state(backbone, adapter)) == len(trained)


def test_what_is_frozen_has_no_gradient(make):
    backbone, adapter = make(1)
    image, text = features(backbone, adapter)
    assert not adapter.prepare_image(image).values.requires_grad
    assert not adapter.prepare_text(text).values.requires_grad


def test_what_cannot_be_trained_is_refused_in_one_line(folders, model_folder, tmp_path):
    with refused(r"OpenClip \(it is a dual encoder\): choose Blip"):
        Matching().attach(OpenClip(str(model_folder)))
    without = hf_models.write_flava(tmp_path / "flava", kind=FlavaModel)
    with refused(r"Flava \(its checkpoint has no matching head"):
        Matching().attach(Flava(str(without)))
    with refused("at most 3 blocks"):
        Matching(4).attach(Blip(str(folders["blip"])))
    with refused("float32"):
        Matching(1).attach(Blip(str(folders["blip"]), precision="bf16"))
    Matching(0).attach(Blip(str(folders["blip"]), precision="bf16"))


def test_hard_pairs_need_embeddings_and_vilt_has_none():
    backbone = families.backbone("blip")
    module = AdaptationModule(backbone, Matching(1), [ITM()], pairs=HardPairs())
    assert module.original is not None  # BLIP's fusion and text tower share weights
    assert "reference" in module.scores.needs
    vilt = families.backbone("vilt")
    with refused("pooled image embeddings .* got Vilt"):
        AdaptationModule(vilt, Matching(1), [ITM()], pairs=RankingPairs(3, hard=1))
    vilt = families.backbone("vilt")
    AdaptationModule(vilt, Matching(1), [ITM()], pairs=RankingPairs(3))
