import pytest
import torch

from tests.adapters import families
from tests.adapters.test_matching import KINDS, TEXTS, features, folders, pictures
from tests.refusals import refused
from vlmtune.adapters import FusionTuning, Matching, ZeroShot
from vlmtune.evaluation.scorer import Scorer
from vlmtune.export import save_export
from vlmtune.model import load
from vlmtune.objectives import ITM, InfoNCE, OnEmbeddings
from vlmtune.pairs.hard_pairs import HardPairs
from vlmtune.search import Index, build_index
from vlmtune.training.module import AdaptationModule

__all__ = ["folders"]  # a fixture
BOTH = [ITM(), OnEmbeddings(InfoNCE())]


@pytest.fixture
def make(folders):
    def made(kind, **options):
        backbone = KINDS[kind][0](str(folders[kind]))
        adapter = FusionTuning(**options)
        adapter.attach(backbone)
        return backbone, adapter

    return made


def trained(backbone, adapter):
    return [p for m in (backbone, adapter) for p in m.parameters() if p.requires_grad]


def plain(adapter, backbone):
    """Scores by another, untrained adapter of the same backbone."""
    adapter.attach(backbone)
    pixels = torch.stack([backbone.preprocess(image) for image in pictures()])
    image = backbone.encode_image(pixels, adapter.image_input)
    with torch.no_grad():
        return adapter(image, backbone.encode_text(TEXTS, adapter.text_input)).values


@pytest.mark.parametrize("towers", [True, False])
@pytest.mark.parametrize("kind", ["blip", "bridgetower", "flava"])
def test_both_scores_start_as_the_backbones_own(make, kind, towers):
    backbone, adapter = make(kind, towers=towers, contrast=True)
    other = families.backbone(kind)
    given = features(backbone, adapter)
    with torch.no_grad():
        matching, contrast = adapter(*given).values, adapter.contrast(*given).values
    torch.testing.assert_close(matching, plain(Matching(), other), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(contrast, plain(ZeroShot(), other), rtol=1e-4, atol=1e-5)
    assert not matching.allclose(contrast, rtol=0.1)


@pytest.mark.parametrize(
    ("kind", "contrast"), [("blip", True), ("bridgetower", True), ("flava", True), ("vilt", False)]
)
@pytest.mark.parametrize("towers", [True, False])
def test_each_trained_weight_has_a_gradient_and_no_other_has(make, kind, contrast, towers):
    backbone, adapter = make(kind, towers=towers, contrast=contrast)
    given = features(backbone, adapter)
    loss = adapter(*given).values.square().sum()
    if contrast:
        loss = loss + adapter.contrast(*given).values.square().sum()
    loss.backward()
    assert all(p.grad is not None for p in trained(backbone, adapter))
    first = next(
        p for name, p in backbone.named_parameters() if "patch_embed" in name or "conv1" in name
    )
    assert first.requires_grad == towers
    blocks = {id(p) for block in adapter.fusion.blocks for p in block.parameters()}
    assert blocks <= {id(p) for p in trained(backbone, adapter)}


def test_frozen_towers_train_the_projections_beside_the_fusion(make):
    backbone, adapter = make("blip", blocks=1, contrast=True)
    names = {name for name, p in backbone.named_parameters() if p.requires_grad}
    last = f"model.text_encoder.encoder.layer.{len(adapter.fusion.blocks) - 1}."
    others = {name for name in names if not name.startswith(last)}
    assert others == {
        f"model.{head}.{part}"
        for head in ("vision_proj", "text_proj", "itm_head")
        for part in ("weight", "bias")
    }
    assert any("crossattention" in name for name in names)


def test_the_fusion_and_the_heads_learn_faster(make):
    backbone, adapter = make("flava", towers=True, contrast=True, top=5.0)
    again = FusionTuning(towers=True, contrast=True, top=5.0)
    assert AdaptationModule(families.backbone("flava"), again, BOTH).adapter.lr_scales()
    scale = {id(p): factor for p, factor in adapter.lr_scales()}
    fast = {name for name, p in backbone.named_parameters() if id(p) in scale}
    slow = {n for n, p in backbone.named_parameters() if p.requires_grad and id(p) not in scale}
    assert all(factor == 5.0 for factor in scale.values())
    assert any("itm_head" in name for name in fast)
    assert {f"model.flava.{side}_projection.weight" for side in ("image", "text")} <= fast
    assert any("multimodal_model.encoder" in name for name in fast)
    assert all("multimodal_model.encoder" not in name for name in slow)
    assert any("image_model.encoder" in name for name in slow)


def test_hard_pairs_are_chosen_by_the_scores_in_training():
    blip = families.backbone("blip")
    module = AdaptationModule(blip, FusionTuning(contrast=True), BOTH, pairs=HardPairs())
    assert module.original is None  # no frozen copy is needed
    assert "reference" not in module.scores.needs


def test_evaluation_can_score_by_the_embeddings(make, tmp_path):
    backbone, adapter = make("blip", towers=True, contrast=True, scored_by="contrast")
    with torch.no_grad():
        for p in trained(backbone, adapter):
            p.add_(0.05)
        want = adapter.contrast(*features(backbone, adapter)).values
    scorer = Scorer(backbone, adapter)
    assert scorer.embeds
    torch.testing.assert_close(scorer(pictures(), TEXTS), want, rtol=1e-4, atol=1e-4)
    save_export(tmp_path / "export", backbone, adapter, provenance={})
    model = load(tmp_path / "export")
    again = Scorer(model.backbone, model.adapter)(pictures(), TEXTS)
    torch.testing.assert_close(again, want, rtol=1e-4, atol=1e-4)
    cosines = model.similarity(model.encode_image(pictures()), model.encode_text(TEXTS))
    contrast = model.adapter.contrast
    scores = contrast.scale.detach() * cosines + contrast.bias.detach()
    torch.testing.assert_close(scores, want, rtol=1e-4, atol=1e-4)
    for number, picture in enumerate(pictures()):
        picture.save(tmp_path / f"{number}.png")
    build_index([tmp_path], model, tmp_path / "index", "x")
    found = Index.open(tmp_path / "index", model).search(TEXTS[0], 3)
    expected = want[:, 0].sort(descending=True)
    assert [int(hit.path.stem) for hit in found] == expected.indices.tolist()
    assert [hit.score for hit in found] == pytest.approx(expected.values.tolist(), rel=1e-4)


def test_what_cannot_be_is_refused_in_one_line(make):
    with refused("leave `blocks` out"):
        FusionTuning(towers=True, blocks=2)
    with refused("set contrast to true"):
        FusionTuning(scored_by="contrast")
    with refused("tower runs block by block, got Vilt"):
        make("vilt", contrast=True)
    blip = families.backbone("blip")
    with refused("add an OnEmbeddings or set contrast to false"):
        AdaptationModule(blip, FusionTuning(contrast=True), [ITM()])
    with refused("choose FusionTuning or Compressed with contrast set to true"):
        AdaptationModule(blip, Matching(1), BOTH)
