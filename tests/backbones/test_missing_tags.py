"""What is said of a model without weights."""

import pytest

from vlmtune.backbones.open_clip.loading import _weights
from vlmtune.cli.explain import LONGEST
from vlmtune.errors import UserError


def test_alternatives_come_before_at_most_five_tags():
    with pytest.raises(UserError, match=r"a weights file, 'random'.*, or a tag") as caught:
        _weights("ViT-B-32", None)
    assert len(str(caught.value)) < LONGEST
    assert str(caught.value).endswith(", …)")
