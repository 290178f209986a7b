"""A run starts from the trained weights of another model, of the same backbone and adapter."""

import pytest

from tests.export.test_files import trained
from tests.refusals import refused
from tests.runs import QUIET, module
from tests.tiny import write_model
from vlmtune.adapters import LastBlocks, LinearProbe
from vlmtune.export import save_export

pytestmark = QUIET


@pytest.fixture
def export(model_folder, tmp_path):
    backbone, adapter = trained(model_folder, LastBlocks(1, 1))
    save_export(tmp_path / "export", backbone, adapter, provenance={})
    return backbone, str(tmp_path / "export")


def test_the_weights_are_those_of_a_model_of_the_same_backbone_and_adapter(
    model_folder, export, tmp_path
):
    source, name = export
    made = module(model_folder, LastBlocks(1, 1), start_from=name)
    expected = dict(source.named_parameters())
    for key, parameter in made.backbone.named_parameters():
        assert parameter.equal(expected[key]), key
    with refused(r"adapter.init_args.image 2 here, 1 in .*: set them as it was trained"):
        module(model_folder, LastBlocks(2, 1), start_from=name)
    with refused("expected with model.start_from a model of this backbone and adapter"):
        module(model_folder, LinearProbe(), start_from=name)
    other = write_model(tmp_path / "other", seed=7)
    with refused("or other weights of it, as the backbone"):
        module(other, LastBlocks(1, 1), start_from=name)
