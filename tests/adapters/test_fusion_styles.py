"""All fusion styles against torch's own layers, on all tokens of all pairs, padded."""

from types import SimpleNamespace

import pytest
import torch

from scripts.bench.joint_scoring import naive_scores
from tests.adapters.fused import STYLES, features, made
from tests.tiny import Widths
from vlmtune.adapters import MMAdapter, MMPred
from vlmtune.adapters.fusion_styles.flava import Flava
from vlmtune.adapters.fusion_styles.mdetr import Mdetr
from vlmtune.errors import UserError
from vlmtune.types import Tokens

DEPTHS = (None, 1, 2)
# On CLIP ViT-B/32 with 4 heads and 2,048 hidden units: weights of the fusion, and Table 5 of Cola.
COUNTS = {
    "Mdetr": (7_752_704, "7.8"),
    "Flava": (9_852_416, "9.9"),
    "Albef": (10_906_112, "10.9"),
    "Fiber": (15_111_680, "15"),
    "FiberMM": (11_958_272, "12"),
}


def several():
    """Cola's section 10.1 tried 100 [CLS] tokens."""
    return Mdetr(cls_tokens=3)


def depth(style, layers):
    decoder = {} if style is Flava else {"decoder_layers": layers}
    return {"encoder_layers": layers, **decoder}


def compared(adapter, image, text):
    """Scores and their gradients (all weights, and the image tokens) in both forms."""
    image = Tokens(image.values.clone().requires_grad_(), mask=image.mask)
    leaves = [*adapter.parameters(), image.values]
    weights = torch.linspace(-1, 2, len(image) * len(text), dtype=torch.float64)
    for values in (adapter(image, text).values, naive_scores(adapter, image, text, 100)):
        yield values, torch.autograd.grad((values.flatten() * weights).sum(), leaves)


@pytest.mark.parametrize("cls", [MMAdapter, MMPred])
@pytest.mark.parametrize("layers", DEPTHS)
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("style", [*STYLES, several])
def test_values_and_gradients_are_those_of_the_whole_stack(style, norm_first, layers, cls):
    adapter = made(style, cls, norm_first=norm_first, **depth(style, layers))
    (got, ours), (want, theirs) = compared(adapter.train(), *features())
    assert want.std() > 1e-3
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        image, text = features()
        torch.testing.assert_close(adapter.eval()(image, text).values, want.detach())


@pytest.mark.parametrize("style", STYLES)
def test_normalised_tokens_and_single_precision(style):
    adapter = made(style, normalize_tokens=True).eval()
    image, text = features()
    with torch.no_grad():
        want = naive_scores(adapter, image, text, 5)
        got = adapter.float()(image.to("cpu", torch.float32), text.to("cpu", torch.float32)).values
    torch.testing.assert_close(got, want.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("style", STYLES)
def test_budgets_change_neither_scores_nor_gradients(style):
    image, text = features(lengths=(4, 7, 3, 5))
    got = {}
    for name, budget in {
        "whole": {},
        "small": {"memory": 1},  # a pair at a time
        "again": {"memory": 1, "training_memory": 0},  # all activations are computed twice
        "part": {"memory": 1, "training_memory": 12_000},
    }.items():
        adapter = made(style, **budget).train()
        got[name] = next(compared(adapter, image, text))
    for name in ("small", "again", "part"):
        for one, other in zip(got[name][1], got["whole"][1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(got[name][0], got["whole"][0])


@pytest.mark.parametrize("style", STYLES)
def test_dropout_is_the_same_when_activations_are_computed_again(style):
    got = []
    for budget in (2**30, 0):
        adapter = made(style, dropout=0.3, memory=20_000, training_memory=budget).train()
        torch.manual_seed(3)
        got.append(next(compared(adapter, *features())))
    assert got[0][0].equal(got[1][0])
    for one, other in zip(got[0][1], got[1][1], strict=True):
        torch.testing.assert_close(one, other)
    adapter.eval()
    assert not adapter(*features()).values.equal(got[0][0])


def test_activations_are_computed_again_only_beyond_the_budget(monkeypatch):
    calls = []
    adapter = made(Mdetr, memory=1)
    score = adapter.score_pairs
    monkeypatch.setattr(
        adapter, "score_pairs", lambda *pair: calls.append(len(pair[0])) or score(*pair)
    )
    image, text = features()
    kept = adapter.pair_bytes(adapter.prepare_image(image), adapter.prepare_text(text), True)
    for budget, again in ((100 * kept, 0), (9 * kept, 3), (0, 12)):
        calls.clear()
        adapter.training_memory = budget
        adapter(image, text).values.sum().backward()
        assert calls == [1] * (12 + again)
    with torch.no_grad():
        calls.clear()
        adapter(image, text)
        assert calls == [1] * 12


@pytest.mark.parametrize("style", STYLES)
def test_chunks_are_sized_by_memory(style, monkeypatch):
    adapter = made(style).eval()
    image, text = features()
    prepared = adapter.prepare_image(image), adapter.prepare_text(text)
    adapter.memory = 5 * adapter.pair_bytes(*prepared, training=False)
    sizes = []
    score = adapter.score_pairs
    monkeypatch.setattr(
        adapter, "score_pairs", lambda *pair: sizes.append(len(pair[0])) or score(*pair)
    )
    with torch.no_grad():
        adapter(image, text)
    assert sizes == [5, 5, 2]


@pytest.mark.parametrize("style", STYLES)
def test_padding_and_hidden_patches_never_change_a_score(style):
    adapter = made(style).eval()
    image, text = features()
    want = adapter(image, text).values
    garbage = torch.where(text.mask[:, :, None], text.values, 1e3)
    torch.testing.assert_close(adapter(image, Tokens(garbage, mask=text.mask)).values, want)
    patches = torch.nn.functional.pad(image.values, (0, 0, 0, 2), value=1e3)
    mask = torch.nn.functional.pad(image.mask, (0, 2))
    torch.testing.assert_close(adapter(Tokens(patches, mask=mask), text).values, want)


@pytest.mark.parametrize("style", STYLES)
def test_what_one_modality_gives_is_computed_once(style):
    adapter = made(style).eval()
    image, text = features(images=6)
    rows = []
    adapter.project.register_forward_hook(lambda _, given, out: rows.append(len(out)))
    norms = [m for m in adapter.modules() if isinstance(m, torch.nn.LayerNorm)]
    tokens = []
    for norm in norms:
        norm.register_forward_hook(lambda _, given, out: tokens.append(out.shape[:2].numel()))
    with torch.no_grad():
        adapter(image, text)
    assert rows == [6]
    if "image_encoder" in dict(adapter.named_modules()):
        # Encoders: 6 images and 3 texts. For each of 18 pairs no more than [CLS] of each side.
        assert max(tokens) <= max(6 * (5 + 1), 3 * (7 + 1), 18)


@pytest.mark.parametrize("style", STYLES)
def test_parameters_are_as_many_as_in_table_5(style):
    count, published = COUNTS[style.__name__]
    adapter, head = MMAdapter(fusion=style()), MMPred(fusion=style())
    for one in (adapter, head):
        one.attach(Widths())
    assert sum(p.numel() for p in adapter.parameters()) == count + 2
    assert sum(p.numel() for p in head.parameters()) == count + style.queries * 512 + 1
    digits = len(published.partition(".")[2])
    assert f"{count / 1e6:.{digits}f}" == published
    assert f"{count:,}" in style.__doc__
    assert f"{published}M" in style.__doc__


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fusion": Flava(), "decoder_layers": 1}, "no decoder_layers with Flava, got 3 and 1"),
        ({"decoder_layers": 0}, "1 or more decoder_layers with Mdetr, got 1 and 0"),
        ({"encoder_layers": 0}, "1 or more encoder_layers .* got 0 and 1"),
    ],
)
@pytest.mark.parametrize("cls", [MMAdapter, MMPred])
def test_impossible_options_are_refused(cls, options, said):
    with pytest.raises(UserError, match=said):
        cls(**options)


def test_chunks_fill_a_part_of_the_memory_of_a_gpu_and_a_given_size_everywhere(monkeypatch):
    card = SimpleNamespace(total_memory=16 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    free, given = MMAdapter(), MMAdapter(memory=2**20)
    assert free.chunk_size(2**20, gpu, training=True) == 1024
    assert free.chunk_size(2**20, cpu, training=True) == 512
    assert free.chunk_size(2**20, cpu, training=False) == 64
    assert [given.chunk_size(2**18, x, training=True) for x in (gpu, cpu)] == [4, 4]
