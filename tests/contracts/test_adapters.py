"""The laws of an adapter, held by every plug-in that has a YAML in configs/plugins/adapters."""

import contextlib
import copy
import functools
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from torch.nn.functional import binary_cross_entropy_with_logits, pad

from tests.backbones.kinds import KINDS, tiny
from vlmtune.adapters import Adapter, JointAdapter, ZeroShot
from vlmtune.adapters.trained_state import load_trained_state, trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.hf.siglip2_naflex import SigLIP2NaFlex, to_strip
from vlmtune.backbones.hf.vilt import OUTSIDE, Vilt
from vlmtune.config import Configured, instantiate
from vlmtune.errors import UserError
from vlmtune.types import Features, Pooled, Scores, Tokens

CONFIGS = sorted((Path(__file__).parents[2] / "configs/plugins/adapters").glob("*.yaml"))
assert CONFIGS
TEXTS = ["red cube", "a blue sphere left of the red cube", "dog", "a green metal cube"]
# Most adapters refuse these, and what they share with other families is tested there.
RARE = ("align", "llava", "timm_image")
# A CLIP, a fusion encoder, and images that differ in shape: together they reach most branches.
FAST = ["open_clip", "blip", "siglip2_naflex"]
FAMILIES = [*FAST, *(stem for stem in KINDS if stem not in (*FAST, *RARE, "blip2")), "blip2"]
# `make slow` adds the others. BLIP-2 is only refused.
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES[3:-1]]
TRUTH = torch.eye(4, dtype=torch.bool)[[0, 1, 2, 3, 0]]  # of 5 images


@dataclass
class Made:
    """An adapter on a backbone, with something to score."""

    backbone: Backbone
    adapter: Adapter
    pixels: torch.Tensor

    def features(self, rows=slice(None), texts=TEXTS) -> tuple[Features, Features]:
        image = self.backbone.encode_image(self.pixels[rows], self.adapter.image_input)
        return image, self.backbone.encode_text(texts, self.adapter.text_input)

    def scores(self, *which) -> Scores:
        return self.adapter(*self.features(*which))

    def values(self, *which) -> torch.Tensor:
        with torch.no_grad():
            return self.scores(*which).values

    def trained(self) -> dict[str, torch.nn.Parameter]:
        return {
            f"{owner}.{name}": parameter
            for owner, module in (("adapter", self.adapter), ("backbone", self.backbone))
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of all weights and buffers, trained or not."""
        return {
            f"{owner}.{name}": value.detach().clone()
            for owner, module in (("adapter", self.adapter), ("backbone", self.backbone))
            for name, value in (*module.named_parameters(), *module.named_buffers())
        }

    def loss(self) -> torch.Tensor:
        return binary_cross_entropy_with_logits(self.scores().values, TRUTH.float())

    @functools.cached_property
    def whole(self) -> torch.Tensor:
        """The scores of all pairs, computed once, for laws that change nothing."""
        return self.values()

    def fit(self) -> None:
        """A step of training; it leaves the gradients."""
        self.adapter.train()
        optimizer = torch.optim.Adam(self.trained().values(), lr=1e-2)
        self.loss().backward()
        optimizer.step()
        self.adapter.eval()


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda path: path.stem)
def spec(request):
    return yaml.safe_load(request.param.read_text())


def maker(spec, model):
    """Makes the adapter anew on each call, on a copy of `model`; skips where it refuses that."""

    def made(seed: int = 0) -> Made:
        backbone, adapter = copy.deepcopy(model), instantiate(spec, Adapter)
        torch.manual_seed(seed)
        try:
            adapter.attach(backbone)
        except UserError as error:
            pytest.skip(str(error))
        generator = torch.Generator().manual_seed(5)
        pixels = torch.randn(5, 3, 32, 32, generator=generator)
        # The images of some differ in shape, and so in padding.
        if isinstance(backbone, Vilt):
            pixels[1, :, :, 16:] = pixels[3, :, 24:] = OUTSIDE
        if isinstance(backbone, SigLIP2NaFlex):
            shapes = torch.tensor([(4, 4), (4, 2), (2, 8), (3, 4), (4, 4)])
            rows = zip(pixels.view(5, 16, 192), shapes, strict=True)
            pixels = torch.stack([to_strip(patches, shape) for patches, shape in rows])
        return Made(backbone.eval(), adapter.eval(), pixels)

    return made


@pytest.fixture(scope="module")
def make(spec):
    """As `everywhere`, for the first family that the adapter fits."""
    for name in FAMILIES:
        with contextlib.suppress(UserError):
            instantiate(spec, Adapter).attach(copy.deepcopy(tiny(name)))
            return maker(spec, tiny(name))
    raise AssertionError("no family fits")


@pytest.fixture(scope="module", params=[*FAST, *SLOW])
def everywhere(request, spec):
    """Makes the adapter on each family of backbones: laws that depend on how a tower works."""
    return maker(spec, tiny(request.param))


@pytest.fixture(scope="module")
def whole(everywhere) -> Made:
    """The adapter on each family, which no test may change."""
    return everywhere()


@pytest.fixture(scope="module")
def fitted(everywhere) -> tuple[Made, dict[str, torch.Tensor], torch.Tensor]:
    """The adapter after a step of training, and its state and its scores before it."""
    made = everywhere()
    before, scores = made.state(), made.values()
    if made.trained():
        made.fit()
    return made, before, scores


OUT_OF_RANGE = [
    ("context_prompts.ContextPrompts", {"length": 0}),
    ("matching.Matching", {"blocks": -1}),
    ("last_blocks.LastBlocks", {"decay": 0.0}),
    ("mm_adapter.MMAdapter", {"memory": 0}),
    ("fusion_styles.mdetr.Mdetr", {"cls_tokens": 0}),
    ("lora.LoRA", {"alpha": 0.0}),
    ("lora.LoRA", {"dropout": 1.0}),
    ("lora.LoRA", {"targets": ["values"]}),
    ("grounded_words.GroundedWords", {"image_layer": -1}),
    ("grounded_words.GroundedWords", {"frozen_weight": -1.0}),
    ("linear_probe.LinearProbe", {"initial_scale": 0.0}),
    ("mm_adapter.MMAdapter", {"initial_scale": float("nan")}),
    ("bottleneck.Bottleneck", {"image": 1.0}),
]


@pytest.mark.parametrize(("name", "options"), OUT_OF_RANGE, ids=str)
def test_the_types_of_a_spec_hold_its_bounds(name, options):
    with pytest.raises(UserError, match=f"as {next(iter(options))} of vlmtune.adapters.{name}"):
        instantiate({"class_path": f"vlmtune.adapters.{name}", "init_args": options}, Configured)


def test_scores_are_finite_and_all_computed(whole):
    scores = whole.scores()
    assert scores.values.shape == scores.computed.shape == (5, 4)
    assert scores.computed.all()
    assert scores.values.isfinite().all()
    assert scores.values.std() > 0


def test_it_starts_as_the_backbone_up_to_scale_and_offset(everywhere, whole):
    if not whole.adapter.identity_at_init:
        return
    other, zero = everywhere(), ZeroShot()
    zero.attach(other.backbone)
    want = Made(other.backbone, zero, other.pixels).values().flatten().double()
    got = whole.whole.flatten().double()
    design = torch.stack([want, torch.ones_like(want)], dim=1)
    scale, offset = torch.linalg.lstsq(design, got[:, None]).solution.flatten()
    assert scale > 0
    torch.testing.assert_close(scale * want + offset, got, rtol=1e-4, atol=1e-4 * float(got.std()))


def test_only_what_is_declared_trained_moves(fitted):
    made, before, scores = fitted
    if not made.trained():
        assert isinstance(made.adapter, ZeroShot), "an adapter that trains nothing"
        assert not made.loss().requires_grad
        return
    moving, after = made.trained().keys(), made.state()
    assert before.keys() == after.keys()
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved
    assert moved <= moving
    assert not made.values().equal(scores)


def test_every_trained_parameter_gets_a_finite_gradient(fitted):
    # One without any would stop DistributedDataParallel.
    gradients = {name: parameter.grad for name, parameter in fitted[0].trained().items()}
    assert [name for name, gradient in gradients.items() if gradient is None] == []
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_without_pairs_each_trained_parameter_has_a_gradient_of_zero(make):
    # A rank may have no pair, and DDP waits for its gradients.
    made = make()
    if not made.adapter.joint or not made.trained():
        return
    made.adapter.train()
    nothing = made.adapter(*made.features(), torch.zeros(5, 4, dtype=torch.bool)).values
    gradients = torch.autograd.grad(nothing.sum(), list(made.trained().values()))
    assert not any(gradient.any() for gradient in gradients)


def test_frozen_features_carry_no_gradient(make):
    made = make()
    both = (made.adapter.image_input, made.adapter.text_input)
    for features, reads in zip(made.features(), both, strict=True):
        part = features.values
        assert not (reads.frozen and part.requires_grad)


def test_the_trained_state_is_all_there_is(everywhere, fitted):
    one, other = fitted[0], everywhere(1)
    state = {name: x.clone() for name, x in trained_state(one.backbone, one.adapter).items()}
    assert one.trained().keys() <= state.keys()
    frozen = {name for name, p in one.backbone.named_parameters() if not p.requires_grad}
    assert not state.keys() & {f"backbone.{name}" for name in frozen}
    load_trained_state(other.backbone, other.adapter, state, "here")
    assert other.values().equal(one.values())


def test_loading_is_strict_and_changes_nothing_where_it_fails(whole):
    made = whole
    before = made.state()
    state = trained_state(made.backbone, made.adapter)
    name = next(iter(state))
    wrong = {
        "missing": {key: value for key, value in state.items() if key != name},
        "unknown": {**state, "adapter.nobody": torch.zeros(1)},
        "shape": {**state, name: torch.zeros(*state[name].shape, 2)},
    }
    for kind, other in wrong.items():
        zeros = {key: torch.zeros_like(value) for key, value in other.items()}
        with pytest.raises(UserError, match="nobody" if kind == "unknown" else name) as error:
            load_trained_state(made.backbone, made.adapter, zeros, "last.ckpt")
        assert "last.ckpt" in str(error.value)
        assert "\n" not in str(error.value)
    assert all(value.equal(before[key]) for key, value in made.state().items())


def test_the_spec_makes_it_again(make):
    spec = make().adapter.spec()
    assert json.loads(json.dumps(spec)) == spec
    assert instantiate(spec, Adapter).spec() == spec


def test_evaluation_has_no_chance_in_it(whole):
    assert whole.values().equal(whole.whole)


def test_the_order_of_a_batch_does_not_matter(whole):
    rows, columns = [3, 0, 4, 2, 1], [2, 0, 3, 1]
    got = whole.values(rows, [TEXTS[j] for j in columns])
    torch.testing.assert_close(got, whole.whole[rows][:, columns], rtol=1e-4, atol=1e-4)


def test_a_score_does_not_depend_on_its_batch(whole):
    for i, j in ((0, 0), (1, 1), (1, 2)):  # the longest text, and shorter ones
        alone = whole.values([i], [TEXTS[j]])
        torch.testing.assert_close(alone[0, 0], whole.whole[i, j], rtol=1e-4, atol=1e-4)


def test_padding_does_not_matter(whole):
    with torch.no_grad():
        image, text = whole.features()
        if isinstance(text, Pooled):
            return
        more = pad(text.mask, (0, 3))
        garbage = 1e3 * torch.randn(*more.shape, text.values.shape[2])
        for filler in (torch.zeros_like(garbage), garbage):
            tokens = torch.where(more[:, :, None], pad(text.values, (0, 0, 0, 3)), filler)
            ids = None if text.ids is None else pad(text.ids, (0, 3))
            padded = Tokens(tokens, more, ids)
            got = whole.adapter(image, padded).values
            torch.testing.assert_close(got, whole.whole, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_chosen_pairs_have_the_scores_they_have_among_all(whole):
    pairs = torch.zeros(5, 4, dtype=torch.bool)
    pairs[0, 1] = pairs[2, 3] = pairs[4, 0] = pairs[4, 2] = True
    features = whole.features()
    scores = whole.adapter(*features, pairs)
    none = whole.adapter(*features, torch.zeros_like(pairs))
    assert scores.computed[pairs].all()
    at = scores.computed
    torch.testing.assert_close(scores.values[at], whole.whole[at], rtol=1e-4, atol=1e-4)
    assert not scores.values[~at].any()
    if whole.adapter.joint:
        assert at.equal(pairs)
        assert not none.computed.any()


@torch.no_grad()
def test_the_size_of_chunks_does_not_matter(whole, monkeypatch):
    assert whole.adapter.joint == isinstance(whole.adapter, JointAdapter)
    if not whole.adapter.joint:  # it has none
        return
    features = whole.features()
    for chunk in (3, 19):  # the last one has two pairs, or one
        monkeypatch.setattr(whole.adapter, "chunk_size", lambda *given, size=chunk, **_: size)
        got = whole.adapter(*features).values
        torch.testing.assert_close(got, whole.whole, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_one_text_or_one_image_may_stand_for_all_rows(whole):
    made, want = whole, whole.whole
    if not isinstance(made.adapter, JointAdapter):
        return
    image, text = made.features()
    images, texts = made.adapter.prepare_image(image), made.adapter.prepare_text(text.trimmed())
    if made.adapter.broadcasts_text:
        got = made.adapter.score_pairs(images, texts[:1])
        torch.testing.assert_close(got, want[:, 0], rtol=1e-4, atol=1e-4)
    if made.adapter.broadcasts_image:
        got = made.adapter.score_pairs(images[:1], texts)
        torch.testing.assert_close(got, want[0], rtol=1e-4, atol=1e-4)
