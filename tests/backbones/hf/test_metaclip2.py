import pytest
import torch
from transformers import AutoTokenizer, MetaClip2Model

from tests.backbones.hf_models import TEXTS, edit, write_metaclip2
from tests.refusals import refused
from vlmtune.backbones.hf.metaclip2 import MetaCLIP2
from vlmtune.types import FeatureSpec


@pytest.fixture
def path(tmp_path):
    return write_metaclip2(tmp_path / "metaclip2")


def test_the_end_token_is_pooled_though_its_id_is_low(path):
    backbone = MetaCLIP2(str(path))
    words = backbone.encode_text(TEXTS, FeatureSpec("words"))
    assert words.ids[1].tolist()[:3] == [0, words.ids[1, 1].item(), 2]
    assert words.ids[0, 1:9].min() > 2  # the highest id is a word
    model = MetaClip2Model.from_pretrained(path).eval()
    given = AutoTokenizer.from_pretrained(path)(TEXTS, padding=True, return_tensors="pt")
    given.pop("token_type_ids", None)
    with torch.no_grad():
        want = model.text_projection(model.text_model(**given).pooler_output)
    got = backbone.encode_text(TEXTS, FeatureSpec("pooled")).values
    torch.testing.assert_close(got, want)


def test_a_tokenizer_without_its_end_token_is_refused(path):
    edit(path, "tokenizer.json", post_processor=None)
    with refused(r"end with the token the model pools \(id 2\)"):
        MetaCLIP2(str(path))
