from tests.refusals import refused
from vlmtune.backbones.base import Backbone


class Bare(Backbone):
    """A backbone of another package that lacks something."""

    def encode_image(self, pixels, spec):
        raise AssertionError

    def encode_text(self, texts, spec):
        raise AssertionError


def test_a_backbone_without_a_fingerprint_is_named():
    with refused("expected a fingerprint, got none of Bare: define it"):
        _ = Bare().fingerprint
