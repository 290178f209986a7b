"""The examples of docs/retrieve.md for other libraries run, and give vlmtune's embeddings."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.backbones.hf_models import write_clip, write_siglip
from tests.export.test_merging import trained
from tests.tiny import write_model
from vlmtune.adapters.lora import LoRA
from vlmtune.backbones import HFCLIP, OpenClip, SigLIP
from vlmtune.export import save_export, save_merged

PAGE = Path(__file__).parents[2] / "docs/retrieve.md"
MODELS = {
    "open_clip words": lambda folder: OpenClip(str(write_model(folder))),
    "open_clip own": lambda folder: OpenClip(str(write_model(folder, vocabulary=False))),
    "transformers clip": lambda folder: HFCLIP(str(write_clip(folder))),
    "transformers siglip": lambda folder: SigLIP(str(write_siglip(folder))),
    "sentence_transformers clip": lambda folder: HFCLIP(str(write_clip(folder))),
}


def run_example(mark):
    """Runs the code block of the page that is called `mark`; returns its names."""
    (code,) = re.findall(rf"<!-- {mark} -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(code, "docs/retrieve.md", "exec"), names)
    return names


def test_an_export_and_a_merged_folder_on_the_hub(hub, tmp_path):
    pytest.importorskip("sentence_transformers")
    model = trained(HFCLIP(str(write_clip(tmp_path / "base"))), LoRA())
    save_export(tmp_path / "mine", model.backbone, model.adapter, provenance={})
    save_merged(tmp_path / "merged", model, "sentence-transformers")
    hub("someone/mine", tmp_path / "mine")
    hub("someone/mine-merged", tmp_path / "merged")
    names = run_example("hub")
    merged = torch.from_numpy(names["merged"])
    torch.testing.assert_close(merged, names["exported"].cpu(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_the_example_runs(kind, tmp_path, monkeypatch, capfd):
    library = kind.split()[0]
    pytest.importorskip(library)
    model = trained(MODELS[kind](tmp_path / "model"), LoRA(targets=["query", "value"]))
    capfd.readouterr()
    form = "sentence-transformers" if library == "sentence_transformers" else None
    save_merged(tmp_path / "FOLDER", model, form)
    assert capfd.readouterr() == ("", "")
    Image.new("RGB", (32, 32), "red").save(tmp_path / "image.png")
    monkeypatch.chdir(tmp_path)
    names = run_example(library)
    vectors = names["vectors"] if "vectors" in names else torch.from_numpy(names["texts"])
    vectors = torch.nn.functional.normalize(vectors.detach(), dim=-1)
    texts = ["a red cube", "dog"][: len(vectors)]
    torch.testing.assert_close(vectors, model.encode_text(texts), rtol=0, atol=1e-5)
