"""The examples of docs/retrieve.md for other libraries run, and give vlmtune's embeddings."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.backbones.hf_models import write_clip
from tests.export.test_merging import trained
from vlmtune.adapters.lora import LoRA
from vlmtune.backbones.hf_clip import HFCLIP
from vlmtune.backbones.open_clip import OpenClip
from vlmtune.export.merging import save_merged

PAGE = Path(__file__).parents[2] / "docs/retrieve.md"
FORMS = {"open_clip": None, "transformers": None, "sentence_transformers": "sentence-transformers"}


@pytest.mark.parametrize("library", FORMS)
def test_the_example_runs(library, tmp_path, model_folder, monkeypatch):
    pytest.importorskip(library)
    own = library == "open_clip"
    backbone = OpenClip(str(model_folder)) if own else HFCLIP(str(write_clip(tmp_path / "clip")))
    model = trained(backbone, LoRA())
    save_merged(tmp_path / "FOLDER", model, FORMS[library])
    Image.new("RGB", (32, 32), "red").save(tmp_path / "image.png")
    monkeypatch.chdir(tmp_path)
    if own:  # open_clip does not read words, which the tiny model knows alone
        monkeypatch.setattr("open_clip.get_tokenizer", lambda _: backbone.tokenizer.encode)
    (code,) = re.findall(rf"<!-- {library} -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(code, "docs/retrieve.md", "exec"), names)
    vectors = names["vectors"] if "vectors" in names else torch.from_numpy(names["texts"])
    vectors = torch.nn.functional.normalize(vectors.detach(), dim=-1)
    torch.testing.assert_close(vectors, model.encode_text("a red cube"), rtol=0, atol=1e-5)
