"""The tiny quickstart with fewer questions about held-out words than its own hundreds."""

import pytest

from vlmtune.cli import quickstart

WORLD = {**quickstart.SIZES["tiny"]["world"], "held_out": 4}
SIZES = {"tiny": {**quickstart.SIZES["tiny"], "world": WORLD}}


def ask_few(patch: pytest.MonkeyPatch) -> None:
    """Lets `vlmtune quickstart --size tiny`, and what writes its configs, build that world."""
    patch.setattr(quickstart, "SIZES", SIZES)
