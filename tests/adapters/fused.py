"""Small fused adapters and features that several tests share."""

import torch

from tests.tiny import Widths
from vlmtune.adapters.fusion_styles.albef import Albef
from vlmtune.adapters.fusion_styles.fiber import Fiber
from vlmtune.adapters.fusion_styles.fiber_mm import FiberMM
from vlmtune.adapters.fusion_styles.flava import Flava
from vlmtune.adapters.fusion_styles.mdetr import Mdetr
from vlmtune.adapters.mm_adapter import MMAdapter
from vlmtune.types import Tokens

STYLES = (Mdetr, Flava, Albef, Fiber, FiberMM)
LENGTHS = (4, 7, 3)


def moved(adapter):
    """The adapter in double precision, none of whose weights is zero or one."""
    torch.manual_seed(0)
    adapter.attach(Widths(image_width=6, text_width=8, image_tokens=5))
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return adapter.double()


def made(style, cls=MMAdapter, dropout=0.0, **options):
    return moved(cls(fusion=style(), heads=2, hidden=2, dropout=dropout, **options))


def same_values_and_gradients(got, want, inputs):
    """Checks scores of four images and three texts, and gradients of a weighted sum of them."""
    torch.testing.assert_close(got, want)
    weights = torch.randn(4, 3, dtype=torch.float64)
    ours = torch.autograd.grad((got * weights).sum(), inputs)
    theirs = torch.autograd.grad((want * weights).sum(), inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


def features(images=4, lengths=LENGTHS, padding=2):
    """Tokens with more padding than the longest text needs."""
    torch.manual_seed(1)
    image = torch.randn(images, 5, 6, dtype=torch.float64)
    mask = torch.arange(max(lengths) + padding) < torch.tensor(lengths)[:, None]
    text = torch.randn(*mask.shape, 8, dtype=torch.float64) * mask[:, :, None]
    real = torch.ones(image.shape[:2], dtype=torch.bool)
    return Tokens(image, mask=real), Tokens(text, mask=mask)
