import torch

from tests.tiny import Widths
from vlmtune.adapters.text_map import TextMap
from vlmtune.objectives.info_nce import InfoNCE
from vlmtune.types import Pooled, Targets


def made(width: int = 6, **options) -> TextMap:
    adapter = TextMap(**options)
    adapter.attach(Widths(embed_dim=width))
    return adapter


def test_parameters_on_vit_b_32():
    adapter = TextMap()
    adapter.attach(Widths())
    trained = {name: p.numel() for name, p in adapter.named_parameters() if p.requires_grad}
    assert trained == {"text.weight": 512 * 512, "log_scale": 1, "bias": 1}


def test_the_formula():
    adapter = made()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(torch.randn_like(parameter))
    image, text = torch.randn(3, 6), torch.randn(2, 6)
    got = adapter(Pooled(image), Pooled(text)).values
    for i in range(3):
        for j in range(2):
            v, t = image[i], adapter.text.weight @ text[j]
            want = adapter.log_scale.exp() * (v @ t / (v.norm() * t.norm())) + adapter.bias
            torch.testing.assert_close(got[i, j], want)


def test_it_learns_binding_that_lies_linearly_in_the_embeddings():
    """Images e1, e2 and texts e3, e4 of disjoint directions: cosines are 0, a linear map aligns."""
    eye = torch.eye(4)
    adapter, image, text = made(4), Pooled(eye[:2]), Pooled(eye[2:])
    assert adapter(image, text).values.abs().max() == 0
    truth = torch.eye(2, dtype=torch.bool)
    targets = Targets(truth, torch.ones_like(truth), truth)
    optimizer = torch.optim.Adam(adapter.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        InfoNCE()(adapter(image, text), targets).backward()
        optimizer.step()
    scores = adapter(image, text).values
    assert scores.argmax(dim=1).tolist() == [0, 1]
    assert scores.argmax(dim=0).tolist() == [0, 1]
